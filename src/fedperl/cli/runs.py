"""Runs: the demo, one training, what can be trained."""

import json
import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from fedperl.cli.common import AsJson, Quiet, Settings, console, rounds_bar, shown, stopped

if TYPE_CHECKING:
    from fedperl.parallel import Job
    from fedperl.settings import Config
    from fedperl.watching import Watch


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the four runs.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer or more rounds than the demo's own.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw finished and begun runs away first.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train ten synthetic hospitals with and without peers, beside the bounds: about two minutes, no download."""
    from fedperl.demo import METHODS, PAGE, SOURCES, run_demo
    from fedperl.report.tables import clients_table, community_lines, peers_table, runs_table, time_line

    if not quiet and not as_json:
        console.print(f"Ten synthetic hospitals, four methods; runs in {out}")
    try:
        with rounds_bar(hidden=quiet or as_json) as progress:
            bars: dict[str, Any] = {name: progress.add_task(name, total=None, accuracy="") for name in METHODS}
            results = run_demo(
                out, seed=seed, rounds=rounds, fresh=fresh, tick=lambda jobs: _show(progress, bars, jobs)
            )
    except KeyboardInterrupt:
        stopped("the same command goes on where the runs stopped")
    if as_json:
        print(json.dumps(results))
    elif not quiet:
        peer_run = results["FedPerl (T = 2, PA)"]
        console.print(runs_table(results), clients_table(results, SOURCES), peers_table(peer_run, len(SOURCES)))
        for line in community_lines(peer_run, SOURCES):
            console.print(line)
        console.print(f"Time of the FedPerl run: {time_line(peer_run['seconds'])}")
        print(f"Page: {out / PAGE}")


def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; without one the defaults and --set.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/NAME.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on exactly where the run in --out stopped.")] = False,
    tracker: Annotated[
        str | None, typer.Option(help="Also write all numbers into RUN/tracking, for tensorboard or mlflow.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the rounds in a browser on this machine; stops with the run.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --watch; 0: one that is free.")] = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train one run."""
    from fedperl.report.page_data import read_run
    from fedperl.report.page_summary import one_class
    from fedperl.report.tables import runs_table, time_line
    from fedperl.trackers import Tracker
    from fedperl.training import train as train_run

    if port and not watch:
        raise typer.BadParameter(f"{port} has no effect without --watch", param_hint="--port")
    loaded, folder = _to_train(config, out, settings or [], resume=resume)
    if loaded.privacy == "hospital":
        os.umask(0o077)
    tracked = None if tracker is None else Tracker(tracker, folder)
    try:
        live = _watch(folder, port) if watch else nullcontext()
        with live, rounds_bar(hidden=quiet or as_json) as progress, tracked or nullcontext():
            bar = progress.add_task(loaded.name, total=loaded.federation.rounds, accuracy="")
            results = train_run(
                loaded,
                folder,
                resume=resume,
                watchers=[
                    lambda p: progress.update(bar, completed=p.round, total=p.rounds, accuracy=shown(p.accuracy)),
                    *([] if tracked is None else [tracked]),
                ],
                say=lambda text: print(text, file=sys.stderr),
            )
            if tracked is not None:
                tracked.finish(results)
    except KeyboardInterrupt:
        stopped(f"go on with: fedperl train --resume --out {shlex.quote(str(folder))}")
    if as_json:
        print(json.dumps(results))
    elif not quiet:
        console.print(runs_table({loaded.name: results}), time_line(results["seconds"]))
        totals = results["totals"]
        if totals["rejected"]:
            print(f"{totals['rejected']} updates rejected or missing, {totals['void']} rounds void: see metrics.jsonl")
        if told := one_class(read_run(folder), "last"):
            print(told)
        print(f"Results in {folder}")


def _to_train(config: Path | None, out: Path | None, settings: list[str], *, resume: bool) -> tuple["Config", Path]:
    """Return what is trained and where; what should be known of it before is said."""
    from fedperl.config import hospital_note, load_config
    from fedperl.earlier import check_trainable
    from fedperl.errors import ConfigError
    from fedperl.federation.run_folder import RunFolder
    from fedperl.settings import research_note

    if config is None and not settings and not resume:
        raise typer.BadParameter("wanted a configuration (examples/fedperl.toml is one), --set, or --resume with --out")
    loaded = None
    if config is not None or not resume:
        loaded = load_config(config, settings)
        if config is not None and loaded.name == "run":
            try:
                loaded = loaded.changed(name=config.stem)
            except ConfigError:
                raise ConfigError(
                    f"{config}: the file gives the run its name, and {config.stem!r} cannot be one: wanted up to 100 "
                    "letters without / \\ [ and no dot in front, or --set name=..."
                ) from None
    folder = out or Path("runs") / (loaded.name if loaded is not None else "run")
    if loaded is None:
        loaded = RunFolder(folder).read_config()
        if settings:
            check_trainable(folder, loaded.written_by, RunFolder(folder).read_gone())
            loaded = load_config(folder / "config.toml", settings)
    elif resume:
        RunFolder(folder).read_config()  # refuses a folder without a run
    if what := research_note(loaded):
        print(f"privacy = {loaded.privacy!r}: not for real patients; {what}", file=sys.stderr)
    if what := hospital_note(loaded):
        print(what, file=sys.stderr)
    if loaded.peer_learning and max(loaded.peers.warmup + 1, loaded.peers.every) > loaded.federation.rounds:
        print("peers.warmup or peers.every: no client gets a peer in so few rounds", file=sys.stderr)
    return loaded, folder


def list_methods(
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/methods.md.")] = False,
) -> None:
    """List what can be trained, one line each, and the paper's table it belongs to."""
    from fedperl.config import methods
    from fedperl.report.methods_page import methods_page

    if as_markdown:
        print(methods_page(), end="")
        return
    if as_json:
        print(json.dumps({name: {"line": method.line, "paper": method.paper} for name, method in methods().items()}))
        return
    width = max(len(name) for name in methods())
    for name, method in methods().items():
        print(f"{name:{width}}  {method.line} [{method.paper}]")


def _watch(folder: Path, port: int) -> "Watch | nullcontext[None]":
    """Return the live view, its address printed; without a port that can be used, the run goes on without one."""
    from fedperl.watching import Watch

    try:
        live = Watch(folder, port)
    except OSError as error:
        print(f"fedperl: --watch: port {port} cannot be used ({error}); training goes on without it", file=sys.stderr)
        return nullcontext()
    print(f"Watch at {live.address}", file=sys.stderr, flush=True)
    return live


def _show(progress: Progress, bars: dict[str, Any], jobs: list["Job"]) -> None:
    from fedperl.federation.run_folder import RunFolder

    for job in jobs:
        lines = RunFolder(job.out).read_metrics()
        if lines:
            values = [numbers["accuracy"] for numbers in lines[-1]["validation"].values()]
            accuracy = f"{sum(values) / len(values):.3f}"
            rounds = job.config.federation.rounds
            progress.update(bars[job.name], completed=len(lines), total=rounds, accuracy=accuracy)
