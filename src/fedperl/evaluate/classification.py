"""F1, precision, recall and accuracies of one client's predictions, all from the confusion matrix.

The matrix is what adds up over batches, and it spares every round of every client a slow import and slow calls; the
tests compare every number with scikit-learn's.
"""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.integer]
Counts = npt.NDArray[np.int64]


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

    def to_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


def confusion_matrix(truth: Labels, predicted: Labels, classes: int) -> Counts:
    """Return counts (true class, predicted class).

    Raises:
        ValueError: the lengths differ, or a label is outside 0 ... classes - 1.
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if truth.shape != predicted.shape or truth.ndim != 1:
        raise ValueError(f"wanted two vectors of one length, found {truth.shape} and {predicted.shape}")
    for name, values in (("truth", truth), ("predicted", predicted)):
        if values.size and not (values.min() >= 0 and values.max() < classes):
            raise ValueError(f"{name}: labels {values.min()} to {values.max()}; wanted 0 to {classes - 1}")
    return np.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)


def classification(truth: Labels, probabilities: npt.NDArray[np.floating]) -> Classification:
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

    def weighted(values: npt.NDArray[np.float64]) -> float:
        return float((values * support).sum() / total)

    def macro(values: npt.NDArray[np.float64]) -> float:
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
    )


def _divide(numerator: Counts, denominator: Counts) -> npt.NDArray[np.float64]:
    return np.where(denominator > 0, numerator / np.maximum(denominator, 1), 0.0)
