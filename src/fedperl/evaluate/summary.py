"""Mean (median) +- standard deviation over clients, as the paper's tables print it; who does worst, and by how much."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import numpy as np

Client = TypeVar("Client", int, str)


@dataclass(frozen=True)
class Spread:
    """One number over clients; the deviation is the population's, so that the paper's tables can be compared."""

    mean: float
    median: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.median:.3f}) ± {self.std:.3f}"

    def to_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Extremes(Generic[Client]):
    """The clients with the highest and the lowest value, the first of equals, and what lies between."""

    best: Client
    best_value: float
    worst: Client
    worst_value: float
    gap: float

    def to_dict(self) -> dict[str, Client | float]:
        """Return the clients and the numbers by name."""
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Return mean, median and population standard deviation.

    Raises:
        ValueError: no value.
    """
    if not len(values):
        raise ValueError("a spread needs at least one value")
    return Spread(float(np.mean(values)), float(np.median(values)), float(np.std(values)))


def spread_without(values: Mapping[Client, float], left_out: Collection[Client]) -> Spread:
    """Return the spread over the other clients: the paper's Avg without client 8, the model being the same.

    The paper prints under that name also runs in whose training the client took no part: those have no such client.

    Raises:
        ValueError: a client that is not there, or none is left.
    """
    unknown = [client for client in left_out if client not in values]
    if unknown:
        raise ValueError(f"without {unknown}: no such clients; found {list(values)}")
    return spread([value for client, value in values.items() if client not in left_out])


def extremes(values: Mapping[Client, float]) -> Extremes[Client]:
    """Return the best and the worst client, where more is better.

    Raises:
        ValueError: no value, or one that is not finite.
    """
    if not values or not np.isfinite(list(values.values())).all():
        raise ValueError(f"extremes: wanted at least one client and finite values, found {dict(values)}")
    best, worst = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    return Extremes(best, values[best], worst, values[worst], values[best] - values[worst])
