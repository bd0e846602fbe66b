"""DP-SGD against naive loops, measured noise, and accounts made by hand."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.errors import ConfigError, RunError
from fedperl.learn import accounting, private
from fedperl.learn.accounting import PrivacyBudgetSpent, Spent, StepCount, epsilon, figure_text
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalResult, LocalSettings, drained
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Context, build_objective
from fedperl.learn.passes import logits_of
from fedperl.learn.private import LossOfOne, Pool, Private, clipped, clipped_sum, private_steps, standard_normal
from fedperl.learn.proximal import Proximal
from fedperl.learn.state import State, state_of
from fedperl.settings import DP, Objective, Optimizer, Views

CLASSES = 3


def net_of(seed: int = 0, **changes: Any) -> nn.Module:
    return build_net("small_cnn", CLASSES, seed=seed, norm="group", **changes)


def images(labelled: int = 12, unlabelled: int = 18, size: int = 16) -> LocalImages:
    n = labelled + unlabelled
    pixels = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    every = torch.arange(n)
    return LocalImages(pixels, every % CLASSES, every[:labelled], every[labelled:], CLASSES)


def settings(steps: int = 2, batch: int = 4, lr: float = 0.1, **objective: Any) -> LocalSettings:
    objective = dict[str, Any]({"class_weights": "none", "tau": 0.2}) | objective
    return LocalSettings(Objective(**objective), Optimizer(kind="sgd", lr=lr), Views(weak="none"), steps, batch)


def of(
    path: Path, data: LocalImages | None = None, units: Tensor | None = None, unit: str = "record", **dp: Any
) -> Private:
    every = torch.arange(len((data or images()).images)) if units is None else units
    return Private(DP(unit=unit, **dp), every, StepCount(path / "count.json"))  # type: ignore[arg-type]


@pytest.fixture(name="accounted")
def _accounted() -> None:
    pytest.importorskip("dp_accounting", reason="epsilon needs the extra: pip install '.[dp]'")


# Gradients, against one image after the other through plain autograd


def shown(_: object, data: LocalImages, __: object, rows: Tensor, names: list[str]) -> dict[str, Tensor]:
    """Views that a naive loop can make itself: the image, its negative, its mirror image."""
    image = data.images[rows].float() / 255
    views = {"labelled": image, "weak": image, "strong": 1 - image, "weak_again": image.flip(3)}
    return {name: views[name] for name in names} | ({"labels": data.labels[rows]} if "labelled" in names else {})


def naive_loss(
    net: nn.Module, data: LocalImages, row: int, objective: Objective, peer: nn.Module | None, teacher: nn.Module
) -> Tensor:
    """The loss of one image, from the paper's formulas."""
    image = data.images[row : row + 1].float() / 255
    if row in data.labelled.tolist():
        logs = torch.log_softmax(net(image), dim=1)[0]
        eps = objective.label_smoothing
        loss = -((1 - eps) * logs[data.labels[row]] + eps * logs.mean())
        if objective.kind == "uda":  # progress 0: below 1 / classes + exp(-5) (1 - 1 / classes)
            loss = loss * (logs[data.labels[row]].exp() <= 1 / CLASSES + math.exp(-5) * (1 - 1 / CLASSES))
        return objective.labelled_weight * loss
    if objective.kind == "supervised":
        return torch.zeros((), requires_grad=True)
    own = torch.softmax(net(image), dim=1)[0]
    if objective.kind == "mean_teacher":
        target = torch.softmax(teacher(image.flip(3)), dim=1)[0].detach()
        weight = objective.teacher.weight * math.exp(-5 * (1 - 1 / 30) ** 2)
        return weight * (own - target).square().sum()
    labelling = {"current": own, "ema": torch.softmax(teacher(image), dim=1)[0]}[objective.label_source].detach()
    models = [labelling] + ([] if peer is None else [torch.softmax(peer(image), dim=1)[0].detach()])
    score = torch.stack(models).mean(0)
    target = F.one_hot(score.argmax(), CLASSES).float()
    if objective.kind == "uda":
        target = score ** (1 / 0.4) / (score ** (1 / 0.4)).sum()
    if objective.targets == "agreement":
        best = torch.stack([one.max() for one in models])
        share = 2 ** (-(best.max() - best) / objective.agreement_scale)
        votes = torch.stack([F.one_hot(one.argmax(), CLASSES) for one in models]).float()
        target = (votes * (share / share.sum())[:, None]).sum(0)
    loss = -(target * torch.log_softmax(net(1 - image), dim=1)[0]).sum() * (score.max() >= objective.tau)
    consistency = torch.zeros(()) if peer is None else (own - models[-1]).square().mean()
    return objective.beta * loss + objective.gamma * consistency


def naive_sum(net: nn.Module, units: list[list[int]], clip: float, loss: Callable[[int], Tensor]) -> Tensor:
    """The sum of clipped gradients, a backward pass an image."""
    total = torch.zeros(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    for rows in units:
        summed = torch.zeros_like(total)
        for row in rows:
            net.zero_grad()
            loss(row).backward()  # type: ignore[no-untyped-call]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
            summed += torch.cat([g.flatten() for g in grads]).double()
        total += summed * min(1.0, clip / float(summed.norm())) if float(summed.norm()) else summed
    return total


KINDS: dict[str, dict[str, Any]] = {
    "supervised": {"kind": "supervised", "label_smoothing": 0.1, "labelled_weight": 2.0},
    "fixmatch": {"kind": "fixmatch"},
    "no image accepted": {"kind": "fixmatch", "tau": 1.01},
    "ema": {"kind": "fixmatch", "label_source": "ema"},
    "agreement": {"kind": "fixmatch", "targets": "agreement", "agreement_scale": 0.5},
    "eval labels": {"kind": "fixmatch", "label_mode": "eval"},
    "uda": {"kind": "uda"},
    "mean teacher": {"kind": "mean_teacher"},
}
RECORDS = [[row] for row in range(30)]
PATIENTS = [list(range(0, 5)), [5], list(range(6, 12)), list(range(12, 20)), list(range(20, 29)), [29]]


@pytest.mark.parametrize("with_peer", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [RECORDS, PATIENTS], ids=["record", "patient"])
def test_the_sum_of_clipped_gradients_is_that_of_a_naive_loop(
    units: list[list[int]], kind: str, with_peer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def views(objective: Any, *given: Any) -> dict[str, Tensor]:
        found = shown(objective, *given)
        if objective.helpers and "weak" in found:
            found["told"] = logits_of(objective.helpers, found["weak"]).transpose(0, 1)
        return found

    monkeypatch.setattr(private, "_examples", views)
    monkeypatch.setattr(private, "GRADIENTS", 4 * 7 * 110_000)  # a few images at a time: some units are larger
    data, told = images(), settings(**KINDS[kind])
    net, peer, teacher = net_of().train(), net_of(1).eval(), net_of(2).eval()
    helps = with_peer and told.objective.kind in ("fixmatch", "uda")
    context = Context(data, None, [peer] if helps else [], teacher, None, {}, 1, 1)
    losses = LossOfOne(net, build_objective(told.objective, context))
    pool = pool_of(units)
    drawn = torch.arange(30)[torch.isin(pool.units, torch.tensor([unit for unit in range(len(units)) if unit != 1]))]
    found = clipped_sum(losses, data, told, pool, drawn, clip=2.0)

    def loss(row: int) -> Tensor:
        return naive_loss(net, data, row, told.objective, peer if helps else None, teacher)

    wanted = naive_sum(net, [unit for number, unit in enumerate(units) if number != 1], 2.0, loss)
    assert float(wanted.norm()) > 1.0
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=2e-5)


def pool_of(units: list[list[int]], labelled: int = 12, rate: float = 0.2) -> Pool:
    rows = torch.tensor([row for unit in units for row in unit])
    numbers = torch.tensor([number for number, unit in enumerate(units) for _ in unit])
    return Pool(rows, numbers, rows < labelled, rate)


def test_efficientnet_with_group_norm_gives_the_naive_gradients() -> None:
    net = build_net("efficientnet_b0", CLASSES, seed=0, norm="group", dropout=0.0).train()
    for layer in net.modules():
        if hasattr(layer, "drop_connect_rate"):
            layer.drop_connect_rate = 0.0  # type: ignore[assignment]
    data, told = images(3, 0, size=32), settings(kind="supervised")
    losses = LossOfOne(net, build_objective(told.objective, Context(data)))
    found = clipped_sum(losses, data, told, pool_of([[0], [1], [2]]), torch.arange(3), clip=1.0)
    wanted = naive_sum(
        net, [[0], [1], [2]], 1.0, lambda row: F.cross_entropy(net(data.images[[row]] / 255), data.labels[[row]])
    )
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


def test_gradients_are_those_of_opacus() -> None:
    opacus = pytest.importorskip("opacus", reason="the reference of these gradients: pip install '.[dp]'")
    data, net = images(), net_of().train()
    for layer in net.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # its hooks do not allow that
    losses = LossOfOne(net, build_objective(settings(kind="supervised").objective, Context(data)))
    pixels, labels = data.images[:6].float() / 255, data.labels[:6]
    found = torch.cat(losses.gradients({"labelled": pixels, "labels": labels}), dim=1)
    theirs = opacus.GradSampleModule(net, loss_reduction="sum")
    F.cross_entropy(theirs(pixels), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    wanted = torch.cat([p.grad_sample.flatten(1) for p in theirs.parameters()], dim=1)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


def test_dropout_is_drawn_anew_for_each_image() -> None:
    data, net = images(), net_of(dropout=0.5).train()
    losses = LossOfOne(net, build_objective(settings(kind="supervised").objective, Context(data)))
    same = {"labelled": data.images[:1].expand(4, -1, -1, -1) / 255, "labels": data.labels[:1].expand(4)}
    first, second, *_ = torch.cat(losses.gradients(same), dim=1)
    assert not torch.allclose(first, second, atol=1e-4)


# What one unit can do


@pytest.mark.parametrize("units", [RECORDS, PATIENTS], ids=["record", "patient"])
def test_one_unit_moves_the_sum_by_the_clipping_norm_at_most(units: list[list[int]]) -> None:
    clip = 0.37
    data, told, net = images(), settings(kind="fixmatch", beta=50.0, labelled_weight=100.0), net_of().train()
    losses = LossOfOne(net, build_objective(told.objective, Context(data)))
    pool, every = pool_of(units), torch.arange(30)
    alone = [clipped_sum(losses, data, told, pool, every[pool.units == unit], clip) for unit in range(len(units))]
    moved = [float(one.norm()) for one in alone]
    assert max(moved) <= clip  # exactly: not even by rounding
    assert max(moved) > clip * (1 - 1e-5)


def test_what_others_are_in_the_step_changes_nothing_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_examples", shown)
    data, told, net = images(), settings(kind="fixmatch"), net_of().train()
    losses = LossOfOne(net, build_objective(told.objective, Context(data)))
    pool = pool_of(PATIENTS)
    together = clipped_sum(losses, data, told, pool, torch.arange(30), 1.0)
    apart = [clipped_sum(losses, data, told, pool, (pool.units == u).nonzero().squeeze(1), 1.0) for u in range(6)]
    torch.testing.assert_close(together, torch.stack(apart).sum(0), rtol=0.0, atol=1e-6)


def test_a_gradient_that_is_not_finite_counts_as_nothing() -> None:
    gradients = torch.tensor([[3.0, 4.0], [math.nan, 0.0], [math.inf, 1.0], [0.0, 0.0], [0.3, 0.4], [3e38, 3e38]])
    found = clipped([gradients[:, :1].clone(), gradients[:, 1:].clone()], 1.0)
    half = math.sqrt(0.5)
    torch.testing.assert_close(found, torch.tensor([0.6 + 0.3 + half, 0.8 + 0.4 + half]).double(), rtol=0.0, atol=1e-5)


def test_unlabelled_images_teach_nothing_before_their_time() -> None:
    data, net = images(), net_of().train()
    told = settings(kind="fixmatch", start=3)
    losses = LossOfOne(net, build_objective(told.objective, Context(data)))
    unlabelled = torch.arange(12, 30)
    assert not clipped_sum(losses, data, replace(told, round=3), pool_of(RECORDS), unlabelled, 1.0).any()
    assert clipped_sum(losses, data, replace(told, round=4), pool_of(RECORDS), unlabelled, 1.0).any()


# Sampling


def test_each_unit_is_drawn_by_itself_at_its_rate() -> None:
    pool, draws = pool_of(RECORDS, rate=0.2), 4000
    drawn = torch.stack([torch.bincount(pool.draw(), minlength=30) for _ in range(draws)]).double()
    deviation = math.sqrt(0.2 * 0.8 / draws)
    assert (drawn.mean(0) - 0.2).abs().max() < 5 * deviation  # each of them
    sizes = drawn.sum(1)
    assert abs(float(sizes.var()) - 30 * 0.2 * 0.8) < 0.5  # a fixed size would have none
    covariance = torch.cov(drawn.T)
    covariance.fill_diagonal_(0.0)
    assert covariance.abs().max() < 5 * 0.16 / math.sqrt(draws)  # shuffled passes would exclude each other
    assert (pool_of([[0], [1], [2]], rate=0.01).draw().numel()) <= 3


def test_the_images_of_a_patient_are_drawn_together() -> None:
    pool, seen = pool_of(PATIENTS, rate=0.5), set()
    for _ in range(200):
        drawn = pool.draw()
        units = set(pool.units[drawn].tolist())
        assert sorted(pool.rows[drawn].tolist()) == sorted(row for unit in units for row in PATIENTS[unit])
        seen.add(frozenset(units))
    assert len(seen) > 30


def test_the_pool_holds_what_the_objective_uses(tmp_path: Path) -> None:
    data = images()
    units = torch.arange(30) // 4
    one = of(tmp_path, units=units, unit="patient")
    pool = one.pool(data, settings(kind="fixmatch").objective, 6)
    assert pool.rate == 6 / 30
    assert sorted(pool.rows.tolist()) == list(range(30))
    assert pool.units.tolist() == sorted(pool.units.tolist())
    assert torch.equal(units[pool.rows], pool.units)
    assert torch.equal(pool.labelled, pool.rows < 12)
    supervised = one.pool(data, settings(kind="supervised").objective, 6)
    assert sorted(supervised.rows.tolist()) == list(range(12))
    assert supervised.rate == 0.5
    every = torch.arange(30)
    units = torch.where(every < 12, every % 3, 3 + every % 5)
    shuffled = of(tmp_path, units=units, unit="patient").pool(data, settings().objective, 6)
    assert shuffled.units.tolist() == sorted(shuffled.units.tolist())
    assert torch.equal(units[shuffled.rows], shuffled.units)
    with pytest.raises(ConfigError, match="a client: a patient has images with and without labels; wanted either"):
        of(tmp_path, units=every % 7, unit="patient").pool(data, settings().objective, 6)
    of(tmp_path, units=every % 7, unit="patient").pool(data, settings(kind="supervised").objective, 6)
    with pytest.raises(ConfigError, match="a client: 30 training images and federation.batch = 30"):
        one.pool(data, settings().objective, 30)
    few = of(tmp_path, units=units, unit="patient", delta=1 / 8)
    with pytest.raises(ConfigError, match=r"dp.delta = 0.125 lets one of its 8 units \(patients\) be given away"):
        few.pool(data, settings().objective, 4)
    of(tmp_path, units=units, unit="patient", delta=0.124).pool(data, settings().objective, 4)


# Noise


def test_the_noise_is_normal_and_from_no_seed() -> None:
    n = 400_001
    numbers = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        numbers.append(standard_normal(n))
    first, second = numbers
    assert len(first) == n
    assert first.dtype == torch.float64
    assert not torch.equal(first, second)
    assert abs(float(torch.corrcoef(torch.stack(numbers))[0, 1])) < 5 / math.sqrt(n)
    for found in numbers:
        assert abs(float(found.mean())) < 5 / math.sqrt(n)
        assert abs(float(found.std()) - 1) < 5 / math.sqrt(2 * n)
        for at in (-3.0, -1.0, -0.1, 0.0, 0.5, 2.0, 3.5):
            share = 0.5 * (1 + math.erf(at / math.sqrt(2)))
            assert abs(float((found <= at).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / n)
        halves = found[: n // 2], found[n // 2 : 2 * (n // 2)]  # Box and Muller's pairs
        assert abs(float(torch.corrcoef(torch.stack(halves))[0, 1])) < 5 / math.sqrt(n / 2)


def test_seeds_and_shares_come_from_the_operating_system() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.append((private.secret_seed(), private.uniform(4).tolist()))
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def moved_by(net: nn.Module, before: State) -> Tensor:
    after = state_of(net)
    return torch.cat([(after[name] - before[name]).flatten() for name in before]).double()


@pytest.mark.parametrize(("noise", "clip", "batch", "lr"), [(3000.0, 0.5, 4, 0.01), (1000.0, 2.0, 8, 0.003)])
def test_a_step_has_noise_of_the_promised_size(
    noise: float, clip: float, batch: int, lr: float, tmp_path: Path
) -> None:
    net = net_of()
    before = state_of(net)
    told = settings(steps=1, batch=batch, lr=lr, kind="supervised")
    drained(private_steps(net, images(20, 0), told, of(tmp_path, noise=noise, clip=clip)))
    moved = moved_by(net, before)
    n = len(moved)
    assert abs(float(moved.std()) / (lr * noise * clip / batch) - 1) < 6 / math.sqrt(2 * n)
    assert n > 90_000


def test_a_step_without_any_image_is_noise_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "draw", lambda self: torch.arange(0))
    net = net_of()
    before = state_of(net)
    drained(private_steps(net, images(20, 0), settings(steps=1, lr=1.0, kind="supervised"), of(tmp_path, noise=2.0)))
    moved = moved_by(net, before)
    assert abs(float(moved.std()) / (2.0 / 4) - 1) < 0.02
    assert StepCount(tmp_path / "count.json").read() == [Spent(0.2, 2.0, 1)]


def test_what_is_drawn_is_what_teaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no noise, a step is the clipped mean over the expected batch, whatever the size of the drawn one."""
    monkeypatch.setattr(Pool, "draw", lambda self: torch.tensor([1, 4, 5, 6, 9, 11]))
    net, data = net_of().train(), images(20, 0)
    before = state_of(net)
    twin = net_of().train()
    loss = lambda row: F.cross_entropy(twin(data.images[[row]] / 255), data.labels[[row]])  # noqa: E731
    wanted = naive_sum(twin, [[1], [4], [5], [6], [9], [11]], 0.8, loss)
    told = settings(steps=1, batch=4, lr=0.5, kind="supervised")
    drained(private_steps(net, data, told, of(tmp_path, noise=1e-9, clip=0.8)))
    torch.testing.assert_close(moved_by(net, before), -0.5 * wanted / 4, rtol=0.0, atol=1e-6)


def run_once(path: Path, net: nn.Module, told: LocalSettings, data: LocalImages, **dp: Any) -> LocalResult:
    return drained(private_steps(net, data, told, of(path, data, **dp)))


def test_two_attempts_differ_and_both_are_counted(tmp_path: Path) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        net = net_of()
        result = run_once(tmp_path, net, settings(steps=3), images())
        assert result == LocalResult()  # no loss, no share of accepted labels
        states.append(state_of(net))
    assert all(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert StepCount(tmp_path / "count.json").read() == [Spent(4 / 30, 1.0, 6)]


def test_global_random_numbers_stay_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run_once(tmp_path, net_of(dropout=0.5), settings(), images())
    assert torch.equal(before, torch.get_rng_state())


# Optimisers


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_the_gradient_reaches_the_optimiser_as_it_is(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where parameters lie channels last, and with a proximal term and weight decay, which take no part in it."""
    fixed = torch.linspace(-1, 1, sum(p.numel() for p in net_of().parameters()), dtype=torch.float64)
    monkeypatch.setattr(private, "clipped_sum", lambda *_: fixed)
    net = net_of().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    told = settings(steps=3, kind="supervised", mu=0.3)
    told = replace(told, optimizer=Optimizer(kind=kind, lr=0.01, weight_decay=0.1, momentum=0.5))
    run_once(tmp_path, net, told, images(), noise=1e-12)
    twin = net_of()
    proximal = Proximal(twin, 0.3)
    make: Any = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    optimizer = make(twin.parameters(), 0.01, weight_decay=0.1, **({} if kind == "adam" else {"momentum": 0.5}))
    for _ in range(3):
        start = 0
        for parameter, received in zip(twin.parameters(), proximal.received, strict=True):
            part = fixed[start : start + parameter.numel()].view(parameter.shape).float() / 4
            parameter.grad = part + 0.3 * (parameter.detach() - received)
            start += parameter.numel()
        optimizer.step()
    for name, wanted in state_of(twin).items():
        torch.testing.assert_close(state_of(net)[name], wanted, rtol=1e-5, atol=1e-6)


def test_moments_are_carried_and_a_running_average_follows(tmp_path: Path) -> None:
    memory: State = {}
    told = settings(kind="fixmatch", label_source="ema", ema_decay=0.5)
    told = replace(told, optimizer=Optimizer(lr=0.01, carry=True))
    net, teacher = net_of(), net_of(1).eval()
    before = state_of(teacher)
    drained(private_steps(net, images(), told, of(tmp_path), teacher=teacher, memory=memory))
    assert int(memory["optimizer.0.step"]) == 2
    assert int(memory["private.steps"]) == 2
    assert any(not torch.equal(before[name], tensor) for name, tensor in state_of(teacher).items())
    drained(private_steps(net, images(), told, of(tmp_path), teacher=teacher, memory=memory))
    assert int(memory["optimizer.0.step"]) == 4
    assert int(memory["private.steps"]) == 4


# Refusals


def test_networks_that_mix_images_are_refused(tmp_path: Path) -> None:
    mixing = build_net("small_cnn", CLASSES, seed=0)
    with pytest.raises(ConfigError, match=r"'features.1' follows all images of a batch; wanted model.norm = 'group'"):
        run_once(tmp_path, mixing, settings(), images())
    forgetful = net_of()
    forgetful.get_submodule("features").add_module("1", nn.BatchNorm2d(24, track_running_stats=False))
    with pytest.raises(ConfigError, match="'features.1' follows"):
        run_once(tmp_path, forgetful, settings(), images())
    keeping = net_of()
    keeping.register_buffer("mean", torch.zeros(3))
    with pytest.raises(ConfigError, match="'mean' follows"):
        run_once(tmp_path, keeping, settings(), images())
    plain = build_net("resnet9", CLASSES, seed=0)  # has neither
    run_once(tmp_path, plain, settings(steps=1), images())
    assert StepCount(tmp_path / "count.json").read() == [Spent(4 / 30, 1.0, 1)]


@pytest.mark.parametrize(
    "objective",
    [
        {"class_weights": "median_frequency"},
        {"labelled_loss": "logit_adjusted"},
        {"thresholds": "class_aware"},
        {"prior_correction": 0.5},
        {"unlabelled_mean": "accepted"},
        {"strong_pass": "accepted"},
        {"kind": "fedirm"},
        {"kind": "fixmatch_irm"},
        {"kind": "fedmatch"},
        {"kind": "cbafed"},
        {"kind": "mine.py:Mine"},
    ],
    ids=lambda objective: next(iter(objective.values())),
)
def test_objectives_that_mix_images_are_refused(objective: dict[str, Any], tmp_path: Path) -> None:
    key = next(iter(objective))
    with pytest.raises(ConfigError, match=rf"dp.unit: objective.{key} = .*: the loss of one image would depend on"):
        run_once(tmp_path, net_of(), settings(**objective), images())
    assert not (tmp_path / "count.json").exists()


def test_a_class_weighted_loss_would_let_one_record_move_the_others() -> None:
    """Why it is refused: the weights of all labelled images change when one label is taken away."""
    from fedperl.learn.class_weights import median_frequency

    labels = torch.tensor([0, 0, 0, 1])
    assert not torch.equal(median_frequency(labels, 3), median_frequency(labels[1:], 3))


# Counting


def test_the_count_is_durable_and_adds_up_by_kind(tmp_path: Path) -> None:
    count = StepCount(tmp_path / "here" / "count.json")
    assert count.read() == []
    assert count.add(Spent(0.1, 1.0, 5)) == 5
    assert count.add(Spent(0.2, 1.0, 3)) == 8
    assert StepCount(count.path).add(Spent(0.1, 1.0, 2)) == 10
    assert StepCount(count.path).read() == [Spent(0.1, 1.0, 7), Spent(0.2, 1.0, 3)]
    assert count.path.stat().st_mode & 0o777 == 0o600
    for broken in ("", "[", '[{"rate": 0.1}]', '{"rate": 1}', '[{"rate": "x", "noise": 1, "steps": 2}]'):
        count.path.write_text(broken)
        with pytest.raises(RunError, match="count.json: cannot be read as a count of private steps"):
            count.read()


def test_an_update_that_is_not_counted_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(StepCount, "add", full)
    with pytest.raises(OSError, match="no space left"):
        run_once(tmp_path, net_of(), settings(), images())


def test_without_a_count_or_with_a_lost_one_nothing_is_trained(tmp_path: Path) -> None:
    net = net_of()
    before = state_of(net)
    with pytest.raises(RunError, match="a client: dp.unit = 'record' where nobody counts the steps"):
        drained(private_steps(net, images(), settings(), replace(of(tmp_path), count=None)))
    memory = {"private.steps": torch.tensor(6)}
    StepCount(tmp_path / "count.json").add(Spent(0.1, 1.0, 5))
    with pytest.raises(RunError, match=r"count.json: 5 private steps; the client has taken 6: some are lost"):
        drained(private_steps(net, images(), settings(), of(tmp_path), memory=memory))
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(net).items())
    memory["private.steps"] -= 1
    drained(private_steps(net, images(), settings(), of(tmp_path), memory=memory))


@pytest.mark.usefixtures("accounted")
def test_a_client_declines_before_its_budget_is_exceeded(tmp_path: Path) -> None:
    data, told = images(), settings(steps=3)
    allowed = epsilon([Spent(4 / 30, 1.0, 9)], 1e-5)
    one = of(tmp_path, epsilon_max=allowed + 1e-9)
    for _ in range(3):
        drained(private_steps(net_of(), data, told, one))
    net = net_of()
    before = state_of(net)
    with pytest.raises(PrivacyBudgetSpent, match=r"a client: epsilon .* after this round; dp.epsilon_max = "):
        drained(private_steps(net, data, told, one))
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(net).items())
    assert one.count is not None
    assert one.count.read() == [Spent(4 / 30, 1.0, 9)]
    assert epsilon(one.count.read(), 1e-5) <= allowed + 1e-9


# Accounting


@pytest.mark.usefixtures("accounted")
@pytest.mark.parametrize(
    ("images", "noise", "known"),
    [(4500, 1.0, 2.5), (2500, 1.0, 4.7), (1000, 1.0, 13.5), (500, 1.0, 33), (500, 2.0, 9.9)],
)
def test_epsilon_is_the_known_one(images: int, noise: float, known: float) -> None:
    """Batches of 16, 15,000 steps, delta a tenth of 1 / images; and the library asked step by step."""
    import dp_accounting
    from dp_accounting import pld, rdp

    delta = 0.1 / images
    found = epsilon([Spent(16 / images, noise, 15_000)], delta)
    assert found == pytest.approx(known, rel=0.03)
    event = dp_accounting.PoissonSampledDpEvent(16 / images, dp_accounting.GaussianDpEvent(noise))
    theirs = rdp.RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(event, 15_000)).get_epsilon(delta)
    assert found == pytest.approx(theirs, rel=1e-9)
    tight = pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, 15_000)).get_epsilon(delta)
    assert tight <= found <= 1.15 * tight  # ours is an upper bound, and no wild one
    assert epsilon([Spent(16 / images, noise, 9000), Spent(16 / images, noise, 6000)], delta) == pytest.approx(found)


@pytest.mark.usefixtures("accounted")
def test_epsilon_is_that_of_the_formula() -> None:
    """Renyi divergences at whole orders, written out (Mironov, Talwar and Zhang 2019, section 3.3)."""
    rate, noise, steps, delta = 16 / 4500, 1.0, 15_000, 2e-5

    def divergence(order: int) -> float:
        terms = [
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp(k * (k - 1) / (2 * noise**2))
            for k in range(order + 1)
        ]
        return math.log(sum(terms)) / (order - 1)

    def converted(order: int) -> float:  # Canonne, Kamath and Steinke 2020, proposition 12
        rest = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        return steps * divergence(order) + rest

    wanted = min(converted(order) for order in range(2, 26))
    found = epsilon([Spent(rate, noise, steps)], delta)
    assert found <= wanted + 1e-9  # fractional orders may only help
    assert found == pytest.approx(wanted, rel=0.01)
    assert found == pytest.approx(2.5, abs=0.05)


@pytest.mark.usefixtures("accounted")
def test_epsilon_of_nothing_and_of_more() -> None:
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([Spent(0.1, 1.0, 0)], 1e-5) == 0.0
    some = [epsilon([Spent(rate, noise, steps)], 1e-5) for rate, noise, steps in NEAR]
    assert all(more > some[0] for more in some[1:])


NEAR = [(0.1, 1.0, 10), (0.11, 1.0, 10), (0.1, 0.9, 10), (0.1, 1.0, 11)]


@pytest.mark.usefixtures("accounted")
def test_figures_name_the_worst_and_all_that_belongs_to_it(tmp_path: Path) -> None:
    accounting.count_of(tmp_path, 0).add(Spent(0.1, 1.0, 10))
    accounting.count_of(tmp_path, 3).add(Spent(0.3, 1.0, 10))
    told = DP(unit="record", delta=1e-4, clip=0.5)
    found = accounting.figures(tmp_path, told, {0: 10, 2: 0, 3: 9})
    worst = epsilon([Spent(0.3, 1.0, 10)], 1e-4)
    assert found["epsilon"] == worst
    assert {name: one["steps"] for name, one in found["clients"].items()} == {"0": 10, "2": 0, "3": 10}
    assert found["clients"]["2"] == {"epsilon": 0.0, "steps": 0, "rate": 0.0}
    assert (found["delta"], found["unit"], found["noise"], found["clip"]) == (1e-4, "record", 1.0, 0.5)
    shown = math.ceil(worst * 100) / 100
    assert found["text"] == f"epsilon {shown:.2f} (delta 0.0001, per record, add or remove one, RDP)"
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(RunError, match="client-00003.json: 10 private steps; the client has taken 11: some are lost"):
        accounting.figures(tmp_path, told, {0: 10, 2: 0, 3: 11})


@pytest.mark.parametrize("damage", ["{}", "[]", '{"spent": [], "sha256": "0"}', '{"noise": 9.0', "x" * 10, "[" * 9999])
def test_a_damaged_count_is_refused(tmp_path: Path, damage: str) -> None:
    count = accounting.count_of(tmp_path, 0)
    count.add(Spent(0.1, 1.0, 10))
    whole = count.path.read_text()
    count.path.write_text(whole.replace('"noise": 1.0', damage) if damage.startswith('{"noise') else damage)
    with pytest.raises(RunError, match="cannot be read as a count of private steps"):
        count.read()
    count.path.write_text(whole.replace('"steps": 10', '"steps": 9'))
    with pytest.raises(RunError, match="its hash is not the one it states"):
        count.read()


def test_an_epsilon_is_never_shown_smaller_than_it_is() -> None:
    assert figure_text(4.7001, 1e-5, "record") == "epsilon 4.71 (delta 1e-05, per record, add or remove one, RDP)"
    assert figure_text(4.7, 1e-5, "patient").startswith("epsilon 4.70 (delta 1e-05, per patient")
    assert figure_text(math.inf, 1e-5, "record").startswith("epsilon infinite")


def test_without_the_extra_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[dp\]'"):
        epsilon([], 1e-5)


# Group norm

NORMS: tuple[Literal["batch", "group"], ...] = ("batch", "group")


@pytest.mark.parametrize("name", ["small_cnn", "efficientnet_b0"])
def test_group_norm_stands_where_batch_norm_stood(name: str) -> None:
    batch, group = (build_net(name, CLASSES, seed=4, norm=norm) for norm in NORMS)
    layers = {n: layer for n, layer in batch.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    assert layers
    for place, layer in layers.items():
        other = group.get_submodule(place)
        assert isinstance(other, nn.GroupNorm)
        assert (other.num_channels, other.eps) == (layer.num_features, layer.eps)
        assert other.num_channels // other.num_groups >= 4
        assert other.num_groups <= 32
    own = [n for n, _ in group.named_parameters()]
    assert own == [n for n, _ in batch.named_parameters()]
    assert list(group.state_dict()) == own  # and nothing else
    for place, parameter in batch.named_parameters():
        assert torch.equal(parameter, dict(group.named_parameters())[place])
    first, second = torch.rand(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    group.train()
    for module in group.modules():
        if hasattr(module, "drop_connect_rate"):
            module.drop_connect_rate = 0.0  # type: ignore[assignment]
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        torch.testing.assert_close(group(torch.cat([first, second]))[:4], group(first), rtol=1e-4, atol=1e-5)


def test_groups_are_few_and_never_of_one_channel() -> None:
    from fedperl.learn.nets.group_norm import groups_of

    def naive(channels: int) -> Iterator[int]:
        for groups in range(1, 33):
            if channels % groups == 0 and channels / groups >= 4:
                yield groups

    for channels in range(1, 400):
        assert groups_of(channels) == max(naive(channels), default=1)
