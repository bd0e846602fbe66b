"""Class thresholds, running class shares and the correction by them, against naive restatements."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.learn.priors import RunningShares, correct_prior
from fedperl.learn.pseudo_labels import pseudo_labels
from fedperl.learn.thresholds import class_aware_thresholds, class_balanced_thresholds


def scores(n: int, classes: int, seed: int) -> torch.Tensor:
    return torch.softmax(2 * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed)), dim=1)


@given(st.integers(0, 999), st.integers(2, 9), st.floats(0.05, 1.0))
def test_class_aware_thresholds_against_naive(seed: int, classes: int, tau: float) -> None:
    shares = scores(1, classes, seed)[0]
    largest = max(shares.tolist())
    expected = [max(tau * share / largest, tau / 2) for share in shares.tolist()]
    assert class_aware_thresholds(shares, tau).tolist() == pytest.approx(expected)
    label, accepted = pseudo_labels(scores(20, classes, seed + 1), class_aware_thresholds(shares, tau))
    for row, y, kept in zip(scores(20, classes, seed + 1).tolist(), label.tolist(), accepted.tolist(), strict=True):
        assert y == row.index(max(row))
        if abs(max(row) - expected[y]) > 1e-6:
            assert kept == (max(row) >= expected[y])


@given(st.integers(0, 999), st.integers(2, 9), st.floats(0.0, 1.5))
def test_flat_shares_accept_exactly_what_tau_accepts(seed: int, classes: int, tau: float) -> None:
    flat = torch.full((classes,), 1 / classes)
    values = scores(50, classes, seed)
    values[0, 0] = tau  # on the threshold itself, as a float of 32 bits
    for mine, fixed in zip(
        pseudo_labels(values, class_aware_thresholds(flat, tau)), pseudo_labels(values, tau), strict=True
    ):
        assert torch.equal(mine, fixed)


def test_a_rare_class_is_accepted_below_tau_but_not_below_half_of_it() -> None:
    thresholds = class_aware_thresholds(torch.tensor([0.7, 0.29, 0.01]), 0.6)
    assert thresholds.tolist() == pytest.approx([0.6, 0.3, 0.3])
    unsure = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.2, 0.5], [0.25, 0.46, 0.29]])
    assert pseudo_labels(unsure, thresholds)[1].tolist() == [False, True, True]
    assert not pseudo_labels(unsure, 0.6)[1].any()
    assert not pseudo_labels(torch.full((1, 8), 1 / 8), class_aware_thresholds(torch.eye(8)[0], 0.6))[1].any()


def test_class_balanced_thresholds_against_naive() -> None:
    shares = [0.67, 0.2, 0.1, 0.02, 0.01]
    deviation = (sum((s - 0.2) ** 2 for s in shares) / 5) ** 0.5
    expected = [min(s + 0.84 - deviation, 0.9) for s in shares]
    assert class_balanced_thresholds(torch.tensor(shares), 0.84, 0.9).tolist() == pytest.approx(expected)
    assert class_balanced_thresholds(torch.full((8,), 1 / 8), 0.5, 0.9).tolist() == pytest.approx([0.625] * 8)


def test_running_shares_against_naive_and_across_rounds() -> None:
    memory: dict[str, torch.Tensor] = {}
    expected = [1 / 4] * 4
    for step in range(6):
        if step == 3:  # the client stored its memory and began another round
            memory = {name: tensor.clone().cpu() for name, tensor in memory.items()}
        shares = RunningShares(memory, "x", 4, 0.8)
        rows = scores(5, 4, step) * (3 if step % 2 else 1)  # sums of three models are shares all the same
        assert shares.now.tolist() == pytest.approx(expected)
        before = shares.now.clone()
        kept = memory.get("x")
        shares.follow(rows)
        assert kept is None or torch.equal(kept, before)  # a copy is changed, not what the client kept
        means = [sum(column) / 5 for column in zip(*rows.tolist(), strict=True)]
        expected = [0.8 * e + 0.2 * m / sum(means) for e, m in zip(expected, means, strict=True)]
    assert memory["x"].tolist() == pytest.approx(expected)
    assert not memory["x"].requires_grad


def test_shares_survive_a_step_that_is_not_finite_and_refuse_other_classes() -> None:
    memory: dict[str, torch.Tensor] = {}
    shares = RunningShares(memory, "x", 3, 0.5)
    shares.follow(scores(4, 3, 0))
    before = memory["x"].clone()
    shares.follow(torch.full((4, 3), torch.nan))
    shares.follow(torch.empty(0, 3))
    assert torch.equal(memory["x"], before)
    with pytest.raises(ValueError, match="shape .3,.; wanted .4,."):
        RunningShares(memory, "x", 4, 0.5)


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("power", [0.3, 1.0])
def test_prior_correction_against_naive(power: float, scale: float) -> None:
    rows, prior = scale * scores(6, 5, 1), scores(1, 5, 2)[0]
    corrected = correct_prior(rows, prior, power)
    for i, row in enumerate(rows.tolist()):
        divided = [p / q**power for p, q in zip(row, prior.tolist(), strict=True)]
        assert corrected[i].tolist() == pytest.approx([scale * d / sum(divided) for d in divided], rel=1e-4)


def test_prior_correction_changes_nothing_where_there_is_nothing_to_correct() -> None:
    rows = scores(50, 8, 3)
    assert torch.equal(correct_prior(rows, torch.full((8,), 1 / 8), 1.0), rows)
    assert torch.equal(correct_prior(rows, scores(1, 8, 4)[0], 0.0), rows)
    assert correct_prior(rows, torch.eye(8)[0], 1.0).isfinite().all()  # shares of 0


def test_prior_correction_flattens_the_prior() -> None:
    prior = torch.tensor([0.8, 0.15, 0.05])
    assert correct_prior(prior.unsqueeze(0), prior, 1.0)[0].tolist() == pytest.approx([1 / 3] * 3)
