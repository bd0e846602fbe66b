"""Lines of the runs on real lesions by row and seed, and what is read from them."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from statistics import fmean
from typing import TypeAlias

import numpy as np
from side_by_side import Line
from skin import CHOICE, GROUPS, SCALE, read

from fedperl.evaluate import Interval, paired_interval
from fedperl.paper.printed import printed
from fedperl.paper.runs import find_scale

OUTLIER = str(find_scale(str(SCALE)).outlier)
ISIC, HAM = tuple("01234"), tuple("567")
OTHERS = (*ISIC, *HAM)
WITHOUT = "without outlier: "
RARE = ("AK", "DF", "VASC", "SCC")
MALIGNANT = ("MEL", "BCC", "AK", "SCC")
READING = "argmax_then_group"
BASE, FEDPERL, GATED = "SSFL", "FedPerl T=2", "gated similarity 95"

GATES = tuple(tuple(f"gated {of} {rho}" for rho in (75, 85, 95)) for of in ("validation", "similarity"))
"""Rows of one policy, each with a higher gate than the one before it."""

CHOICES = {"global_best": "the best global model", "last": "the last one"}
"""Other models that could be reported than each client's best."""

Rows = Mapping[str, Mapping[int, Line]]
"""Lines by row and seed."""


def read_rows() -> dict[str, dict[int, Line]]:
    """Return the lines of every group but the one that chose the learning rate."""
    found: dict[str, dict[int, Line]] = {}
    for name in (name for name in GROUPS if name != "rates"):
        for run, line in read(name).items():
            row, _, seed = run.rpartition(", seed ")
            found.setdefault(row, {})[int(seed)] = line
    return found


def tested(line: Line) -> dict[str, dict[str, float]]:
    """Return the numbers of each client's best model by client."""
    found: dict[str, dict[str, float]] = line["results"]["test"][CHOICE]
    return found


def by_client(metric: str) -> Callable[[Line], dict[str, float]]:
    """Return what reads a metric of a line by client."""
    return lambda line: {client: numbers[metric] for client, numbers in tested(line).items()}


def by_class(line: Line) -> dict[str, float]:
    """Return F1 by class, of the images of all clients together; none where a class has no image."""
    matrix = matrix_of(line)
    names = line["results"]["classes"]
    right, there, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return {names[k]: 2 * right[k] / (there[k] + said[k]) for k in range(len(names)) if there[k]}


def unseen(metric: str) -> Callable[[Line], dict[str, float]]:
    """Return what reads a metric of the client that was kept out: malignant where the likeliest class is."""
    return lambda line: {OUTLIER: line["unseen"]["malignancy"][READING][metric]} if "unseen" in line else {}


def apart(
    rows: Rows, one: str, other: str, of: Callable[[Line], Mapping[str, float]], only: Collection[str] = ()
) -> Interval | None:
    """Return one row less another over the seeds and clients (or classes) that both have; None where there are none."""
    seeds = [seed for seed in rows.get(one, {}) if seed in rows.get(other, {})]
    if not seeds:
        return None
    pairs = [(of(rows[one][seed]), of(rows[other][seed])) for seed in seeds]
    names = [name for name in pairs[0][0] if all(name in each for pair in pairs for each in pair)]
    names = [name for name in names if not only or name in only]
    if not names:
        return None
    return paired_interval([[mine[name] - theirs[name] for name in names] for mine, theirs in pairs])


def starred(found: Interval | None) -> bool:
    """Return whether an interval excludes 0 by what is printed of it.

    With one seed it is over clients alone, and too narrow to say so.
    """
    if found is None or found.seeds < 2 or found.low is None or found.high is None:
        return False
    return round(found.low, 3) > 0 or round(found.high, 3) < 0


def shown(found: Interval | None) -> str:
    """Return a difference with its interval; * where that excludes 0."""
    if found is None:
        return "·"
    if found.low is None or found.high is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]{'*' if starred(found) else ''}"


def under(rows: Rows, choice: str) -> dict[str, dict[int, Line]]:
    """Return the lines as they are with another choice of the model: `last`, or `global_best`."""

    def chosen(line: Line) -> Line:
        test = line["results"]["test"]
        return line | {"results": line["results"] | {"test": test | {CHOICE: test.get(choice, test[CHOICE])}}}

    return {row: {seed: chosen(line) for seed, line in lines.items()} for row, lines in rows.items()}


Matrix: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.int64]]"


def matrix_of(line: Line, only: Collection[str] = ()) -> Matrix:
    """Return the confusion matrix of the test images of all clients together, or of some; rows are the truth."""
    some = [np.array(one) for client, one in line["confusion"].items() if not only or client in only]
    return np.sum(some, axis=0)  # type: ignore[no-any-return]


def benign_melanomas(line: Line) -> float:
    """Return the share of melanomas whose likeliest class is a benign one."""
    names = line["results"]["classes"]
    row = matrix_of(line)[names.index("MEL")]
    return float(sum(row[k] for k, name in enumerate(names) if name not in MALIGNANT) / row.sum())


def commonest(line: Line) -> float:
    """Return weighted F1, the mean over clients, of always naming the class that a client has most test images of."""
    shares = [np.array(one).sum(1).max() / np.sum(one) for one in line["confusion"].values()]
    return fmean(float(2 * share * share / (1 + share)) for share in shares)


def sensitivity(line: Line, only: Collection[str] = ()) -> dict[str, float]:
    """Return how many melanomas are called so, how many malignant lesions malignant, and how many others not."""
    matrix, names = matrix_of(line, only), line["results"]["classes"]
    malignant = np.array([name in MALIGNANT for name in names])
    melanoma = names.index("MEL")
    return {
        "melanoma sensitivity": matrix[melanoma, melanoma] / matrix[melanoma].sum(),
        "malignant sensitivity": matrix[malignant][:, malignant].sum() / matrix[malignant].sum(),
        "malignant specificity": matrix[~malignant][:, ~malignant].sum() / matrix[~malignant].sum(),
    }


CHANCE = {client: (len(group) - 1) / (len(OTHERS) - 1) for group in (ISIC, HAM) for client in group}
"""The share of its own community among the others that could help a client, the outlier aside."""


def own_community(line: Line) -> dict[str, float]:
    """Return the share of a client's helpers that are of its own community, by client; the outlier's help aside."""
    found = {}
    for client in OTHERS:
        own = ISIC if client in ISIC else HAM
        counts = {one: line["helped"].get(f"{one} {client}", 0) for one in OTHERS}
        if total := sum(counts.values()):
            found[client] = sum(counts[one] for one in own) / total
    return found


def f1_of(row: str) -> float | None:
    """Return the F1 that the paper prints of a row, the mean over its ten clients."""
    for artefact, column, unit in (
        ("table2", "f1", 1),
        ("random_peers", "f1", 1),
        ("table8", "f1", 1),
        ("table10", "avg", 1),
        ("figure8", "f1", 100),
    ):
        found = printed(artefact).get(row, {}).get(column)
        if isinstance(found, list):
            return float(found[0])
        if isinstance(found, int | float):
            return float(found) / unit
    return None


def cell_of(artefact: str, row: str, column: str) -> float:
    """Return a number that the paper prints."""
    found = printed(artefact)[row][column]
    return float(found[0] if isinstance(found, list) else found)


def paper_gain(row: str) -> float:
    """Return what the paper's other nine clients gain when the outlier takes no part in training."""
    return cell_of("table4", row, "without_8") - fmean(cell_of("table4", row, client) for client in "012345679")


def seeds_of(rows: Rows, name: str) -> str:
    """Return how many seeds a row has, where not three, and a mark where a last model of it names but one class."""
    count = len(rows[name])
    mark = " †" if any(share > ONE_CLASS for _, share in commonest_answer(rows, name).values()) else ""
    return mark + ("" if count == 3 else f" ({count} seed{'s' if count > 1 else ''})")


ONE_CLASS = 0.95
"""Of its answers: a model that names one class so often has learnt nothing else."""


def commonest_answer(rows: Rows, name: str) -> dict[int, tuple[str, float]]:
    """Return the class that a row's last models name most often, and how often, of all clients' validation images."""
    found = {}
    for seed, line in sorted(rows.get(name, {}).items()):
        if matrices := line.get("last_validation_confusion"):
            said = np.sum([np.array(one) for one in matrices.values()], axis=(0, 1))
            found[seed] = (line["results"]["classes"][int(said.argmax())], float(said.max() / said.sum()))
    return found


def over_clients(rows: Rows, name: str, metric: str, only: Collection[str] = ()) -> float:
    """Return the mean over seeds and clients."""
    found = [by_client(metric)(line) for line in rows[name].values()]
    return fmean(fmean(v for client, v in values.items() if not only or client in only) for values in found)


def with_peers(rows: Rows, name: str) -> dict[int, float]:
    """Return the share of client-rounds with 0, 1 and more peers, where peers could help; nothing without peers."""
    counts = Counter[int]()
    for line in rows.get(name, {}).values():
        counts.update({int(size): count for size, count in line["results"]["totals"]["peers"].items()})
    return {size: count / counts.total() for size, count in sorted(counts.items())}


def never_open(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Return the lowest gate of each policy that never opened, and the higher ones: they would be the same runs."""
    found = {}
    for gates in GATES:
        for place, gate in enumerate(gates):
            if with_peers(rows, gate).get(0) == 1:
                found[gate] = gates[place + 1 :]
                break
    return found


def helpers_of(rows: Rows, name: str, client: str) -> int:
    """Return how many helpers a client had over all rounds and seeds."""
    return sum(
        count
        for line in rows.get(name, {}).values()
        for pair, count in line["helped"].items()
        if pair.split()[1] == client
    )


def helped_by_outlier(rows: Rows, name: str) -> float | None:
    """Return the share of the other clients' helpers that the outlier is; None where nobody was helped."""
    counts = Counter[bool]()
    for line in rows.get(name, {}).values():
        for pair, count in line["helped"].items():
            helper, helped = pair.split()
            counts[helper == OUTLIER] += count if helped != OUTLIER else 0
    return counts[True] / counts.total() if counts.total() else None


def course(rows: Rows, name: str, of: str) -> dict[int, float]:
    """Return a number that lines hold every 25 rounds, by round, the mean over the seeds; nothing where none has it."""
    found = [{int(round): value for round, value in line.get(of, {}).items()} for line in rows.get(name, {}).values()]
    every = sorted(set[int]().union(*found))
    return {round: fmean(one[round] for one in found) for round in every if all(round in one for one in found)}


def better_alone(rows: Rows, alone: str, together: str) -> dict[str, tuple[float, float]]:
    """Return the clients whose own model is better than the federated one: weighted F1 of both, over the same seeds."""
    seeds = [seed for seed in rows.get(alone, {}) if seed in rows.get(together, {})]
    pairs = [[by_client("weighted_f1")(rows[name][seed]) for seed in seeds] for name in (alone, together)]
    means = {client: tuple(fmean(one[client] for one in row) for row in pairs) for client in (pairs[0] or [{}])[0]}
    return {client: (own, shared) for client, (own, shared) in means.items() if own > shared}
