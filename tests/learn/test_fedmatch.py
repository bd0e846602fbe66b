"""FedMatch against a naive re-statement with loops over images and entries, gradients and the two steps included."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalResult, LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.nets.decomposed import Decomposed
from fedperl.learn.objectives import Batch, FedMatch, build_objective
from fedperl.learn.objectives.fedmatch import vote
from fedperl.learn.state import State, state_of
from fedperl.settings import FedMatch as Terms
from fedperl.settings import Objective, Optimizer, Views
from tests.conftest import context

CLASSES = 4


def batch(seed: int = 0, n: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.rand(n, 3, 8, 8, generator=generator) for _ in range(3)]
    return Batch(images[0], torch.randint(0, CLASSES, (n,), generator=generator), images[1], images[2])


def net(seed: int = 1) -> nn.Module:
    """A network whose probabilities lie on both sides of tau, and whose passes have no side effects."""
    torch.manual_seed(seed)
    head = nn.Linear(6, CLASSES)
    with torch.no_grad():
        head.weight.mul_(6)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 6), nn.Tanh(), head)


def settings(terms: dict[str, Any] | None = None, **objective: Any) -> Objective:
    """With the terms of unlabelled images large enough to be seen beside the others."""
    seen = {"helpers": 3.0, "votes": 2.0, "closeness": 0.3, "sparsity": 0.1} | (terms or {})
    chosen: dict[str, Any] = {"kind": "fedmatch", "tau": 0.5, "unlabelled_mean": "accepted", "labelled_weight": 10.0}
    return Objective(fedmatch=Terms(**seen), **(chosen | objective))


def by_hand(w: list[Tensor], images: Tensor) -> Tensor:
    return torch.tanh(images.flatten(1) @ w[0].T + w[1]) @ w[2].T + w[3]


def leaves(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone().requires_grad_() for p in model.parameters()]


def halves(model: Decomposed) -> tuple[list[Tensor], list[Tensor]]:
    return leaves(model.sigma), leaves(model.psi)


def naive_labelled(w: list[Tensor], b: Batch, s: Objective, weights: Tensor) -> Tensor:
    assert b.labelled is not None
    assert b.labels is not None
    logs = torch.log_softmax(by_hand(w, b.labelled), 1)
    total = sum(-weights[y] * logs[i, y] for i, y in enumerate(b.labels)) / sum(weights[y] for y in b.labels)
    return s.labelled_weight * torch.as_tensor(total)


def naive_unlabelled(w: list[Tensor], peers: list[nn.Module], b: Batch, s: Objective) -> tuple[Tensor, int]:
    assert b.weak is not None
    assert b.strong is not None
    own, strong = torch.softmax(by_hand(w, b.weak), 1), torch.softmax(by_hand(w, b.strong), 1)
    helpers = [torch.softmax(by_hand(leaves(peer), b.weak), 1).detach() for peer in peers]
    total, accepted = torch.zeros(()), 0
    for i in range(len(own)):
        if own[i].max().item() < s.tau:
            continue
        accepted += 1
        named = [0] * CLASSES
        for model in (own, *helpers):
            named[int(model[i].argmax())] += 1
        total = total - s.fedmatch.votes * strong[i, named.index(max(named))].log()
        for helper in helpers:
            for c in range(CLASSES):
                gap = helper[i, c].log() - own[i, c].log()
                total = total + s.fedmatch.helpers / len(helpers) * helper[i, c] * gap
    return total / (max(accepted, 1) if s.unlabelled_mean == "accepted" else len(own)), accepted


def naive_regularisers(sigma: list[Tensor], psi: list[Tensor], s: Objective) -> Tensor:
    total = torch.zeros(())
    for a, b in zip(sigma, psi, strict=True):
        for x, y in zip(a.detach().flatten(), b.flatten(), strict=True):
            total = total + s.fedmatch.closeness * (x - y) ** 2 + s.fedmatch.sparsity * y.abs()
    return total


def theta(sigma: list[Tensor], psi: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(sigma, psi, strict=True)]


def close(ours: list[Tensor | None], theirs: list[Tensor]) -> bool:
    return all(a is not None and torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("choices", [{}, {"unlabelled_mean": "batch"}, {"label_mode": "eval"}, {"tau": 0.0}])
@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_both_steps_and_their_gradients_against_naive(choices: dict[str, Any], helpers: int) -> None:
    s, weights = settings(**choices), torch.tensor([0.5, 1.0, 2.0, 3.0])
    model, peers = Decomposed(net(1), zero=0.0), [net(10 + i) for i in range(helpers)]
    sigma, psi = halves(model)
    rate = 5e-4

    first = FedMatch(s, context(class_weights=weights, peers=peers))(model, batch())
    first.total.backward()  # type: ignore[no-untyped-call]
    labelled = naive_labelled(theta(sigma, psi), batch(), s, weights)
    assert first.total.item() == pytest.approx(labelled.item(), rel=1e-5)
    slopes = list(torch.autograd.grad(labelled, sigma))
    assert close(gradients(model.sigma), slopes)
    assert gradients(model.psi) == [None] * len(psi)
    torch.optim.SGD(model.parameters(), rate).step()

    assert first.then is not None
    model.zero_grad(set_to_none=True)
    second = first.then()
    second.total.backward()  # type: ignore[no-untyped-call]
    moved = [a.detach() - rate * slope for a, slope in zip(sigma, slopes, strict=True)]  # the second step sees this
    unlabelled, accepted = naive_unlabelled(theta(moved, psi), peers, batch(), s)
    total = unlabelled + naive_regularisers(moved, psi, s)
    assert s.tau == 0 or 0 < accepted < 8
    assert second.numbers["accepted"].item() == accepted / 8
    assert second.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert close(gradients(model.psi), list(torch.autograd.grad(total, psi)))
    assert gradients(model.sigma) == [None] * len(sigma)
    assert second.then is None
    assert all(p.grad is None for peer in peers for p in peer.parameters())


@pytest.mark.parametrize("choices", [{}, {"unlabelled_mean": "batch"}, {"tau": 2.0}])
def test_without_decomposition_one_step_against_naive(choices: dict[str, Any]) -> None:
    s, weights = settings({"decompose": False}, **choices), torch.ones(CLASSES)
    model, peers = net(1), [net(10), net(11)]
    ours = FedMatch(s, context(peers=peers))(model, batch())
    ours.total.backward()  # type: ignore[no-untyped-call]
    w = leaves(model)
    unlabelled, accepted = naive_unlabelled(w, peers, batch(), s)
    assert s.tau == 2 or 0 < accepted < 8
    theirs = naive_labelled(w, batch(), s, weights) + unlabelled
    assert ours.total.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert close(gradients(model), list(torch.autograd.grad(theirs, w)))
    assert ours.then is None
    assert ours.numbers["loss"] == ours.total


def test_terms_are_logged_without_their_weights() -> None:
    b = batch()
    assert b.strong is not None
    assert b.weak is not None
    s, model, peer = settings({"helpers": 7.0}, tau=0.0), Decomposed(net(1)), net(2)
    numbers = FedMatch(s, context(peers=[peer]))(model, Batch(None, None, b.weak, b.strong)).numbers
    own, helper = torch.log_softmax(model(b.weak), 1), torch.log_softmax(peer(b.weak), 1)
    expected = (helper.exp() * (helper - own)).sum(1).mean()
    assert numbers["loss_consistency"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert numbers.keys() == {"loss", "loss_unlabelled", "loss_consistency", "accepted"}


def test_without_an_accepted_image_only_the_regularisers_act() -> None:
    s, model, b = settings(tau=1.5), Decomposed(net(1)), batch()
    losses = FedMatch(s, context(peers=[net(2)]))(model, Batch(None, None, b.weak, b.strong))
    losses.total.backward()  # type: ignore[no-untyped-call]
    sigma, psi = halves(model)
    expected = naive_regularisers(sigma, psi, s)
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert close(gradients(model.psi), list(torch.autograd.grad(expected, psi)))
    assert losses.numbers["loss_unlabelled"] == losses.numbers["loss_consistency"] == losses.numbers["accepted"] == 0


def test_votes_are_counted_and_the_lowest_class_wins_a_tie() -> None:
    models = [[3, 2, 0, 1, 3], [1, 2, 3, 1, 2], [1, 0, 3, 2, 1]]
    assert vote([torch.tensor(labels) for labels in models], CLASSES).tolist() == [1, 2, 3, 1, 1]
    assert vote([torch.tensor([3, 1]), torch.tensor([2, 3])], CLASSES).tolist() == [2, 1]
    assert vote([torch.tensor([3, 1])], CLASSES).tolist() == [3, 1]


def test_either_kind_of_image_may_be_missing() -> None:
    b, model = batch(), Decomposed(net())
    objective = FedMatch(settings(), context())
    assert objective(model, Batch(b.labelled, b.labels, None, None)).then is None
    objective(model, Batch(None, None, b.weak, b.strong)).total.backward()  # type: ignore[no-untyped-call]
    assert all(g is None for g in gradients(model.sigma))
    objective.after_step(model)
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="without images"):
        objective(model, Batch(None, None, None, None))
    with pytest.raises(ValueError, match="strong view"):
        objective(model, Batch(None, None, b.weak, None))


@pytest.mark.parametrize("decompose", [True, False])
def test_a_network_of_the_other_kind_is_refused(decompose: bool) -> None:
    wrong = net() if decompose else Decomposed(net())
    with pytest.raises(ValueError, match=f"decompose = {decompose}, and the network is a {type(wrong).__name__}"):
        FedMatch(settings({"decompose": decompose}), context())(wrong, batch())


@pytest.mark.parametrize(("mode", "passes"), [("train", 3), ("eval", 2)])
def test_labelling_moves_batch_norm_statistics_only_in_train_mode(mode: str, passes: int) -> None:
    model = Decomposed(build_net("small_cnn", CLASSES, seed=1)).train()
    losses = FedMatch(settings(label_mode=mode), context())(model, batch())
    assert losses.then is not None
    losses.then()
    assert model.state_dict()["sigma.features.1.num_batches_tracked"] == passes
    assert model.training


def test_build_objective_knows_it() -> None:
    assert isinstance(build_objective(Objective(kind="fedmatch"), context()), FedMatch)


def images(labelled: int = 10, unlabelled: int = 20) -> LocalImages:
    generator = torch.Generator().manual_seed(0)
    n = labelled + unlabelled
    pixels = torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=generator)
    return LocalImages(pixels, torch.arange(n) % 3, torch.arange(labelled), torch.arange(labelled, n), 3)


OPTIMIZERS = [
    Optimizer(lr=1e-2, weight_decay=0.1),
    Optimizer(kind="sgd", lr=1e-2, momentum=0.9, weight_decay=0.1),
]


def run(
    data: LocalImages, optimizer: Optimizer = OPTIMIZERS[0], steps: int = 3, mu: float = 0.1, seed: int = 1
) -> tuple[State, LocalResult]:
    model, peer = (Decomposed(build_net("small_cnn", 3, seed=s)) for s in (0, 5))
    s = Objective(kind="fedmatch", tau=0.3, mu=mu, unlabelled_mean="accepted")
    local = LocalSettings(s, optimizer, Views(weak="none"), steps, 4, unlabelled_batch=6)
    result = local_round(model, data, local, seed=seed, peers=[peer.eval().requires_grad_(False)])
    assert all(p.requires_grad for p in model.parameters())
    return state_of(model), result


def parameters_moved(a: State, b: State) -> set[str]:
    """Which of sigma and psi hold a parameter that is not the same to the bit; statistics and counters aside."""
    names = [name.removeprefix("psi.") for name in a if name.startswith("psi.")]
    every = [f"{part}.{name}" for part in ("sigma", "psi") for name in names]
    return {name.partition(".")[0] for name in every if not torch.equal(a[name], b[name])}


START = state_of(Decomposed(build_net("small_cnn", 3, seed=0)))


def test_a_local_round_is_deterministic_and_trains_both_sets() -> None:
    first, result = run(images())
    torch.rand(100)
    again, _ = run(images())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert parameters_moved(first, START) == {"sigma", "psi"}
    assert parameters_moved(first, run(images(), seed=2)[0]) == {"sigma", "psi"}
    assert result.numbers.keys() >= {"loss", "loss_labelled", "loss_unlabelled", "loss_consistency", "accepted"}
    assert result.numbers["loss_consistency"] > 0
    assert first["sigma.features.1.num_batches_tracked"] == 9


@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_kind_of_image_moves_its_own_set_alone(optimizer: Optimizer, mu: float) -> None:
    """Whatever else pulls at the parameters: momentum, weight decay, a proximal term."""
    assert parameters_moved(run(images(10, 0), optimizer, mu=mu)[0], START) == {"sigma"}
    assert parameters_moved(run(images(0, 20), optimizer, mu=mu)[0], START) == {"psi"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_unlabelled_step_leaves_sigma_as_the_labelled_step_made_it(optimizer: Optimizer) -> None:
    both = images()
    labelled = replace(both, unlabelled=both.unlabelled[:0])
    assert parameters_moved(run(both, optimizer, steps=1)[0], run(labelled, optimizer, steps=1)[0]) == {"psi"}
