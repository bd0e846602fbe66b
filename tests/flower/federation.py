"""A real federation on this machine: SuperLink with TLS and authentication, sites with keys, users' own commands."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedperl.engines.flower.site_folder import free_port

SLOW = 5
"""How many times longer than on an idle machine a test waits before it gives up."""

FEDPERL = [sys.executable, "-m", "fedperl"]
CONFIG = """\
name = "{name}"
privacy = "{privacy}"
threads = 1
[data]
size = 32
scale = 0.1
[model]
net = "small_cnn"
[federation]
rounds = {rounds}
cohort = {cohort}
steps = 2
own_share = {own_share}
exclude = [5, 6, 7, 8, 9]
[peers]
warmup = 1
"""


class Federation:
    """The server and its sites, each with a folder and a process; all end with `close`."""

    def __init__(self, root: Path) -> None:
        self.root, self.server, self.port = root, root / "server", free_port()
        self.public = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.config = root / "run.toml"
        self.write_config()

    def write_config(
        self,
        name: str = "run",
        rounds: int = 6,
        cohort: int = 3,
        privacy: str = "recommended",
        own_share: float = 0.0,
    ) -> None:
        """Write the configuration of the next run."""
        self.name = name
        text = CONFIG.format(name=name, rounds=rounds, cohort=cohort, privacy=privacy, own_share=own_share)
        self.config.write_text(text)

    # Processes

    def start(self, name: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on; its output goes to logs/NAME.log."""
        (self.root / "logs").mkdir(exist_ok=True)
        with (self.root / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*FEDPERL, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.root,
                env=os.environ | env,
            )
        return self.processes[name]

    def kill(self, name: str, sign: int = signal.SIGKILL) -> None:
        """End a process and its children at once."""
        process = self.processes.pop(name)
        os.killpg(process.pid, sign)
        process.wait(30 * SLOW)

    def close(self) -> None:
        """End everything."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    continue
            time.sleep(1.0)
        for process in self.processes.values():
            process.wait(30 * SLOW)

    def call(self, *arguments: str, check: bool = True, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command, limit = [*FEDPERL, *arguments], SLOW * seconds
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=limit, check=False)
        if check and done.returncode:
            raise AssertionError(f"fedperl {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def log(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.root / "logs" / f"{name}.log").read_text(errors="replace")

    # The federation

    def start_server(self) -> None:
        """Serve, and wait until it answers."""
        ports = ("--port", str(self.port), "--public", str(self.public))
        self.start("server", "server", "start", "--host", "localhost", *ports)
        wait(lambda: "not running" not in self.status()["server"], 60, "the server")

    def add_site(self, number: int, store: Path) -> None:
        """Make a site's folder and register its key."""
        name = f"site_{number}"
        self.call("site", "init", name, "--server", f"127.0.0.1:{self.port}", "--data", str(store))
        text = (self.root / name / "site.toml").read_text().replace('threads = "auto"', "threads = 1")
        (self.root / name / "site.toml").write_text(text)
        (self.root / name / "ca.crt").write_bytes((self.server / "keys" / "ca.crt").read_bytes())
        self.call("server", "register", f"{name}/site.pub", "--client", str(number))

    def join(self, number: int, **env: str) -> None:
        """Start a site."""
        self.start(f"site_{number}", "site", "join", f"site_{number}", **env)

    def status(self) -> dict[str, Any]:
        """Return how the federation stands."""
        done = self.call("server", "status", "--json", check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"server": "not running"}
        return found

    def wait_for_sites(self, count: int, seconds: float = 60) -> None:
        """Wait until so many sites are online."""
        wait(lambda: list(self.status()["clients"].values()).count("online") == count, seconds, f"{count} sites online")

    def begin(self, *arguments: str) -> None:
        """Start a run and come back at once; `ended` waits for it."""
        self.start("run", "server", "run", "run.toml", "-q", *arguments)

    def ended(self, seconds: float) -> int:
        """Return how the run that was begun has ended."""
        return self.processes.pop("run").wait(SLOW * seconds)

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.server / "runs" / self.name

    def round(self) -> int:
        """Return the last round that was finished."""
        path = self.out / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_for_round(self, round: int, seconds: float = 120) -> None:
        """Wait until a round is finished."""
        wait(lambda: self.round() >= round, seconds, f"round {round}")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the rounds."""
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def serving_pid(self) -> int:
        """Return the process that serves the run."""
        return int(json.loads((self.out / "serving.json").read_text())["pid"])

    def bytes_of_server(self) -> bytes:
        """Return every byte that the server has on disk, with its logs."""
        files = [path for path in [*self.server.rglob("*"), self.root / "logs" / "server.log"] if path.is_file()]
        return b"\n".join(path.read_bytes() for path in files)


def wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it was not so in time.
    """
    until = time.monotonic() + SLOW * seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {SLOW * seconds:.0f} s")
        time.sleep(0.3)


def accepted(lines: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return whose updates each round took."""
    return {line["round"]: line["accepted"] for line in lines}
