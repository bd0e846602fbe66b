"""The proof of concept in numbers: cells over their seeds, differences between rows, what the paper prints."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from poc import LOWER, SETS, accuracy, read
from side_by_side import Line

from fedperl.paper.printed import printed
from fedperl.paper.runs import POC, TASKS

Lines = dict[str, Line]
Sets = Mapping[str, Lines]
"""The lines of every set by its name."""
TITLES = {"cifar10_iid": "CIFAR-10 IID", "cifar10_noniid": "CIFAR-10 non-IID", "fmnist_noniid": "Fashion-MNIST"}
FAR = 3.0
"""Points beyond which a cell wants a sentence."""
T95 = {2: 12.706205, 3: 4.302653, 9: 2.306004}
"""Student's t, 97.5 %, by the number of seeds."""
PAPERS_NAME = {"FedPerl raw, sigma + psi": "FedPerl raw", "FedPerl, sigma + psi": "FedPerl"}
Cell = tuple[str, str]
"""A set and a row of it."""
PLAIN, FIXMATCH, FEDMATCH, RAW, PA = (
    ("published", row) for row in (LOWER, "FedAvg-FixMatch", "FedMatch", "FedPerl raw", "FedPerl")
)
RAW_SUM, PA_SUM = (("published", row) for row in PAPERS_NAME)
CONTROL = ("control", "FedMatch")
WORTH: dict[str, tuple[Cell, Cell]] = {
    "every label, in 54 (68) steps with the loss times 1: FedAvg-SL less labelled images alone": (
        ("published", "FedAvg-SL"),
        PLAIN,
    ),
    "FixMatch less labelled images alone": (FIXMATCH, PLAIN),
    "UDA, which holds labels back too, less labelled images alone": (("published", "FedAvg-UDA"), PLAIN),
    "FedMatch less labelled images alone": (FEDMATCH, PLAIN),
    "of that sigma + psi: FedMatch without unlabelled losses less labelled images alone": (CONTROL, PLAIN),
    "of that unlabelled images: FedMatch less itself without unlabelled losses": (FEDMATCH, CONTROL),
    "peers: FedPerl raw less FixMatch": (RAW, FIXMATCH),
    "anonymization: FedPerl less FedPerl raw": (PA, RAW),
    "anonymization: the same on sigma + psi": (PA_SUM, RAW_SUM),
    "anonymization: FedMatch PA less FedMatch": (("published", "FedMatch PA"), FEDMATCH),
    "helpers chosen as FedPerl does less as FedMatch does": (RAW_SUM, FEDMATCH),
    "sigma + psi: FedPerl raw less the same on plain weights": (RAW_SUM, RAW),
    "FedProx's term: FixMatch with less without": (("published", "FedProx-FixMatch"), FIXMATCH),
}
"""What is worth how much: one row less another, seed by seed."""


@dataclass(frozen=True)
class Numbers:
    """One cell over its seeds, in percent."""

    by_seed: dict[int, float]

    def __str__(self) -> str:
        values = list(self.by_seed.values())
        if not values:
            return "·"
        few = "" if len(values) == 3 else f" ({len(values)} seed{'s' if len(values) > 1 else ''})"
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        return f"{fmean(values):.2f}{spread}{few}"

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())


@dataclass(frozen=True)
class Difference:
    """One cell less another over the seeds that both have, in points."""

    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed)

    @property
    def half(self) -> float | None:
        """Half of the 95 % interval by Student's t; None with one seed."""
        count = len(self.by_seed)
        return T95[count] * stdev(self.by_seed) / math.sqrt(count) if count > 1 else None

    @property
    def excludes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half

    @property
    def p(self) -> float:
        """How often chance alone gives as much, for three seeds: Student's t with 2 degrees of freedom."""
        spread = stdev(self.by_seed) / math.sqrt(len(self.by_seed))
        if not spread:
            return 0.0 if self.mean else 1.0
        t = abs(self.mean) / spread
        return 1 - t / math.sqrt(t * t + 2)

    def __str__(self) -> str:
        """Return mean and interval; * where that excludes 0."""
        if not self.by_seed:
            return "·"
        half = "" if self.half is None else f" ± {self.half:.2f}{'*' if self.excludes_zero else ''}"
        return f"{self.mean:+.2f}{half}"


def cell(lines: Lines, task: str, row: str, *, of_global: bool = False, seeds: Iterable[int] = (1, 2, 3)) -> Numbers:
    """Return a row's numbers in one task: of what table 1 reports, or always of the global model."""
    found = {seed: lines.get(f"{task}: {row}, seed {seed}") for seed in seeds}
    value = (lambda line: line["results"]["test"]["last"]["server"]["accuracy"]) if of_global else accuracy
    return Numbers({seed: 100 * value(line) for seed, line in found.items() if line})


def difference(one: Numbers, other: Numbers) -> Difference:
    """Return one cell less another."""
    return Difference(
        tuple(value - other.by_seed[seed] for seed, value in one.by_seed.items() if seed in other.by_seed)
    )


def less(sets: Sets, one: Cell, other: Cell, task: str, *, of_global: bool = False) -> Difference:
    """Return one row less another in a task."""
    cells = [cell(sets[name], task, row, of_global=of_global) for name, row in (one, other)]
    return difference(*cells)


def paper_value(task: str, row: str) -> list[float] | None:
    """Return the paper's mean and deviation."""
    found = printed("table1").get(PAPERS_NAME.get(row, row), {}).get(task)
    return found if isinstance(found, list) else None


def far_off(lines: Lines) -> list[tuple[str, str, float]]:
    """Return rows, tasks and points of the cells that are more than FAR off the paper's."""
    found = []
    for row in POC:
        for task in TASKS:
            ours, theirs = cell(lines, task, row), paper_value(task, row)
            if ours.by_seed and theirs and abs(ours.mean - theirs[0]) > FAR:
                found.append((row, task, ours.mean - theirs[0]))
    return found


def missing(name: str) -> list[str]:
    """Return what of a set is not trained yet."""
    chosen, lines = SETS[name], read(name)
    found = []
    for row in chosen.rows:
        for task in chosen.tasks:
            seeds = [str(seed) for seed in chosen.seeds if f"{task}: {row}, seed {seed}" not in lines]
            if seeds:
                found.append(f"{row}, {TITLES[task]}: seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}")
    return found


def columns(sets: Sets, one: Cell, other: Cell) -> list[Difference]:
    """Return one row less another in each task, and in the last with the global model."""
    return [less(sets, one, other, task) for task in TASKS] + [less(sets, one, other, TASKS[2], of_global=True)]


def shares(lines: Lines, task: str, row: str) -> list[float]:
    """Return the share of unlabelled images that passed the threshold, over a run, of the seeds that say so."""
    found = [lines.get(f"{task}: {row}, seed {seed}", {}).get("accepted") for seed in (1, 2, 3)]
    return [fmean(one) for one in found if one]


def planned(name: str) -> int:
    chosen = SETS[name]
    return len(chosen.rows) * len(chosen.tasks) * len(chosen.seeds) * len(chosen.grid)
