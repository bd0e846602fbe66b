"""How sure a number is: intervals from images drawn anew, with replacement, singly or by lesion or patient.

A resample is held as how often each image was drawn. What is computed from sorted scores or from a confusion matrix
need not be sorted or counted again for each: `main_intervals` weighs instead (bench/evaluation_speed.py).

Percentile intervals. ECE and MCE cannot fall below the noise of their bins and resampling adds to it: with 400 images
a perfectly calibrated model has an ECE of 0.03 and an interval of 0.02 to 0.08, which never holds 0. True errors of
0.05 and 0.15 were held by 92 to 94 % of intervals of 95 % (200 simulations each, 400 and 1,500 images).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.calibration import Confidences, ece_and_mce, log_losses, squared_distances
from fedperl.evaluate.classification import Counts, Floats, Labels, Probabilities, checked, from_confusion
from fedperl.evaluate.ranking import ranked
from fedperl.evaluate.selective import area_under_risk, largest_coverage

Numbers = Mapping[str, float | None]
RESAMPLES = 200


@dataclass(frozen=True)
class BootstrapInterval:
    """A number and its percentile interval; None where it is undefined, or is so in every resample.

    `undefined` resamples have no value, such as an AUROC of a class that was not drawn, and are left out.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    resamples: int
    undefined: int

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


def bootstrap_interval(
    statistic: Callable[..., float | None],
    *arrays: npt.NDArray[Any],
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    groups: npt.ArrayLike | None = None,
) -> BootstrapInterval:
    """Return a statistic of the arrays and its interval over other images of the same kind.

    Args:
        statistic: called with the arrays, their rows drawn anew.
        arrays: one row an image, such as truth and probabilities.
        groups: (n,) lesion or patient of each image; whole groups are drawn, since images of one are alike.
    Raises:
        ValueError: no array, no image, lengths that differ, a level outside (0, 1), or fewer than 2 resamples.
    """
    if not arrays or not len(arrays[0]) or len({len(array) for array in arrays}) > 1:
        raise ValueError(f"wanted arrays of one length > 0, found {[len(array) for array in arrays]}")
    images = np.arange(len(arrays[0]))

    def of_counts(counts: Counts) -> Numbers:
        rows = np.repeat(images, counts)
        return {"": statistic(*(array[rows] for array in arrays))}

    return bootstrap_counts(of_counts, len(images), resamples=resamples, seed=seed, level=level, groups=groups)[""]


def bootstrap_counts(
    statistics: Callable[[Counts], Numbers],
    images: int,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    groups: npt.ArrayLike | None = None,
) -> dict[str, BootstrapInterval]:
    """Return intervals of several numbers at once, all from the same resamples.

    Args:
        statistics: called with how often each image was drawn, (n,); returns the numbers by name.
        images: n.
        groups: as in `bootstrap_interval`.
    Raises:
        ValueError: no image, one group an image is wanted, a level outside (0, 1), or fewer than 2 resamples.
    """
    if images < 1 or not 0.0 < level < 1.0 or resamples < 2:
        raise ValueError(
            f"{images} images, level {level}, {resamples} resamples; wanted at least 1, 0 < level < 1, at least 2"
        )
    values = statistics(np.ones(images, dtype=np.int64))
    drawn: dict[str, list[float]] = {name: [] for name in values}
    for counts in _resamples(images, resamples, np.random.default_rng(seed), groups):
        for name, value in statistics(counts).items():
            if value is not None:
                drawn[name].append(value)
    return {name: percentile_interval(value, drawn[name], resamples, level) for name, value in values.items()}


def percentile_interval(
    value: float | None, drawn: Sequence[float] | Floats, resamples: int, level: float
) -> BootstrapInterval:
    """Return the interval that holds the middle of what the resamples gave, of those in which it is defined."""
    low: float | None = None
    high: float | None = None
    if len(drawn):
        low, high = (float(bound) for bound in np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]))
    return BootstrapInterval(value, low, high, level, resamples, resamples - len(drawn))


def main_intervals(
    truth: Labels,
    probabilities: Probabilities,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    groups: npt.ArrayLike | None = None,
) -> dict[str, BootstrapInterval]:
    """Return the main numbers of one client's predictions with their intervals.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, rows that are not probabilities, or as
            `bootstrap_counts`.
    """
    statistics = main_statistics(truth, probabilities)
    return bootstrap_counts(statistics, len(truth), resamples=resamples, seed=seed, level=level, groups=groups)


def main_statistics(truth: Labels, probabilities: Probabilities) -> Callable[[Counts], Numbers]:
    """Return a function from how often each image was drawn to the main numbers, with all sorting behind it.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    truth, probabilities = checked(truth, probabilities)
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    cells, right = truth * classes + predicted, (predicted == truth).astype(np.int64)
    squares, losses = squared_distances(truth, probabilities), log_losses(truth, probabilities)
    certain = ranked(probabilities.max(axis=1))
    rests = [_Rest(truth == label, score) for label, score in enumerate(probabilities.T) if (truth == label).any()]

    def statistics(counts: Counts) -> Numbers:
        n = int(counts.sum())
        confusion = np.bincount(cells, weights=counts, minlength=classes**2).astype(np.int64)
        every = from_confusion(confusion.reshape(classes, classes))
        areas = [rest.areas(counts) for rest in rests]
        images = certain.sums(counts)
        there = images > 0
        found = Confidences(certain.values[there], images[there], certain.sums(counts * right)[there])
        ece, mce = ece_and_mce(found)
        aurc, e_aurc = area_under_risk(found)
        return {
            "accuracy": every.accuracy,
            "balanced_accuracy": every.balanced_accuracy,
            "weighted_f1": every.weighted_f1,
            "macro_f1": every.macro_f1,
            "auroc": _mean([roc for roc, _ in areas]),
            "auprc": _mean([precision_recall for _, precision_recall in areas]),
            "ece": ece,
            "mce": mce,
            "brier": float(squares @ counts / n),
            "nll": float(losses @ counts / n),
            "aurc": aurc,
            "e_aurc": e_aurc,
            "coverage_at_risk_10": largest_coverage(found, 0.1).coverage,
        }

    return statistics


class _Rest:
    """One class against the rest. Its own images are few: only where they stand is anything looked up."""

    def __init__(self, own: npt.NDArray[np.bool_], score: Floats) -> None:
        order = ranked(score)
        places = np.flatnonzero(own[order.order])
        group = np.searchsorted(order.starts, places, side="right") - 1
        self.order = order.order
        self.own = order.order[places]
        self.starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))  # of each distinct score among the own
        group = group[self.starts]
        self.above = order.starts[group]
        self.upto = np.append(order.starts, len(score))[group + 1]

    def areas(self, counts: Counts) -> tuple[float | None, float | None]:
        """Return the AUROC and the AUPRC where each image counts so often."""
        images = np.append(0, counts[self.order].cumsum())
        positives = np.add.reduceat(counts[self.own], self.starts)
        found = positives.cumsum()
        every, all_found = int(images[-1]), int(found[-1])
        if not all_found or all_found == every:
            return None, None
        called = images[self.upto]
        below = (every - all_found) - (called - found)
        tied = called - images[self.above] - positives
        roc = (positives * (2 * below + tied)).sum() / (2 * all_found * (every - all_found))
        precision = found / np.maximum(called, 1)
        return float(roc), float((positives * precision).sum() / all_found)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _resamples(
    images: int, resamples: int, generator: np.random.Generator, groups: npt.ArrayLike | None
) -> Iterator[Counts]:
    """Yield how often each image was drawn."""
    if groups is None:
        group = np.arange(images)
    else:
        names = np.asarray(groups)
        if names.shape != (images,):
            raise ValueError(f"groups: wanted one an image, ({images},), found {names.shape}")
        group = np.unique(names, return_inverse=True)[1]
    many = int(group.max()) + 1
    for _ in range(resamples):
        yield np.bincount(generator.integers(many, size=many), minlength=many)[group]
