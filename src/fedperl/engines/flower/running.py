"""A run on Flower from outside: start it, follow it until it ends."""

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import tomli_w

from fedperl.config import dump
from fedperl.engines.flower.environment import APP, CONNECTION, flwr
from fedperl.engines.flower.server_folder import Serving
from fedperl.errors import RunError
from fedperl.federation.rounds import Progress, Watcher
from fedperl.settings import Config

POLL = 0.5
START = 120.0
"""Seconds within which Flower must have started our program."""


def start_run(
    config: Config,
    out: Path,
    env: dict[str, str],
    *,
    resume: bool,
    deadline: float,
    patience: float,
    simulated: int = 0,
) -> str:
    """Have Flower start a run of this configuration, and return the name of the attempt.

    Args:
        simulated: how many clients a simulation has; 0 where sites are real.
    """
    out.mkdir(parents=True, exist_ok=True)
    attempt = secrets.token_hex(8)
    given = {
        "config": dump(config),
        "out": str(out.resolve()) if simulated else "",  # sites are told all of this
        "attempt": attempt,
        "resume": resume,
        "simulated": simulated > 0,
        "deadline": float(deadline),
        "patience": float(patience),
    }
    file = Path(env["FLWR_HOME"]) / f"run_{attempt}.toml"
    file.write_text(tomli_w.dumps(given))
    try:
        arguments = ["run", str(APP), CONNECTION, "--run-config", str(file)]
        if simulated:
            arguments += ["--federation-config", f"num-supernodes={simulated} client-resources-num-cpus=1"]
        flwr(arguments, env)
    finally:
        file.unlink()
    return attempt


def follow(
    out: Path, attempt: str, rounds: int, watchers: list[Watcher], alive: Callable[[], None] = lambda: None
) -> None:
    """Return when the run has ended well; watchers are told of its rounds.

    Args:
        alive: raises where the run's surroundings are gone.
    Raises:
        RunError: it failed, or its program is gone.
    """
    serving, told, began = Serving(out / "serving.json"), 0, time.monotonic()
    while True:
        alive()
        said = serving.read()
        refused = out / f"refused_{attempt}"
        if refused.exists():
            why = refused.read_text()
            refused.unlink()
            raise RunError(why)
        if said.get("attempt") != attempt:
            if time.monotonic() - began > START:
                raise RunError(f"{out}: Flower did not start the run within {START:.0f} s; its log says why")
            time.sleep(POLL)
            continue
        told = _tell(out, told, rounds, watchers)
        if said["state"] == "finished":
            return
        if said["state"] == "stopped":
            raise RunError(f"{out}: the run was stopped; go on with --resume")
        if said["state"] == "failed":
            raise RunError(str(said["why"]))
        if not serving.alive():
            raise RunError(f"{out}: the program that served the run is gone; go on with --resume")
        time.sleep(POLL)


def _tell(out: Path, told: int, rounds: int, watchers: list[Watcher]) -> int:
    """Tell watchers of rounds they do not know of, and return the last."""
    try:
        lines = (out / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return told
    for text in lines[told:]:
        try:
            line = json.loads(text)
        except ValueError:  # being written
            break
        told = line["round"]
        found = [numbers["accuracy"] for numbers in line["validation"].values() if "accuracy" in numbers]
        for watcher in watchers:
            watcher(Progress(told, rounds, sum(found) / len(found) if found else None, None))
    return told
