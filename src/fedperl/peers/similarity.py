"""Who resembles whom: cosine similarity of client profiles (paper, section 2.3.1)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedperl.peers.profiles import Profile

Scale = Literal["minmax", "zscore", "none"]


def scale_profiles(profiles: npt.NDArray[np.float64], scale: Scale = "minmax") -> npt.NDArray[np.float64]:
    """Return the profiles with each feature scaled over the clients; a constant feature becomes 1 (minmax) or 0.

    Clients start every round from one global model, so raw cosines all lie near 1 and no gate could tell them apart:
    by default each feature is scaled to [0, 1] over the clients seen so far. A cosine then depends on who else is in
    the pool, and with two clients the vectors are binary: ask for three before using it.
    """
    if profiles.ndim != 2 or not np.isfinite(profiles).all():
        raise ValueError(f"profiles: wanted finite (clients, features), found shape {profiles.shape}")
    if scale == "none":
        return profiles
    if scale == "minmax":
        low, spread = profiles.min(axis=0), np.ptp(profiles, axis=0)
        constant = 1.0
    elif scale == "zscore":
        low, spread = profiles.mean(axis=0), profiles.std(axis=0)
        constant = 0.0
    else:
        raise ValueError(f"scale = {scale!r}; wanted minmax, zscore or none")
    moves = spread > 0
    return np.where(moves, (profiles - low) / np.where(moves, spread, 1.0), constant)


def similarity_rows(
    profiles: npt.NDArray[np.float64], rows: Sequence[int], scale: Scale = "minmax"
) -> npt.NDArray[np.float64]:
    """Return W[rows]: (rows, clients), the cosines of the scaled profiles. Cost: O(clients x features)."""
    unit = scale_profiles(profiles, scale)
    norm = np.sqrt(np.einsum("ij,ij->i", unit, unit))
    unit = unit / np.where(norm > 0, norm, 1.0)[:, None]  # a zero profile resembles nobody
    return np.clip(unit[list(rows)] @ unit.T, -1.0, 1.0)


def similarity_matrix(
    profiles: Sequence[Profile] | npt.NDArray[np.float64], scale: Scale = "minmax"
) -> npt.NDArray[np.float64]:
    """Return W with W[m, k] in [-1, 1], the cosine of the scaled profiles of clients m and k (label eq2).

    Args:
        profiles: (clients, features), one row a client.
        scale: see `scale_profiles`; `none` is the paper's text, `minmax` its authors' code.
    Raises:
        ValueError: fewer than two clients, or a value that is not finite.
    """
    stacked = np.asarray(profiles, dtype=np.float64)
    if stacked.ndim != 2 or len(stacked) < 2:
        raise ValueError(f"a similarity matrix needs at least two profiles of one length, found shape {stacked.shape}")
    return similarity_rows(stacked, range(len(stacked)), scale)
