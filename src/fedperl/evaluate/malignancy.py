"""Malignant or benign: an eight-class model on a client it never saw (paper, the unseen-client scenario, ISIC20).

The paper does not say how eight probabilities become two; both readings are given. Its ranking numbers seem to come
from hard labels, whose AUROC is the balanced accuracy; ours rank by the summed probability of the malignant classes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedperl.evaluate.classification import Counts, Floats, check_probabilities, confusion_matrix, from_confusion
from fedperl.evaluate.ranking import Mask, Scores, binary_auprc, binary_auroc, check_mask

MALIGNANT = ("MEL", "BCC", "AK", "SCC")
THRESHOLD = 0.5


@dataclass(frozen=True)
class Reading:
    """One way of turning class probabilities into malignant or benign; a division by zero counts as 0."""

    accuracy: float
    balanced_accuracy: float
    malignant_precision: float
    malignant_recall: float
    malignant_f1: float
    benign_precision: float
    benign_recall: float
    benign_f1: float
    weighted_f1: float


@dataclass(frozen=True)
class Malignancy:
    """Both readings of one client's predictions; AUROC and AUPRC are None where the truth has one class only."""

    images: int
    malignant: int
    argmax_then_group: Reading
    sum_then_threshold: Reading
    auroc: float | None
    auprc: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, those of a reading under the reading's name."""
        return asdict(self)


def malignant_classes(classes: Sequence[str]) -> Mask:
    """Return which of the classes are malignant.

    Raises:
        ValueError: none of them is, or all are.
    """
    malignant = np.array([name in MALIGNANT for name in classes], dtype=np.bool_)
    if not malignant.any():
        raise ValueError(f"classes {', '.join(classes)}: none is malignant; wanted at least one of {MALIGNANT}")
    if malignant.all():
        raise ValueError(f"classes {', '.join(classes)}: all are malignant; wanted at least one that is not")
    return malignant


def malignancy(truth: Mask, probabilities: Scores, malignant: Mask) -> Malignancy:
    """Return how well a model tells malignant from benign images.

    `argmax_then_group`: malignant if the most probable class is. `sum_then_threshold`: malignant if the malignant
    classes have at least half the probability together; then no single class needs to win.

    Args:
        truth: (n,) whether each image is malignant.
        probabilities: (n, classes), each row summing to 1.
        malignant: (classes,) which classes are malignant, see `malignant_classes`.
    Raises:
        ValueError: no image, shapes or types that do not fit, or rows that are not probabilities.
    """
    truth, probabilities, malignant = np.asarray(truth), np.asarray(probabilities), np.asarray(malignant)
    _check(truth, probabilities, malignant)
    score = malignant_score(probabilities, malignant)
    return Malignancy(
        images=len(truth),
        malignant=int(truth.sum()),
        argmax_then_group=_reading(truth, malignant[probabilities.argmax(axis=1)]),
        sum_then_threshold=_reading(truth, score >= THRESHOLD),
        auroc=binary_auroc(truth, score),
        auprc=binary_auprc(truth, score),
    )


def malignant_score(probabilities: Scores, malignant: Mask) -> Floats:
    """Return the summed probability of the malignant classes of each image, (n,)."""
    return np.asarray(probabilities[:, malignant].sum(axis=1, dtype=np.float64))


def _reading(truth: Mask, predicted: Mask) -> Reading:
    counts = confusion_matrix(truth.astype(np.int64), predicted.astype(np.int64), classes=2)
    every = from_confusion(counts)
    benign, malignant = _one_class(counts, 0), _one_class(counts, 1)
    return Reading(every.accuracy, every.balanced_accuracy, *malignant, *benign, every.weighted_f1)


def _one_class(counts: Counts, label: int) -> tuple[float, float, float]:
    """Return precision, recall and F1 of one class of a confusion matrix."""
    right, support, predicted = (int(n) for n in (counts[label, label], counts[label].sum(), counts[:, label].sum()))
    return _ratio(right, predicted), _ratio(right, support), _ratio(2 * right, support + predicted)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0


def _check(truth: Mask, probabilities: Scores, malignant: Mask) -> None:
    if truth.ndim != 1 or probabilities.ndim != 2 or len(truth) != len(probabilities) or not len(truth):
        raise ValueError(f"wanted (n,) and (n, classes) with n > 0, found {truth.shape} and {probabilities.shape}")
    check_mask(truth)
    if malignant.dtype != np.bool_ or malignant.shape != probabilities.shape[1:]:
        wanted = f"bool ({probabilities.shape[1]},)"
        raise ValueError(f"malignant: wanted {wanted}, found {malignant.dtype} {malignant.shape}")
    if malignant.all() or not malignant.any():
        raise ValueError("malignant: wanted both malignant and benign classes, found one kind only")
    check_probabilities(probabilities)
