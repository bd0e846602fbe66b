"""What a client may tell of its predictions: counts in bins, never a value of one image.

From them come confusion matrices, reliability diagrams, risk-coverage, ROC and precision-recall curves, of one client
or of several together: the counts add up. Images of one bin count as equally sure.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.calibration import Bin, Confidences, reliability_bins
from fedperl.evaluate.classification import (
    Classification,
    Counts,
    Floats,
    Labels,
    Probabilities,
    confusion_matrix,
    from_confusion,
)

BINS = 200


@dataclass(frozen=True)
class BinnedSums:
    """Counts of one set of predictions, or of several added up."""

    confusion: Counts
    """(classes, classes): true, predicted."""
    confidence: Counts
    """(bins, 2): wrong and right predictions by the largest probability."""
    total_confidence: Floats
    """(bins,): the sum of those largest probabilities."""
    scores: Counts
    """(classes, bins, 2): images of other classes and of the class, by its probability."""

    def __add__(self, other: "BinnedSums") -> "BinnedSums":
        if self.scores.shape != other.scores.shape:
            raise ValueError(f"binned sums of shapes {self.scores.shape} and {other.scores.shape} cannot be added")
        return BinnedSums(
            self.confusion + other.confusion,
            self.confidence + other.confidence,
            self.total_confidence + other.total_confidence,
            self.scores + other.scores,
        )

    @property
    def images(self) -> int:
        """How many predictions were counted."""
        return int(self.confidence.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as lists."""
        return {
            "confusion": self.confusion.tolist(),
            "confidence": self.confidence.tolist(),
            "total_confidence": [round(float(value), 6) for value in self.total_confidence],
            "scores": self.scores.tolist(),
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "BinnedSums":
        """Return what `to_dict` gave.

        Raises:
            ValueError: something is missing, negative, or of another shape.
        """
        try:
            confusion, confidence, scores = (
                np.asarray(found[name], dtype=np.int64) for name in ("confusion", "confidence", "scores")
            )
            total = np.asarray(found["total_confidence"], dtype=np.float64)
            classes, bins = len(confusion), len(confidence)
            shapes = [confusion.shape, confidence.shape, total.shape, scores.shape]
            if shapes != [(classes, classes), (bins, 2), (bins,), (classes, bins, 2)]:
                raise ValueError(f"shapes {shapes}")
            if min(confusion.min(), confidence.min(), scores.min()) < 0 or not np.isfinite(total).all():
                raise ValueError("a count is negative or a sum is not finite")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"these are no binned sums: {error!r}") from None
        return cls(confusion, confidence, total, scores)

    # What they say

    def classification(self) -> Classification:
        """Return the numbers of the confusion matrix, exactly."""
        return from_confusion(self.confusion)

    def reliability(self, bins: int = 15) -> list[dict[str, float]]:
        """Return the equal-width bins that hold images: count, mean confidence, accuracy, gap (above 0: too sure)."""
        edges = np.linspace(0, len(self.confidence), bins + 1).round().astype(int)
        found = []
        for low, high in itertools.pairwise(edges):
            count = int(self.confidence[low:high].sum())
            if count:
                confidence = float(self.total_confidence[low:high].sum() / count)
                accuracy = float(self.confidence[low:high, 1].sum() / count)
                gap = confidence - accuracy
                found.append({"images": count, "confidence": confidence, "accuracy": accuracy, "gap": gap})
        return found

    def ece(self, bins: int = 15) -> float:
        """Return the expected calibration error over equal-width bins."""
        return sum(abs(b["gap"]) * b["images"] for b in self.reliability(bins)) / max(1, self.images)

    def confidences(self) -> Confidences:
        """Return each bin that holds images as one confidence, the mean of its images; the highest comes first."""
        images, bins = self.confidence.sum(axis=1), len(self.confidence)
        filled = np.flatnonzero(images)[::-1]
        means = self.total_confidence[filled] / images[filled]
        values = np.clip(means, filled / bins, (filled + 1) / bins)  # sums are told rounded: order must not suffer
        return Confidences(values, images[filled], self.confidence[filled, 1])

    def adaptive_bins(self) -> tuple[Bin, ...]:
        """Return the bins of the paper's reliability diagrams, the least confident first; none without images."""
        return reliability_bins(self.confidences(), "adaptive") if self.images else ()

    def risk_coverage(self) -> tuple[Floats, Floats, Floats]:
        """Return coverages, risks and thresholds: what is kept from a bin's lower edge on, the surest first."""
        wrong, right = self.confidence[::-1].cumsum(axis=0).T
        kept = wrong + right
        some = kept > 0
        edges = np.arange(len(self.confidence))[::-1] / len(self.confidence)
        changes = some & (np.diff(kept, prepend=0) > 0)
        return kept[changes] / max(1, self.images), wrong[changes] / kept[changes], edges[changes]

    def threshold_at_risk(self, risk: float) -> float | None:
        """Return the least confidence to keep so that the risk is at most `risk`, keeping most; None: keep none."""
        _, risks, thresholds = self.risk_coverage()
        fine = np.flatnonzero(risks <= risk)
        return float(thresholds[fine[-1]]) if len(fine) else None

    def roc(self, label: int) -> tuple[Floats, Floats] | None:
        """Return false and true positive rates of one class against the rest; None where there are not both."""
        others, own = self.scores[label, ::-1].cumsum(axis=0).T
        if not others[-1] or not own[-1]:
            return None
        return _from_zero(others / others[-1]), _from_zero(own / own[-1])

    def auroc(self, label: int) -> float | None:
        """Return the area under that curve; images of one bin count half."""
        curve = self.roc(label)
        return None if curve is None else float((np.diff(curve[0]) * (curve[1][1:] + curve[1][:-1]) / 2).sum())

    def precision_recall(self, label: int) -> tuple[Floats, Floats] | None:
        """Return recalls and precisions of one class, from the surest on; None without images of it."""
        others, own = self.scores[label, ::-1].cumsum(axis=0).T
        if not own[-1]:
            return None
        some = others + own > 0
        return own[some] / own[-1], own[some] / (others + own)[some]

    def average_precision(self, label: int) -> float | None:
        """Return the mean of the precisions, weighted by what each adds to the recall."""
        curve = self.precision_recall(label)
        return None if curve is None else float((np.diff(curve[0], prepend=0.0) * curve[1]).sum())


def binned_sums(truth: Labels, probabilities: Probabilities, *, bins: int = BINS) -> BinnedSums:
    """Return the counts of predictions (n, classes).

    Raises:
        ValueError: shapes that do not fit, or a probability outside [0, 1].
    """
    truth, found = np.asarray(truth), np.asarray(probabilities, dtype=np.float64)
    if found.ndim != 2 or len(found) != len(truth):
        raise ValueError(f"wanted (n,) and (n, classes), found {truth.shape} and {found.shape}")
    if len(found) and not (found.min() >= 0 and found.max() <= 1 + 1e-6):
        raise ValueError(f"wanted probabilities in [0, 1], found {found.min()} to {found.max()}")
    classes = found.shape[1]
    places = np.minimum((found * bins).astype(np.int64), bins - 1)  # (n, classes)
    predicted, rows = found.argmax(axis=1), np.arange(len(found))
    confidence = np.zeros((bins, 2), dtype=np.int64)
    total = np.zeros(bins)
    np.add.at(confidence, (places[rows, predicted], (predicted == truth).astype(np.int64)), 1)
    np.add.at(total, places[rows, predicted], found[rows, predicted])
    scores = np.zeros((classes, bins, 2), dtype=np.int64)
    for label in range(classes):
        np.add.at(scores[label], (places[:, label], (truth == label).astype(np.int64)), 1)
    return BinnedSums(confusion_matrix(truth, predicted, classes), confidence, total, scores)


def _from_zero(values: npt.NDArray[np.floating]) -> Floats:
    return np.concatenate([[0.0], values])
