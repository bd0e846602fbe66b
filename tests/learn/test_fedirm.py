"""FedIRM, and FixMatch with it, against naive re-statements with loops, gradients included."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.local_round import LocalResult, LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Batch, Context, FedIRM, FixMatch, FixMatchIRM, MeanTeacher, build_objective
from fedperl.learn.objectives.fedirm import entropy, mean_of_passes
from fedperl.learn.relation import RelationSum, relation_divergence, relation_matrix
from fedperl.learn.state import State, state_of
from fedperl.settings import Objective, Optimizer, Views
from tests.conftest import context
from tests.learn.test_mean_teacher import CLASSES, batch, gradients, naive_consistency, net

RECEIVED = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.6, 0.1, 0.2], [0.0, 0.0, 0.0, 0.0], [0.3, 0.1, 0.1, 0.5]])


def settings(kind: str = "fedirm", **choices: Any) -> Objective:
    teacher = {"weight": 3.0, "ramp": 0, "confidence": 0.35, "uncertainty": 0.97} | choices.pop("teacher", {})
    return Objective(kind=kind, teacher=teacher, **choices)


def surroundings(**parts: Any) -> Context:
    given: dict[str, Any] = {"teacher": net(2), "relation": RECEIVED} | parts
    return context(**given)


def naive_matrix(logits: Tensor, labels: list[int | None], temperature: float) -> list[Tensor | None]:
    """One row a class; None for a class without images. A label of None is an image left out."""
    rows: list[Tensor | None] = []
    for c in range(CLASSES):
        own = [logits[i] for i, label in enumerate(labels) if label == c]
        mean = sum(own, torch.zeros(CLASSES)) / max(len(own), 1)
        rows.append(torch.exp(mean / temperature) / torch.exp(mean / temperature).sum() if own else None)
    return rows


def naive_relation_loss(model: nn.Module, b: Batch, s: Objective, received: Tensor) -> Tensor:
    logits, t = model(b.weak), s.teacher
    labels: list[int | None] = []
    for row in torch.softmax(logits, 1):
        uncertainty = -sum(p * math.log(p) for p in row.tolist())  # the network has no dropout: one pass says it all
        certain = row.max() >= t.confidence and uncertainty < t.uncertainty * math.log(CLASSES)
        labels.append(int(row.argmax()) if certain else None)
    total, rows = torch.zeros(()), 0
    for c, own in enumerate(naive_matrix(logits, labels, t.relation_temperature)):
        if t.count_weighted and (own is None or received[c].sum() == 0):
            continue
        a = torch.full((CLASSES,), 1 / CLASSES) if own is None else own
        for j in range(CLASSES):
            total = total + (
                a[j] * torch.log(a[j] / received[c, j]) + received[c, j] * torch.log(received[c, j] / a[j])
            )
        rows += 1
    return total / 2 / max(rows, 1)


def assert_same(ours: Tensor, theirs: Tensor, model: nn.Module) -> None:
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for a, b in zip(gradients(ours, model), gradients(theirs, model), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


# The matrix


def test_matrix_and_its_gradient_against_naive() -> None:
    logits = torch.randn(9, CLASSES, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels, mask = torch.tensor([0, 0, 1, 3, 1, 0, 3, 2, 2]), torch.tensor([1, 0, 1, 1, 1, 1, 1, 0, 0]).bool()
    ours, counts = relation_matrix(logits, labels, CLASSES, 2.0, mask)
    theirs = naive_matrix(logits, [int(y) if m else None for y, m in zip(labels, mask, strict=True)], 2.0)
    assert counts.tolist() == [2, 2, 0, 2]
    assert theirs[2] is None
    assert torch.equal(ours[2], torch.full((CLASSES,), 0.25))
    weights = torch.arange(16.0).view(4, 4)
    for c, own in enumerate(theirs):
        if own is not None:
            assert torch.allclose(ours[c], own, atol=1e-6)
            a, b = (torch.autograd.grad(row @ weights[c], logits, retain_graph=True)[0] for row in (ours[c], own))
            assert torch.allclose(a, b, atol=1e-6)


def test_a_round_of_batches_over_images_and_over_batches() -> None:
    logits = torch.randn(9, CLASSES, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 0, 1, 3, 1, 0, 3, 1, 3])  # class 0 is missing from the second batch, 2 from all
    relations = RelationSum(CLASSES, 2.0, torch.device("cpu"))
    assert relations.over_images() is None
    assert relations.over_batches() is None
    for part in (slice(0, 6), slice(6, 9)):
        relations.add(logits[part], labels[part])
    whole, images, per_batch = (
        naive_matrix(logits, labels.tolist(), 2.0),
        relations.over_images(),
        relations.over_batches(),
    )
    assert images is not None
    assert per_batch is not None
    halves = [naive_matrix(logits[part], labels[part].tolist(), 2.0) for part in (slice(0, 6), slice(6, 9))]
    uniform = torch.full((CLASSES,), 1 / CLASSES)
    for c in range(CLASSES):
        expected = whole[c]
        assert torch.allclose(images[c], torch.zeros(CLASSES) if expected is None else expected, atol=1e-6)
        first, second = (uniform if half[c] is None else half[c] for half in halves)
        assert torch.allclose(per_batch[c], (first + second) / 2, atol=1e-6)  # type: ignore[operator]


def test_divergence_leaves_rows_out_and_is_never_nan() -> None:
    matrix = torch.softmax(
        torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(1)), 1
    ).requires_grad_()
    known = torch.tensor([True, True, False, False])
    kl = (
        sum((a * (a / b).log() + b * (b / a).log()).sum() / 2 for a, b in zip(matrix[:2], RECEIVED[:2], strict=True))
        / 2
    )
    assert relation_divergence(matrix, RECEIVED, known).item() == pytest.approx(kl.item(), rel=1e-5)
    assert relation_divergence(matrix, matrix, known) == 0
    none = relation_divergence(matrix, RECEIVED, torch.zeros(CLASSES, dtype=torch.bool))
    assert none == 0
    assert torch.equal(torch.autograd.grad(none, matrix)[0], torch.zeros_like(matrix))


# The uncertainty


class FixedDropout(nn.Dropout):
    """Drops by a mask given beforehand, one row for each image and pass, so that passes can be repeated one by one."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__(0.5)
        self.mask = self.drawn = mask

    def forward(self, features: Tensor) -> Tensor:
        return features * self.mask if self.training else features


@pytest.mark.parametrize("layers", [1, 2])
def test_passes_at_once_are_passes_one_by_one(layers: int) -> None:
    torch.manual_seed(1)
    images, passes = torch.rand(5, 3, 16, 16), 7
    drops = [FixedDropout(torch.bernoulli(torch.full((passes * 5, 8), 0.5))) for _ in range(layers)]
    parts = [part for drop in drops for part in (nn.Linear(8, 8), nn.Tanh(), drop)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), *parts, nn.Dropout(0.0), nn.Linear(8, CLASSES))
    ours = mean_of_passes(model, images, passes)
    total = torch.zeros(5, CLASSES)
    for k in range(passes):
        for drop in drops:
            drop.mask = drop.drawn[5 * k : 5 * k + 5]
        total += torch.softmax(model(images), 1).detach()
    assert torch.allclose(ours, total / passes, atol=1e-6)
    assert not torch.allclose(ours, torch.softmax(model.eval()(images), 1), atol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_passes_leave_modes_statistics_and_hooks_as_they_were(dropout: float) -> None:
    images = torch.rand(6, 3, 16, 16)
    model = build_net("small_cnn", CLASSES, seed=1, dropout=dropout, input_scale="imagenet").train()
    model.get_submodule("features.1").eval()  # a mode of its own
    before, modes, plain = state_of(model), [m.training for m in model.modules()], deepcopy(model).eval()
    torch.manual_seed(3)
    mean = mean_of_passes(model, images, 11)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(model).items())
    assert not mean.requires_grad
    assert model(images).shape == (6, CLASSES)  # not repeated any more
    assert torch.allclose(mean, torch.softmax(plain(images), 1), atol=1e-6) == (dropout == 0)
    assert torch.allclose(mean.sum(1), torch.ones(6), atol=1e-5)


def test_without_dropout_one_pass_is_made() -> None:
    seen: list[int] = []
    model = net(1)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    mean_of_passes(model, torch.rand(6, 3, 16, 16), 11)
    assert seen == [6]


def test_many_passes_average_the_dropout_out_and_few_do_not() -> None:
    torch.manual_seed(3)
    model, images = build_net("small_cnn", CLASSES, seed=1, dropout=0.5), torch.rand(2, 3, 16, 16)
    many, again = mean_of_passes(model, images, 4000), mean_of_passes(model, images, 4000)
    few = mean_of_passes(model, images, 1)
    assert (many - again).abs().max() < 1e-3 < (few - again).abs().max()


def test_entropy() -> None:
    rows = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    assert torch.allclose(entropy(rows), torch.tensor([math.log(4), 0, math.log(2)]), atol=1e-6)


# The objective


@pytest.mark.parametrize(
    "teacher",
    [
        {},
        {"confidence": 0.0, "uncertainty": 2.0},
        {"confidence": 0.0, "uncertainty": 0.96},
        {"confidence": 0.42, "uncertainty": 2.0, "relation_temperature": 0.5},
        {"count_weighted": False},
        {"count_weighted": False, "confidence": 1.0},
    ],
)
def test_unlabelled_loss_and_gradient_against_naive(teacher: dict[str, Any]) -> None:
    s, model, b = settings(teacher=teacher), net(1), batch()
    received = RECEIVED if s.teacher.count_weighted else RECEIVED.index_fill(0, torch.tensor(2), 1 / CLASSES)
    unlabelled = replace(b, labelled=None, labels=None, labelled_again=None)
    ours = build_objective(s, surroundings(relation=received))(model, unlabelled)
    relation = naive_relation_loss(model, b, s, received)
    assert ours.numbers["loss_relation"].item() == pytest.approx(relation.item(), rel=1e-4)
    assert_same(ours.total, 3.0 * (naive_consistency(model, net(2), b, s) + relation), model)


def test_the_filters_above_cut_some_and_not_all() -> None:
    """Otherwise the comparison with the naive version would say nothing of them."""
    for teacher in ({"confidence": 0.0, "uncertainty": 0.96}, {"confidence": 0.42, "uncertainty": 2.0}, {}):
        losses = FedIRM(settings(teacher=teacher), surroundings())(net(1), batch())
        assert 0 < losses.numbers["certain"] < 1
        assert losses.numbers["loss_relation"] > 0


def test_labelled_loss_is_of_both_views_and_both_enter_the_matrix() -> None:
    s, model, b = settings(label_smoothing=0.1, labelled_weight=2.0), net(1), batch()
    labels, weights = b.labels, torch.tensor([0.5, 1.0, 2.0, 3.0])
    assert labels is not None
    objective = FedIRM(s, surroundings(class_weights=weights))
    ours = objective(model, replace(b, weak=None, weak_again=None))
    theirs = torch.zeros(())
    for view in (b.labelled, b.labelled_again):
        logs = torch.log_softmax(model(view), 1)
        loss = torch.zeros(())
        for i, y in enumerate(labels):
            for c in range(CLASSES):
                loss = loss - weights[y] * (0.9 * (c == y) + 0.1 / CLASSES) * logs[i, c]
        theirs = theirs + 2.0 * loss / weights[labels].sum()
    assert_same(ours.total, theirs, model)
    matrix = objective.relation()
    assert matrix is not None
    expected = naive_matrix(model(torch.cat([b.labelled, b.labelled_again])), 2 * labels.tolist(), 2.0)  # type: ignore[list-item]
    for row, own in zip(matrix, expected, strict=True):
        assert torch.allclose(row, torch.zeros(CLASSES) if own is None else own, atol=1e-6)
    assert (matrix.dtype, matrix.device.type, matrix.requires_grad) == (torch.float32, "cpu", False)


def test_a_class_never_seen_is_unknown_or_uniform_and_no_labels_are_no_matrix() -> None:
    b = replace(batch(), labels=torch.tensor([0, 0, 1, 1, 1, 3, 3, 3]))
    for count_weighted, row in ((True, [0.0] * 4), (False, [0.25] * 4)):
        objective = FedIRM(settings(teacher={"count_weighted": count_weighted}), surroundings())
        objective(net(1), b)
        matrix = objective.relation()
        assert matrix is not None
        assert matrix[2].tolist() == row
        assert torch.allclose(matrix[[0, 1, 3]].sum(1), torch.ones(3))
        objective = FedIRM(settings(teacher={"count_weighted": count_weighted}), surroundings())
        objective(net(1), replace(b, labelled=None, labels=None, labelled_again=None))
        assert objective.relation() is None


@pytest.mark.parametrize("parts", [{"relation": None}, {}])
def test_without_a_matrix_or_without_relations_it_is_the_mean_teacher(parts: dict[str, Any]) -> None:
    s, model = settings(teacher={"relation": bool(parts)}), net(1)
    unlabelled = replace(batch(), labelled=None, labels=None, labelled_again=None)
    objective = FedIRM(s, surroundings(**parts))
    ours, theirs = objective(model, unlabelled), MeanTeacher(s, surroundings())(model, unlabelled)
    assert ours.total == theirs.total
    assert ours.numbers.keys() == theirs.numbers.keys()
    objective(model, batch())
    assert (objective.relation() is None) == (not parts)  # what nobody matches is not sent


@pytest.mark.parametrize("count_weighted", [True, False])
def test_no_image_kept_is_no_nan_and_no_gradient(count_weighted: bool) -> None:
    s, model = settings(teacher={"confidence": 1.0, "count_weighted": count_weighted}), net(1)
    unlabelled = replace(batch(), labelled=None, labels=None, labelled_again=None)
    ours, theirs = (kind(s, surroundings())(model, unlabelled) for kind in (FedIRM, MeanTeacher))
    assert ours.numbers["certain"] == 0
    if count_weighted:
        assert ours.numbers["loss_relation"] == 0
    assert torch.isfinite(ours.total)
    for a, b in zip(gradients(ours.total, model), gradients(theirs.total, model), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_teacher_has_no_gradient_and_an_empty_batch_is_refused() -> None:
    teacher = net(2)
    objective = FedIRM(settings(), surroundings(teacher=teacher))
    total = objective(net(1), batch()).total
    assert all(g is None for g in torch.autograd.grad(total, list(teacher.parameters()), allow_unused=True))
    with pytest.raises(ValueError, match="'fedirm' was given a batch without images"):
        objective(net(1), Batch(None, None, None, None))


# FixMatch with FedIRM


def peer() -> nn.Module:
    return net(5)


@pytest.mark.parametrize("label_source", ["current", "ema"])
@pytest.mark.parametrize("gamma", [0.0, 5.0])
@pytest.mark.parametrize("peers", [0, 1])
def test_fixmatch_irm_is_fixmatch_plus_the_teachers_terms(label_source: Any, gamma: float, peers: int) -> None:
    s, model, b = settings("fixmatch_irm", tau=0.35, gamma=gamma, label_source=label_source), net(1), batch()
    around = surroundings(peers=[peer()] * peers)
    objective = build_objective(s, around)
    ours = objective(model, b)
    fixmatch = FixMatch(s, surroundings(peers=[peer()] * peers))(model, b)
    relation, consistency = naive_relation_loss(model, b, s, RECEIVED), naive_consistency(model, net(2), b, s)
    assert_same(ours.total, fixmatch.total + 3.0 * (consistency + relation), model)
    assert ours.numbers["loss"] == ours.total
    assert ours.numbers.keys() == fixmatch.numbers.keys() | {"loss_teacher", "loss_relation", "certain"}
    assert b.labels is not None
    matrix = objective.relation()
    assert matrix is not None
    for row, own in zip(matrix, naive_matrix(model(b.labelled), b.labels.tolist(), 2.0), strict=True):
        assert torch.allclose(row, torch.zeros(CLASSES) if own is None else own, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "choices", [{}, {"label_mode": "eval"}, {"consistency": "detached", "strong_pass": "accepted"}]
)
def test_without_weight_it_is_fixmatch_to_the_bit_batch_norm_and_dropout_included(
    choices: dict[str, Any], training: bool
) -> None:
    s = settings("fixmatch_irm", tau=0.3, teacher={"weight": 0.0}, **choices)
    ends = []
    for kind in (FixMatch, FixMatchIRM):
        model, other = (build_net("small_cnn", CLASSES, seed=seed, dropout=0.3).train(training) for seed in (1, 2))
        torch.manual_seed(7)
        losses = kind(s, surroundings(peers=[other.eval()]))(model, batch())
        ends.append((losses, gradients(losses.total, model), state_of(model), torch.get_rng_state(), model.training))
    (a, a_gradients, a_state, a_random, a_mode), (b, b_gradients, b_state, b_random, b_mode) = ends
    assert a.total == b.total
    assert a.numbers == b.numbers
    assert all(torch.equal(x, y) for x, y in zip(a_gradients, b_gradients, strict=True))
    assert all(torch.equal(a_state[name], b_state[name]) for name in a_state)
    assert torch.equal(a_random, b_random)
    assert a_mode == b_mode == training


@pytest.mark.parametrize("label_source", ["current", "ema"])
def test_the_teacher_of_fixmatch_irm_is_moved_once_a_step(label_source: Any) -> None:
    s, model, teacher = settings("fixmatch_irm", label_source=label_source, ema_decay=0.9), net(1), net(2)
    objective = FixMatchIRM(s, surroundings(teacher=teacher, memory={"mean_teacher.steps": torch.tensor(1)}))
    before = deepcopy(teacher)
    objective.after_step(model)
    for old, new, p in zip(before.parameters(), teacher.parameters(), model.parameters(), strict=True):
        assert torch.allclose(new, (old + p) / 2, atol=1e-6)


def test_fixmatch_irm_with_either_kind_of_image_missing() -> None:
    model, b = net(1), batch()
    objective = FixMatchIRM(settings("fixmatch_irm"), surroundings())
    whole = objective(model, b).total
    labelled = objective(model, replace(b, weak=None, weak_again=None, strong=None)).total
    unlabelled = objective(model, replace(b, labelled=None, labels=None)).total
    assert whole.item() == pytest.approx(labelled.item() + unlabelled.item(), rel=1e-6)
    with pytest.raises(ValueError, match="without images"):
        objective(model, Batch(None, None, None, None))


# A whole round


def run(kind: str, *, round: int = 4, data: Any = None, **parts: Any) -> tuple[State, LocalResult]:
    model, teacher = (build_net("small_cnn", CLASSES, seed=0, dropout=0.3) for _ in range(2))
    objective = settings(kind, start=3, teacher={"confidence": 0.0, "uncertainty": 1.0})
    local = LocalSettings(objective, Optimizer(lr=1e-2), Views(), steps=3, batch=4, round=round, rounds=9)
    result = local_round(
        model, data or context().data, local, seed=1, teacher=teacher.eval(), **({"relation": RECEIVED} | parts)
    )
    return state_of(model), result


@pytest.mark.parametrize("kind", ["fedirm", "fixmatch_irm"])
def test_a_round_again_is_the_same_network_to_the_bit(kind: str) -> None:
    (first, told), _, (again, retold) = run(kind), torch.rand(50), run(kind)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert told.numbers == retold.numbers
    assert {"loss_teacher", "loss_relation", "certain", "loss_labelled", "loss"} <= told.numbers.keys()
    assert told.relation is not None
    other, _ = run(kind, relation=RECEIVED.flip(0))
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_before_the_start_and_without_either_kind_of_image() -> None:
    _, early = run("fedirm", round=3)
    assert early.numbers.keys() == {"loss", "loss_labelled"}
    assert early.relation is not None
    state, blind = run("fedirm", data=context(labelled=0).data)
    assert blind.numbers.keys() == {"loss", "loss_teacher", "loss_relation", "certain"}
    assert blind.relation is None
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    _, sighted = run("fedirm", data=context(unlabelled=0).data)
    assert sighted.numbers.keys() == {"loss", "loss_labelled"}


# Dropout of the networks


@pytest.mark.parametrize("name", ["small_cnn", "resnet9"])
def test_dropout_changes_training_alone_and_not_the_weights(name: str) -> None:
    plain, dropped = build_net(name, 3, seed=1), build_net(name, 3, seed=1, dropout=0.5)
    assert list(plain.state_dict()) == list(dropped.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), dropped.state_dict().values(), strict=True)
    )
    images = torch.rand(4, 3, 16, 16)
    assert torch.equal(plain.eval()(images), dropped.eval()(images))
    assert not torch.equal(plain.train()(images), dropped.train()(images))
    before = torch.get_rng_state()
    build_net(name, 3, seed=1).train()(images)
    assert torch.equal(before, torch.get_rng_state())  # without dropout nothing is drawn
