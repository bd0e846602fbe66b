"""The attacker: solves for single uploads, and for a client's changes, from all that some clients were ever sent.

Everything that is sent is a weighted sum of uploads. A receiver knows its own and, in the worst case, who is in each
sum. What it can solve for is what lies in the row space of those sums; how near it comes, least squares on the tensors
that were really sent shows. This is apart from the guards of a run: nothing of theirs is used here.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedperl.attack.history import History, Release, Upload
from fedperl.errors import RunError
from fedperl.federation.kept_uploads import Kept, Vector

Matrix = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

RANK = 1e-10
"""Singular values below this share of the largest are 0. Where sums are of a few uploads, the least is far above."""
SOLVABLE = 1e-5
"""How far, at most, from the row space what is solved for lies."""
RECOVERED, CLOSE = 0.05, 0.1
"""Relative errors below which an estimate is the model, or near it."""
NULL = 1e-6
"""An upload that moved less than this share of the model is a copy of the model that it was sent."""
HOLDS = 0.05
"""How far a release may be from the sum that the ledger says it is, as a share of an upload's movement."""


@dataclass(frozen=True)
class Count:
    """How far an attack came with targets of one kind; only `of` and `solvable` where no tensors were kept."""

    of: int
    solvable: int
    recovered: int | None = None
    """Estimates with a relative error below 0.05."""
    close: int | None = None
    """Estimates with a relative error below 0.1, those recovered included."""
    best: float | None = None
    median: float | None = None
    """Of the relative errors of all targets."""


@dataclass(frozen=True)
class Findings:
    """What some clients could learn of the others."""

    receivers: tuple[int, ...]
    models: int
    """Global models that they were sent."""
    peers: int
    unknowns: int
    """Uploads of others that are in any of those."""
    least: float | None
    """The least singular value that is not 0, as a share of the largest: how sure the rank is."""
    uploads: Count
    changes: Count
    """From one upload of a client to its next."""
    distant: Count
    """Between any two uploads of a client that do not follow each other."""
    solvable: list[Upload]
    """The uploads that algebra can solve for."""


def coalitions(
    clients: Iterable[int], size: int, organisations: Sequence[Collection[int]] = ()
) -> list[tuple[int, ...]]:
    """Return the clients of every `size` organisations; one that is in none is an organisation of its own."""
    apart = [(client,) for client in clients if not any(client in group for group in organisations)]
    groups = sorted([*apart, *(tuple(sorted(group)) for group in organisations)])
    return [tuple(sorted(itertools.chain(*chosen))) for chosen in itertools.combinations(groups, size)]


class Attacker:
    """Holds the releases of a run as one matrix, (releases, uploads), and what was kept of the tensors."""

    def __init__(self, history: History, kept: Kept | None = None) -> None:
        """Lay the releases out.

        Raises:
            RunError: what was kept is of nothing that was released.
        """
        self.releases = history.releases
        self.uploads = sorted({upload for release in self.releases for upload in release.sum})
        place = {upload: i for i, upload in enumerate(self.uploads)}
        self.sums = np.zeros((len(self.releases), len(self.uploads)))
        for row, release in zip(self.sums, self.releases, strict=True):
            for upload, weight in release.sum.items():
                row[place[upload]] = weight
        self.client = np.array([client for client, _ in self.uploads], dtype=np.int64)
        self.null = np.zeros(len(self.uploads), dtype=bool)
        self.tensors = None if kept is None else _Tensors(history, self.uploads, self.sums, kept)
        if self.tensors is not None:
            # Whoever guesses that a client had nothing to train on knows its upload.
            self.null = self.tensors.movement <= NULL * np.linalg.norm(self.tensors.starts, axis=1)

    @property
    def left_out(self) -> int:
        """How many releases cannot be used: not kept, or not the sums that the ledger says they are."""
        return 0 if self.tensors is None else int((self.tensors.absent | self.tensors.broken).sum())

    @property
    def unverified(self) -> int:
        """How many uploads were not kept, so that nobody can tell whether they are recovered."""
        return 0 if self.tensors is None else int(np.isnan(self.tensors.movement).sum())

    def attack(self, receivers: Collection[int]) -> Findings:
        """Return what the receivers can learn together."""
        sent = np.array([r.to is None or not r.to.isdisjoint(receivers) for r in self.releases], dtype=bool)
        known = np.isin(self.client, list(receivers)) | self.null
        unknown = ~known & (self.sums[sent] != 0).any(axis=0)
        rows = np.flatnonzero(sent & (self.sums[:, unknown] != 0).any(axis=1))
        space = _RowSpace(self.sums[np.ix_(rows, unknown)])
        moved = errors = np.empty((unknown.sum(), 0))
        if self.tensors is not None:
            usable = self.tensors.usable(self.sums[rows], known, rows)
            rows = rows[usable]
            of = space if usable.all() else _RowSpace(self.sums[np.ix_(rows, unknown)])
            moved = (self.tensors.uploads - self.tensors.starts)[unknown]
            errors = of.solve(self.tensors.seen(self.sums[rows], known, rows)) - moved
        kinds = [release.kind for release, got in zip(self.releases, sent, strict=True) if got]
        uploads, changes, distant = self._counts(space, self.client[unknown], moved, errors)
        return Findings(
            tuple(receivers),
            kinds.count("model"),
            kinds.count("peer"),
            int(unknown.sum()),
            space.least,
            uploads,
            changes,
            distant,
            [self.uploads[i] for i in np.flatnonzero(unknown)[_hidden(space.basis) < SOLVABLE]],
        )

    def _counts(self, space: "_RowSpace", client: npt.NDArray[np.int64], moved: Matrix, errors: Matrix) -> list[Count]:
        """Return the counts of uploads, of changes and of distant changes.

        Of a change, what belongs to the global models that both uploads started from is known to all and left out.
        """
        distance, relative = ([[np.empty(0)] for _ in range(3)] for _ in range(2))
        for k in np.unique(client):
            own = client == k
            after = np.subtract.outer(np.arange(own.sum()), np.arange(own.sum()))
            hidden = np.eye(own.sum()) - space.basis[own] @ space.basis[own].T  # the projection on what stays unknown
            with np.errstate(divide="ignore", invalid="ignore"):
                single = np.linalg.norm(errors[own], axis=1) / np.linalg.norm(moved[own], axis=1)
                paired = _between(errors[own] @ errors[own].T) / _between(moved[own] @ moved[own].T)
            distance[0].append(_hidden(space.basis[own]))
            relative[0].append(single)
            for kind, pairs in ((1, after == 1), (2, after > 1)):
                distance[kind].append(_between(hidden)[pairs] / np.sqrt(2))
                relative[kind].append(paired[pairs])
        return [
            _count(np.concatenate(d), np.concatenate(r) if self.tensors is not None else None)
            for d, r in zip(distance, relative, strict=True)
        ]


class _RowSpace:
    """The span of a matrix' rows, by singular values."""

    def __init__(self, matrix: Matrix) -> None:
        self.scale = np.linalg.norm(matrix, axis=1, keepdims=True)  # each release counts the same
        left, values, right = np.linalg.svd(matrix / self.scale, full_matrices=False)
        rank = int((values > RANK * values.max(initial=0.0)).sum())
        self.left, self.values = left[:, :rank], values[:rank]
        self.basis = right[:rank].T  # (columns, rank), orthonormal
        self.least = float(self.values[-1] / self.values[0]) if rank else None

    def solve(self, values: Matrix) -> Matrix:
        """Return the least-squares solution of least norm."""
        found: Matrix = self.basis @ ((self.left.T @ (values / self.scale)) / self.values[:, None])
        return found


class _Tensors:
    """The kept coordinates as matrices; a row that was not kept is not a number."""

    def __init__(self, history: History, uploads: list[Upload], sums: Matrix, kept: Kept) -> None:
        released = [v for versions in (*kept.models.values(), *kept.peers.values()) for v in versions]
        carried: Flags = np.isfinite(np.array(released)).all(axis=0, keepdims=True).reshape(-1)
        if not released or not carried.any():
            raise RunError("what was kept of the models that were sent: no coordinate is in all of them; wanted some")
        missing = np.full(carried.shape, np.nan)

        def stack(vectors: Iterable[Vector]) -> Matrix:
            return np.array([vector[carried] for vector in vectors], dtype=np.float64).reshape(-1, carried.sum())

        self.uploads = stack(kept.uploads.get(upload, missing) for upload in uploads)
        self.starts = stack(kept.models.get(history.starts.get(u, -1), [missing])[-1] for u in uploads)
        self.movement = np.linalg.norm(self.uploads - self.starts, axis=1)
        expected = sums @ np.nan_to_num(self.uploads)
        whole = ~(sums[:, np.isnan(self.uploads).any(axis=1)] != 0).any(axis=1)
        self.sent = stack(
            _nearest(_versions(release, kept, missing), carried, wanted if sure else None)
            for release, wanted, sure in zip(history.releases, expected, whole, strict=True)
        )
        typical = np.median(self.movement[np.isfinite(self.movement)]) if np.isfinite(self.movement).any() else 0.0
        self.broken = whole & (np.linalg.norm(self.sent - expected, axis=1) > HOLDS * typical)
        """Releases that are not the sums that the ledger says: the server has changed the models in another way."""
        self.absent = np.isnan(self.sent).any(axis=1)

    def usable(self, sums: Matrix, known: Flags, rows: npt.NDArray[np.int64]) -> Flags:
        """Return which releases can be solved with: kept, true to the ledger, what is known of them kept too."""
        lacking = known & np.isnan(self.uploads).any(axis=1)
        found: Flags = ~(self.absent | self.broken)[rows] & ~(sums[:, lacking] != 0).any(axis=1)
        return found

    def seen(self, sums: Matrix, known: Flags, rows: npt.NDArray[np.int64]) -> Matrix:
        """Return what releases tell of the unknown uploads' movement: less what is known, and the models before."""
        guess = np.nan_to_num(np.where(known[:, None], self.uploads, self.starts))
        found: Matrix = self.sent[rows] - sums @ guess
        return found


def _versions(release: Release, kept: Kept, missing: Vector) -> list[Vector]:
    """Return what was sent, less the global models that are in it; `missing` where it was not kept."""
    if release.kind == "model":
        before = {round: kept.models.get(round, [missing])[-1].astype(np.float64) for round in release.earlier}
        known = sum(part * before[round] for round, part in release.earlier.items())
        return [version - known for version in kept.models.get(release.round, [missing])]
    if len(release.sum) == 1:  # a raw peer
        return [kept.uploads.get(upload, missing) for upload in release.sum]
    return [
        version for receiver in release.to or () for version in kept.peers.get((receiver, release.round), [missing])
    ]


def _nearest(versions: list[Vector], carried: Flags, wanted: Matrix | None) -> Vector:
    """Return, of what a repeated round has sent, that which this release means."""
    if wanted is None or len(versions) == 1:
        return versions[-1]
    return min(versions, key=lambda version: float(np.linalg.norm(version[carried] - wanted)))


def _hidden(basis: Matrix) -> Matrix:
    """Return how far from the row space each single upload is."""
    found: Matrix = np.sqrt((1.0 - np.square(basis).sum(axis=1)).clip(0.0))
    return found


def _between(products: Matrix) -> Matrix:
    """Return the distances between vectors, from their scalar products."""
    squares = np.diag(products)
    found: Matrix = np.sqrt((squares[:, None] + squares[None, :] - 2 * products).clip(0.0))
    return found


def _count(distance: Matrix, errors: Matrix | None) -> Count:
    of, solvable = len(distance), int((distance < SOLVABLE).sum())
    if errors is None:
        return Count(of, solvable)
    found = errors[np.isfinite(errors)]
    recovered, close = int((found < RECOVERED).sum()), int((found < CLOSE).sum())
    if not len(found):
        return Count(of, solvable, recovered, close)
    return Count(of, solvable, recovered, close, float(found.min()), float(np.median(found)))
