"""Cells and columns that several tables share."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fedperl.evaluate import BinnedSums, auprc, auroc, relative_improvement, spread_without
from fedperl.paper.content import NONE, Row, TableContent, number
from fedperl.paper.found import Found, Trained
from fedperl.paper.printed import Value, printed
from fedperl.paper.runs import SSFL, TASKS

CLIENTS = (
    "Local lower",
    "Lower",
    "Local FixMatch",
    SSFL,
    "FedMatch",
    "FedPerl raw T=2",
    "FedMatch+",
    "FedPerl T=2",
    "Local upper",
    "Upper",
)
"""Rows of the tables by client and by class."""
SHORT = {"isic": "ISIC19", "ham": "HAM10000"}
"""The paper's communities, and the data sets that make them."""
CHOICE_NOTE = "Models: for each client the round that was best on its validation images."

Measure = Callable[[BinnedSums], Sequence[float | None]]
"""A number for each class."""


def groups(found: Found) -> dict[str, list[str]]:
    """Return the columns of communities, then of single clients, and the clients that each is the mean of."""
    return dict(found.communities()) | {f"client {client}": [client] for client in found.single()}


def clients_and_groups(found: Found) -> dict[str, list[str]]:
    """Return a column for each client, each community's mean after its clients."""
    columns: dict[str, list[str]] = {}
    for source, clients in found.communities().items():
        columns |= {client: [client] for client in clients}
        columns[source] = clients
    return columns | {client: [client] for client in found.single()}


def beside(found: Found, their: Mapping[str, Value], columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the paper's numbers of these columns; none where the clients are not its ten."""
    if not their or not found.as_printed():
        return ()
    keys = {source: short for short, source in SHORT.items()}
    return tuple(cell(their.get(keys.get(name, name.removeprefix("client ")))) for name in columns)


def without(run: Trained, anew: Trained | None, outlier: str | None) -> list[str]:
    """Return the other clients' mean under the same models and under others, Avg, the gain, and the paper's Diff."""
    numbers = run.numbers()
    same = spread_without(numbers, [outlier]) if outlier in numbers else None
    new = None if anew is None else anew.spread()
    average = run.spread()
    return [
        NONE if same is None else f"{same.mean:.3f} ± {same.std:.3f}",
        NONE if new is None else f"{new.mean:.3f} ± {new.std:.3f}",
        f"{average.mean:.3f} ± {average.std:.3f}",
        NONE if new is None or same is None else f"{100 * (new.mean - same.mean):+.1f}",
        NONE if new is None else f"{100 * (new.mean - average.mean):+.1f}",
    ]


def by_class(
    found: Found, name: str, measures: Mapping[str, Measure], how: str, *, pooled: bool = False
) -> TableContent:
    """Return a table by class: each measure of the counts of a client, averaged over those that have the class."""
    theirs, runs = printed(name), found.some(CLIENTS)
    classes = tuple(runs[0].first.results["classes"]) if runs else ()  # type: ignore[index]
    rows = []
    for run in runs:
        for place, (text, measure) in enumerate(measures.items()):
            by_client = [_over_seeds([measure(sums) for sums in run.by_seed_sums(client)]) for client in run.clients]
            ours = tuple(number(mean_known(values)) for values in zip(*by_client, strict=True))
            paper = tuple(cell(theirs.get(run.name, {}).get(label)) for label in classes) if not place else ()
            rows.append(Row(", ".join(filter(None, (run.name, text))), ours, paper, setting_of(run.name)))
        total = run.sums()
        if pooled and total is not None:
            together = tuple(number(value) for value in f1_by_class(total))
            rows.append(Row(f"{run.name}, pooled", together, (), setting_of(run.name)))
    return TableContent(classes, tuple(rows), (how, CHOICE_NOTE, *seed_notes(found)))


def _over_seeds(found: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [mean_known(values) for values in zip(*found, strict=True)]


def collapsed(runs: Iterable[Trained]) -> list[str]:
    """Return a note that names the runs whose models say the same of every image."""
    names = [plain(run.name) for run in runs if run.answers_one_class]
    if not names:
        return []
    return [f"{', '.join(names)}: says one class of every image; a model that collapsed, not a result."]


def f1_by_class(sums: BinnedSums) -> list[float | None]:
    """Return F1 by class; None for a class without images."""
    right = np.diag(sums.confusion).tolist()
    of_class, called = sums.confusion.sum(axis=1).tolist(), sums.confusion.sum(axis=0).tolist()
    return [2 * r / (n + c) if n else None for r, n, c in zip(right, of_class, called, strict=True)]


def hard_areas(sums: BinnedSums, metric: str) -> list[float | None]:
    """Return the areas from predicted labels: those of the predictions that the confusion matrix counts."""
    classes = len(sums.confusion)
    true, called = np.divmod(np.repeat(np.arange(classes**2), sums.confusion.ravel()), classes)
    area = auroc if metric == "auroc" else auprc
    return list(area(true, np.eye(classes)[called], mode="hard").per_class)


def score_areas(sums: BinnedSums, metric: str) -> list[float | None]:
    """Return the areas from scores, by class."""
    one = sums.auroc if metric == "auroc" else sums.average_precision
    return [one(label) for label in range(len(sums.confusion))]


def mean_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def last_accuracy(run: Trained | None) -> str:
    """Return the last round's accuracy in percent, over seeds."""
    if run is None:
        return NONE
    by_seed = [
        100 * (one.results.get("local") or {}).get("accuracy", 0.0)  # type: ignore[union-attr]
        or 100 * statistics.fmean(numbers["accuracy"] for numbers in one.tested("last").values())
        for one in run.seeds
    ]
    return f"{statistics.fmean(by_seed):.2f}" + (f" ± {statistics.stdev(by_seed):.2f}" if len(by_seed) > 1 else "")


def drawn_tasks(found: Found) -> list[str]:
    """Return a note where drawn lesions stand for the sets of the proof of concept."""
    configs = [run.first.config for name, run in found.runs.items() if name.split(":")[0] in TASKS]
    dealt = dict.fromkeys(
        f"{one.partition.kind}{f' {one.partition.alpha:g}' if one.partition.kind == 'dirichlet' else ''}"
        for one in configs
        if one.data.source == "dermsim"
    )
    if not dealt:
        return []
    return [f"Drawn lesions, dealt as {', '.join(dealt)}, stand for the three tasks: the columns compare with nothing."]


def improvement(run: Trained, lower: Trained | None) -> str:
    """Return by how many percent a run is better than the lower bound."""
    if lower is None or run is lower or not lower.spread().mean > 0:
        return NONE
    return f"{100 * relative_improvement(run.spread().mean, lower.spread().mean):.2f}"


def cost(run: Trained) -> str:
    """Return what was sent down beyond one model a client and round, in percent."""
    known = [cost for one in run.seeds if (cost := one.extra_down()) is not None]
    return f"{statistics.fmean(known):.0f}" if len(known) == len(run.seeds) else NONE


def difference(run: Trained, base: Trained | None) -> str:
    """Return the mean difference to another run with its interval, * where it excludes 0."""
    found = None if base is None or run is base else run.difference(base)
    if found is None:
        return NONE
    if found.low is None or found.high is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]{'*' if found.excludes_zero else ''}"


def peers_kept(run: Trained) -> str:
    """Return how many peers helped on average, where peers could."""
    counts: dict[int, int] = {}
    for one in run.seeds:
        for size, times in one.results["totals"]["peers"].items():  # type: ignore[index]
            counts[int(size)] = counts.get(int(size), 0) + times
    total = sum(counts.values())
    return number(sum(size * times for size, times in counts.items()) / total, 2) if total else NONE


def cell(value: Value | None, digits: int = 3) -> str:
    """Return a printed value: one number, mean ± deviation, or mean (median) ± deviation."""
    if value is None:
        return NONE
    if not isinstance(value, list):
        return number(value, digits)
    first, *rest = (number(one, digits) for one in value)
    return f"{first} ± {rest[0]}" if len(rest) == 1 else f"{first} ({rest[0]}) ± {rest[1]}"


def percent(value: Value | None, digits: int = 2) -> str:
    """Return a printed percentage."""
    return NONE if value is None or isinstance(value, list) else f"{value:.{digits}f}"


def plain(name: str) -> str:
    """Return a run's name without its scenario."""
    return name.removeprefix("server: ")


def setting_of(name: str) -> str:
    """Return the group of rows that a run stands in."""
    if name.startswith("Local "):
        return {"Local lower": "Lower", "Local FixMatch": "SSL", "Local upper": "Upper"}[name]
    if name in ("Lower", "Upper"):
        return name
    if name.startswith("FedPerl raw"):
        return "without PA"
    return "with PA" if name.startswith(("FedPerl", "FedMatch+", "Random")) else "SSFL"


def seed_notes(found: Found, *, clients: bool = True) -> list[str]:
    """Return what the numbers are a mean over."""
    if found.seeds < 2:
        return ["One seed: another would move all of it."]
    return [
        f"Each number of a client is the mean over {found.seeds} seeds; deviations are over clients."
        if clients
        else f"Means over {found.seeds} seeds."
    ]
