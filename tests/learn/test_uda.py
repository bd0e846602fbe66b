"""UDA against a naive re-statement of its two halves, gradients included."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.nets import build_net
from fedperl.learn.objectives import UDA, Batch, FixMatch, build_objective
from fedperl.learn.objectives.uda import annealing_threshold, sharpen
from fedperl.settings import Objective
from tests.conftest import context

CLASSES = 4
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 3.0])


def batch(progress: float = 0.5, n: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = [3 * torch.randn(n, 3, 16, 16, generator=generator) for _ in range(3)]
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    return Batch(images[0], labels, images[1], images[2], progress=progress)


def net(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def naive_threshold(t: float, schedule: str) -> float:
    if schedule == "none":
        return math.inf
    alpha = {"linear": t, "log": 1 - math.exp(-5 * t), "exp": math.exp(5 * (t - 1))}[schedule]
    return alpha * (1 - 1 / CLASSES) + 1 / CLASSES


def naive_loss(model: nn.Module, peers: list[nn.Module], b: Batch, s: Objective) -> Tensor:
    assert b.labelled is not None
    assert b.labels is not None
    assert b.weak is not None
    assert b.strong is not None
    logs = torch.log_softmax(model(b.labelled), 1)
    labelled, mass = torch.zeros(()), 0.0
    for i, y in enumerate(b.labels):
        if logs[i, y].exp() <= naive_threshold(float(b.progress), s.uda.tsa):
            for c in range(CLASSES):
                share = (1 - s.label_smoothing) * (c == y) + s.label_smoothing / CLASSES
                labelled = labelled - WEIGHTS[y] * share * logs[i, c]
            mass += float(WEIGHTS[y])
    labelled = s.labelled_weight * labelled / mass if mass else labelled
    own = torch.softmax(model(b.weak), 1)
    others = [torch.softmax(peer(b.weak), 1).detach() for peer in peers]
    logs = torch.log_softmax(model(b.strong), 1)
    total, accepted = torch.zeros(()), 0
    for i in range(len(own)):
        score = (own[i].detach() + sum(other[i] for other in others)) / (1 + len(others))
        if score.max() < s.tau:
            continue
        accepted += 1
        powers = [float(p) ** (1 / s.uda.temperature) for p in score]
        for c in range(CLASSES):
            total = total - powers[c] / sum(powers) * logs[i, c]
    unlabelled = total / (max(accepted, 1) if s.unlabelled_mean == "accepted" else len(own))
    consistency = torch.zeros(())
    for other in others:
        consistency = consistency + ((own - other) ** 2).sum() / own.numel() / len(others)
    return labelled + s.beta * unlabelled + s.gamma * consistency


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"uda": {"tsa": "linear", "temperature": 0.9}, "unlabelled_mean": "accepted"},
        {"uda": {"tsa": "log"}, "label_smoothing": 0.1, "labelled_weight": 3.0},
        {"uda": {"tsa": "none"}, "tau": 0.0, "gamma": 5.0},
        {"tau": 2.0},
    ],
)
@pytest.mark.parametrize("n_peers", [0, 2])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.9])
def test_loss_and_gradient_against_naive(choices: dict[str, Any], n_peers: int, progress: float) -> None:
    given: dict[str, Any] = {"kind": "uda", "tau": 0.35} | choices
    settings = Objective(**given)
    model, peers, b = net(1), [net(10 + i) for i in range(n_peers)], batch(progress)
    ours = build_objective(settings, context(class_weights=WEIGHTS, peers=peers))(model, b)
    theirs = naive_loss(model, peers, b, settings)
    assert ours.total.item() == pytest.approx(theirs.item(), rel=1e-5)
    for a, c in zip(gradients(ours.total, model), gradients(theirs, model), strict=True):
        assert torch.allclose(a, c, atol=1e-6)
    assert ours.numbers["loss"] == ours.total


def test_the_thresholds_cut_some_and_not_all_of_the_batch_above() -> None:
    """Otherwise the comparison with the naive version would say nothing of the annealing."""
    b = batch()
    assert b.labels is not None
    own = torch.softmax(net()(b.labelled), 1)[torch.arange(8), b.labels]
    for schedule in ("linear", "exp"):
        assert 0 < (own <= naive_threshold(0.1, schedule)).sum() < 8
    for peers in ([], [net(10), net(11)]):
        losses = UDA(Objective(kind="uda", tau=0.35), context(peers=peers))(net(), b)
        assert 0 < losses.numbers["accepted"] < 1


@pytest.mark.parametrize("schedule", ["none", "linear", "log", "exp"])
def test_annealing_rises_from_chance_to_one(schedule: Any) -> None:
    values = [float(annealing_threshold(t / 10, CLASSES, schedule)) for t in range(11)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(1.0, abs=0.01)
    if schedule == "none":
        assert values[0] == 1
    else:
        assert values[0] == pytest.approx(1 / CLASSES, abs=0.01)
        assert values[3] == pytest.approx(naive_threshold(0.3, schedule))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_labelled_image_left_is_a_zero_and_no_nan(smoothing: float) -> None:
    model = net()
    full = batch(progress=0.0)
    assert full.labelled is not None
    easy = model(full.labelled).argmax(1)  # above chance, where the linear schedule starts
    settings = Objective(kind="uda", label_smoothing=smoothing, uda={"tsa": "linear"})  # type: ignore[arg-type]
    losses = UDA(settings, context(class_weights=WEIGHTS))(model, Batch(full.labelled, easy, None, None))
    assert losses.total == 0
    for gradient in gradients(losses.total, model):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_sharpening() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2, 0.0], [1.2, 0.5, 0.2, 0.1]])
    expected = scores**2.5 / (scores**2.5).sum(1, keepdim=True)
    assert torch.allclose(sharpen(scores, 0.4), expected, atol=1e-6)
    assert torch.allclose(sharpen(scores[:1], 1.0), scores[:1], atol=1e-6)
    assert torch.allclose(sharpen(scores, 1e-4), torch.tensor([[1.0, 0, 0, 0]] * 2))  # a power would be 0 / 0


def test_cold_targets_without_annealing_are_fixmatch() -> None:
    model, peers = net(), [net(5)]
    cold: dict[str, Any] = {"tau": 0.38, "uda": {"temperature": 1e-5, "tsa": "none"}}
    ours, fixmatch = (kind(Objective(**cold), context(peers=peers))(model, batch()) for kind in (UDA, FixMatch))
    assert ours.total.item() == pytest.approx(fixmatch.total.item(), rel=1e-5)
    assert ours.numbers.keys() == fixmatch.numbers.keys()
    assert 0 < ours.numbers["accepted"] < 1


def test_either_kind_of_image_may_be_missing_and_not_both() -> None:
    model, full = net(), batch()
    objective = UDA(Objective(kind="uda", tau=0.0), context())
    whole = objective(model, full)
    labelled = objective(model, replace(full, weak=None, strong=None))
    unlabelled = objective(model, replace(full, labelled=None, labels=None))
    assert "accepted" not in labelled.numbers
    assert "loss_labelled" not in unlabelled.numbers
    assert whole.total.item() == pytest.approx(labelled.total.item() + unlabelled.total.item(), rel=1e-6)
    with pytest.raises(ValueError, match="without"):
        objective(model, Batch(None, None, None, None))


def test_batch_norm_sees_each_view_once_and_the_labelling_pass_only_in_train_mode() -> None:
    for mode, passes in (("train", 3), ("eval", 2)):
        model = build_net("small_cnn", CLASSES, seed=1).train()
        UDA(Objective(kind="uda", label_mode=mode), context())(model, batch())  # type: ignore[arg-type]
        assert model.state_dict()["features.1.num_batches_tracked"] == passes
        assert model.training
