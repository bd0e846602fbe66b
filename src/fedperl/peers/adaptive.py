"""T of each client from the communities in the similarity matrix, their number from its spectral gap.

The paper has one T for all and says in its discussion (section 4) that a T beyond the size of the community is of no
use, and that spectral clustering of the similarity matrix would give that size.
"""

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

CONTRAST = 0.2
"""Kin and strangers are at least this far apart in cosine; what differs by less is one community and noise.

Tried on planted communities, 0.8 within and 0.6 between, and on flat matrices, with noise of 0.02 and 0.05.
"""


def committee_sizes(similarity: npt.NDArray[np.float64], *, most: int, fewest: int = 2) -> list[int]:
    """Return T of each client: the others of its community, limited to [fewest..most]; 0 for a client on its own.

    A client that belongs to no community has no peers rather than strangers. One of a community of two has `fewest`
    of them, hence strangers too: an anonymized peer is made of no fewer than two.

    The number of communities is the place of the largest gap between consecutive eigenvalues of the normalised
    Laplacian of the ties between clients (von Luxburg 2007), the members are those that k-means puts together on its
    first eigenvectors. Nothing is drawn at random. Cost: O(clients^3), for up to about a thousand clients.

    Args:
        similarity: (clients, clients), cosines; the diagonal is not looked at, what is not positive counts as 0.
        most: the largest T.
        fewest: the smallest T but 0.
    Raises:
        ValueError: no square matrix, a value that is not finite, or limits that contradict each other.
    """
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or not np.isfinite(similarity).all():
        raise ValueError(f"similarity: wanted finite (clients, clients), found shape {similarity.shape}")
    if not 1 <= fewest <= most:
        raise ValueError(f"fewest = {fewest}, most = {most}; wanted 1 <= fewest <= most")
    if len(similarity) == 0:
        return []
    community = _communities(_ties(similarity))
    others = np.bincount(community)[community] - 1
    return [min(max(int(n), fewest), most) if n else 0 for n in others]


def _ties(similarity: Matrix) -> Matrix:
    """Return the similarities stretched to [0, 1], from the level of strangers to that of kin; 1 on the diagonal.

    After min-max scaling all cosines are rather high, say kin at 0.8 and strangers at 0.6, and the spectrum of such a
    matrix is that of one community. Kin: the median client's best similarity, so that half of the clients at least
    are taken to have kin. Strangers: the median of all pairs, or `CONTRAST` below kin where that is lower. Squared,
    because a hundred strangers who are each above the median by chance would outweigh ten kin.

    A client's tie to itself lets one that resembles nobody be a community. Without it the Laplacian, normalised by
    whatever faint ties such a client has, would put it with the nearest of the others.
    """
    if len(similarity) == 1:
        return np.ones((1, 1))
    positive = np.clip(similarity / 2 + similarity.T / 2, 0.0, 1.0)
    np.fill_diagonal(positive, 0.0)
    kin = np.median(positive.max(axis=1))
    strangers = min(np.median(positive[np.triu_indices(len(positive), 1)]), kin - CONTRAST)
    ties = np.where(positive > 0, np.clip((positive - strangers) / (kin - strangers), 0.0, 1.0) ** 2, 0.0)
    np.fill_diagonal(ties, 1.0)
    return ties


def _communities(ties: Matrix) -> npt.NDArray[np.int64]:
    """Return the number of each client's community.

    Any number from one to all is allowed. One clear community has the eigenvalues 0, 1, 1, ..., so that a 1 after the
    last closes the list: where all are near 0, everyone is alone.
    """
    degree = ties.sum(axis=1)
    values, vectors = np.linalg.eigh(np.eye(len(ties)) - ties / np.sqrt(np.outer(degree, degree)))
    gaps = np.diff(values, append=1.0).round(9)  # of gaps that differ by rounding the first is taken
    k = int(np.argmax(gaps)) + 1
    length = np.sqrt(np.einsum("ij,ij->i", vectors[:, :k], vectors[:, :k]))
    rows = vectors[:, :k] / np.where(length > 0, length, 1.0)[:, None]  # Ng et al. 2002: direction, not degree
    return _k_means(rows, k, first=int(np.argmax(degree.round(9))))


def _k_means(rows: Matrix, k: int, first: int) -> npt.NDArray[np.int64]:
    """Return the nearest of k centres for each row, from a farthest-first start.

    Only distances between rows are used, so that neither sign nor order of the eigenvectors matters, nor which basis
    of a repeated eigenvalue the solver returns.
    """
    centres, farness = rows[[first]], _square_distances(rows, rows[[first]])[:, 0]
    while len(centres) < k:
        centres = np.append(centres, rows[[int(np.argmax(farness))]], axis=0)
        farness = np.minimum(farness, _square_distances(rows, centres[-1:])[:, 0])
    nearest = np.zeros(len(rows), dtype=np.int64)
    for _ in range(100):
        nearest = np.argmin(_square_distances(rows, centres), axis=1)
        moved = np.stack([rows[nearest == c].mean(axis=0) if (nearest == c).any() else centres[c] for c in range(k)])
        if np.array_equal(moved, centres):
            break
        centres = moved
    return nearest


def _square_distances(rows: Matrix, centres: Matrix) -> Matrix:
    """Return (rows, centres), rounded so that of equals the first is taken."""
    squares: Matrix = (rows**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2.0 * rows @ centres.T
    return squares.round(9)
