"""Membership inference: how well an attacker tells, from what a model says, which images it was trained on.

A score says how much a model knows of an image; members should score higher. What counts is the share of members found
while hardly any other image is taken for one (Carlini et al. 2022): the true positive rate at a false positive rate of
1 % or 0.1 %. A model that tells nothing finds members at the rate of its false alarms, and has an AUC of 0.5.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.bootstrap import BootstrapInterval, percentile_interval
from fedperl.evaluate.classification import Floats, Labels, Probabilities
from fedperl.evaluate.ranking import check_mask, ranked

Mask = npt.NDArray[np.bool_]
Weights = npt.NDArray[np.float64] | npt.NDArray[np.int64]

RATES = {"tpr_1": 0.01, "tpr_01": 0.001}
"""False positive rates, by the name of what is found there."""
NUMBERS = ("auc", *RATES)
SMALLEST = 1e-45
"""Probabilities below this, which single precision does not know, count as this."""
PRIOR = 4.0
"""References that the spread of all images counts as, beside an image's own."""
ROUNDING = 1e-9


# Scores


def logit_confidence(probabilities: Probabilities, labels: Labels) -> Floats:
    """Return log(p / (1 - p)) of the probability of each image's label: nearly normal where probabilities are not.

    1 - p is the sum of the other classes, so that a certain model's scores are not all the same.

    Args:
        probabilities: (n, classes).
        labels: (n,) the class whose probability is looked at.
    Raises:
        ValueError: shapes that do not fit, a label that is no class, or a value that is no probability.
    """
    found, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if found.ndim != 2 or labels.shape != found.shape[:1]:
        raise ValueError(f"wanted (n, classes) and (n,), found {found.shape} and {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < found.shape[1]):
        raise ValueError(f"labels {labels.min()} to {labels.max()}; there are {found.shape[1]} classes")
    if not ((found >= 0) & (found <= 1 + 1e-6)).all():
        raise ValueError("probabilities: a value is not between 0 and 1")
    own = np.arange(found.shape[1]) == labels[:, None]
    rest = np.where(own, 0.0, found).sum(axis=1)
    return np.asarray(np.log(np.maximum(found[own], SMALLEST)) - np.log(np.maximum(rest, SMALLEST)))


def offline_lira(score: Floats, references: Floats, without: Mask) -> Floats:
    """Return how many standard deviations each image's score lies above those of models that never saw it.

    The offline likelihood-ratio attack of Carlini et al. (2022): for each image a normal distribution of the scores of
    the reference models that were trained without it. With few of those a spread of their own is mostly noise: it is
    averaged with the mean spread of all images, which counts as PRIOR references.

    Args:
        score: (n,) of the attacked model.
        references: (models, n) the scores of the reference models.
        without: (models, n) which of them were trained without which image.
    Raises:
        ValueError: shapes that do not fit, values that are not finite, an image that every reference was trained on, or
            references that do not differ at all.
    """
    if references.shape != without.shape or references.shape[1:] != score.shape:
        raise ValueError(f"wanted (n,) and twice (models, n), found {score.shape}, {references.shape}, {without.shape}")
    check_mask(without)
    if not np.isfinite(score).all() or not np.isfinite(references).all():
        raise ValueError("scores: a value is not finite")
    many = without.sum(axis=0)
    if not many.all():
        raise ValueError(
            f"image {np.flatnonzero(many == 0)[0]}: every reference was trained on it; wanted more of them"
        )
    mean = np.where(without, references, 0.0).sum(axis=0) / many
    squares = np.where(without, (references - mean) ** 2, 0.0).sum(axis=0)
    if not squares.any():
        raise ValueError("references: no image is scored differently by two of them; wanted at least two that differ")
    shared = squares.sum() / (many - 1).sum()
    return np.asarray((score - mean) / np.sqrt((squares + PRIOR * shared) / (many - 1 + PRIOR)))


def within(score: Floats, stratum: npt.NDArray[np.int64]) -> Floats:
    """Return scores less their stratum's median, divided by its quartiles' distance: one threshold then serves all.

    An attacker can do so: it takes the scores of images that may be members, not who is one.
    """
    found = np.array(score, dtype=np.float64)
    for one in np.unique(stratum):
        here = stratum == one
        low, middle, high = np.quantile(found[here], [0.25, 0.5, 0.75])
        found[here] = (found[here] - middle) / (high - low or 1.0)
    return found


def even_weights(member: Mask, stratum: npt.NDArray[np.int64]) -> Floats:
    """Return weights with which each stratum's others count as much as its members; 0 where it has but one kind.

    So no stratum, such as a hospital, is more common among members than among others.
    """
    check_mask(member)
    weights = np.zeros(len(member))
    for one in np.unique(stratum):
        here = stratum == one
        inside, outside = here & member, here & ~member
        if inside.any() and outside.any():
            weights[inside] = 1.0
            weights[outside] = inside.sum() / outside.sum()
    return weights


# Numbers


class Attack:
    """The scores of one attack, sorted once: its numbers, however often each image counts."""

    def __init__(self, member: Mask, score: Floats, weight: Floats | None = None) -> None:
        """Sort.

        Args:
            member: (n,) which images the model was trained on.
            score: (n,) high where the attacker thinks so.
            weight: (n,) of each image, by default 1.
        Raises:
            ValueError: no image, shapes or types that do not fit, a score that is not finite, a negative weight.
        """
        weight = np.ones(len(member)) if weight is None else weight
        if member.ndim != 1 or not len(member) or not member.shape == score.shape == weight.shape:
            raise ValueError(
                f"wanted three vectors of one length > 0, found {member.shape}, {score.shape} and {weight.shape}"
            )
        check_mask(member)
        if not np.isfinite(score).all() or not (weight >= 0).all():
            raise ValueError("wanted finite scores, and weights of 0 or more")
        self._order, self._member, self._weight = ranked(score), member, weight

    def roc(self, counts: Weights | None = None) -> tuple[Floats, Floats]:
        """Return false and true positive rates, from the highest threshold down; not numbers without both kinds.

        Args:
            counts: (n,) how often each image counts, by default once; or (draws, n), for a row of rates each.
        """
        order, starts = self._order.order, self._order.starts
        weight = (self._weight if counts is None else self._weight * counts)[..., order]
        member = self._member[order]
        false, true = (
            np.add.reduceat(np.where(kind, weight, 0.0), starts, axis=-1).cumsum(axis=-1) for kind in (~member, member)
        )
        with np.errstate(invalid="ignore"):
            return _from_zero(false / false[..., -1:]), _from_zero(true / true[..., -1:])

    def numbers(self, counts: Weights | None = None) -> dict[str, Floats]:
        """Return the AUC, and the share of members found at each rate of false alarms; as `roc`, one or a row each."""
        false, true = self.roc(counts)
        area = (np.diff(false) * (true[..., 1:] + true[..., :-1]) / 2).sum(axis=-1)
        shares = {name: _found_at(rate, false, true) for name, rate in RATES.items()}
        return {"auc": area, **{name: np.where(np.isnan(area), np.nan, share) for name, share in shares.items()}}


def _found_at(rate: float, false: Floats, true: Floats) -> Floats:
    """Return the largest share of members found with no more false alarms than the rate; nothing is interpolated."""
    last = (false <= rate + ROUNDING).sum(axis=-1, keepdims=True) - 1
    return np.asarray(np.take_along_axis(true, last, axis=-1)[..., 0])


def _from_zero(rates: Floats) -> Floats:
    return np.concatenate([np.zeros_like(rates[..., :1]), rates], axis=-1)


# Intervals


class Repeats:
    """One attack repeated with several seeds on the same images: its numbers, and what other images would give."""

    def __init__(self, attacks: list[Attack], draws: npt.NDArray[np.int64]) -> None:
        """Compute all numbers.

        Args:
            attacks: one a seed.
            draws: (resamples, n) how often each image was drawn, as `drawn_images` gives it; the same for all attacks
                that are to be compared.
        """
        once, drawn = ([attack.numbers(counts) for attack in attacks] for counts in (None, draws))
        self.by_seed = {name: np.stack([found[name] for found in once]) for name in NUMBERS}
        self.drawn = {name: np.stack([found[name] for found in drawn], axis=1) for name in NUMBERS}


def drawn_images(groups: npt.ArrayLike, resamples: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return how often each image was drawn, (resamples, n): whole groups, such as lesions, with replacement."""
    group = np.unique(np.asarray(groups), return_inverse=True)[1]
    many, generator = int(group.max()) + 1, np.random.default_rng(seed)
    chosen = generator.integers(many, size=(resamples, many))
    return np.stack([np.bincount(each, minlength=many) for each in chosen])[:, group]


def mean_interval(one: Repeats, name: str, *, level: float = 0.95) -> BootstrapInterval:
    """Return the mean of a number over the seeds, and its interval over other seeds and other images of the kind."""
    return _interval(lambda means: means[0], [one], name, level, most=1.0)


def ratio_interval(one: Repeats, other: Repeats, name: str, *, level: float = 0.95) -> BootstrapInterval:
    """Return the ratio of two attacks' means over the same seeds and images, and its interval; None by a mean of 0."""
    return _interval(lambda means: means[0] / means[1], [one, other], name, level, most=np.inf)


def _interval(
    of: Callable[[Floats], Floats], attacks: list[Repeats], name: str, level: float, *, most: float
) -> BootstrapInterval:
    """Return a function of the attacks' means over the seeds, and its interval: seeds and images drawn as clusters.

    What the drawn images change, and what the drawn seeds do, are added; the seeds' part is widened by
    sqrt(n / (n - 1)) and the sum stretched to Student's t, as in `paired_interval`: there are few seeds. Images, and so
    their degrees of freedom, are many.
    """
    values = np.stack([one.by_seed[name] for one in attacks])  # attacks, seeds
    resamples, seeds = len(attacks[0].drawn[name]), values.shape[1]
    generator = np.random.default_rng(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of(values.mean(axis=1)))
        if not np.isfinite(value):
            return BootstrapInterval(None, None, None, level, resamples, resamples)
        deviation = of(np.stack([one.drawn[name].mean(axis=1) for one in attacks])) - value
        if seeds > 1:
            counts = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
            middle = values.mean(axis=1, keepdims=True)
            by_seeds = of(middle + sqrt(seeds / (seeds - 1)) * (values @ counts.T / seeds - middle)) - value
            freedom = (seeds - 1) * ((np.nanvar(by_seeds) + np.nanvar(deviation)) / np.nanvar(by_seeds)) ** 2
            stretch = np.sqrt(freedom / generator.chisquare(freedom, size=resamples)) if np.isfinite(freedom) else 1.0
            deviation = (deviation + by_seeds) * stretch
    drawn = (value + deviation)[np.isfinite(deviation)]
    return percentile_interval(value, np.clip(drawn, 0.0, most), resamples, level)
