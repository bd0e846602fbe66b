import itertools
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedperl.peers import adaptive, committee_sizes

Matrix = npt.NDArray[np.float64]


def planted(
    sizes: Sequence[int], noise: float = 0.0, seed: int = 0, kin: float = 0.8, strangers: float = 0.6
) -> Matrix:
    """A similarity matrix of communities, one after the other."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    drawn = (
        np.random.default_rng(seed).normal(scale=noise, size=(len(of), len(of))) if noise else np.zeros((len(of),) * 2)
    )
    matrix = np.where(np.equal.outer(of, of), kin, strangers) + np.triu(drawn, 1) + np.triu(drawn, 1).T
    np.fill_diagonal(matrix, 1.0)
    return matrix


def naive_sizes(communities: Sequence[int], most: int, fewest: int) -> list[int]:
    found = []
    for size in communities:
        for _ in range(size):
            found.append(0 if size == 1 else min(most, max(fewest, size - 1)))
    return found


def naive_ties(matrix: Matrix) -> Matrix:
    clients = range(len(matrix))
    pair = {(m, k): min(1.0, max(0.0, (matrix[m, k] + matrix[k, m]) / 2)) for m in clients for k in clients if m != k}
    kin = statistics.median(max(pair[m, k] for k in clients if k != m) for m in clients)
    strangers = min(statistics.median(pair.values()), kin - 0.2)
    ties = np.eye(len(matrix))
    for (m, k), value in pair.items():
        stretched = min(1.0, max(0.0, (value - strangers) / (kin - strangers)))
        ties[m, k] = stretched**2 if value > 0 else 0.0
    return ties


def naive_number(ties: Matrix) -> int:
    """The place of the largest gap, from the random walk on the ties: its spectrum is 1 minus the Laplacian's."""
    walk = np.array([[tie / sum(row) for tie in row] for row in ties])
    values = [*sorted(1 - value.real for value in np.linalg.eigvals(walk)), 1.0]
    gaps = [after - before for before, after in itertools.pairwise(values)]
    return next(k for k, gap in enumerate(gaps, start=1) if gap > max(gaps) - 1e-7)


@given(st.integers(0, 9999), st.integers(2, 9))
def test_ties_and_number_of_communities_against_naive(seed: int, clients: int) -> None:
    matrix = np.random.default_rng(seed).uniform(-0.2, 1.0, size=(clients, clients))
    ties = adaptive._ties(matrix)
    assert ties == pytest.approx(naive_ties(matrix), abs=1e-12)
    assert len(set(adaptive._communities(ties))) == naive_number(ties)


def naive_k_means(rows: list[list[float]], k: int, first: int) -> list[int]:
    def distance(a: list[float], b: list[float]) -> float:
        return round(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)), 9)

    centres = [rows[first]]
    while len(centres) < k:
        farness = [min(distance(row, centre) for centre in centres) for row in rows]
        centres.append(rows[farness.index(max(farness))])
    while True:
        nearest = []
        for row in rows:
            distances = [distance(row, centre) for centre in centres]
            nearest.append(distances.index(min(distances)))
        moved = []
        for c in range(k):
            members = [row for row, own in zip(rows, nearest, strict=True) if own == c]
            moved.append(
                [sum(column) / len(column) for column in zip(*members, strict=True)] if members else centres[c]
            )
        if all(distance(a, b) < 1e-15 for a, b in zip(moved, centres, strict=True)):
            return nearest
        centres = moved


@given(st.integers(0, 9999), st.integers(2, 25), st.integers(1, 4))
def test_k_means_against_naive(seed: int, clients: int, k: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(clients, 2))
    k = min(k, clients)
    assert adaptive._k_means(rows, k, first=1).tolist() == naive_k_means(rows.tolist(), k, first=1)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(("kin", "strangers"), [(0.8, 0.6), (0.95, 0.75), (0.8, 0.1), (0.5, -0.2)])
@pytest.mark.parametrize(
    "sizes", [(5, 3, 1, 1), (5, 5), (7, 3), (9, 1), (3, 3, 3, 1), (4, 4, 2), (2, 1), (3, 1), (2, 2), (10, 10, 10, 10)]
)
def test_planted_communities_are_found(sizes: Sequence[int], kin: float, strangers: float, noise: float) -> None:
    for seed in range(5 if noise else 1):
        matrix = planted(sizes, noise, seed, kin, strangers)
        assert committee_sizes(matrix, most=6) == naive_sizes(sizes, most=6, fewest=2)


def test_the_papers_ten_clients() -> None:
    matrix = planted((5, 3, 1, 1), noise=0.03, seed=4)
    assert committee_sizes(matrix, most=5) == [4, 4, 4, 4, 4, 2, 2, 2, 0, 0]
    assert committee_sizes(matrix, most=3) == [3, 3, 3, 3, 3, 2, 2, 2, 0, 0]
    assert committee_sizes(matrix, most=5, fewest=3) == [4, 4, 4, 4, 4, 3, 3, 3, 0, 0]
    assert committee_sizes(matrix, most=5, fewest=1) == [4, 4, 4, 4, 4, 2, 2, 2, 0, 0]


def test_ten_drawn_hospitals() -> None:
    """A matrix from round 72 of a run on dermsim: five ISIC clients, three HAM10000, then 8 (PAD) and 9 (Derm7pt).

    Client 3 had last trained twelve rounds before and looks like a stranger; 9 is with ISIC.
    """
    rows = """
        1.00 0.99 0.99 0.50 0.93 0.91 0.79 0.91 0.71 0.96
        0.99 1.00 0.99 0.49 0.94 0.90 0.78 0.90 0.72 0.94
        0.99 0.99 1.00 0.48 0.94 0.90 0.77 0.90 0.74 0.95
        0.50 0.49 0.48 1.00 0.55 0.46 0.55 0.44 0.11 0.43
        0.93 0.94 0.94 0.55 1.00 0.88 0.78 0.85 0.62 0.88
        0.91 0.90 0.90 0.46 0.88 1.00 0.89 0.99 0.78 0.88
        0.79 0.78 0.77 0.55 0.78 0.89 1.00 0.87 0.68 0.78
        0.91 0.90 0.90 0.44 0.85 0.99 0.87 1.00 0.79 0.87
        0.71 0.72 0.74 0.11 0.62 0.78 0.68 0.79 1.00 0.76
        0.96 0.94 0.95 0.43 0.88 0.88 0.78 0.87 0.76 1.00"""
    matrix = np.array([[float(value) for value in row.split()] for row in rows.strip().splitlines()])
    assert committee_sizes(matrix, most=5) == [4, 4, 4, 0, 4, 2, 2, 2, 0, 4]


@pytest.mark.parametrize("clients", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("level", [0.05, 0.7, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02])
def test_a_flat_matrix_is_one_community(clients: int, level: float, noise: float) -> None:
    for seed in range(5):
        matrix = np.clip(planted((clients,), noise, seed, kin=level), 0.01, 1.0)
        assert committee_sizes(matrix, most=40, fewest=1) == [clients - 1] * clients


def test_without_the_stretch_the_spectrum_shows_one_community() -> None:
    """Why `_ties` is there: kin at 0.8 and strangers at 0.6, as min-max scaling leaves them."""
    matrix = planted((5, 3, 1, 1))
    assert len(set(adaptive._communities(matrix))) == 1
    assert len(set(adaptive._communities(adaptive._ties(matrix)))) == 4


def test_without_ties_to_themselves_individuals_would_join_the_nearest() -> None:
    ties = adaptive._ties(planted((5, 3, 1, 1), noise=0.02, seed=1))
    alone = ties[8, np.arange(10) != 8]
    assert 0 < alone.sum() < 1
    np.fill_diagonal(ties, 0.0)
    assert len(set(adaptive._communities(ties))) < 4


def test_who_resembles_nobody_is_alone() -> None:
    assert committee_sizes(np.eye(4), most=3) == [0, 0, 0, 0]
    assert committee_sizes(-np.ones((2, 2)), most=3) == [0, 0]
    assert committee_sizes(np.ones((1, 1)), most=3) == [0]
    assert committee_sizes(np.ones((0, 0)), most=3) == []
    one_out = np.full((4, 4), 0.7)
    one_out[2, :] = one_out[:, 2] = -0.3
    assert committee_sizes(one_out, most=3) == [2, 2, 0, 2]


def test_of_two_clients_nobody_can_say_more_than_that_they_are_alike() -> None:
    assert committee_sizes(np.array([[1.0, 0.4], [0.4, 1.0]]), most=5) == [2, 2]  # fewest, though there is one other
    assert committee_sizes(np.array([[1.0, 0.4], [0.4, 1.0]]), most=5, fewest=1) == [1, 1]


def test_the_diagonal_is_not_looked_at_and_both_directions_count() -> None:
    matrix = planted((4, 3, 1), noise=0.02)
    other = matrix.copy()
    np.fill_diagonal(other, np.linspace(-5, 5, 8))
    assert committee_sizes(other, most=5) == committee_sizes(matrix, most=5) == [3, 3, 3, 3, 2, 2, 2, 0]
    skew = np.triu(np.full((8, 8), 0.1), 1)
    assert committee_sizes(matrix + skew - skew.T, most=5) == committee_sizes(matrix, most=5)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 9999))
def test_permuting_the_clients_permutes_their_committees(sizes: list[int], seed: int) -> None:
    sizes = [*sizes, 5, 5]  # at least half of the clients have kin
    order = np.random.default_rng(seed).permutation(sum(sizes))
    matrix = planted(sizes, 0.02, seed)
    found = committee_sizes(matrix[np.ix_(order, order)], most=20)
    assert found == [committee_sizes(matrix, most=20)[k] for k in order]


def test_sign_and_basis_of_the_eigenvectors_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = planted((5, 3, 1, 1))  # four eigenvalues are 0: any basis of their space is as good
    expected = committee_sizes(matrix, most=5)
    solve = np.linalg.eigh

    def turned(laplacian: Matrix) -> tuple[Matrix, Matrix]:
        values, vectors = solve(laplacian)
        turn = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]
        return values, np.hstack([vectors[:, :4] @ turn, -vectors[:, 4:]])

    monkeypatch.setattr(np.linalg, "eigh", turned)
    assert committee_sizes(matrix, most=5) == expected == [4] * 5 + [2] * 3 + [0, 0]


@given(
    st.integers(1, 8).flatmap(
        lambda n: (
            arrays(np.float64, (n, n), elements=st.floats(allow_nan=False, allow_infinity=False))
            | arrays(np.float64, (n, n), elements=st.floats(-1, 1))
        )
    ),
    st.integers(1, 4),
    st.integers(0, 4),
)
def test_any_finite_matrix_gives_0_or_a_size_within_the_limits(matrix: Matrix, fewest: int, more: int) -> None:
    found = committee_sizes(matrix, most=fewest + more, fewest=fewest)
    assert len(found) == len(matrix)
    assert all(T == 0 or fewest <= T <= fewest + more for T in found)
    assert all(type(T) is int for T in found)
    assert found == committee_sizes(matrix, most=fewest + more, fewest=fewest)


def test_refuses() -> None:
    with pytest.raises(ValueError, match=r"found shape \(2, 3\)"):
        committee_sizes(np.ones((2, 3)), most=2)
    with pytest.raises(ValueError, match="finite"):
        committee_sizes(np.array([[1.0, np.nan], [0.0, 1.0]]), most=2)
    with pytest.raises(ValueError, match="fewest = 3, most = 2"):
        committee_sizes(np.ones((2, 2)), most=2, fewest=3)
    with pytest.raises(ValueError, match="fewest = 0"):
        committee_sizes(np.ones((2, 2)), most=2, fewest=0)
