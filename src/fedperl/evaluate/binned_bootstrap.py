"""How sure a number is where only counts are known: a resample of images is a multinomial draw over their cells.

Of a confusion matrix that is the same as drawing the images themselves. Of confidences in bins it is so but for the
place of an image within its bin, which counts as the bin's mean. Images are drawn singly: where several are of one
lesion or patient, the intervals are too narrow. The model stays as it is: another training is not part of them.
"""

import numpy as np

from fedperl.evaluate.binned import BinnedSums
from fedperl.evaluate.bootstrap import BootstrapInterval, percentile_interval
from fedperl.evaluate.calibration import BINS, Confidences
from fedperl.evaluate.classification import Counts, Floats, from_confusion
from fedperl.evaluate.selective import area_under_risk, largest_coverage

RESAMPLES = 1000
RISK = 0.1


def intervals_of_confusion(
    confusion: Counts, *, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> dict[str, BootstrapInterval]:
    """Return accuracy, balanced accuracy, weighted and macro F1 with their percentile intervals.

    Args:
        confusion: (classes, classes), true and predicted.
    Raises:
        ValueError: no image, counts that are none, a level outside (0, 1), or fewer than 2 resamples.
    """
    found = _drawn_numbers(confusion, resamples, seed, level)
    values = from_confusion(np.asarray(confusion)).to_dict()
    return {name: percentile_interval(values[name], each, resamples, level) for name, each in found.items()}


def interval_of_difference(
    before: Counts,
    after: Counts,
    number: str = "weighted_f1",
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> BootstrapInterval:
    """Return by how much a number of `intervals_of_confusion` is higher after than before, with its interval.

    The images of each matrix are drawn by themselves, since counts do not tell which image is which: where both are of
    the same images, the interval is as a rule too wide.

    Raises:
        ValueError: as `intervals_of_confusion`.
    """
    each = [_drawn_numbers(one, resamples, seed + place, level)[number] for place, one in enumerate((before, after))]
    values = [from_confusion(np.asarray(one)).to_dict()[number] for one in (before, after)]
    return percentile_interval(values[1] - values[0], each[1] - each[0], resamples, level)


def _drawn_numbers(confusion: Counts, resamples: int, seed: int, level: float) -> dict[str, Floats]:
    """Return each number of every resample, (resamples,)."""
    confusion = np.asarray(confusion)
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(f"wanted a confusion matrix (classes, classes), found {confusion.shape}")
    drawn, cells = _draws(confusion.ravel(), resamples, seed, level)
    true, predicted = np.divmod(cells, len(confusion))
    names = np.eye(len(confusion))
    support, called = drawn @ names[true], drawn @ names[predicted]  # (resamples, classes)
    right = drawn @ (names[true] * (true == predicted)[:, None])
    n, present = drawn.sum(axis=1), support > 0
    recall, f1 = right / np.maximum(support, 1), 2 * right / np.maximum(support + called, 1)
    return {
        "accuracy": right.sum(axis=1) / n,
        "balanced_accuracy": recall.sum(axis=1) / present.sum(axis=1),
        "weighted_f1": (f1 * support).sum(axis=1) / n,
        "macro_f1": (f1 * present).sum(axis=1) / present.sum(axis=1),
    }


def intervals_of_confidence(
    sums: BinnedSums, bins: int = BINS, *, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> dict[str, BootstrapInterval]:
    """Return ECE over bins of equal width, AURC and coverage at 10 % risk with their percentile intervals.

    Raises:
        ValueError: no image, a level outside (0, 1), or fewer than 2 resamples.
    """
    drawn, cells = _draws(sums.confidence.ravel(), resamples, seed, level)
    place, right = np.divmod(cells, 2)
    known, means = sums.confidences(), np.zeros(len(sums.confidence))
    means[np.unique(place)[::-1]] = known.values
    found = {"ece": _ece(drawn, means[place], right, _coarse(place, len(sums.confidence), bins))}
    each = []
    for row in drawn:
        images, correct = (np.bincount(place, weights=w).astype(np.int64) for w in (row, row * right))
        there = np.flatnonzero(images)[::-1]
        each.append(_selective(Confidences(means[there], images[there], correct[there])))
    found |= {name: np.array([one[name] for one in each]) for name in each[0]}
    exact = {"ece": sums.ece(bins)} | _selective(known)
    return {name: percentile_interval(exact[name], values, resamples, level) for name, values in found.items()}


def _draws(counts: Counts, resamples: int, seed: int, level: float) -> tuple[Counts, Counts]:
    """Return how often each cell that holds images was drawn, (resamples, cells), and which cells these are."""
    if not np.issubdtype(counts.dtype, np.integer) or (counts.size and counts.min() < 0):
        raise ValueError(f"wanted counts, whole and 0 or more, found {counts.dtype} from {counts.min()}")
    images = int(counts.sum())
    if images < 1 or not 0.0 < level < 1.0 or resamples < 2:
        raise ValueError(
            f"{images} images, level {level}, {resamples} resamples; wanted at least 1, 0 < level < 1, at least 2"
        )
    cells = np.flatnonzero(counts)
    drawn = np.random.default_rng(seed).multinomial(images, counts[cells] / images, size=resamples)
    return drawn, cells


def _coarse(place: Counts, fine: int, bins: int) -> Counts:
    """Return in which of the wider bins each fine one lies, as `BinnedSums.reliability` cuts them."""
    edges = np.linspace(0, fine, bins + 1).round().astype(np.int64)
    return np.searchsorted(edges, place, side="right") - 1


def _ece(drawn: Counts, confidence: Floats, right: Counts, bin_of: Counts) -> Floats:
    """Return the ECE of each resample: (cells,) say how sure a cell is, whether it is right, and its bin."""
    gaps = drawn @ (np.eye(int(bin_of.max()) + 1)[bin_of] * (confidence - right)[:, None])  # (resamples, bins)
    return np.asarray(np.abs(gaps).sum(axis=1) / drawn.sum(axis=1))


def _selective(found: Confidences) -> dict[str, float]:
    return {"aurc": area_under_risk(found)[0], "coverage_at_risk_10": largest_coverage(found, RISK).coverage}
