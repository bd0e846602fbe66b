"""Where to cut a score: the sensitivity that a fixed specificity leaves, and the reverse (malignant against benign)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedperl.evaluate.classification import Floats
from fedperl.evaluate.ranking import Mask, Scores, counted

LEVELS = (0.8, 0.9, 0.95)


@dataclass(frozen=True)
class OperatingPoint:
    """What calling every image of at least `threshold` positive gives; None: no image is called."""

    sensitivity: float
    specificity: float
    threshold: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class OperatingPoints:
    """Points for each level; None where the truth has positives only, or negatives only."""

    levels: tuple[float, ...]
    at_specificity: tuple[OperatingPoint | None, ...]
    at_sensitivity: tuple[OperatingPoint | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the points by name, in the order of the levels."""
        return asdict(self)


def operating_points(truth: Mask, score: Scores, levels: Sequence[float] = LEVELS) -> OperatingPoints:
    """Return the best sensitivity at each level of specificity, and the best specificity at each of sensitivity.

    Raises:
        ValueError: as `sensitivity_at_specificity`.
    """
    return OperatingPoints(
        tuple(levels),
        tuple(sensitivity_at_specificity(truth, score, level) for level in levels),
        tuple(specificity_at_sensitivity(truth, score, level) for level in levels),
    )


def sensitivity_at_specificity(truth: Mask, score: Scores, specificity: float) -> OperatingPoint | None:
    """Return the point of the highest sensitivity among those of at least that specificity; None as above.

    Among equals, the one of the highest specificity. Nothing is interpolated: every point is what a threshold gives.

    Args:
        truth: (n,) whether each image is positive.
        score: (n,) see `malignancy.malignant_score`.
    Raises:
        ValueError: no image, shapes or types that do not fit, a score that is not finite, or a level outside 0 to 1.
    """
    _check_level("specificity", specificity)
    found = _points(truth, score)
    if found is None:
        return None
    sensitivities, specificities, values = found
    allowed = np.flatnonzero(specificities >= specificity)  # never empty: calling none has 1
    best = sensitivities[allowed].max()
    return _point(int(allowed[sensitivities[allowed] == best][0]), sensitivities, specificities, values)


def specificity_at_sensitivity(truth: Mask, score: Scores, sensitivity: float) -> OperatingPoint | None:
    """Return the point of the highest specificity among those of at least that sensitivity; None as above.

    Among equals, the one of the highest sensitivity.

    Raises:
        ValueError: as `sensitivity_at_specificity`.
    """
    _check_level("sensitivity", sensitivity)
    found = _points(truth, score)
    if found is None:
        return None
    sensitivities, specificities, values = found
    allowed = np.flatnonzero(sensitivities >= sensitivity)  # never empty: calling all has 1
    best = specificities[allowed].max()
    return _point(int(allowed[specificities[allowed] == best][-1]), sensitivities, specificities, values)


def at_threshold(truth: Mask, score: Scores, threshold: float | None) -> OperatingPoint | None:
    """Return what a threshold chosen elsewhere, on validation images, gives here; None as above.

    Raises:
        ValueError: no image, shapes or types that do not fit, or a score that is not finite.
    """
    found = _points(truth, score)
    if found is None:
        return None
    sensitivities, specificities, values = found
    place = 0 if threshold is None else int((values >= threshold).sum())
    return OperatingPoint(float(sensitivities[place]), float(specificities[place]), threshold)


def _points(truth: Mask, score: Scores) -> tuple[Floats, Floats, Floats] | None:
    """Return sensitivity and specificity of calling none, then of each distinct score as threshold, highest first."""
    order, positives, negatives = counted(truth, score)
    if not positives.any() or not negatives.any():
        return None
    called, wrong = np.append(0, positives.cumsum()), np.append(0, negatives.cumsum())
    return called / called[-1], (wrong[-1] - wrong) / wrong[-1], order.values


def _point(place: int, sensitivities: Floats, specificities: Floats, values: Floats) -> OperatingPoint:
    threshold = float(values[place - 1]) if place else None
    return OperatingPoint(float(sensitivities[place]), float(specificities[place]), threshold)


def _check_level(name: str, level: float) -> None:
    if not 0 <= level <= 1:
        raise ValueError(f"{name} {level}; wanted 0 to 1")
