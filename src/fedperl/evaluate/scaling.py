"""Temperature scaling (Guo et al. 2017): one number, fitted on validation images, that makes confidence hold.

It divides the logits by T and so changes no prediction. The negative log likelihood is convex in 1 / T: its one
minimum is found by Newton's steps, kept inside a bracket.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.calibration import SMALLEST, Binning, confidences, ece_and_mce, log_losses
from fedperl.evaluate.classification import Counts, Floats, Labels, Probabilities, check_labels, checked

COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures tried. Where every image is right the likelihood only grows as T falls, so there must be an end."""


@dataclass(frozen=True)
class BeforeAfter:
    """Calibration of the same images without and with the temperature."""

    images: int
    nll_before: float
    nll_after: float
    ece_before: float
    ece_after: float


@dataclass(frozen=True)
class TemperatureScaling:
    """The temperature, and what it does to the images it was fitted on and to others.

    Above 1 the model was over-confident. `at_end`: it is the coldest or the hottest that is tried, and means little.
    """

    temperature: float
    at_end: bool
    validation: BeforeAfter
    test: BeforeAfter

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, those of a set of images under its name."""
        return asdict(self)


def temperature_scaling(
    validation_truth: Labels,
    validation_probabilities: Probabilities,
    truth: Labels,
    probabilities: Probabilities,
    binning: Binning = "adaptive",
) -> TemperatureScaling:
    """Return the temperature of the validation images, and how well calibrated these and the others are with it.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    temperature = fit_temperature(validation_truth, validation_probabilities)
    return TemperatureScaling(
        temperature,
        temperature in (COLDEST, HOTTEST),
        _before_after(validation_truth, validation_probabilities, temperature, binning),
        _before_after(truth, probabilities, temperature, binning),
    )


def fit_temperature(truth: Labels, probabilities: Probabilities) -> float:
    """Return the T, 0.01 to 100, whose scaled probabilities are the likeliest; never less likely than unscaled ones.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    truth, probabilities = checked(truth, probabilities)
    temperature = _fit(truth, _logits(probabilities))
    before = log_losses(truth, probabilities).mean()
    after = log_losses(truth, apply_temperature(probabilities, temperature)).mean()
    return temperature if after < before else 1.0


def fit_temperature_to_logits(truth: Labels, logits: npt.NDArray[np.floating]) -> float:
    """Return the same from logits, which very certain models lose as they become probabilities.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or logits that are not finite.
    """
    truth, logits = np.asarray(truth), np.asarray(logits)
    if truth.ndim != 1 or logits.ndim != 2 or len(logits) != len(truth) or not len(truth):
        raise ValueError(f"wanted (n,) and (n, classes) with n > 0, found {truth.shape}, {logits.shape}")
    check_labels("truth", truth, logits.shape[1])
    if not np.isfinite(logits).all():
        raise ValueError(f"logits: not finite in row {int(np.isfinite(logits).all(axis=1).argmin())}")
    return _fit(truth.astype(np.int64), logits.astype(np.float64))


def apply_temperature(probabilities: Probabilities, temperature: float) -> Floats:
    """Return the probabilities that logits divided by T would give; those given, where T is 1.

    Raises:
        ValueError: a temperature of 0 or below.
    """
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}; wanted more than 0")
    full = np.asarray(probabilities).astype(np.float64)
    return full if temperature == 1.0 else softmax(_logits(full) / temperature)


def softmax(logits: npt.NDArray[np.floating]) -> Floats:
    """Return the probabilities of logits, (n, classes)."""
    full = np.asarray(logits).astype(np.float64)
    found = np.exp(full - full.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _fit(truth: Counts, logits: Floats) -> float:
    """Return the T at which the slope of the negative log likelihood in 1 / T is 0, or the end it slopes down to."""
    # From the true class on: where it is the likeliest, no term of the slope is above 0, whatever rounding does.
    above = logits - logits[np.arange(len(truth)), truth][:, None]

    def slope_and_bend(inverse: float) -> tuple[float, float]:
        probabilities = softmax(logits * inverse)
        slopes = (probabilities * above).sum(axis=1)
        bend = (probabilities * (above - slopes[:, None]) ** 2).sum(axis=1).mean()
        return float(slopes.mean()), float(bend)

    low, high = 1 / HOTTEST, 1 / COLDEST
    inverse = 1.0
    slope, bend = slope_and_bend(inverse)
    # So far out the slope may vanish in rounding: no end is mistaken for a minimum.
    if slope < 0 and slope_and_bend(high)[0] <= 0:
        return COLDEST
    if slope > 0 and slope_and_bend(low)[0] >= 0:
        return HOTTEST
    for _ in range(100):
        if slope == 0.0:
            break
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        newton = inverse - slope / bend if bend > 0 else 0.0
        following = newton if low <= newton <= high else (low * high) ** 0.5
        if abs(following - inverse) <= 1e-10 * inverse:
            break
        inverse = following
        slope, bend = slope_and_bend(inverse)
    return 1 / inverse


def _logits(probabilities: Floats) -> Floats:
    return np.log(np.maximum(probabilities, SMALLEST))


def _before_after(truth: Labels, probabilities: Probabilities, temperature: float, binning: Binning) -> BeforeAfter:
    truth, probabilities = checked(truth, probabilities)
    after = apply_temperature(probabilities, temperature)
    losses = [float(log_losses(truth, p).mean()) for p in (probabilities, after)]
    errors = [ece_and_mce(confidences(truth, p), binning)[0] for p in (probabilities, after)]
    return BeforeAfter(len(truth), *losses, *errors)
