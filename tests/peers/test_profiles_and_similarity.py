import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.learn.nets import build_net
from fedperl.peers import profile, similarity_matrix, similarity_rows, top_peers


def naive_profile(state: dict[str, torch.Tensor], ddof: int) -> list[float]:
    features = []
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        values = tensor.double().flatten().tolist()
        mean = sum(values) / len(values)
        square = sum((v - mean) ** 2 for v in values)
        features += [mean, math.sqrt(square / (len(values) - ddof)) if len(values) > ddof else 0.0]
    return features


def naive_matrix(profiles: np.ndarray, scale: str) -> np.ndarray:
    columns = []
    for column in profiles.T:
        low, high = min(column), max(column)
        if scale == "none":
            columns.append(list(column))
        elif scale == "minmax":
            columns.append([(v - low) / (high - low) if high > low else 1.0 for v in column])
        else:
            mean, deviation = np.mean(column), np.std(column)
            columns.append([(v - mean) / deviation if deviation > 0 else 0.0 for v in column])
    rows = [list(row) for row in zip(*columns, strict=True)]
    matrix = np.zeros((len(rows), len(rows)))
    for m, a in enumerate(rows):
        for k, b in enumerate(rows):
            norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
            matrix[m, k] = sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms > 0 else 0.0
    return matrix


@pytest.mark.parametrize(("std", "ddof"), [("population", 0), ("unbiased", 1)])
def test_profile_against_naive(std: str, ddof: int) -> None:
    state = dict(build_net("small_cnn", 5, seed=3).state_dict()) | {"one": torch.tensor([2.5])}
    found = profile(state, std=std)  # type: ignore[arg-type]
    assert found == pytest.approx(naive_profile(state, ddof), abs=1e-12)


def test_profile_of_efficientnet_has_622_features() -> None:
    state = build_net("efficientnet_b0", 8, seed=1).state_dict()
    assert len(state) == 360
    assert profile(state).shape == (622,)
    assert profile(state, tensors="parameters").shape == (2 * (311 - 98),)


def test_profile_by_module() -> None:
    state = {"a.weight": torch.tensor([1.0, 2.0]), "a.bias": torch.tensor([6.0]), "b.weight": torch.tensor([[4.0]])}
    assert profile(state, tensors="modules").tolist() == pytest.approx([3.0, math.sqrt(14 / 3), 4.0, 0.0])


def test_profile_refuses_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="none of them float"):
        profile({"n": torch.tensor(3)})
    with pytest.raises(ValueError, match="not finite"):
        profile({"w": torch.tensor([1.0, float("nan")])})


@given(st.integers(0, 9999), st.integers(2, 7), st.integers(1, 12), st.sampled_from(["minmax", "zscore", "none"]))
def test_similarity_against_naive(seed: int, clients: int, features: int, scale: str) -> None:
    profiles = np.random.default_rng(seed).normal(size=(clients, features)).round(1)
    profiles[:, 0] = 0.5  # a constant feature
    expected = naive_matrix(profiles, scale)
    assert similarity_matrix(profiles, scale=scale) == pytest.approx(expected, abs=1e-9)  # type: ignore[arg-type]
    assert similarity_rows(profiles, [1], scale) == pytest.approx(expected[[1]], abs=1e-9)  # type: ignore[arg-type]


def test_raw_cosines_cannot_tell_clients_apart_but_scaled_ones_can() -> None:
    generator = np.random.default_rng(0)
    profiles = generator.normal(size=200) + 1e-3 * generator.normal(size=(5, 200))
    off_diagonal = ~np.eye(5, dtype=bool)
    assert similarity_matrix(profiles, scale="none")[off_diagonal].min() > 0.9999
    assert similarity_matrix(profiles)[off_diagonal].max() < 0.9


def test_similarity_refuses() -> None:
    with pytest.raises(ValueError, match="at least two"):
        similarity_matrix(np.ones((1, 3)))
    with pytest.raises(ValueError, match="finite"):
        similarity_matrix(np.array([[1.0, np.nan], [1.0, 2.0]]))


def test_top_peers_order_ties_self_and_nan() -> None:
    matrix = np.array([[1.0, 0.2, 0.9, 0.9, np.nan]] + [[0.0] * 5] * 4)
    assert top_peers(matrix, 0, 3) == [2, 3, 1]
    assert top_peers(matrix, 0, 9) == [2, 3, 1]
    assert top_peers(matrix, 0, 0) == []
    with pytest.raises(ValueError, match="T = -1"):
        top_peers(matrix, 0, -1)
    with pytest.raises(ValueError, match="client 7"):
        top_peers(matrix[0], 7, 1)
