"""Whether confidence is what it claims: ECE, MCE and reliability bins, classwise ECE, Brier score, NLL (paper, 3.6).

The paper's bins are the adaptive ones of Ding et al. 2020: as narrow as their samples allow, so that the accuracy of a
bin is known about as well as its confidence.
"""

from bisect import bisect_left
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.classification import Counts, Floats, Labels, Probabilities, checked
from fedperl.evaluate.ranking import ranked

Binning = Literal["adaptive", "equal_width", "equal_mass"]
Repair = Literal["authors_code", "proportional"]

SMALLEST = 1e-12
"""No probability counts as less in a logarithm."""
BINS = 15
Z90 = 1.645  # of a two-sided normal interval of 90 %
REMAINING = 40  # more samples than this must be left to open a bin
DISTANCE = 0.05  # and the bin before must end this far above the least confident


@dataclass(frozen=True)
class Bin:
    """Images of similar confidence; a positive gap is over-confidence."""

    images: int
    confidence: float
    accuracy: float
    gap: float
    low: float
    """The least confidence in it."""
    high: float


@dataclass(frozen=True)
class Calibration:
    """How far confidence and accuracy are apart; bins without an image are left out, the least confident come first."""

    images: int
    binning: Binning
    ece: float
    mce: float
    classwise_ece: float
    brier: float
    nll: float
    accuracy: float
    confidence: float
    per_class_ece: tuple[float, ...]
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, the bins as a sequence of such."""
        return asdict(self)


@dataclass(frozen=True)
class Confidences:
    """The distinct confidences, highest first, how many images have each, and how many of those are right.

    Images of one confidence cannot be told apart by it. Where a bin ends among them, each part has its share of the
    right ones, so that nothing depends on the order of the images.
    """

    values: Floats
    images: Counts
    right: npt.NDArray[Any]

    @property
    def each(self) -> Floats:
        """The confidence of every image, highest first."""
        return np.repeat(self.values, self.images)


def confidences(truth: Labels, probabilities: Probabilities) -> Confidences:
    """Return the confidences, each the largest probability of an image, and how many are right.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    truth, probabilities = checked(truth, probabilities)
    return of_scores(probabilities.max(axis=1), probabilities.argmax(axis=1) == truth)


def of_scores(score: Floats, right: npt.NDArray[np.bool_]) -> Confidences:
    """Return the distinct scores, and how many of the images of each are right."""
    order = ranked(score)
    images = np.diff(np.append(order.starts, len(score)))
    return Confidences(order.values, images, order.sums(right.astype(np.int64)))


def calibration(
    truth: Labels,
    probabilities: Probabilities,
    binning: Binning = "adaptive",
    bins: int = BINS,
    *,
    repair: Repair = "authors_code",
) -> Calibration:
    """Return how well the confidences of one client's predictions hold.

    ECE is the mean gap between confidence and accuracy over the bins, weighted by their images; MCE the largest.
    Classwise ECE treats each class's probability as a score of its own, in equal-width bins (Kull et al. 2019), and
    averages over all classes. Brier is the squared distance to the truth, summed over classes, 0 to 2.

    Args:
        truth: (n,) true classes.
        probabilities: (n, classes).
        binning: see `adaptive_sizes`; "equal_width" cuts 0 to 1, "equal_mass" the images.
        bins: how many, of equal width or mass; adaptive bins choose for themselves.
        repair: of adaptive bins alone, see `adaptive_sizes`.
    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, rows that are not probabilities, a
            name that is unknown, or fewer than one bin.
    """
    truth, probabilities = checked(truth, probabilities)
    found = confidences(truth, probabilities)
    cut = reliability_bins(found, binning, bins, repair=repair)
    per_class = [
        _error(reliability_bins(of_scores(score, truth == label), "equal_width", bins))
        for label, score in enumerate(probabilities.T)
    ]
    n = len(truth)
    return Calibration(
        images=n,
        binning=binning,
        ece=_error(cut),
        mce=max(abs(one.gap) for one in cut),
        classwise_ece=float(np.mean(per_class)),
        brier=float(squared_distances(truth, probabilities).mean()),
        nll=float(log_losses(truth, probabilities).mean()),
        accuracy=float(found.right.sum() / n),
        confidence=float((found.values * found.images).sum() / n),
        per_class_ece=tuple(per_class),
        bins=cut,
    )


def ece_and_mce(
    found: Confidences, binning: Binning = "adaptive", bins: int = BINS, *, repair: Repair = "authors_code"
) -> tuple[float, float]:
    """Return the mean gap, weighted by images, and the largest.

    Raises:
        ValueError: a name that is unknown, or fewer than one bin.
    """
    cut = reliability_bins(found, binning, bins, repair=repair)
    return _error(cut), max(abs(one.gap) for one in cut)


def reliability_bins(
    found: Confidences, binning: Binning = "adaptive", bins: int = BINS, *, repair: Repair = "authors_code"
) -> tuple[Bin, ...]:
    """Return the bins of a reliability diagram that hold an image, the least confident first.

    Raises:
        ValueError: a name that is unknown, or fewer than one bin.
    """
    if bins < 1:
        raise ValueError(f"bins {bins}; wanted at least 1")
    n = int(found.images.sum())
    each = found.each
    if binning == "adaptive":
        sizes = adaptive_sizes(each, repair)
    elif binning == "equal_width":
        # A confidence on an edge belongs to the bin below, as is usual; 0 has none below.
        place = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], each, side="left")
        sizes = np.bincount(place, minlength=bins)[::-1]
    elif binning == "equal_mass":
        sizes = np.full(bins, n // bins)
        sizes[: n % bins] += 1
    else:
        raise ValueError(f"binning {binning!r}; wanted 'adaptive', 'equal_width' or 'equal_mass'")
    sizes = sizes[sizes > 0]
    ends = sizes.cumsum()
    known = np.append(0, found.images.cumsum())
    at = np.append(0, ends)
    right = np.diff(np.interp(at, known, np.append(0.0, found.right.cumsum())))
    sums = np.diff(np.interp(at, known, np.append(0.0, (found.values * found.images).cumsum())))
    confidence, accuracy = sums / sizes, right / sizes
    columns = (sizes, confidence, accuracy, confidence - accuracy, each[ends - 1], each[ends - sizes])
    return tuple(Bin(*row) for row in zip(*(column[::-1].tolist() for column in columns), strict=True))


def adaptive_sizes(descending: Floats, repair: Repair = "authors_code") -> Counts:
    """Return the sizes of the adaptive bins of Ding et al. 2020, the most confident first.

    A bin grows until it has more samples than 0.25 (1.645 / w)^2, w being its width in confidence: then the 90 %
    interval of its accuracy is about as narrow as the bin. The next opens if more than 40 samples remain and the bin
    ends more than 0.05 above the least confidence. If the last bin then has fewer than its target, every earlier one
    gives up int(missing n / N) samples, and the ends move down so that the last takes them. In the authors' code n is
    the last bin's size for all (`authors_code`); probably each bin's own was meant (`proportional`). Where that would
    leave a bin empty, or the last bin has but one confidence and so no target, nothing is moved.

    Args:
        descending: (n,) confidences, sorted.
    Raises:
        ValueError: a repair of another name.
    """
    if repair not in ("authors_code", "proportional"):
        raise ValueError(f"repair {repair!r}; wanted 'authors_code' or 'proportional'")
    n, start, sizes = len(descending), 0, []
    while True:
        # A bin only gets wider and fuller, while what remains and the distance to the least shrink: the first place
        # where the bin is full is also the last chance to open the next one.
        end = bisect_left(range(n), True, lo=start + 1, key=partial(_full, descending, start))
        if end >= n or n - end <= REMAINING or descending[end - 1] - descending[-1] <= DISTANCE:
            break
        sizes.append(end - start)
        start = end
    sizes.append(n - start)
    found = np.array(sizes)
    missing = _target(descending, start, n) - sizes[-1]
    if 0 < missing < np.inf:
        share = found[:-1] if repair == "proportional" else found[-1]
        moved = (missing * np.broadcast_to(share, len(found) - 1) / n).astype(np.int64)
        if (moved < found[:-1]).all():
            found[:-1] -= moved
            found[-1] += moved.sum()
    return found


def squared_distances(truth: Counts, probabilities: Floats) -> Floats:
    """Return each image's squared distance between probabilities and truth, summed over classes."""
    return np.asarray(((probabilities - np.eye(probabilities.shape[1])[truth]) ** 2).sum(axis=1))


def log_losses(truth: Counts, probabilities: Floats) -> Floats:
    """Return each image's negative log likelihood; a probability below 1e-12 counts as that."""
    return np.asarray(-np.log(np.maximum(probabilities[np.arange(len(truth)), truth], SMALLEST)))


def _full(descending: Floats, start: int, end: int) -> bool:
    """Return whether the bin start ... end - 1 has more samples than its target."""
    return end - start > _target(descending, start, end)


def _target(descending: Floats, start: int, end: int) -> float:
    width = float(descending[start] - descending[end - 1])
    return (Z90 / width) ** 2 * 0.25 if width > 0 else np.inf


def _error(bins: tuple[Bin, ...]) -> float:
    return sum(one.images * abs(one.gap) for one in bins) / sum(one.images for one in bins)
