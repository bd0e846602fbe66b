"""The command line: parse, call, print. Torch is imported inside the commands that need it."""

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedperl import __version__
from fedperl.errors import FedPerlError

if TYPE_CHECKING:
    from fedperl.parallel import Job

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Semi-supervised federated peer learning.",
)
data_app = typer.Typer(no_args_is_help=True, help="Images: what is there and who holds it.")
app.add_typer(data_app, name="data")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: peers.T=3.")
]

console = Console(width=None if sys.stdout.isatty() else 130)


def main() -> None:
    """Run the command line; an error a person can act on is one sentence and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "±" still gets its table
    try:
        app()
    except (FedPerlError, OSError) as error:
        print(f"fedperl: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedperl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Semi-supervised federated peer learning for medical images."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the four runs.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer or more rounds than the demo's own.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw finished and begun runs away first.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train ten synthetic hospitals with and without peers, beside the bounds: about two minutes, no download."""
    from fedperl.demo import METHODS, SOURCES, run_demo
    from fedperl.report.tables import clients_table, community_lines, peers_table, runs_table, time_line

    if not quiet and not as_json:
        console.print(f"Ten synthetic hospitals, four methods; runs in {out}")
    try:
        with _progress(hidden=quiet or as_json) as progress:
            bars: dict[str, Any] = {name: progress.add_task(name, total=None, accuracy="") for name in METHODS}
            results = run_demo(
                out, seed=seed, rounds=rounds, fresh=fresh, tick=lambda jobs: _show(progress, bars, jobs)
            )
    except KeyboardInterrupt:
        _stopped("the same command goes on where the runs stopped")
    if as_json:
        print(json.dumps(results))
    elif not quiet:
        peer_run = results["FedPerl (T = 2, PA)"]
        console.print(runs_table(results), clients_table(results, SOURCES), peers_table(peer_run, len(SOURCES)))
        for line in community_lines(peer_run, SOURCES):
            console.print(line)
        console.print(f"Time of the FedPerl run: {time_line(peer_run['seconds'])}")


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; the defaults without one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/NAME.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on exactly where the run in --out stopped.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train one run."""
    from fedperl.config import load_config
    from fedperl.federation.run_folder import RunFolder
    from fedperl.report.tables import runs_table, time_line
    from fedperl.training import train as train_run

    loaded = None
    if config is not None or not resume:
        loaded = load_config(config, settings or [])
        if config is not None and loaded.name == "run":
            loaded = loaded.model_copy(update={"name": config.stem})
    folder = out or Path("runs") / (loaded.name if loaded is not None else "run")
    if loaded is None:
        loaded = load_config(folder / "config.toml", settings or []) if settings else RunFolder(folder).read_config()
    elif resume:
        RunFolder(folder).read_config()  # refuses a folder without a run
    if loaded.privacy == "research" and not as_json:
        print("privacy = 'research': not for real patients; raw peers may reach other clients", file=sys.stderr)
    try:
        with _progress(hidden=quiet or as_json) as progress:
            bar = progress.add_task(loaded.name, total=loaded.federation.rounds, accuracy="")
            results = train_run(
                loaded,
                folder,
                resume=resume,
                watchers=[lambda p: progress.update(bar, completed=p.round, accuracy=f"{p.accuracy:.3f}")],
            )
    except KeyboardInterrupt:
        _stopped(f"go on with: fedperl train --resume --out {folder}")
    if as_json:
        print(json.dumps(results))
    elif not quiet:
        console.print(runs_table({loaded.name: results}), time_line(results["seconds"]))
        totals = results["totals"]
        if totals["rejected"]:
            print(f"{totals['rejected']} updates rejected or missing, {totals['void']} rounds void: see metrics.jsonl")
        print(f"Results in {folder}")


@app.command("methods")
def list_methods() -> None:
    """List what can be trained, one line each."""
    from fedperl.config import methods

    for name, line in methods().items():
        print(f"{name:12} {line}")


@data_app.command("show")
def data_show(
    config: Annotated[
        Path | None, typer.Argument(help="A configuration, or a store's folder; the demo's without.")
    ] = None,
    settings: Settings = None,
    sheet: Annotated[Path | None, typer.Option(help="Also draw a contact sheet of dermsim into this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who holds which images, for what and of which class."""
    from fedperl.config import load_config
    from fedperl.data.store import Store
    from fedperl.demo import demo_config
    from fedperl.report.tables import store_table
    from fedperl.training import open_store

    if config is not None and config.is_dir():
        store = Store.open(config)
    elif config is not None or settings:
        store = open_store(load_config(config, settings or []))
    else:
        store = open_store(demo_config("fedperl", 1))
    if as_json:
        print(store.partition.to_json())
    else:
        console.print(store_table(store))
    if sheet is not None:
        from fedperl.data.dermsim import contact_sheet

        contact_sheet(size=64).save(sheet, optimize=True)
        if not as_json:
            print(f"Contact sheet in {sheet}")


def _progress(*, hidden: bool) -> Progress:
    return Progress(
        TextColumn("{task.description:20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds, time left"),
        TimeRemainingColumn(),
        TextColumn("validation accuracy {task.fields[accuracy]}"),
        console=console,
        disable=hidden,
    )


def _show(progress: Progress, bars: dict[str, Any], jobs: list["Job"]) -> None:
    from fedperl.federation.run_folder import RunFolder

    for job in jobs:
        lines = RunFolder(job.out).read_metrics()
        if lines:
            values = [numbers["accuracy"] for numbers in lines[-1]["validation"].values()]
            accuracy = f"{sum(values) / len(values):.3f}"
            rounds = job.config.federation.rounds
            progress.update(bars[job.name], completed=len(lines), total=rounds, accuracy=accuracy)


def _stopped(what_next: str) -> None:
    print(f"\nfedperl: stopped; {what_next}", file=sys.stderr)
    raise SystemExit(130)
