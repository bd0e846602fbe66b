"""When to abstain: the risk of the predictions kept against their share (paper, 3.6; Geifman and El-Yaniv 2017).

The authors drew the curves of Geifman's guaranteed risk, polygons that end one image short of all; ours are empirical,
and the guarantee is a function of its own.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, lgamma, log, log1p, log2, sqrt
from typing import Any

import numpy as np

from fedperl.evaluate.calibration import Confidences, confidences
from fedperl.evaluate.classification import Floats, Labels, Probabilities
from fedperl.evaluate.ranking import POINTS, thinned

RISKS = (0.05, 0.1, 0.2)


@dataclass(frozen=True)
class AtRisk:
    """The most that can be kept at a risk: images from `threshold` on. None: none, and then nothing is risked."""

    wanted: float
    coverage: float
    risk: float
    threshold: float | None


@dataclass(frozen=True)
class RiskCoverage:
    """The curve and its areas.

    `aurc` is the mean risk over all coverages, `best_aurc` what a ranking of all right before all wrong images would
    have, `e_aurc` the excess over its limit for many images, r + (1 - r) ln(1 - r) with r the risk at full coverage.
    """

    images: int
    risk: float
    aurc: float
    e_aurc: float
    best_aurc: float
    at_risk: tuple[AtRisk, ...]
    coverages: tuple[float, ...]
    risks: tuple[float, ...]
    thresholds: tuple[float, ...]
    """Of a run of points with one threshold, the last is what it keeps; those before are parts of it, at random."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class GuaranteedRisk:
    """A threshold below which to abstain, so that with probability 1 - delta the risk of what is kept is at most bound.

    None, with a coverage of 0 and a bound of 1, where no threshold that was tried can promise the wanted risk.
    """

    wanted: float
    delta: float
    threshold: float | None
    coverage: float
    risk: float
    bound: float

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


def risk_coverage(
    truth: Labels, probabilities: Probabilities, *, at: Sequence[float] = RISKS, points: int = POINTS
) -> RiskCoverage:
    """Return the share of wrong ones among the k most confident images, for every k.

    Images of one confidence count as wrong in equal shares, which is the mean over all their orders.

    Args:
        truth: (n,) true classes.
        probabilities: (n, classes); the largest is the confidence.
        at: risks at which the largest coverage is wanted.
        points: of the curve, at most; the area under what is left out stays within 1e-3 from 100 on.
    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, rows that are not probabilities, a
            risk outside 0 to 1, or fewer than 2 points.
    """
    found = confidences(truth, probabilities)
    risks = _risks(found)
    n, wrong = len(risks), int((found.images - found.right).sum())
    coverages = np.arange(1, n + 1) / n
    kept = thinned(coverages, risks, points)
    area = float(risks.mean())
    return RiskCoverage(
        images=n,
        risk=wrong / n,
        aurc=area,
        e_aurc=area - _limit(wrong / n),
        best_aurc=float(np.maximum(1 - (n - wrong) / np.arange(1, n + 1), 0.0).mean()),
        at_risk=tuple(largest_coverage(found, risk) for risk in at),
        coverages=tuple(coverages[kept].tolist()),
        risks=tuple(risks[kept].tolist()),
        thresholds=tuple(found.each[kept].tolist()),
    )


def threshold_at_risk(truth: Labels, probabilities: Probabilities, risk: float) -> AtRisk:
    """Return the confidence from which on to predict, so that as many images as possible are kept at that risk.

    It is what these images show, chosen in their favour: on others the risk will be higher more often than not. For a
    promise see `selective_guaranteed_risk`.

    Raises:
        ValueError: as `risk_coverage`.
    """
    return largest_coverage(confidences(truth, probabilities), risk)


def largest_coverage(found: Confidences, risk: float) -> AtRisk:
    """Return the largest coverage whose risk is at most the wanted one, of those that a threshold can give.

    Raises:
        ValueError: a risk outside 0 to 1.
    """
    if not 0 <= risk <= 1:
        raise ValueError(f"risk {risk}; wanted 0 to 1")
    kept = found.images.cumsum()
    risks = (found.images - found.right).cumsum() / kept
    places = np.flatnonzero(risks <= risk)
    if not len(places):
        return AtRisk(risk, 0.0, 0.0, None)
    place = places[-1]
    return AtRisk(risk, float(kept[place] / kept[-1]), float(risks[place]), float(found.values[place]))


def area_under_risk(found: Confidences) -> tuple[float, float]:
    """Return the mean risk over all coverages, and its excess over the limit of the best ranking."""
    area = float(_risks(found).mean())
    return area, area - _limit(1 - int(found.right.sum()) / int(found.images.sum()))


def selective_guaranteed_risk(
    truth: Labels, probabilities: Probabilities, risk: float, delta: float = 0.001
) -> GuaranteedRisk:
    """Return the threshold of Geifman's selection with guaranteed risk.

    A binary search over the m images, sorted by confidence: each threshold it tries gets the binomial bound on its
    risk at delta / ceil(log2 m), so that all bounds hold together; fewer images are kept where the bound is not below
    the wanted risk, more where it is. The last threshold that was good enough is returned. All m are never tried, as
    in the original: coverage ends at (m - 1) / m.

    Args:
        truth, probabilities: of images the model was not trained on.
    Raises:
        ValueError: as `risk_coverage`, or a risk or delta outside 0 to 1, the ends excluded.
    """
    if not 0 < risk < 1 or not 0 < delta < 1:
        raise ValueError(f"risk {risk}, delta {delta}; wanted both between 0 and 1")
    found = confidences(truth, probabilities)
    ascending = found.each[::-1]
    kept, wrong = found.images.cumsum(), (found.images - found.right).cumsum()
    m = len(ascending)
    tries = max(1, ceil(log2(m)))
    best = GuaranteedRisk(risk, delta, None, 0.0, 0.0, 1.0)
    low, high = 1, m
    for _ in range(tries):
        middle = (low + high + 1) // 2
        place = int(np.searchsorted(-found.values, -ascending[middle - 1]))
        covered, errors = int(kept[place]), int(wrong[place])
        bound = binomial_bound(errors, covered, delta / tries)
        if bound < risk:
            high = middle
            threshold = float(found.values[place])
            best = GuaranteedRisk(risk, delta, threshold, covered / m, errors / covered, bound)
        else:
            low = middle
    return best


def binomial_bound(errors: int, trials: int, delta: float) -> float:
    """Return the error rate at which so few errors in so many trials have the probability delta: an upper bound.

    Raises:
        ValueError: no trial, errors outside 0 to trials, or a delta outside 0 to 1, the ends excluded.
    """
    if trials < 1 or not 0 <= errors <= trials or not 0 < delta < 1:
        raise ValueError(f"{errors} errors in {trials} trials, delta {delta}; wanted 0 to trials, and 0 < delta < 1")
    if errors == trials:
        return 1.0
    # Terms from `errors` downwards, in logarithms. At rates above errors / trials they fall faster than a normal
    # density of deviation sqrt(trials) / 2; twenty deviations below, nothing is left that a float could hold.
    reach = min(errors, ceil(10 * sqrt(trials)) + 10)
    down = np.arange(errors, errors - reach, -1)
    first = lgamma(trials + 1) - lgamma(errors + 1) - lgamma(trials - errors + 1)
    choices = np.concatenate([[first], first + (np.log(down) - np.log(trials - down + 1)).cumsum()])
    numbers = np.arange(errors, errors - reach - 1, -1)
    low, high = errors / trials, 1.0
    for _ in range(60):  # halvings: beyond the precision of a float
        rate = (low + high) / 2
        if not low < rate < high:
            break
        if _log_sum(choices + numbers * log(rate) + (trials - numbers) * log1p(-rate)) > log(delta):
            low = rate
        else:
            high = rate
    return high


def _log_sum(terms: Floats) -> float:
    largest = float(terms.max())
    return largest + log(float(np.exp(terms - largest).sum()))


def _risks(found: Confidences) -> Floats:
    """Return the risk of the k most confident images, for every k."""
    wrong = np.repeat((found.images - found.right) / found.images, found.images).cumsum()
    return np.asarray(wrong / np.arange(1, len(wrong) + 1))


def _limit(risk: float) -> float:
    """Return the AURC of the best ranking of very many images."""
    return risk + (1 - risk) * log1p(-risk) if risk < 1 else 1.0
