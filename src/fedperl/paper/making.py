"""What `fedperl paper` does: plan the runs behind tables and figures, train them, and write each from their folders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedperl.compare import is_finished, train_plan
from fedperl.config import nearest
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.evaluating import evaluate, open_unseen
from fedperl.paper.artefacts import ARTEFACTS
from fedperl.paper.content import Artefact
from fedperl.paper.found import GLOBAL, Found, read_trained
from fedperl.paper.runs import SSFL, Scale, find_scale, paper_runs
from fedperl.paper.writing import Written, write_artefact, write_pages
from fedperl.parallel import Job
from fedperl.suite import Plan, Suite, plan_of
from fedperl.training import open_store

UNSEEN = f"paper-{GLOBAL}"
"""The file of the answers on the unseen client, in a run's folder `evaluations`."""
REASONS = 3
"""Most reasons of failed runs that are told."""
MADE = "_paper"
"""The folder of tables and figures, beside those of the runs."""


@dataclass(frozen=True)
class PaperPlan:
    """Tables and figures, and what must be trained for them."""

    artefacts: tuple[Artefact, ...]
    plan: Plan
    scale: Scale
    about: str
    """What differs from the paper, in a sentence that stands on every page."""

    def folders(self, run: str) -> list[Path]:
        """Return the folders of a run, one a seed."""
        return [job.out for point in self.plan.points if point.run.name == run for job in point.jobs.values()]

    def jobs(self, artefact: Artefact) -> list[Job]:
        """Return the runs that a table or figure is made from."""
        wanted = {*artefact.runs}
        return [job for point in self.plan.points if point.run.name in wanted for job in point.jobs.values()]


def plan_paper(
    names: Sequence[str],
    *,
    scale: str = "full",
    out: Path | None = None,
    seeds: int | None = None,
    overrides: Sequence[str] = (),
) -> PaperPlan:
    """Return what would be trained for some tables and figures, every configuration resolved.

    Args:
        names: of tables and figures, or "all".
        scale: tiny, small, full, or a TOML file.
        out: the folder of the runs, by default runs/paper-SCALE.
        seeds: how many, by default those of the scale.
        overrides: `a.b=c`, laid over the settings of every run.
    Raises:
        ConfigError: a name, a scale or a setting is unknown or cannot be used.
    """
    size = find_scale(scale)
    artefacts = chosen(names)
    if not size.poc:
        artefacts = tuple(one for one in artefacts if one.name != "table1")
    every = paper_runs(size)
    needed = dict.fromkeys(run for one in artefacts for run in one.runs if run in every)
    runs = tuple(every[run] for run in every if run in needed)
    if not runs:
        raise ConfigError(f"scale {scale!r} has no settings for {', '.join(names)}; wanted a table [poc] in it")
    number = range(max(size.seeds) + 1, max(size.seeds) + 1 + (seeds or 0))
    chosen_seeds = size.seeds if seeds is None else (*size.seeds, *number)[:seeds]
    name = f"paper-{Path(scale).stem}"
    baseline = SSFL if any(run.name == SSFL for run in runs) else runs[0].name
    suite = Suite(name=name, baseline=baseline, seeds=chosen_seeds, runs=runs)
    changed = [f"--set {text}" for text in overrides]
    about = " ".join(filter(None, [size.about, f"Changed for this page: {', '.join(changed)}." if changed else ""]))
    plan = plan_of(suite, Path("runs") / name if out is None else out, f"scale {scale}", overrides)
    return PaperPlan(artefacts, plan, size, about)


def chosen(names: Sequence[str]) -> tuple[Artefact, ...]:
    """Return the tables and figures of these names, in the paper's order; "all" is every one.

    Raises:
        ConfigError: there is none of that name.
    """
    for name in names:
        if name != "all" and name not in ARTEFACTS:
            raise ConfigError(
                f"{name!r} is no table or figure{nearest(name, ARTEFACTS)}; known: all, {', '.join(ARTEFACTS)}"
            )
    return tuple(one for one in ARTEFACTS.values() if "all" in names or one.name in names)


def make_paper(
    paper: PaperPlan,
    *,
    workers: int | None = None,
    tick: Callable[[list[Job]], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Written:
    """Train what is not there yet, then write every table and figure whose runs are all there.

    Raises:
        FedPerlError: a folder holds a run with other settings, an artefact's run failed, or images cannot be used;
            what is finished stays, and what could be made is written first.
    """
    with train_plan(paper.plan, workers=workers, tick=tick) as failed:
        done = {job.name for job in paper.plan.jobs if job.name not in failed}
        ready = [one for one in paper.artefacts if all(job.name in done for job in paper.jobs(one))]
        if ready:
            answer_unseen(paper, ready, say)
            written = _write(paper, ready, say)
    if failed:
        missing = ", ".join(one.name for one in paper.artefacts if one not in ready)
        raise RunError(f"not made: {missing}; {_reasons(failed)}")
    return written


def _write(paper: PaperPlan, artefacts: Sequence[Artefact], say: Callable[[str], None]) -> Written:
    """Write tables and figures whose runs are finished."""
    found = _found(paper, artefacts)
    folder = paper.plan.out / MADE
    folder.mkdir(exist_ok=True)
    made = []
    for one in artefacts:
        say(f"{one.name}: {one.title}")
        content = one.make(found)
        write_artefact(one, content, folder, found)
        made.append((one, content))
    return write_pages(made, folder, found)


def _reasons(failed: Mapping[str, str]) -> str:
    """Return why runs failed, each reason once."""
    runs: dict[str, list[str]] = {}
    for name, reason in failed.items():
        runs.setdefault(reason, []).append(name)
    told = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
        for reason, names in runs.items()
    ]
    more = sum(len(names) for names in list(runs.values())[REASONS:])
    return "; ".join([*told[:REASONS], *([f"and {more} runs more"] if more else [])])


def answer_unseen(paper: PaperPlan, artefacts: Sequence[Artefact], say: Callable[[str], None]) -> None:
    """Ask the best global model of each run about the unseen client, where that was not yet done."""
    names = dict.fromkeys(run for one in artefacts if one.unseen for run in one.runs)
    folders = [folder for name in names for folder in paper.folders(name)]
    waiting = [folder for folder in folders if not (folder / "evaluations" / f"{UNSEEN}.json").exists()]
    store: Store | None = None
    for place, folder in enumerate(waiting, start=1):
        say(f"unseen client: model {place} of {len(waiting)}")
        store = store or open_unseen(folder, paper.scale.unseen)
        device = next(job.config.device for job in paper.plan.jobs if job.out == folder)
        evaluate(folder, store, model=GLOBAL, name="paper", device=device)


def _found(paper: PaperPlan, artefacts: Sequence[Artefact]) -> Found:
    names = {run for one in artefacts for run in one.runs}
    unseen = {run for one in artefacts if one.unseen for run in one.runs}
    runs = {
        point.run.name: read_trained(
            point.run.name,
            [job.out for job in point.jobs.values()],
            UNSEEN if point.run.name in unseen else None,
        )
        for point in paper.plan.points
        if point.run.name in names
    }
    jobs = {point.run.name: next(iter(point.jobs.values())) for point in paper.plan.points}

    def images(run: str) -> Store:
        job = jobs[run]
        return open_store(job.config) if job.store is None else Store.open(job.store)

    outlier = None if paper.scale.outlier is None else str(paper.scale.outlier)
    return Found(runs, paper.about, images, outlier)


def progress(paper: PaperPlan) -> list[tuple[Artefact, int, int]]:
    """Return each table and figure with how many of its runs are finished, and how many there are."""
    finished = {job.name for job in paper.plan.jobs if is_finished(job)}
    found = []
    for one in paper.artefacts:
        jobs = paper.jobs(one)
        found.append((one, sum(job.name in finished for job in jobs), len(jobs)))
    return found
