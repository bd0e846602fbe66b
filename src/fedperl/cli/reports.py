"""The report: one page to open in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from fedperl.cli.common import Quiet

PAGE = b"<!doctype html>"
"""How every page begins."""


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the others are compared with the first.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the run's folder, or here for several.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Its heading; by default the names of the runs.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page: who gains, who is harmed, how far to trust it, where it should abstain."""
    from fedperl.errors import RunError
    from fedperl.report.page import write_report

    path = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    if path.exists() and not path.is_dir() and not _is_page(path):
        raise RunError(f"{path}: is there already and is no page; wanted another file to write the page to")
    size = write_report(runs, path, title)
    if not quiet:
        print(f"Report in {path} ({size / 1e6:.1f} MB): open it in a browser")


def _is_page(path: Path) -> bool:
    """Return whether nothing but a page would be lost by writing there: never a run's file or a device."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(PAGE)).lower() in (b"", PAGE)
