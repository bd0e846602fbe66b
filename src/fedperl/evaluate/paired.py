"""How sure a mean difference is: both seeds and clients are drawn anew, as clusters (a two-way cluster bootstrap).

A resampled mean is the mean, plus what the drawn seeds differ from it, plus what the drawn clients do, plus what is
left in single cells. The last part is left out: the noise of the cells is in the seeds' and in the clients' means
already, and so counted once too often rather than once too rarely. With three seeds and ten clients a plain percentile
interval of 95 % holds the truth in 74 to 99 % of cases (normal effects of various sizes); two corrections make it 94 to
99 % (bench/interval_coverage.py).
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean difference and the interval around it; no bounds where there was but one seed and one client."""

    mean: float
    low: float | None
    high: float | None
    level: float
    seeds: int
    clients: int

    @property
    def excludes_zero(self) -> bool:
        """Whether all of the interval lies on one side of 0; never without an interval."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)


def paired_interval(
    differences: npt.ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Return the mean of the differences and its interval over other seeds and other clients of the same kinds.

    What the drawn seeds, and clients, differ by is widened by sqrt(n / (n - 1)), since means of n vary less among
    themselves than around the truth; the sum is stretched to Student's t, with Satterthwaite's degrees of freedom of
    the two variances, since those are themselves estimates from n. A dimension of one is not drawn: with one seed the
    interval is over clients alone. The order of seeds and clients does not matter, and the negated differences have the
    negated interval.

    Args:
        differences: (seeds, clients), a run's numbers less the baseline's.
        resamples: an even number of draws.
    Raises:
        ValueError: another shape, nothing in it, a value that is not finite, a level outside (0, 1), odd resamples.
    """
    found = np.asarray(differences, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"differences: wanted (seeds, clients), at least one of each, found {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError(f"differences: {np.count_nonzero(~np.isfinite(found))} values are not finite")
    if not 0.0 < level < 1.0 or resamples < 2 or resamples % 2:
        raise ValueError(f"level {level}, resamples {resamples}; wanted 0 < level < 1 and an even number of resamples")
    mean = float(found.mean())
    clusters = [np.sort(found.mean(axis=axis)) - mean for axis in (1, 0) if found.shape[1 - axis] > 1]
    if not clusters:
        return Interval(mean, None, None, level, *found.shape)
    deviations = _deviations(clusters, resamples, np.random.default_rng(seed))
    low, high = np.quantile(deviations, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, mean + float(low), mean + float(high), level, *found.shape)


def _deviations(clusters: list[Floats], resamples: int, generator: np.random.Generator) -> Floats:
    """Return how far the resampled means lie from the mean, (resamples,).

    Args:
        clusters: for each dimension the sorted deviations of its means; sorted, so that the order given cannot matter.
    """
    total: Floats = np.zeros(resamples)
    variances = []
    for effects in clusters:
        n = len(effects)
        counts = generator.multinomial(n, np.full(n, 1 / n), size=resamples // 2)
        mirrored = np.concatenate([counts, counts[:, ::-1]])  # as likely, and what makes the interval symmetric
        total += sqrt(n / (n - 1)) * (mirrored @ effects) / n
        variances.append((float(effects.var(ddof=1)) / n, n - 1))
    together = sum(variance for variance, _ in variances)
    if together == 0.0:
        return total
    freedom = together**2 / sum(variance**2 / degrees for variance, degrees in variances)
    stretch = np.sqrt(freedom / generator.chisquare(freedom, size=resamples // 2))
    scaled: Floats = total * np.concatenate([stretch, stretch])
    return scaled
