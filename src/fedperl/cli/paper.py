"""The paper's tables and figures, ours beside theirs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedperl.cli.common import Gpus, Quiet, Settings, bar, console, stopped
from fedperl.cli.suites import Bars

if TYPE_CHECKING:
    from fedperl.paper.making import PaperPlan


def paper(
    what: Annotated[list[str] | None, typer.Argument(help="Names, as table2 figure3, or all; none: list them.")] = None,
    scale: Annotated[str, typer.Option(help="tiny (minutes), small, full (the paper's), or a TOML file.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; by default those of the scale.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and results; by default runs/paper-SCALE.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side; by default what the cores allow.")
    ] = None,
    gpus: Gpus = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be trained, and what is there, and stop.")
    ] = False,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Make tables and figures of the paper, ours beside its own; trains what is missing, the same command goes on."""
    from fedperl.compare import default_workers, gpu_names
    from fedperl.paper.making import make_paper, plan_paper

    cards = gpu_names(gpus) if gpus is not None else []
    overrides = [*(["device=cuda"] if cards else []), *(settings or [])]
    found = plan_paper(what or ["all"], scale=scale, out=out, seeds=seeds, overrides=overrides)
    if plan or not what:
        _print_plan(found)
        return
    side_by_side = min(workers or len(cards), len(cards)) if cards else workers or default_workers(found.plan)
    if not quiet:
        console.print(f"{len(found.plan.jobs)} runs, {side_by_side} at a time, in {found.plan.out}", markup=False)
        if found.about:
            console.print(found.about, markup=False, highlight=False)
    try:
        with bar("rounds", hidden=quiet) as progress:
            task = progress.add_task("tables and figures", total=None, visible=False)

            def say(text: str) -> None:
                progress.update(task, description=text, visible=True)

            written = make_paper(found, workers=side_by_side, tick=Bars(progress, found.plan), say=say, gpus=cards)
    except KeyboardInterrupt:
        stopped("the same command goes on where the runs stopped")
    if not quiet:
        console.print(f"{len(written.names)} tables and figures: {written.page}", markup=False, highlight=False)


def _print_plan(found: "PaperPlan") -> None:
    from fedperl.paper.making import progress

    table = Table(title=f"{len(found.plan.jobs)} runs in {found.plan.out}")
    for name in ("name", "what", "in the paper"):
        table.add_column(name)
    table.add_column("runs there", justify="right")
    for artefact, done, every in progress(found):
        table.add_row(artefact.name, artefact.title, artefact.where, f"{done}/{every}")
    console.print(table)
    if found.about:
        console.print(found.about, markup=False, highlight=False)
