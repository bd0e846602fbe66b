"""Mean (median) +- standard deviation over clients, as the paper's tables print it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """One number over clients; the deviation is the population's, so that the paper's tables can be compared."""

    mean: float
    median: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.median:.3f}) ± {self.std:.3f}"


def spread(values: Sequence[float]) -> Spread:
    """Return mean, median and population standard deviation.

    Raises:
        ValueError: no value.
    """
    if not len(values):
        raise ValueError("a spread needs at least one value")
    return Spread(float(np.mean(values)), float(np.median(values)), float(np.std(values)))
