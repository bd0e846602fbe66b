"""What `fedperl paper` does: plan the runs behind tables and figures, train them, and write each from their folders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedperl.compare import is_finished, train_plan
from fedperl.config import flat, nearest, override
from fedperl.data.store import ABOUT, Store
from fedperl.errors import ConfigError, FedPerlError, RunError
from fedperl.evaluating import evaluate, open_unseen
from fedperl.files import digest
from fedperl.learn.weights import resolve_weights
from fedperl.opening import open_store
from fedperl.paper.artefacts import ARTEFACTS
from fedperl.paper.content import Artefact
from fedperl.paper.found import GLOBAL, Found, Trained, read_trained
from fedperl.paper.runs import ROWS, SSFL, Scale, find_scale, paper_runs
from fedperl.paper.writing import Written, write_artefact, write_pages
from fedperl.parallel import Job
from fedperl.suite import Plan, Suite, plan_of

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

    def runs(self, artefact: Artefact) -> list[str]:
        """Return the names of the runs that a table or figure is made from, at this scale."""
        planned = {point.run.name for point in self.plan.points}
        return [run for run in artefact.runs if run in planned]

    def jobs(self, artefact: Artefact) -> list[Job]:
        """Return the same as jobs, one a seed."""
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
    for text in overrides:
        if not set(ROWS).isdisjoint(flat(override(text))):
            raise ConfigError(
                f"--set {text}: decides what a row of the tables is; wanted a setting that all rows share"
            )
    if "table1" in names and not size.poc:
        raise ConfigError(f"scale {scale!r} has no settings for table1; wanted tables [poc.all] and [poc.TASK] in it")
    artefacts = tuple(one for one in artefacts if size.poc or one.name != "table1")
    every = paper_runs(size)
    needed = dict.fromkeys(run for one in artefacts for run in one.runs if run in every)
    runs = tuple(every[run] for run in every if run in needed)
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
    gpus: Sequence[str] = (),
) -> Written:
    """Train what is not there yet, then write every table and figure whose runs can all be used.

    Raises:
        FedPerlError: the unseen client or matplotlib is missing, a folder holds a run with other settings, or a run or
            an artefact failed; what is finished stays, and what could be made is written first.
    """
    _check_before(paper)
    with train_plan(paper.plan, workers=workers, tick=tick, gpus=gpus) as failed:
        trained = [one for one in paper.artefacts if not any(job.name in failed for job in paper.jobs(one))]
        failed |= _answer_unseen(paper, trained, say)
        runs, unusable = _read(paper, trained)
        failed |= unusable
        found = _found(paper, runs)
        folder = paper.plan.out / MADE
        folder.mkdir(exist_ok=True)
        made = []
        for one in (one for one in trained if all(run in runs for run in paper.runs(one))):
            say(f"{one.name}: {one.title}")
            try:
                content = one.make(found)
                write_artefact(one, content, folder, found)
                made.append((one, content))
            except FedPerlError as error:
                failed[one.name] = str(error)
        if made:
            whole = len(paper.artefacts) >= len(ARTEFACTS) - 1
            written = write_pages(
                made, folder, found, "paper" if whole else "-".join(one.name for one in paper.artefacts)
            )
    if failed:
        done = {one.name for one, _ in made}
        missing = ", ".join(one.name for one in paper.artefacts if one.name not in done)
        raise RunError(f"not made: {missing or 'nothing'}; {_reasons(failed)}")
    return written


def _check_before(paper: PaperPlan) -> None:
    """Refuse, before anything is trained, what would be missed after it."""
    if any(not one.name.startswith("table") for one in paper.artefacts) and find_spec("matplotlib") is None:
        raise ConfigError("figures need matplotlib: pip install '.[paper]'")
    jobs = [
        job for point in paper.plan.points for job in point.jobs.values() if not (job.out / "results.json").exists()
    ]
    stores = dict.fromkeys((job.config.data.source, job.config.data.size) for job in jobs)
    problems = [_store_fault(source, size) for source, size in stores]
    problems += [_weights_fault(weights) for weights in dict.fromkeys(job.config.model.weights for job in jobs)]
    unseen = paper.scale.unseen
    if any(one.unseen for one in paper.artefacts) and unseen != "dermsim" and not Path(unseen).is_dir():
        problems.append(f"unseen = {unseen!r}: no such folder; wanted a store of the client that no model saw")
    if any(problems):
        raise ConfigError("; ".join(filter(None, problems)))


def _store_fault(source: str, size: int) -> str:
    """Return what is wrong with the images of runs; nothing where they can be used."""
    if source == "dermsim":
        return ""
    try:
        found = Store.open(Path(source), decode=False).size
    except FedPerlError as error:
        return str(error)
    return "" if found == size else f"{source}: holds images of {found} px; the scale's runs have data.size = {size}"


def _weights_fault(setting: str) -> str:
    """Return that the starting weights of runs are missing; nothing where they are there or drawn."""
    path = resolve_weights(setting)
    if path is None or path.is_file():
        return ""
    made_by = "fedperl weights import" if setting == "imagenet" else "fedperl pretrain"
    return f"model.weights = {setting!r}: {path} is not there; wanted a file of `{made_by}`"


def _read(paper: PaperPlan, artefacts: Sequence[Artefact]) -> tuple[dict[str, Trained], dict[str, str]]:
    """Return the runs that can be used, and why the others cannot."""
    needed = dict.fromkeys(run for one in artefacts for run in paper.runs(one))
    unseen = {run for one in artefacts if one.unseen for run in one.runs}
    runs, unusable = {}, {}
    for name in needed:
        try:
            runs[name] = read_trained(name, paper.folders(name), _answers(paper.scale) if name in unseen else None)
        except FedPerlError as error:
            unusable[name] = str(error)
    return runs, unusable


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


def _answers(scale: Scale) -> str:
    """Return the name of the file with the answers on the unseen client: another for other images."""
    about = Path(scale.unseen) / ABOUT
    images = scale.unseen.encode() + (about.read_bytes() if about.is_file() else b"")
    return f"paper-{digest(images)[:8]}"


def _answer_unseen(paper: PaperPlan, artefacts: Sequence[Artefact], say: Callable[[str], None]) -> dict[str, str]:
    """Ask the best global model of each run about the unseen client, where that was not yet done; return failures."""
    names = dict.fromkeys(run for one in artefacts if one.unseen for run in paper.runs(one))
    file, failed = _answers(paper.scale), dict[str, str]()
    waiting = [
        (name, folder)
        for name in names
        for folder in paper.folders(name)
        if not (folder / "evaluations" / f"{file}-{GLOBAL}.json").exists()
    ]
    store: Store | None = None
    for place, (name, folder) in enumerate(waiting, start=1):
        say(f"unseen client: model {place} of {len(waiting)}")
        device = next(job.config.device for job in paper.plan.jobs if job.out == folder)
        try:
            store = store or open_unseen(folder, paper.scale.unseen)
            evaluate(folder, store, model=GLOBAL, name=file, device=device)
        except FedPerlError as error:
            failed[name] = str(error)
    return failed


def _found(paper: PaperPlan, runs: Mapping[str, Trained]) -> Found:
    jobs = {point.run.name: next(iter(point.jobs.values())) for point in paper.plan.points}

    def images(run: str) -> Store:
        job = jobs[run]
        at_hand = job.store is not None and (job.store / ABOUT).exists()
        return Store.open(job.store) if at_hand and job.store is not None else open_store(job.config)

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
