"""Suites: many runs, one table."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID

from fedperl.cli.common import AsJson, Gpus, Quiet, Settings, bar, console, stopped

if TYPE_CHECKING:
    from fedperl.parallel import Job
    from fedperl.suite import Plan


def compare(
    suite: Annotated[str, typer.Argument(help="A TOML file, or one that ships: dermsim, paper_grid.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; by default those of the suite.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; by default runs/NAME.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side; by default what the cores allow.")
    ] = None,
    gpus: Gpus = None,
    settings: Settings = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown and nothing else.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a suite's runs for several seeds and compare them with its baseline; the same command goes on."""
    from fedperl.compare import compare as compare_runs
    from fedperl.compare import default_workers, gpu_names
    from fedperl.config import hospital_note
    from fedperl.report.tables import comparison_markdown, comparison_notes, comparison_table
    from fedperl.settings import research_note
    from fedperl.suite import plan_suite

    cards = gpu_names(gpus) if gpus is not None else []
    plan = plan_suite(suite, out, seeds=seeds, overrides=[*(["device=cuda"] if cards else []), *(settings or [])])
    side_by_side, silent = (
        min(workers or len(cards), len(cards)) if cards else workers or default_workers(plan),
        quiet or as_json or markdown,
    )
    for name, used in {p.run.name: next(iter(p.jobs.values())).config for p in plan.points}.items():
        if what := research_note(used):
            print(f"{name}: privacy = {used.privacy!r}: not for real patients; {what}", file=sys.stderr)
        if what := hospital_note(used):
            print(f"{name}: {what}", file=sys.stderr)
    if not silent:
        console.print(f"{len(plan.jobs)} runs, {side_by_side} at a time, in {plan.out}", markup=False)
    try:
        with bar("rounds", hidden=silent) as progress:
            found = compare_runs(plan, workers=side_by_side, tick=Bars(progress, plan), gpus=cards)
    except KeyboardInterrupt:
        stopped("the same command goes on where the runs stopped")
    if as_json:
        print(json.dumps(found))
    elif markdown:
        print(comparison_markdown(found), end="")
    elif not quiet:
        console.print(comparison_table(found))
        for line in comparison_notes(found):
            console.print(line, markup=False, highlight=False)
        console.print(f"Also in {plan.out / 'comparison.json'} and comparison.md", markup=False, highlight=False)


class Bars:
    """One bar over all rounds of all runs, and one for each run that is being trained."""

    def __init__(self, progress: Progress, plan: "Plan") -> None:
        from fedperl.compare import rounds_done

        self._done = rounds_done
        self._progress, self._jobs, self._bars = progress, plan.jobs, dict[str, TaskID]()
        total = sum(job.config.federation.rounds for job in plan.jobs)
        self._all = progress.add_task("all runs", total=total, completed=sum(map(rounds_done, plan.jobs)))

    def __call__(self, running: "list[Job]") -> None:
        """Move the bars to where the runs are."""
        names = {job.name for job in running}
        for name in [name for name in self._bars if name not in names]:
            self._progress.remove_task(self._bars.pop(name))
        for job in running:
            done = self._done(job)
            if job.name not in self._bars:
                self._bars[job.name] = self._progress.add_task(
                    escape(job.name), total=job.config.federation.rounds, completed=done
                )
            self._progress.update(self._bars[job.name], completed=done)
        self._progress.update(self._all, completed=sum(map(self._done, self._jobs)))
