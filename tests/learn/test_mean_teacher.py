"""The mean teacher against a naive re-statement, gradients included, and how it grows up."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Batch, MeanTeacher, Supervised, build_objective
from fedperl.learn.objectives.mean_teacher import STEPS, ramp_up
from fedperl.learn.state import State, state_of
from fedperl.settings import Objective, Optimizer, Views
from tests.conftest import context

CLASSES = 4


def batch(n: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = [3 * torch.randn(n, 3, 16, 16, generator=generator) for _ in range(5)]
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    return Batch(images[0], labels, images[1], images[2], images[3], images[4])


def net(seed: int = 1) -> nn.Module:
    """Without batch norm a pass has no side effects, so that the naive version may repeat passes at will."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def settings(**choices: Any) -> Objective:
    return Objective(**({"kind": "mean_teacher"} | choices))


def naive_consistency(model: nn.Module, teacher: nn.Module, b: Batch, s: Objective) -> Tensor:
    student = torch.softmax(model(b.weak), 1)
    target = torch.softmax(teacher(b.weak_again), 1).detach()
    total = torch.zeros(())
    for i in range(len(student)):
        powers = [float(p) ** (1 / s.teacher.temperature) for p in target[i]]
        for c in range(CLASSES):
            total = total + (student[i, c] - powers[c] / sum(powers)) ** 2
    return total / len(student)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    ("round", "start", "ramp", "factor"),
    [(1, 0, 0, 1.0), (3, 0, 10, math.exp(-5 * 0.49)), (25, 20, 30, math.exp(-5 * (25 / 30) ** 2)), (40, 5, 30, 1.0)],
)
def test_loss_and_gradient_against_naive(temperature: float, round: int, start: int, ramp: int, factor: float) -> None:
    s = settings(start=start, teacher={"weight": 3.0, "ramp": ramp, "temperature": temperature}, label_smoothing=0.2)
    model, teacher, b = net(1), net(2), batch()
    surroundings = context(teacher=teacher, round=round, class_weights=torch.tensor([1.0, 2, 3, 4]))
    ours = build_objective(s, surroundings)(model, b)
    labelled = Supervised(s, surroundings)(model, b).total
    consistency = naive_consistency(model, teacher, b, s)
    theirs = labelled + 3.0 * factor * consistency
    assert ours.total.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert ours.numbers["loss_teacher"].item() == pytest.approx(consistency.item(), rel=1e-5)
    assert ours.numbers["loss_labelled"] == labelled
    for a, c in zip(gradients(ours.total, model), gradients(theirs, model), strict=True):
        assert torch.allclose(a, c, atol=1e-6)


def test_ramp_up() -> None:
    assert [ramp_up(t, 0) for t in (-19, 0, 1, 100)] == [1, 1, 1, 1]  # RSCFed has no ramp, and may have a start
    assert ramp_up(-3, 30) == ramp_up(0, 30) == pytest.approx(math.exp(-5))
    values = [ramp_up(t, 30) for t in range(40)]
    assert values == sorted(values)
    assert values[30:] == [1.0] * 10
    assert values[29] < 1


def test_the_teacher_has_no_gradient_and_is_needed() -> None:
    model, teacher = net(1), net(2)
    total = MeanTeacher(settings(), context(teacher=teacher))(model, batch()).total
    assert all(g is None for g in torch.autograd.grad(total, list(teacher.parameters()), allow_unused=True))
    with pytest.raises(ValueError, match="'mean_teacher' needs a teacher"):
        MeanTeacher(settings(), context())


def test_either_kind_of_image_may_be_missing_and_not_both() -> None:
    model, full = net(), batch()
    objective = MeanTeacher(settings(), context(teacher=net(2)))
    labelled = objective(model, replace(full, weak=None, weak_again=None))
    assert labelled.total == Supervised(settings(), context())(model, full).total
    assert "loss_teacher" not in labelled.numbers
    unlabelled = objective(model, replace(full, labelled=None, labels=None))
    assert "loss_labelled" not in unlabelled.numbers
    assert objective(model, full).total.item() == pytest.approx(labelled.total.item() + unlabelled.total.item())
    with pytest.raises(ValueError, match="without images"):
        objective(model, Batch(None, None, None, None))


def test_a_young_teacher_is_the_mean_of_all_steps_and_an_old_one_a_running_average() -> None:
    model, teacher, memory = net(1), net(2), State()
    history: list[Tensor] = []
    for step in range(6):
        if step % 2 == 0:  # a new round: only the memory knows how many steps there were
            objective = MeanTeacher(settings(ema_decay=0.7), context(teacher=teacher, memory=memory))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step)))
        objective.after_step(model)
        history.append(next(model.parameters()).detach().clone())
        if step < 3:  # from the fourth step on 1 - 1 / 4 is more than 0.7
            expected = torch.stack(history).mean(0)
        else:
            expected = 0.7 * expected + 0.3 * history[-1]
        assert torch.allclose(next(teacher.parameters()), expected, atol=1e-6)
        assert memory[STEPS].item() == step + 1


def test_in_a_local_round_weights_and_statistics_of_the_teacher_move_and_are_counted_on() -> None:
    data = context(classes=3).data
    model, teacher, memory = build_net("small_cnn", 3, seed=0), build_net("small_cnn", 3, seed=1).eval(), State()
    before = state_of(teacher)
    local = LocalSettings(settings(ema_decay=0.5), Optimizer(lr=1e-2), Views(), steps=3, batch=4)
    numbers = local_round(model, data, local, seed=1, teacher=teacher, memory=memory).numbers
    after = state_of(teacher)
    for name in ("head.weight", "features.1.weight", "features.1.running_mean", "features.1.running_var"):
        assert not torch.equal(before[name], after[name])
        assert not torch.equal(after[name], state_of(model)[name])
    assert not teacher.training
    assert memory[STEPS] == 3
    assert set(numbers) == {"loss", "loss_labelled", "loss_teacher"}
    local_round(model, data, local, seed=2, teacher=teacher, memory=memory)
    assert memory[STEPS] == 6
