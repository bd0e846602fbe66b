"""How well scores rank: one-vs-rest AUROC and AUPRC, and their curves (paper, its tables of AUROC and AUPRC).

The paper's tables seem to be computed from hard labels, where each class has one operating point alone; `mode="hard"`
gives those numbers for comparison. From scores the same models would rank far better.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.classification import Counts, Floats, Labels, Probabilities, checked, confusion_matrix

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.floating]
Mode = Literal["score", "hard"]

POINTS = 200


@dataclass(frozen=True)
class OneVsRest:
    """The area under one curve for each class against all others.

    A class that the truth lacks, or that is the only one there, has None and is left out of the macro average; None
    there if every class is undefined. `chance` is what a model that knows nothing reaches in each class: 0.5 for
    AUROC, the share of the class for AUPRC.
    """

    metric: Literal["auroc", "auprc"]
    mode: Mode
    macro: float | None
    micro: float | None
    per_class: tuple[float | None, ...]
    chance: tuple[float | None, ...]
    support: tuple[int, ...]

    @property
    def undefined(self) -> tuple[int, ...]:
        """The classes without a value."""
        return tuple(label for label, value in enumerate(self.per_class) if value is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, and which classes are undefined."""
        return asdict(self) | {"undefined": self.undefined}


@dataclass(frozen=True)
class Curve:
    """Points of a curve, left to right, and the area under the whole of it.

    ROC: false positive rate, true positive rate. Precision-recall: recall, precision. An image counts as positive from
    `threshold` on; None: none does. Straight lines between the points have the area: recall is won in steps of equal
    precision, so that a precision-recall curve also has their corners.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    threshold: tuple[float | None, ...]
    area: float

    def to_dict(self) -> dict[str, Any]:
        """Return the points and the area by name."""
        return asdict(self)


@dataclass(frozen=True)
class Ranked:
    """The distinct scores, highest first, and which images have them: what never changes when images are weighted."""

    values: Floats
    order: Counts
    """Images, the highest score first."""
    starts: Counts
    """Where in `order` each distinct score begins."""

    def sums(self, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the summed weights of the images at each distinct score."""
        return np.asarray(np.add.reduceat(weights[self.order], self.starts))


def ranked(score: Scores) -> Ranked:
    """Return the distinct scores and who has them; equal scores are never told apart."""
    order = np.argsort(-score)
    values = score[order]
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return Ranked(values[starts].astype(np.float64), order, starts)


def counted(truth: Mask, score: Scores) -> tuple[Ranked, Counts, Counts]:
    """Return the distinct scores, the highest first, and the numbers of positives and of negatives at each.

    Raises:
        ValueError: no image, shapes or types that do not fit, or a score that is not finite.
    """
    truth, score = np.asarray(truth), np.asarray(score)
    if truth.ndim != 1 or truth.shape != score.shape or not len(truth):
        raise ValueError(f"wanted two vectors of one length > 0, found {truth.shape} and {score.shape}")
    check_mask(truth)
    if not np.isfinite(score).all():
        raise ValueError(f"score: {np.count_nonzero(~np.isfinite(score))} values are not finite")
    order = ranked(score)
    positives = order.sums(truth.astype(np.int64))
    images = np.diff(np.append(order.starts, len(truth)))
    return order, positives, images - positives


def check_mask(truth: Mask) -> None:
    """Accept a truth of yes and no.

    Raises:
        ValueError: another type; class numbers would pass as indices and count something else.
    """
    if truth.dtype != np.bool_:
        raise ValueError(f"truth: wanted bool (malignant or not), found {truth.dtype}")


def auroc(truth: Labels, probabilities: Probabilities, mode: Mode = "score") -> OneVsRest:
    """Return for each class the chance that one of its images scores above one of the others, ties half.

    With `mode="hard"` an image scores 1 in the class of its largest probability and 0 elsewhere: the area is then
    (sensitivity + specificity) / 2. The micro average takes every image with every class as one case.

    Args:
        truth: (n,) true classes.
        probabilities: (n, classes).
    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, rows that are not probabilities, or a
            mode of another name.
    """
    return _one_vs_rest("auroc", truth, probabilities, mode)


def auprc(truth: Labels, probabilities: Probabilities, mode: Mode = "score") -> OneVsRest:
    """Return the average precision of each class, as scikit-learn computes it: steps, not lines, between points.

    With `mode="hard"` it is the area under two lines: from (recall 0, precision 1) to the one operating point that
    hard labels have, and on to (1, share of the class). A class that is never predicted has no such point and gets
    one line, (1 + share) / 2: a flaw of the rule, kept because the paper's tables seem to follow it.

    Args and Raises: as `auroc`.
    """
    return _one_vs_rest("auprc", truth, probabilities, mode)


def binary_auroc(truth: Mask, score: Scores) -> float | None:
    """Return the chance that a positive scores above a negative, ties half; None without both.

    Raises:
        ValueError: no image, shapes or types that do not fit, or a score that is not finite.
    """
    return area_roc(*counted(truth, score)[1:])


def binary_auprc(truth: Mask, score: Scores) -> float | None:
    """Return the average precision: precision at each distinct score, weighted by the recall it adds; None as above.

    Equal scores enter together and nothing is interpolated, as in scikit-learn. A model that knows nothing reaches
    the share of positives, not 0.5.

    Raises:
        ValueError: no image, shapes or types that do not fit, or a score that is not finite.
    """
    return area_precision_recall(*counted(truth, score)[1:])


def area_roc(positives: Counts, negatives: Counts) -> float | None:
    """Return the AUROC of the numbers of positives and negatives at each distinct score, the highest first."""
    pairs = int(positives.sum()) * int(negatives.sum())
    if not pairs:
        return None
    above = positives.cumsum() - positives
    return float((negatives * (2 * above + positives)).sum() / (2 * pairs))


def area_precision_recall(positives: Counts, negatives: Counts) -> float | None:
    """Return the average precision of the numbers of positives and negatives at each score, the highest first."""
    if not positives.any() or not negatives.any():
        return None
    found = positives.cumsum()
    called = found + negatives.cumsum()
    return float((positives * (found / np.maximum(called, 1))).sum() / found[-1])


def roc_curve(truth: Mask, score: Scores, points: int = POINTS) -> Curve | None:
    """Return the ROC curve of a binary score, thinned; None where the truth has one class only.

    Raises:
        ValueError: as `binary_auroc`, or fewer than 2 points.
    """
    order, positives, negatives = counted(truth, score)
    area = area_roc(positives, negatives)
    if area is None:
        return None
    false, true = _from_zero(negatives.cumsum() / negatives.sum()), _from_zero(positives.cumsum() / positives.sum())
    return _curve(false, true, np.append(np.inf, order.values), area, points)


def precision_recall_curve(truth: Mask, score: Scores, points: int = POINTS) -> Curve | None:
    """Return the precision-recall curve of a binary score, thinned; None where the truth has one class only.

    It begins, as in scikit-learn, at recall 0 and precision 1, where no image is called.

    Raises:
        ValueError: as `binary_auprc`, or fewer than 2 points.
    """
    order, positives, negatives = counted(truth, score)
    area = area_precision_recall(positives, negatives)
    if area is None:
        return None
    found = positives.cumsum()
    recall, precision = found / found[-1], found / (found + negatives.cumsum())
    # The corner before each step: the recall so far, at the precision of the next score.
    before = np.append(0.0, recall[:-1])
    corners = np.stack([before, recall], axis=1).ravel(), np.repeat(precision, 2), np.repeat(order.values, 2)
    new = np.stack([recall > before, np.ones(len(recall), dtype=bool)], axis=1).ravel()
    x, y, thresholds = (np.append(first, some[new]) for first, some in zip((0.0, 1.0, np.inf), corners, strict=True))
    return _curve(x, y, thresholds, area, points)


def roc_curves(truth: Labels, probabilities: Probabilities, points: int = POINTS) -> tuple[Curve | None, ...]:
    """Return the ROC curve of each class against all others; None where it is undefined.

    Raises:
        ValueError: as `auroc`, or fewer than 2 points.
    """
    truth, probabilities = checked(truth, probabilities)
    return tuple(roc_curve(truth == label, score, points) for label, score in enumerate(probabilities.T))


def precision_recall_curves(
    truth: Labels, probabilities: Probabilities, points: int = POINTS
) -> tuple[Curve | None, ...]:
    """Return the precision-recall curve of each class against all others; None where it is undefined.

    Raises:
        ValueError: as `auprc`, or fewer than 2 points.
    """
    truth, probabilities = checked(truth, probabilities)
    return tuple(precision_recall_curve(truth == label, score, points) for label, score in enumerate(probabilities.T))


def thinned(x: Floats, y: Floats, points: int) -> Counts:
    """Return which points of a curve to keep: the first, the last, and so many between that it looks the same.

    The curve's length is cut into equal parts and one point of each is kept: the one that best makes up for the area
    lost or won so far. So the area stays: within 1e-3 with 100 points or more (tests/evaluate/test_ranking.py).

    Args:
        x: (n,) ascending.
    Raises:
        ValueError: fewer than 2 points.
    """
    if points < 2:
        raise ValueError(f"points {points}; wanted at least 2, the ends of the curve")
    if len(x) <= points:
        return np.arange(len(x))
    places = np.flatnonzero(np.append(True, (np.diff(x) != 0) | (np.diff(y) != 0)))
    along, across = np.diff(x[places]), np.diff(y[places])
    turns = along[:-1] * across[1:] != across[:-1] * along[1:]
    corners = places[np.concatenate([[True], turns, [True]])]  # leaving out the others changes no area
    return np.asarray(corners[_thinned(x[corners], y[corners], points)])


def _thinned(x: Floats, y: Floats, points: int) -> Counts:
    last = len(x) - 1
    if last < points:
        return np.arange(len(x))
    along, across = np.diff(x), np.abs(np.diff(y))
    area = _from_zero((along * (y[1:] + y[:-1]) / 2).cumsum())
    length = _from_zero((along / along.sum() + across / (across.sum() or 1.0)).cumsum())
    edges = np.linspace(0.0, length[-1], points - 1)
    # A part ends before a long jump too, so that its foot is kept. It passes two edges: there are no more parts for it.
    jumps = np.flatnonzero(np.diff(length) > 2.01 * length[-1] / max(points - 2, 1))
    cuts = np.unique([*np.searchsorted(length, edges, side="right"), *jumps]).tolist()

    def gain(first: Any, second: Any) -> Any:
        return (x[second] - x[first]) * (y[first] + y[second]) / 2 - (area[second] - area[first])

    kept, drift = [0], 0.0
    for start, end in pairwise(cuts):
        part = np.arange(max(start, 1), min(end, last))
        if part.size:
            drifts = drift + gain(kept[-1], part)
            best = int(np.abs(drifts).argmin())
            kept.append(int(part[best]))
            drift = float(drifts[best])
    return np.array([*kept, last])


def _one_vs_rest(
    metric: Literal["auroc", "auprc"], truth: Labels, probabilities: Probabilities, mode: Mode
) -> OneVsRest:
    if mode not in ("score", "hard"):
        raise ValueError(f"mode {mode!r}; wanted 'score' or 'hard'")
    truth, probabilities = checked(truth, probabilities)
    n, classes = probabilities.shape
    support = np.bincount(truth, minlength=classes)
    cells = np.arange(classes) == truth[:, None]
    if mode == "hard":
        counts = confusion_matrix(truth, probabilities.argmax(axis=1), classes)
        right, called = np.diag(counts), counts.sum(axis=0)
        area = _hard_roc if metric == "auroc" else _hard_precision_recall
        each = zip(right.tolist(), called.tolist(), support.tolist(), strict=True)
        values = [area(hit, guessed, there, n) for hit, guessed, there in each]
        micro = area(int(right.sum()), n, n, n * classes)
    else:
        rank = binary_auroc if metric == "auroc" else binary_auprc
        values = [rank(cells[:, label], probabilities[:, label]) for label in range(classes)]
        micro = rank(cells.ravel(), probabilities.ravel())
    defined = [value for value in values if value is not None]
    shares = (support / n).tolist() if metric == "auprc" else [0.5] * classes
    return OneVsRest(
        metric,
        mode,
        sum(defined) / len(defined) if defined else None,
        micro,
        tuple(values),
        tuple(None if value is None else share for value, share in zip(values, shares, strict=True)),
        tuple(support.tolist()),
    )


def _hard_roc(right: int, called: int, positives: int, images: int) -> float | None:
    """Return (sensitivity + specificity) / 2."""
    negatives = images - positives
    if not positives or not negatives:
        return None
    return (right / positives + (negatives - (called - right)) / negatives) / 2


def _hard_precision_recall(right: int, called: int, positives: int, images: int) -> float | None:
    """Return the area under the lines (0, 1) - (recall, precision) - (1, share of positives)."""
    if not positives or positives == images:
        return None
    recall, precision, share = right / positives, right / called if called else 1.0, positives / images
    return recall * (1 + precision) / 2 + (1 - recall) * (precision + share) / 2


def _curve(x: Floats, y: Floats, thresholds: Floats, area: float, points: int) -> Curve:
    """Return the curve, thinned; thresholds that are not finite call no image."""
    kept = thinned(x, y, points)
    values = [value if isfinite(value) else None for value in thresholds[kept].tolist()]
    return Curve(tuple(x[kept].tolist()), tuple(y[kept].tolist()), tuple(values), area)


def _from_zero(values: Floats) -> Floats:
    return np.concatenate([[0.0], values])
