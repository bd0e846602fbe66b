"""Aggregators against plain loops; every one is a set of weights for `fedavg`."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.federation.aggregate import (
    coarse,
    consensus_weights,
    distance_weights,
    fedavg,
    labelled_boost,
    residual,
    running_mean,
    similarity_weights,
)
from fedperl.learn.state import State


def cohort(n: int, seed: int = 0, spread: float = 0.1) -> list[State]:
    """Models as clients send them: near a common start, with batch-norm statistics far apart and a counter."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(3, 4, generator=generator)
    return [
        {
            "conv.weight": start + spread * torch.randn(3, 4, generator=generator),
            "bn.weight": 1 + spread * torch.randn(4, generator=generator),
            "bn.running_mean": 50 * torch.randn(4, generator=generator),
            "bn.running_var": 500 * torch.rand(4, generator=generator),
            "bn.num_batches_tracked": torch.tensor(10 * (k + 1)),
        }
        for k in range(n)
    ]


def values(state: State) -> list[float]:
    """The numbers that a distance is made of: neither running statistics nor counters."""
    return [*state["conv.weight"].flatten().tolist(), *state["bn.weight"].tolist()]


def naive_distances(states: Sequence[State], weights: Sequence[float]) -> list[float]:
    rows = [values(state) for state in states]
    mean = [sum(w * row[i] for w, row in zip(weights, rows, strict=True)) / sum(weights) for i in range(len(rows[0]))]
    return [math.sqrt(sum((a - b) ** 2 for a, b in zip(row, mean, strict=True))) for row in rows]


# fedavg


@given(st.integers(0, 9999), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5))
def test_fedavg_against_naive(seed: int, weights: list[float]) -> None:
    states = cohort(len(weights), seed)
    mean = fedavg(states, weights)
    assert mean.keys() == states[0].keys()
    for name in ("conv.weight", "bn.weight", "bn.running_mean", "bn.running_var"):
        rows = [state[name].flatten().tolist() for state in states]
        total = sum(weights)
        expected = [sum(w * row[i] for w, row in zip(weights, rows, strict=True)) / total for i in range(len(rows[0]))]
        assert mean[name].flatten().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert mean[name].dtype == torch.float32
    assert mean["bn.num_batches_tracked"] == 10 * len(weights)


def test_a_state_of_weight_0_is_not_looked_at() -> None:
    states = cohort(4)
    states[0]["conv.weight"][0, 0] = float("nan")
    states[3]["bn.num_batches_tracked"] = torch.tensor(999)
    found = fedavg(states, [0.0, 2.0, 1.0, 0.0])
    wanted = fedavg(states[1:3], [2.0, 1.0])
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert found["bn.num_batches_tracked"] == 30


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -0.1], [1.0, float("nan")], [1.0, float("inf")], [1.0], [1.0, 1.0, 1.0]]
)
def test_fedavg_refuses_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="0 or more and one positive, found 2 states"):
        fedavg(cohort(2), weights)


def test_fedavg_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="found 0 states"):
        fedavg([], [])


# Similarity


@given(st.integers(0, 9999), st.integers(2, 7))
def test_similarity_weights_against_naive(seed: int, clients: int) -> None:
    similarity = np.random.default_rng(seed).uniform(-0.5, 1.0, size=(clients, clients))
    means = []
    for m in range(clients):
        others = [float(similarity[m, k]) for k in range(clients) if k != m]
        means.append(max(1e-3, sum(others) / len(others)))
    found = similarity_weights(similarity)
    assert found == pytest.approx([mean / sum(means) for mean in means])
    assert min(found) > 0
    assert sum(found) == pytest.approx(1.0)
    order = np.random.default_rng(seed).permutation(clients)
    assert similarity_weights(similarity[np.ix_(order, order)]) == pytest.approx([found[k] for k in order])


def test_similarity_weights_of_one_of_equals_and_of_strangers() -> None:
    assert similarity_weights(np.array([[0.3]])) == [1.0]
    assert similarity_weights(np.full((4, 4), 0.7)) == pytest.approx([0.25] * 4)
    assert similarity_weights(np.full((4, 4), -0.7)) == pytest.approx([0.25] * 4)
    stranger = np.full((3, 3), 0.9)
    stranger[2, :2] = stranger[:2, 2] = 0.3
    assert similarity_weights(stranger) == pytest.approx([0.4, 0.4, 0.2])


def test_similarity_weights_refuse() -> None:
    with pytest.raises(ValueError, match=r"found shape \(2, 3\)"):
        similarity_weights(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"found shape \(0, 0\)"):
        similarity_weights(np.ones((0, 0)))
    with pytest.raises(ValueError, match=r"found shape \(2,\)"):
        similarity_weights(np.ones(2))
    with pytest.raises(ValueError, match="finite"):
        similarity_weights(np.array([[1.0, np.nan], [0.5, 1.0]]))


# Distance


@given(st.integers(0, 9999), st.integers(2, 6))
def test_distance_weights_against_naive(seed: int, clients: int) -> None:
    states = cohort(clients, seed)
    inverse = [1 / d for d in naive_distances(states, [1.0] * clients)]
    found = distance_weights(states)
    assert found == pytest.approx([x / sum(inverse) for x in inverse], rel=1e-6)
    order = np.random.default_rng(seed).permutation(clients)
    assert distance_weights([states[k] for k in order]) == pytest.approx([found[k] for k in order])


@given(st.integers(0, 9999), st.integers(3, 6), st.integers(0, 2))
def test_an_outlier_has_the_smallest_distance_weight(seed: int, clients: int, outlier: int) -> None:
    states = cohort(clients, seed)
    states[outlier]["conv.weight"] += 5.0
    found = distance_weights(states)
    assert min(found) == found[outlier]
    assert found.count(min(found)) == 1
    assert sum(found) == pytest.approx(1.0)


def test_running_statistics_and_counters_are_no_distance() -> None:
    states = cohort(3)
    expected = distance_weights(states)
    states[1]["bn.running_mean"] += 1e6
    states[1]["bn.running_var"] *= 1e6
    states[1]["bn.num_batches_tracked"] += 10**6
    assert distance_weights(states) == expected
    assert distance_weights([{"n": torch.tensor(3)}, {"n": torch.tensor(9)}]) == [0.5, 0.5]


def test_identical_models_weigh_the_same_and_give_the_model() -> None:
    same = cohort(1) * 3
    assert distance_weights(same) == pytest.approx([1 / 3] * 3)
    assert distance_weights(same[:1]) == [1.0]
    mean = fedavg(same, distance_weights(same))
    assert all(torch.allclose(mean[name], tensor) for name, tensor in same[0].items())


def test_a_model_that_is_the_mean_does_not_become_the_average() -> None:
    states: list[State] = [{"w": torch.tensor([x])} for x in (-1.0, 0.0, 1.0)]
    # distances 1, 0 and 1: the middle counts as a hundredth of their mean
    weights = [1.0, 1 / (0.01 * 2 / 3), 1.0]
    assert distance_weights(states) == pytest.approx([w / sum(weights) for w in weights])
    assert distance_weights(states, floor=1.0) == pytest.approx([2 / 7, 3 / 7, 2 / 7])


def test_distance_weights_refuse() -> None:
    with pytest.raises(ValueError, match="at least one model"):
        distance_weights([])
    with pytest.raises(ValueError, match="not finite"):
        distance_weights([{"w": torch.tensor([1.0])}, {"w": torch.tensor([float("inf")])}])
    with pytest.raises(ValueError, match="floor = 0"):
        distance_weights(cohort(2), floor=0.0)


# Consensus


def naive_consensus(
    states: Sequence[State], sizes: Sequence[float], subsets: int, members: int, scale: float, seed: int
) -> list[float]:
    generator = np.random.default_rng(seed)
    total, seen, count = [0.0] * len(states), set[int](), 0
    while count < subsets or len(seen) < len(states):
        count += 1
        drawn = sorted(generator.choice(len(states), size=min(members, len(states)), replace=False).tolist())
        distances = naive_distances([states[k] for k in drawn], [sizes[k] for k in drawn])
        raw = [sizes[k] * math.exp(-scale * d / sizes[k]) for k, d in zip(drawn, distances, strict=True)]
        for k, weight in zip(drawn, raw, strict=True):
            total[k] += weight / sum(raw)
        seen |= set(drawn)
    return [weight / count for weight in total]


@given(st.integers(0, 9999), st.integers(1, 8), st.integers(1, 4), st.integers(2, 6), st.floats(0.0, 50.0))
def test_consensus_weights_against_naive(seed: int, clients: int, subsets: int, members: int, scale: float) -> None:
    states = cohort(clients, seed)
    sizes = np.random.default_rng(seed).uniform(1, 30, size=clients).tolist()
    found = consensus_weights(
        states, sizes, subsets=subsets, members=members, scale=scale, generator=np.random.default_rng(seed)
    )
    assert found == pytest.approx(naive_consensus(states, sizes, subsets, members, scale, seed), rel=1e-6, abs=1e-12)
    assert min(found) >= 0
    assert sum(found) == pytest.approx(1.0)
    again = np.random.default_rng(seed)
    assert found == consensus_weights(states, sizes, subsets=subsets, members=members, scale=scale, generator=again)


def test_subsets_are_drawn_until_everyone_is_in_one() -> None:
    for seed in range(20):
        generator = np.random.default_rng(seed)
        assert min(consensus_weights(cohort(9), [5.0] * 9, subsets=1, members=3, generator=generator)) > 0


@given(st.integers(0, 9999), st.integers(2, 5))
def test_consensus_of_the_whole_cohort_does_not_depend_on_its_order(seed: int, clients: int) -> None:
    states, generator = cohort(clients, seed), np.random.default_rng(seed)
    sizes = generator.uniform(1, 30, size=clients).tolist()
    order = generator.permutation(clients)
    found = consensus_weights(states, sizes, generator=generator)
    moved = consensus_weights([states[k] for k in order], [sizes[k] for k in order], generator=generator)
    assert moved == pytest.approx([found[k] for k in order])


def test_consensus_of_identical_models_is_the_average_by_size() -> None:
    sizes = [10.0, 20.0, 30.0]
    found = consensus_weights(cohort(1) * 3, sizes, scale=100.0, generator=np.random.default_rng(0))
    assert found == pytest.approx([1 / 6, 1 / 3, 1 / 2])
    apart = consensus_weights(cohort(3), sizes, scale=0.0, generator=np.random.default_rng(0))
    assert apart == pytest.approx([1 / 6, 1 / 3, 1 / 2])


def test_consensus_makes_less_of_an_outlier() -> None:
    states = cohort(4)
    states[2]["conv.weight"] += 5.0
    found = consensus_weights(states, [10.0] * 4, generator=np.random.default_rng(0))
    assert min(found) == found[2] < 0.2


@pytest.mark.parametrize("far", [1e3, 1e18, 1e36])
def test_consensus_of_models_far_apart_does_not_vanish(far: float) -> None:
    """Every exponential alone would be 0."""
    states: list[State] = [{"w": torch.tensor([x * far])} for x in (-1.0, -0.9, 2.0)]
    found = consensus_weights(states, [1.0, 1.0, 1.0], scale=1e4, generator=np.random.default_rng(0))
    assert sum(found) == pytest.approx(1.0)
    assert found[1] == pytest.approx(1.0)  # the nearest to the mean


def test_consensus_refuses() -> None:
    states, generator = cohort(3), np.random.default_rng(0)
    with pytest.raises(ValueError, match="as many positive sizes as states, found 3"):
        consensus_weights(states, [1.0, 2.0], generator=generator)
    with pytest.raises(ValueError, match="positive sizes"):
        consensus_weights(states, [1.0, 0.0, 2.0], generator=generator)
    with pytest.raises(ValueError, match="members = 1"):
        consensus_weights(states, [1.0] * 3, members=1, generator=generator)
    with pytest.raises(ValueError, match="subsets = 0"):
        consensus_weights(states, [1.0] * 3, subsets=0, generator=generator)
    with pytest.raises(ValueError, match="scale = -1"):
        consensus_weights(states, [1.0] * 3, scale=-1.0, generator=generator)
    with pytest.raises(ValueError, match="at least one model"):
        consensus_weights([], [], generator=generator)


# Boost and residual


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=8), st.floats(0.1, 200.0))
def test_labelled_boost_against_naive(clients: list[tuple[int, bool]], factor: float) -> None:
    expected = []
    for size, has_labels in clients:
        expected.append(size * factor if has_labels else float(size))
    assert labelled_boost([size for size, _ in clients], [flag for _, flag in clients], factor) == expected


def test_labelled_boost_refuses() -> None:
    with pytest.raises(ValueError, match="2 sizes and 1 flags"):
        labelled_boost([1.0, 2.0], [True], 10.0)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="factor = "):
            labelled_boost([1.0], [True], factor)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_residual_against_naive(share: float) -> None:
    model, predecessor = reversed(cohort(2))
    found = residual(model, predecessor, share)
    for name in ("conv.weight", "bn.weight", "bn.running_mean", "bn.running_var"):
        pairs = zip(model[name].flatten().tolist(), predecessor[name].flatten().tolist(), strict=True)
        expected = [(1 - share) * new + share * old for new, old in pairs]
        assert found[name].flatten().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert found["bn.num_batches_tracked"] == (10 if share == 1 else 20)


def test_residual_is_half_and_half_and_refuses_other_shares() -> None:
    one, other = cohort(2)
    assert torch.equal(residual(one, other)["conv.weight"], fedavg([one, other], [1.0, 1.0])["conv.weight"])
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share = "):
            residual(one, other, share)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.75, 0.99])
def test_running_mean_against_naive(decay: float) -> None:
    """The plain mean of the first 1 / (1 - decay) models, then a share of every new one."""
    models = cohort(9)
    mean = {name: torch.full_like(tensor, 7) for name, tensor in models[0].items()}  # what was there before the first
    for count, model in enumerate(models, 1):
        mean = running_mean(mean, model, decay, count)
        for name in ("conv.weight", "bn.weight", "bn.running_mean", "bn.running_var"):
            values = [one[name].double() for one in models[:count]]
            first = min(count, int(1 / (1 - decay) + 1e-9))
            expected = torch.stack(values[:first]).mean(0)
            for value in values[first:]:
                expected = decay * expected + (1 - decay) * value
            assert torch.allclose(mean[name].double(), expected, atol=1e-5)
    for wrong in ({"decay": 1.0, "count": 1}, {"decay": -0.1, "count": 1}, {"decay": 0.5, "count": 0}):
        with pytest.raises(ValueError, match="running_mean: decay = "):
            running_mean(mean, models[0], **wrong)  # type: ignore[arg-type]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12))
def test_coarse_shares_are_quarters_of_equal_ones(weights: list[float]) -> None:
    shares = coarse(weights)
    parts = [share * 4 * len(weights) for share in shares]
    assert sum(shares) == pytest.approx(1.0)
    assert all(part == pytest.approx(round(part)) and round(part) >= 1 for part in parts)
    for weight, other, share, its in zip(weights, weights[1:], shares, shares[1:], strict=False):
        assert share >= its - 1 / (4 * len(weights)) - 1e-9 if weight >= other else True


def test_coarse_shares_of_nearly_equal_weights_are_equal() -> None:
    assert coarse([0.344, 0.341, 0.315]) == [1 / 3] * 3
    assert coarse([100.0, 200.0, 300.0]) == [2 / 12, 4 / 12, 6 / 12]
    assert coarse([1.0, 1e-9, 1e-9]) == [10 / 12, 1 / 12, 1 / 12]
