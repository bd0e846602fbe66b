"""The objective against a naive re-statement of paper Eq. 2 to 7 and of the authors' choices, gradients included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Batch, FixMatch, Supervised, build_objective
from fedperl.settings import Objective

CLASSES = 4


def batch(seed: int = 0, n: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.rand(n, 3, 16, 16, generator=generator) for _ in range(3)]
    return Batch(images[0], torch.randint(0, CLASSES, (n,), generator=generator), images[1], images[2])


def net(seed: int = 1, *, plain: bool = True) -> nn.Module:
    """Without batch norm a pass has no side effects, so that the naive version may repeat passes at will."""
    if not plain:
        return build_net("small_cnn", CLASSES, seed=seed).train()
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def naive_loss(model: nn.Module, peers: list[nn.Module], b: Batch, s: Objective, weights: Tensor | None) -> Tensor:
    assert b.labelled is not None
    assert b.labels is not None
    assert b.weak is not None
    assert b.strong is not None
    log_labelled = torch.log_softmax(model(b.labelled), 1)
    w = torch.ones(CLASSES) if weights is None else weights
    labelled = sum(-w[y] * log_labelled[i, y] for i, y in enumerate(b.labels)) / sum(w[y] for y in b.labels)
    own = torch.softmax(model(b.weak), 1)
    others = [torch.softmax(peer(b.weak), 1).detach() for peer in peers]
    total, accepted = torch.zeros(()), 0
    log_strong = torch.log_softmax(model(b.strong), 1)
    for i in range(len(own)):
        score = own[i].detach().clone()
        for other in others:
            score = score + other[i]
        if s.combine == "mean":
            score = score / (len(others) + 1)
        if score.max() >= s.tau:
            total = total - log_strong[i, score.argmax()]
            accepted += 1
    unlabelled = total / (max(accepted, 1) if s.unlabelled_mean == "accepted" else len(own))
    consistency = torch.zeros(())
    for other in others:
        consistency = consistency + ((own - other) ** 2).sum() / own.numel() / len(others)
    if s.consistency == "detached":
        consistency = consistency.detach() * (accepted > 0)
    return labelled + s.beta * unlabelled + s.gamma * consistency


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"combine": "sum", "class_weights": "none"},
        {"unlabelled_mean": "accepted"},
        {"unlabelled_mean": "accepted", "strong_pass": "accepted", "consistency": "detached"},
        {"label_mode": "eval"},
        {"tau": 0.0, "gamma": 5.0},
        {"tau": 2.0, "gamma": 5.0},
    ],
)
@pytest.mark.parametrize("n_peers", [0, 1, 3])
def test_loss_and_gradient_against_naive(choices: dict[str, Any], n_peers: int) -> None:
    settings = Objective(**({"tau": 0.35} | choices))
    model, peers = net(1), [net(10 + i) for i in range(n_peers)]
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])
    ours = FixMatch(settings, weights, peers)(model, batch()).total
    theirs = naive_loss(model, peers, batch(), settings, weights)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for a, b in zip(gradients(ours, model), gradients(theirs, model), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_consistency_has_a_gradient_unless_detached_and_peers_have_none() -> None:
    model, peer = net(1), net(2)

    def gradient(consistency: str, gamma: float) -> list[Tensor]:
        s = Objective(tau=2.0, gamma=gamma, consistency=consistency)  # type: ignore[arg-type]
        return gradients(FixMatch(s, None, [peer])(model, batch()).total, model)

    def differs(a: list[Tensor], b: list[Tensor]) -> bool:
        return any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert differs(gradient("gradient", 1.0), gradient("gradient", 0.0))
    assert not differs(gradient("detached", 1.0), gradient("detached", 0.0))
    loss = FixMatch(Objective(gamma=1.0), None, [peer])(model, batch()).total
    assert all(g is None for g in torch.autograd.grad(loss, list(peer.parameters()), allow_unused=True))


def test_labeller_replaces_own_labels() -> None:
    model, other = net(1), net(2)
    s = Objective(tau=0.0, beta=1.0, label_source="round_start", class_weights="none")
    ours = FixMatch(s, None, (), other)(model, batch())
    strong, weak = batch().strong, batch().weak
    assert strong is not None
    assert weak is not None
    expected = nn.functional.cross_entropy(model(strong), other(weak).argmax(1))
    assert ours.numbers["loss_unlabelled"].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("mode", "passes"), [("train", 3), ("eval", 2)])
def test_labelling_moves_batch_norm_statistics_only_in_train_mode(mode: str, passes: int) -> None:
    model = net(plain=False)
    FixMatch(Objective(label_mode=mode))(model, batch())  # type: ignore[arg-type]
    assert model.state_dict()["features.1.num_batches_tracked"] == passes
    assert model.training


def test_one_accepted_image_does_not_break_batch_norm() -> None:
    b = batch(n=8)
    assert b.weak is not None
    s = Objective(strong_pass="accepted", unlabelled_mean="accepted", label_mode="eval")
    model = net(plain=False)
    with torch.no_grad():
        top = torch.softmax(model.eval()(b.weak), 1).max(1).values.sort(descending=True).values
    one = s.model_copy(update={"tau": float(top[0] + top[1]) / 2})
    losses = FixMatch(one)(model.train(), Batch(None, None, b.weak, b.strong))
    assert losses.numbers["accepted"] == pytest.approx(1 / 8)
    assert losses.numbers["loss_unlabelled"] == 0


@pytest.mark.parametrize("make", [lambda: FixMatch(Objective()), lambda: Supervised()])
def test_an_empty_batch_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="without"):
        make()(net(), Batch(None, None, None, None))


def test_either_kind_of_image_may_be_missing() -> None:
    full = batch()
    only_unlabelled = FixMatch(Objective())(net(), Batch(None, None, full.weak, full.strong))
    assert torch.isfinite(only_unlabelled.total)
    only_labelled = FixMatch(Objective(class_weights="none"))(net(), Batch(full.labelled, full.labels, None, None))
    supervised = Supervised()(net(), full)
    assert only_labelled.total.item() == pytest.approx(supervised.total.item())


def test_build_objective_follows_the_settings() -> None:
    assert isinstance(build_objective(Objective(kind="supervised"), class_weights=None), Supervised)
    assert isinstance(build_objective(Objective(), class_weights=None), FixMatch)
