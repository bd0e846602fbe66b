"""The report: one page to open in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from fedperl.cli.common import Quiet


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the others are compared with the first.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the run's folder, or here for several.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Its heading; by default the names of the runs.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page: who gains, who is harmed, how far to trust it, where it should abstain."""
    from fedperl.report.page import write_report

    path = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    size = write_report(runs, path, title)
    if not quiet:
        print(f"Report in {path} ({size / 1e6:.1f} MB): open it in a browser")
