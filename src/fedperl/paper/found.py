"""The finished runs behind the tables and figures, each over its seeds; what they answered on an unseen client."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedperl.data.store import Store
from fedperl.errors import RunError
from fedperl.evaluate import BinnedSums, Interval, Spread, paired_interval, spread
from fedperl.report.page_data import PageRun, read_run

CHOICE = "per_client_best"
"""The models that the paper reports: for each client the round that was best on its validation images."""
GLOBAL = "global_best"
"""The one model that is shown to strangers: best on the validation images of all clients."""


@dataclass(frozen=True)
class Trained:
    """One run, trained for one or several seeds; clients are named by their numbers as text."""

    name: str
    seeds: tuple[PageRun, ...]
    unseen: tuple[Mapping[str, Any], ...] = ()
    """What each seed's model answered on the unseen client, as `fedperl evaluate` writes it."""

    @property
    def first(self) -> PageRun:
        """The run of the first seed."""
        return self.seeds[0]

    @property
    def choice(self) -> str:
        """Which models are reported: best for each client, or where the server alone tests, best on its images."""
        every = [
            name for name in (CHOICE, "server_best", GLOBAL, "last") if all(run.tested(name) for run in self.seeds)
        ]
        return every[0]

    @cached_property
    def tested(self) -> list[dict[str, dict[str, float]]]:
        """For each seed the test numbers by client."""
        return [run.tested(self.choice) for run in self.seeds]

    @property
    def clients(self) -> list[str]:
        """Those that have test images in every seed."""
        return [client for client in self.tested[0] if all(client in one for one in self.tested)]

    def numbers(self, metric: str = "weighted_f1") -> dict[str, float]:
        """Return a number by client, the mean over seeds; clients that lack it in a seed are left out."""
        known = [client for client in self.clients if all(metric in one[client] for one in self.tested)]
        return {client: statistics.fmean(one[client][metric] for one in self.tested) for client in known}

    def by_seed(self, metric: str = "weighted_f1") -> list[float]:
        """Return the mean over the clients, for each seed."""
        known = list(self.numbers(metric))
        return [statistics.fmean(one[client][metric] for client in known) for one in self.tested]

    def spread(self, metric: str = "weighted_f1") -> Spread:
        """Return mean, median and deviation over the clients of the means over seeds."""
        return spread(list(self.numbers(metric).values()))

    def mean_of(self, clients: Iterable[str], metric: str = "weighted_f1") -> float | None:
        """Return the mean over some clients; None where one of them has no number."""
        numbers, wanted = self.numbers(metric), list(clients)
        return statistics.fmean(numbers[one] for one in wanted) if wanted and set(wanted) <= set(numbers) else None

    def difference(self, other: "Trained", metric: str = "weighted_f1") -> Interval | None:
        """Return the mean difference to another run on the same clients and seeds, with its 95 % interval."""
        both = [client for client in self.numbers(metric) if client in other.numbers(metric)]
        if not both or len(self.seeds) != len(other.seeds):
            return None
        if any(a.results["partition"] != b.results["partition"] for a, b in zip(self.seeds, other.seeds, strict=True)):  # type: ignore[index]
            return None
        ours, theirs = (
            np.array([[of_seed[client][metric] for client in both] for of_seed in run.tested]) for run in (self, other)
        )
        return paired_interval(ours - theirs)

    def sums(self, client: str | None = None) -> BinnedSums | None:
        """Return the counts of a client's test images, or of all clients together, over all seeds."""
        return _total(run.pooled(self.choice, "test", client) for run in self.seeds)

    def by_seed_sums(self, client: str) -> list[BinnedSums]:
        """Return the counts of a client's test images, seed by seed."""
        found = (run.pooled(self.choice, "test", client) for run in self.seeds)
        return [sums for sums in found if sums is not None]

    @property
    def answers_one_class(self) -> bool:
        """Whether the model says the same of every test image: it collapsed, and its numbers are no result."""
        total = self.sums()
        return total is not None and int((total.confusion.sum(axis=0) > 0).sum()) == 1

    def unseen_sums(self, view: str) -> BinnedSums | None:
        """Return the counts on the unseen client: `malignancy`, or `classes` where its labels are the model's."""
        return _total(BinnedSums.from_dict(one["sums"][view]) for one in self.unseen if view in one.get("sums", {}))

    def training(self, measure: str = "accuracy") -> dict[str, tuple[list[int], list[float]]]:
        """Return client -> rounds and a measure on its validation images in the first seed's run."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for alone, line in self.first.lines:
            for client, values in line.get("validation", {}).items():
                if alone in (None, client) and values.get(measure) is not None:
                    rounds, numbers = found.setdefault(client, ([], []))
                    rounds.append(line["round"])
                    numbers.append(values[measure])
        return found

    @property
    def hours(self) -> float:
        """How long it trained and validated, the mean over seeds."""
        return statistics.fmean(sum(run.results["seconds"].values()) for run in self.seeds) / 3600  # type: ignore[index]


@dataclass(frozen=True)
class Found:
    """All runs that a table or figure asked for."""

    runs: Mapping[str, Trained]
    scale: str
    """What differs from the paper's experiments, in a sentence; empty where nothing does."""
    open_store: Callable[[str], Store] = field(repr=False)
    """Run -> its images, dealt as its clients hold them."""
    outlier: str | None = "8"

    def __getitem__(self, name: str) -> Trained:
        return self.runs[name]

    def some(self, names: Iterable[str]) -> list[Trained]:
        """Return those of the runs that were trained, in this order."""
        return [self.runs[name] for name in names if name in self.runs]

    @property
    def seeds(self) -> int:
        """How many seeds each run has."""
        return max(len(run.seeds) for run in self.runs.values())

    @property
    def drawn(self) -> bool:
        """Whether all images are drawn: no patient's."""
        return all(run.first.config.data.source == "dermsim" for run in self.runs.values())

    def sources(self) -> tuple[str, ...]:
        """Return what each client's images are like, in the runs of the skin experiments."""
        return next(iter(self.runs.values())).first.sources

    def communities(self) -> dict[str, list[str]]:
        """Return data set -> its clients, for sets that several clients come from."""
        found: dict[str, list[str]] = {}
        for number, source in enumerate(self.sources()):
            found.setdefault(source, []).append(str(number))
        return {source: clients for source, clients in found.items() if len(clients) > 1}

    def single(self) -> list[str]:
        """Return the clients that are the only one of their data set."""
        among = {client for clients in self.communities().values() for client in clients}
        return [str(number) for number in range(len(self.sources())) if str(number) not in among]

    def as_printed(self) -> bool:
        """Whether the clients are the paper's ten, so that its numbers by client can stand beside ours."""
        from fedperl.data.partitions.paper import PAPER

        return self.sources() == tuple(hospital.source for hospital in PAPER)


def read_trained(name: str, folders: Sequence[Path], unseen: str | None = None) -> Trained:
    """Return a run from its folders, one a seed.

    Args:
        unseen: how the file, in each folder's `evaluations`, with the answers on the unseen client begins.
    Raises:
        RunError: a folder's run is not finished, or a file cannot be used.
    """
    runs = tuple(read_run(folder) for folder in folders)
    for run in runs:
        if run.results is None:
            raise RunError(f"{run.folder}: has no results.json; the run was not finished")
        if not run.sources:
            raise RunError(f"{run.folder / 'partition.csv'}: is missing, or does not say what the clients' images are")
    answers = []
    for folder in folders if unseen else ():
        path = folder / "evaluations" / f"{unseen}-{GLOBAL}.json"
        try:
            answers.append(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
    return Trained(name, runs, tuple(answers))


def _total(found: Iterable[BinnedSums | None]) -> BinnedSums | None:
    total: BinnedSums | None = None
    for one in found:
        if one is not None:
            total = one if total is None else total + one
    return total
