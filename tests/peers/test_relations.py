"""The server's mean of relation matrices against loops, and what it refuses."""

import re

import pytest
import torch

from fedperl.peers.relations import average_relation, find_relation_fault


def matrix(seed: int, unknown: tuple[int, ...] = (), classes: int = 4) -> torch.Tensor:
    rows = torch.softmax(torch.randn(classes, classes, generator=torch.Generator().manual_seed(seed)), dim=1)
    rows[list(unknown)] = 0.0
    return rows


def test_mean_by_row_over_those_who_know_it_against_naive() -> None:
    matrices = {5: matrix(1, (0,)), 2: matrix(2, (0, 1)), 7: matrix(3, (1, 2))}
    rows = {0: [], 2: [5, 2], 3: [2, 5, 7]}
    mean = average_relation(matrices, rows)
    assert mean is not None
    for row in range(4):
        known = [matrices[k][row] for k in rows.get(row, [])]
        expected = sum(known) / len(known) if known else torch.zeros(4)
        assert torch.allclose(mean[row], expected, atol=1e-6)  # type: ignore[arg-type]
    assert mean[2].sum() == pytest.approx(1.0)


def test_nothing_known_is_none() -> None:
    assert average_relation({}, {}) is None
    assert average_relation({1: matrix(1)}, {}) is None
    assert average_relation({1: matrix(1)}, {0: []}) is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((3, 3), 1 / 3), r"\(3, 3\); wanted float32 \(4, 4\)"),
        (torch.full((4, 4), 0.25, dtype=torch.float64), "float64"),
        (torch.full((4, 4), float("nan")), "not finite"),
        (torch.tensor([[1.5, -0.5, 0.0, 0.0]] * 4), "negative"),
        (torch.full((4, 4), 0.5), "neither probabilities nor unknown"),
    ],
)
def test_bad_matrices_are_named(bad: torch.Tensor, message: str) -> None:
    fault = find_relation_fault(bad, 4)
    assert fault is not None
    assert re.search(message, fault)
    assert find_relation_fault(matrix(1, (2,)), 4) is None
