import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.learn.class_weights import median_frequency
from fedperl.learn.pseudo_labels import agreement_targets, combine_probabilities, pseudo_labels


def probabilities(n: int, classes: int, seed: int) -> torch.Tensor:
    return torch.softmax(3 * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed)), dim=1)


def naive(own: list[float], peers: list[list[float]], combine: str, share: float | None) -> list[float]:
    models = [own, *peers]
    if share is None:
        weights = [1 / len(models)] * len(models)
    else:
        weights = [1 - share] + [share / len(peers)] * len(peers)
    columns = list(zip(*models, strict=True))
    if combine == "logit_mean":
        powers = [math.prod(p**w for p, w in zip(column, weights, strict=True)) for column in columns]
        return [p / sum(powers) for p in powers]
    means = [sum(p * w for p, w in zip(column, weights, strict=True)) for column in columns]
    return [m * len(models) for m in means] if combine == "sum" else means


@given(
    st.integers(0, 999), st.integers(1, 4), st.sampled_from(["mean", "sum", "logit_mean"]), st.sampled_from([None, 0.3])
)
def test_combination_and_threshold_against_naive(seed: int, peers: int, combine: str, share: float | None) -> None:
    own, others = probabilities(6, 5, seed), [probabilities(6, 5, seed + 1000 * i) for i in range(1, peers + 1)]
    scores = combine_probabilities(own, others, combine, share)  # type: ignore[arg-type]
    expected = [naive(own[i].tolist(), [o[i].tolist() for o in others], combine, share) for i in range(6)]
    assert torch.allclose(scores, torch.tensor(expected), atol=1e-5)
    labels, accepted = pseudo_labels(scores, 0.6)
    for i, row in enumerate(scores.tolist()):
        assert labels[i] == row.index(max(row))
        assert accepted[i] == (max(row) >= 0.6)


def test_a_sum_as_printed_accepts_what_a_mean_refuses() -> None:
    unsure = torch.tensor([[0.4, 0.35, 0.25]])
    assert pseudo_labels(combine_probabilities(unsure, [unsure], "sum"), 0.6)[1].all()
    assert not pseudo_labels(combine_probabilities(unsure, [unsure], "mean"), 0.6)[1].any()


def test_without_peers_own_probabilities_label() -> None:
    own = probabilities(4, 3, 0)
    for combine in ("mean", "sum", "logit_mean"):
        assert combine_probabilities(own, [], combine) is own


def test_median_frequency_against_naive() -> None:
    labels = torch.tensor([0] * 10 + [1] * 4 + [3] * 2 + [4] * 6)
    weights = median_frequency(labels, 6, absent=100.0)
    median = (4 + 6) / 2  # of 2, 4, 6, 10
    assert weights.tolist() == pytest.approx([median / 10, median / 4, 100.0, median / 2, median / 6, 100.0])
    assert median_frequency(torch.empty(0, dtype=torch.int64), 3).tolist() == [1, 1, 1]


def naive_target(models: list[list[float]], scale: float, shares: list[float]) -> list[float]:
    best = max(max(p) for p in models)
    weights = [w * 2 ** (-(best - max(p)) / scale) for p, w in zip(models, shares, strict=True)]
    target = [0.0] * len(models[0])
    for p, w in zip(models, weights, strict=True):
        target[p.index(max(p))] += w / sum(weights)
    return target


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("peers", [0, 1, 4])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_agreement_targets_against_naive(peers: int, scale: float, share: float | None) -> None:
    own, others = probabilities(20, 4, 0), [probabilities(20, 4, 100 + i) for i in range(peers)]
    targets = agreement_targets(own, others, scale, share)
    shares = [1.0] * (peers + 1) if share is None or not peers else [1 - share] + [share / peers] * peers
    for i in range(20):
        models = [p[i].tolist() for p in (own, *others)]
        assert targets[i].tolist() == pytest.approx(naive_target(models, scale, shares), abs=1e-5)


def test_models_that_agree_give_exactly_their_label() -> None:
    own = probabilities(50, 5, 0)
    same = [own.clone(), *(torch.softmax(own.log() * power, 1) for power in (0.3, 0.7, 1.9))]  # sure to other degrees
    assert torch.equal(agreement_targets(own, same), torch.nn.functional.one_hot(own.argmax(1), 5).float())


def test_models_that_are_equally_sure_vote() -> None:
    a, b = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.1, 0.2, 0.7]])
    assert agreement_targets(a, [b, b])[0].tolist() == pytest.approx([1 / 3, 0, 2 / 3])
    assert agreement_targets(a, [b, b], peer_weight=0.5)[0].tolist() == pytest.approx([1 / 2, 0, 1 / 2])
    surer = torch.tensor([[0.05, 0.2, 0.75]])  # by one scale: twice the weight
    assert agreement_targets(a, [surer], 0.05)[0].tolist() == pytest.approx([1 / 3, 0, 2 / 3], abs=1e-5)


def test_agreement_is_finite_at_any_scale_and_share() -> None:
    sure, unsure = torch.tensor([[0.98, 0.02]]), torch.tensor([[0.48, 0.52]])
    assert agreement_targets(sure, [unsure], 1e-4).tolist() == [[1, 0]]
    assert agreement_targets(sure, [unsure], 1e-4, peer_weight=1.0).tolist() == [[0, 1]]
    assert agreement_targets(sure, [unsure], peer_weight=0.0).tolist() == [[1, 0]]


def test_a_threshold_for_each_class() -> None:
    scores = torch.tensor([[0.7, 0.3], [0.3, 0.7], [0.45, 0.55]])
    label, accepted = pseudo_labels(scores, torch.tensor([0.8, 0.6]))
    assert label.tolist() == [0, 1, 1]
    assert accepted.tolist() == [False, True, False]
