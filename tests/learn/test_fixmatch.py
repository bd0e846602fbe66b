"""The objective against a naive re-statement of paper Eq. 2 to 7 and of the authors' choices, gradients included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Batch, Context, FixMatch, Supervised, build_objective
from fedperl.learn.state import state_of
from fedperl.settings import Objective, Optimizer, Views
from tests.conftest import context

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
    ours = FixMatch(settings, context(class_weights=weights, peers=peers))(model, batch()).total
    theirs = naive_loss(model, peers, batch(), settings, weights)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for a, b in zip(gradients(ours, model), gradients(theirs, model), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_consistency_has_a_gradient_unless_detached_and_peers_have_none() -> None:
    model, peer = net(1), net(2)

    def gradient(consistency: str, gamma: float) -> list[Tensor]:
        s = Objective(tau=2.0, gamma=gamma, consistency=consistency)  # type: ignore[arg-type]
        return gradients(FixMatch(s, context(peers=[peer]))(model, batch()).total, model)

    def differs(a: list[Tensor], b: list[Tensor]) -> bool:
        return any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert differs(gradient("gradient", 1.0), gradient("gradient", 0.0))
    assert not differs(gradient("detached", 1.0), gradient("detached", 0.0))
    loss = FixMatch(Objective(gamma=1.0), context(peers=[peer]))(model, batch()).total
    assert all(g is None for g in torch.autograd.grad(loss, list(peer.parameters()), allow_unused=True))


def test_labeller_replaces_own_labels() -> None:
    model, other = net(1), net(2)
    s = Objective(tau=0.0, beta=1.0, label_source="round_start", class_weights="none")
    ours = FixMatch(s, context(teacher=other))(model, batch())
    strong, weak = batch().strong, batch().weak
    assert strong is not None
    assert weak is not None
    expected = nn.functional.cross_entropy(model(strong), other(weak).argmax(1))
    assert ours.numbers["loss_unlabelled"].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("mode", "passes"), [("train", 3), ("eval", 2)])
def test_labelling_moves_batch_norm_statistics_only_in_train_mode(mode: str, passes: int) -> None:
    model = net(plain=False)
    FixMatch(Objective(label_mode=mode), context())(model, batch())  # type: ignore[arg-type]
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
    losses = FixMatch(one, context())(model.train(), Batch(None, None, b.weak, b.strong))
    assert losses.numbers["accepted"] == pytest.approx(1 / 8)
    assert losses.numbers["loss_unlabelled"] == 0


@pytest.mark.parametrize("make", [lambda: FixMatch(Objective(), context()), lambda: Supervised(Objective(), context())])
def test_an_empty_batch_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="without"):
        make()(net(), Batch(None, None, None, None))


def test_either_kind_of_image_may_be_missing() -> None:
    full = batch()
    only_unlabelled = FixMatch(Objective(), context())(net(), Batch(None, None, full.weak, full.strong))
    assert torch.isfinite(only_unlabelled.total)
    only_labelled = FixMatch(Objective(class_weights="none"), context())(
        net(), Batch(full.labelled, full.labels, None, None)
    )
    supervised = Supervised(Objective(), context())(net(), full)
    assert only_labelled.total.item() == pytest.approx(supervised.total.item())


def test_build_objective_follows_the_settings() -> None:
    assert isinstance(build_objective(Objective(kind="supervised"), context()), Supervised)
    assert isinstance(build_objective(Objective(), context()), FixMatch)


OPTIONS: dict[str, Any] = {"thresholds": "class_aware", "prior_correction": 0.7, "targets": "agreement"}


def decided(seed: int) -> nn.Module:
    """A network that is sure of some images and not of others, with favourites among the classes."""
    model = net(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(6 if name == "1.weight" else 3)
    return model


class NaiveOptions:
    """The unlabelled loss with all options, in plain numbers image by image; it keeps its own class shares."""

    def __init__(self, s: Objective) -> None:
        self.s, self.prior, self.shares = s, [1 / CLASSES] * CLASSES, [1 / CLASSES] * CLASSES

    def corrected(self, scores: list[float]) -> list[float]:
        divided = [p / q**self.s.prior_correction for p, q in zip(scores, self.prior, strict=True)]
        return [sum(scores) * d / sum(divided) for d in divided]

    def moved(self, before: list[float], rows: list[list[float]]) -> list[float]:
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        decay = self.s.prior_decay
        return [decay * b + (1 - decay) * m / sum(means) for b, m in zip(before, means, strict=True)]

    def target(self, models: list[list[float]], label: int) -> list[float]:
        if self.s.targets == "hard":
            return [float(c == label) for c in range(CLASSES)]
        best = max(max(p) for p in models)
        weights = [2 ** ((max(p) - best) / self.s.agreement_scale) for p in models]
        votes = [0.0] * CLASSES
        for p, w in zip(models, weights, strict=True):
            votes[p.index(max(p))] += w / sum(weights)
        return votes

    def loss(self, model: nn.Module, peers: list[nn.Module], b: Batch) -> tuple[Tensor, int]:
        assert b.weak is not None
        assert b.strong is not None
        with torch.no_grad():
            models = [torch.softmax(each(b.weak), 1).tolist() for each in (model, *peers)]
        factor = 1 if self.s.combine == "sum" else 1 / len(models)
        raw, scores, found = [], [], []
        for each in zip(*models, strict=True):
            raw.append([factor * sum(column) for column in zip(*each, strict=True)])
            score = self.corrected(raw[-1])
            scores.append(score)
            label = score.index(max(score))
            threshold = self.s.tau
            if self.s.thresholds == "class_aware":
                threshold *= max(self.shares[label] / max(self.shares), 1 / 2)
            found.append((self.target([self.corrected(p) for p in each], label), score[label] >= threshold))
        self.prior, self.shares = self.moved(self.prior, raw), self.moved(self.shares, scores)
        logs = torch.log_softmax(model(b.strong), 1)
        total, accepted = torch.zeros(()), sum(kept for _, kept in found)
        for i, (target, kept) in enumerate(found):
            for c in range(CLASSES):
                total = total - target[c] * logs[i, c] * kept
        return total / (max(accepted, 1) if self.s.unlabelled_mean == "accepted" else len(found)), accepted


@pytest.mark.parametrize(
    "choices",
    [
        {"thresholds": "class_aware"},
        {"prior_correction": 0.5},
        {"prior_correction": 1.0, "prior_decay": 0.0},
        {"targets": "agreement", "agreement_scale": 0.2},
        OPTIONS,
        OPTIONS | {"combine": "sum", "unlabelled_mean": "accepted"},
    ],
)
@pytest.mark.parametrize(("n_peers", "tau"), [(0, 0.8), (1, 0.5), (3, 0.4)])
def test_options_against_naive_over_several_rounds(choices: dict[str, Any], n_peers: int, tau: float) -> None:
    tau *= n_peers + 1 if choices.get("combine") == "sum" else 1
    s = Objective(**({"tau": tau, "prior_decay": 0.6, "beta": 1.0, "gamma": 0.0} | choices))
    model, peers = decided(1), [decided(10 + i) for i in range(n_peers)]
    naive, memory = NaiveOptions(s), dict[str, Tensor]()
    seen = 0
    for step in range(6):
        if step % 2 == 0:  # a round is two steps; the memory is stored in between
            memory = {name: tensor.clone().cpu() for name, tensor in memory.items()}
            objective = FixMatch(s, context(peers=peers, memory=memory))
        full = batch(step)
        b = Batch(None, None, full.weak, full.strong)
        ours = objective(model, b)
        theirs, accepted = naive.loss(model, peers, b)
        seen += accepted
        assert ours.numbers["accepted"].item() == pytest.approx(accepted / 8)
        assert ours.total.item() == pytest.approx(theirs.item(), rel=1e-4)
        for x, y in zip(gradients(ours.total, model), gradients(theirs, model), strict=True):
            assert torch.allclose(x, y, atol=1e-5)
    assert 4 < seen < 44
    names = {"fixmatch.shares"} if s.thresholds == "class_aware" else set()
    assert set(memory) == (names | {"fixmatch.prior"} if s.prior_correction else names)


def local(seed: int = 1, memory: dict[str, Tensor] | None = None, **choices: Any) -> dict[str, Tensor]:
    """The model after a local round with two peers."""
    pixels = torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = LocalImages(pixels, torch.arange(24) % CLASSES, torch.arange(8), torch.arange(8, 24), CLASSES)
    s = LocalSettings(Objective(**({"tau": 0.26} | choices)), Optimizer(lr=1e-2), Views(), steps=3, batch=4)
    model = build_net("small_cnn", CLASSES, seed=0)
    peers = [build_net("small_cnn", CLASSES, seed=7 + i).eval() for i in range(2)]
    result = local_round(model, data, s, seed=seed, peers=peers, memory=memory)
    assert all(abs(value) < 1e6 for value in result.numbers.values())
    assert result.numbers["accepted"] > 0
    return state_of(model)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_flat_shares_change_not_a_bit() -> None:
    plain = local()
    flat: dict[str, Any] = {"thresholds": "class_aware", "prior_correction": 1.0}
    assert equal(plain, local(prior_decay=1.0, **flat))
    assert not equal(plain, local(prior_decay=0.5, **flat))


def test_all_options_together_are_finite_repeatable_and_remember() -> None:
    memories: list[dict[str, Tensor]] = [{}, {}]
    first, second = (local(memory=memory, **OPTIONS, prior_decay=0.5) for memory in memories)
    assert equal(first, second)
    assert equal(memories[0], memories[1])
    assert set(memories[0]) == {"fixmatch.shares", "fixmatch.prior"}
    for shares in memories[0].values():
        assert shares.sum().item() == pytest.approx(1)
        assert shares.std() > 0.01
    assert all(torch.isfinite(tensor).all() for tensor in first.values())
    again = local(memory=dict(memories[0]), **OPTIONS, prior_decay=0.5)
    assert not equal(first, again)  # the second round begins with what the first one saw


def test_without_options_nothing_is_remembered() -> None:
    memory: dict[str, Tensor] = {}
    local(memory=memory)
    assert not memory


@pytest.mark.parametrize("strong_pass", ["all", "accepted"])
def test_nothing_accepted_is_no_loss_with_any_option(strong_pass: str) -> None:
    choices: dict[str, Any] = OPTIONS | {"strong_pass": strong_pass, "unlabelled_mean": "accepted"}
    s = Objective(tau=5.0, gamma=0.0, **choices)
    full = batch()
    losses = FixMatch(s, context(peers=[net(2)]))(net(1), Batch(None, None, full.weak, full.strong))
    assert losses.numbers["accepted"] == losses.total == 0


def test_agreement_of_one_model_is_its_label() -> None:
    full = batch()
    losses = [
        FixMatch(Objective(tau=0.3, targets=targets), context())(net(1), full) for targets in ("hard", "agreement")
    ]
    assert losses[0].numbers["accepted"] > 0
    assert torch.equal(losses[0].total, losses[1].total)


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 2.0, 3.0])])
def test_logit_adjusted_loss_against_naive(weights: Tensor | None) -> None:
    labels = torch.tensor([0] * 9 + [1] * 3 + [3])  # class 2 is absent, and counts as one image
    data = LocalImages(
        torch.zeros(13, 3, 16, 16, dtype=torch.uint8), labels, torch.arange(13), torch.arange(0), CLASSES
    )
    s = Objective(kind="supervised", labelled_loss="logit_adjusted")
    b, model = batch(), net(1)
    assert b.labelled is not None
    b = Batch(b.labelled, torch.tensor([0, 0, 0, 1, 1, 3, 0, 1]), None, None)
    assert b.labels is not None
    ours = Supervised(s, Context(data, class_weights=weights))(model, b).total
    shares, w = [9 / 14, 3 / 14, 1 / 14, 1 / 14], [1.0] * 4 if weights is None else weights.tolist()
    total, divisor = torch.zeros(()), 0.0
    for logits, y in zip(model(b.labelled), b.labels.tolist(), strict=True):
        scaled = [shares[c] * logits[c].exp() for c in range(CLASSES)]
        total = total - w[y] * torch.log(scaled[y] / torch.stack(scaled).sum())
        divisor += w[y]
    theirs = total / divisor
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for x, y in zip(gradients(ours, model), gradients(theirs, model), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
