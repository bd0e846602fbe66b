"""F1, precision, recall and accuracies of one client's predictions, all from the confusion matrix.

The matrix is what adds up over batches, and it spares every round of every client a slow import and slow calls; the
tests compare every number with scikit-learn's.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.integer]
Probabilities = npt.NDArray[np.floating]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NEARLY_ALL, MOST = 0.95, 0.9
"""The share of images that a collapsed model says one class of, and the largest share that may truly be of it."""
ROUNDING = 1e-2  # rows of half-precision probabilities sum to 1 only so far


@dataclass(frozen=True)
class OfClass:
    """One class: its images, how often it was predicted, and its numbers; None where it has no image in the truth."""

    support: int
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Classification:
    """Support-weighted (as in the paper) and macro averages over the classes present in the truth."""

    images: int
    accuracy: float
    balanced_accuracy: float
    weighted_f1: float
    weighted_precision: float
    weighted_recall: float
    macro_f1: float
    macro_precision: float
    macro_recall: float
    confusion: tuple[tuple[int, ...], ...] = field(repr=False)
    """Counts, [true class][predicted class]."""

    @property
    def per_class(self) -> tuple[OfClass, ...]:
        """The numbers of each class; a class without an image has a support of 0 and no others."""
        counts = np.array(self.confusion, dtype=np.int64)
        right, support, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
        numbers = (_divide(right, predicted), _divide(right, support), _divide(2 * right, support + predicted))
        return tuple(
            OfClass(int(n), int(guessed), *((float(p), float(r), float(f)) if n else (None, None, None)))
            for n, guessed, p, r, f in zip(support, predicted, *numbers, strict=True)
        )

    def to_dict(self) -> dict[str, float]:
        """Return the averages by name: what a client may tell. Single classes and counts are left out."""
        return {name: value for name, value in vars(self).items() if name != "confusion"}

    def to_full_dict(self) -> dict[str, Any]:
        """Return the averages, and under `per_class` and `confusion` what is known of each class."""
        return self.to_dict() | {
            "per_class": [one.to_dict() for one in self.per_class],
            "confusion": [list(row) for row in self.confusion],
        }


def confusion_matrix(truth: Labels, predicted: Labels, classes: int) -> Counts:
    """Return counts (true class, predicted class).

    Raises:
        ValueError: the lengths differ, or a label is outside 0 ... classes - 1.
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if truth.shape != predicted.shape or truth.ndim != 1:
        raise ValueError(f"wanted two vectors of one length, found {truth.shape} and {predicted.shape}")
    for name, values in (("truth", truth), ("predicted", predicted)):
        check_labels(name, values, classes)
    cells = truth.astype(np.int64) * classes + predicted  # narrow integers would overflow
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def classification(truth: Labels, probabilities: Probabilities) -> Classification:
    """Return the numbers of one client's predictions.

    A division by zero counts as 0, as scikit-learn's `zero_division=0` does. Macro averages run over the classes that
    the client has: a class it never sees says nothing about it.

    Args:
        truth: (n,) true classes.
        probabilities: (n, classes); the largest is the prediction.
    Raises:
        ValueError: no image, or shapes that do not fit.
    """
    probabilities = np.asarray(probabilities)
    if probabilities.ndim != 2 or len(probabilities) != len(truth) or not len(truth):
        raise ValueError(f"wanted (n,) and (n, classes) with n > 0, found {np.shape(truth)}, {probabilities.shape}")
    return from_confusion(confusion_matrix(truth, probabilities.argmax(axis=1), probabilities.shape[1]))


def from_confusion(counts: Counts) -> Classification:
    """Return the numbers of a confusion matrix (true class, predicted class)."""
    right, support, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    recall = _divide(right, support)
    precision = _divide(right, predicted)
    f1 = _divide(2 * right, support + predicted)
    present, total = support > 0, int(support.sum())
    accuracy = float(right.sum() / total)

    def weighted(values: Floats) -> float:
        return float((values * support).sum() / total)

    def macro(values: Floats) -> float:
        return float(values[present].mean())

    return Classification(
        total,
        accuracy,
        macro(recall),
        weighted(f1),
        weighted(precision),
        weighted(recall),
        macro(f1),
        macro(precision),
        macro(recall),
        tuple(tuple(row) for row in counts.tolist()),
    )


def one_answer(counts: Counts) -> tuple[int, float] | None:
    """Return the class that a model says of nearly all images though not nearly all are of it, and of what share.

    Such a model tells nothing apart. None where there is no such class, or no image.

    Args:
        counts: [true class][predicted class].
    """
    predicted, support, images = counts.sum(axis=0), counts.sum(axis=1), counts.sum()
    said = int(predicted.argmax())
    if not images or predicted[said] <= NEARLY_ALL * images or support[said] > MOST * images:
        return None
    return said, float(predicted[said] / images)


def checked(truth: Labels, probabilities: Probabilities) -> tuple[Counts, Floats]:
    """Return the true classes and the probabilities in full precision, once they are known to be such.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    truth, probabilities = np.asarray(truth), np.asarray(probabilities)
    if truth.ndim != 1 or probabilities.ndim != 2 or len(probabilities) != len(truth) or not len(truth):
        raise ValueError(f"wanted (n,) and (n, classes) with n > 0, found {truth.shape}, {probabilities.shape}")
    check_labels("truth", truth, probabilities.shape[1])
    check_probabilities(probabilities)
    return truth.astype(np.int64), probabilities.astype(np.float64)


def check_labels(name: str, labels: Labels, classes: int) -> None:
    """Accept labels that are classes.

    Raises:
        ValueError: not integers, or one is outside 0 ... classes - 1.
    """
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{name}: wanted integers, the classes' numbers, found {labels.dtype}")
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"{name}: labels {labels.min()} to {labels.max()}; wanted 0 to {classes - 1}")


def check_probabilities(probabilities: Probabilities) -> None:
    """Accept rows that are probabilities, as far as half precision goes.

    Raises:
        ValueError: a value that is not finite or is negative, or a row that does not sum to 1.
    """
    rows = np.isfinite(probabilities).all(axis=1)
    if not rows.all():
        raise ValueError(f"probabilities: not finite in row {int(rows.argmin())}")
    sums = probabilities.sum(axis=1, dtype=np.float64)
    rows = (probabilities >= 0).all(axis=1) & (np.abs(sums - 1) <= ROUNDING)
    if not rows.all():
        raise ValueError(f"probabilities: row {int(rows.argmin())} is not 0 or more, summing to 1; are these logits?")


def _divide(numerator: Counts, denominator: Counts) -> Floats:
    return np.where(denominator > 0, numerator / np.maximum(denominator, 1), 0.0)
