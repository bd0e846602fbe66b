"""Selectors: the T candidates that may help a client."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt


def top_peers(similarity: npt.NDArray[np.float64], client: int, T: int) -> list[int]:
    """Return the T clients most similar to one client, best first, ties by number, never the client itself.

    A similarity that is not finite is never chosen (a descending sort would rank NaN first).

    Args:
        similarity: the matrix (clients, clients), or the client's own row of it.
    """
    if T < 0:
        raise ValueError(f"T = {T}; wanted 0 or more")
    if not 0 <= client < len(similarity):
        raise ValueError(f"client {client} is not among the {len(similarity)} clients of the similarity matrix")
    row = np.asarray(similarity[client] if similarity.ndim == 2 else similarity, dtype=np.float64)
    order = np.argsort(-row, kind="stable")  # NaN sorts last
    others = (int(k) for k in order if k != client and np.isfinite(row[k]))
    return list(islice(others, T))


def random_peers(clients: Sequence[int], client: int, T: int, generator: np.random.Generator) -> list[int]:
    """Return T distinct others drawn at random, fewer only where there are fewer."""
    others = [k for k in clients if k != client]
    return [int(k) for k in generator.choice(others, size=min(T, len(others)), replace=False)] if others else []
