"""What the commands share: options, the console, progress bars, how to stop."""

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: peers.T=3.")
]

Gpus = Annotated[
    str | None, typer.Option(help="Train on GPUs, a run on each at a time: all, or numbers such as 0,1,3.")
]

AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Go on where a table lists images that are not there.")
]
AllowBad = Annotated[bool, typer.Option("--allow-bad", help="Go on where more than 1 % of the files cannot be used.")]

console = Console(width=None if sys.stdout.isatty() else 130)


def bar(unit: str, *, hidden: bool, number: str = "") -> Progress:
    """Return progress bars with the time left; `number` names a value shown at their end, the field `accuracy`."""
    columns = [TextColumn(f"{number} {{task.fields[accuracy]}}")] if number else []
    return Progress(
        TextColumn("{task.description:20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, time left"),
        TimeRemainingColumn(),
        *columns,
        console=console,
        disable=hidden,
        speed_estimate_period=300.0,  # seconds; a round may take a minute
    )


def rounds_bar(*, hidden: bool) -> Progress:
    """Return progress bars that count rounds."""
    return bar("rounds", hidden=hidden, number="validation accuracy")


def shown(accuracy: float | None) -> str:
    """Return an accuracy as the bars show it."""
    return "·" if accuracy is None else f"{accuracy:.3f}"


def stopped(what_next: str) -> NoReturn:
    """End after Ctrl-C, saying how to go on."""
    print(f"\nfedperl: stopped; {what_next}", file=sys.stderr)
    raise SystemExit(130)
