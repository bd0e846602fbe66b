"""FedProx's term against a naive re-statement, and optimisers that go on where the last round stopped."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn import optimizers
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.objectives.base import Losses
from fedperl.learn.proximal import Proximal
from fedperl.learn.state import State, state_of
from fedperl.settings import Objective, Optimizer, Views
from tests.conftest import context


def net() -> nn.Module:
    return build_net("small_cnn", 3, seed=1)


def moved(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator))


def test_term_and_gradient_against_naive() -> None:
    model, loss = net(), torch.tensor(2.0)
    model.get_parameter("features.0.weight").requires_grad_(False)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    received = {name: p.detach().clone() for name, p in trained.items()}
    proximal = Proximal(model, 0.3)
    moved(model)
    ours = proximal(Losses(loss, {"loss": loss}))
    term = 0.0
    for name, p in trained.items():
        now, then = p.detach().flatten().tolist(), received[name].flatten().tolist()
        term += sum((w - v) ** 2 for w, v in zip(now, then, strict=True))
    assert ours.total.item() == pytest.approx(2.0 + 0.15 * term, rel=1e-5)
    assert ours.numbers["loss_proximal"].item() == pytest.approx(0.15 * term, rel=1e-5)
    assert ours.numbers["loss"] == 2
    for (name, p), gradient in zip(
        trained.items(), torch.autograd.grad(ours.total, list(trained.values())), strict=True
    ):
        assert torch.allclose(gradient, 0.3 * (p - received[name]), atol=1e-6)


def test_what_comes_next_on_the_batch_is_kept_and_mu_zero_changes_nothing() -> None:
    model = net()

    def then() -> Losses:
        raise AssertionError

    losses = Losses(torch.tensor(2.0), {}, then)
    assert Proximal(model, 0.3)(losses).then is then
    assert Proximal(model, 0.0)(losses) is losses


def trained(mu: float | None) -> tuple[State, dict[str, float]]:
    model = net()
    objective = Objective(kind="supervised") if mu is None else Objective(kind="supervised", mu=mu)
    local = LocalSettings(objective, Optimizer(kind="sgd", lr=1e-3), Views(), steps=25, batch=4)
    numbers = local_round(model, context(classes=3).data, local, seed=1).numbers
    return state_of(model), numbers


def distance(state: State) -> float:
    start = state_of(net())
    return math.sqrt(sum(float((state[name] - p).square().sum()) for name, p in start.items() if "weight" in name))


def test_in_a_local_round_mu_keeps_the_network_near_and_zero_is_as_without() -> None:
    without, numbers = trained(None)
    zero, _ = trained(0.0)
    assert all(torch.equal(without[name], zero[name]) for name in without)
    assert "loss_proximal" not in numbers
    near, numbers = trained(500.0)
    assert numbers["loss_proximal"] > 0
    assert 0 < distance(near) < 0.5 * distance(without)


SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "adam", "lr": 0.1, "weight_decay": 0.01},
    "sgd": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
}


def follow_gradients(rounds: tuple[int, ...], *, carry: bool, kind: str) -> tuple[Tensor, State]:
    """Return the weights after steps on a fixed sequence of gradients, the optimiser made anew in every round."""
    torch.manual_seed(0)
    model, memory = nn.Linear(3, 2), State()
    generator = torch.Generator().manual_seed(1)
    for steps in rounds:
        optimizer = optimizers.build(model, Optimizer(carry=carry, **SETTINGS[kind]), memory)
        for _ in range(steps):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
        if carry:
            memory.update(optimizers.moments(optimizer))
    return torch.cat([p.detach().flatten() for p in model.parameters()]), memory


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_carried_moments_make_two_rounds_of_two_steps_one_of_four(kind: str) -> None:
    whole, _ = follow_gradients((4,), carry=False, kind=kind)
    carried, memory = follow_gradients((2, 2), carry=True, kind=kind)
    anew, _ = follow_gradients((2, 2), carry=False, kind=kind)
    assert torch.equal(carried, whole)
    assert not torch.allclose(anew, whole)
    assert memory
    assert all(name.startswith(optimizers.PREFIX) and tensor.device.type == "cpu" for name, tensor in memory.items())


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_carried_moments_of_channels_last_weights(kind: str) -> None:
    """Fused optimisers walk raw memory: a moment in another memory format would be another element's."""

    def trained(rounds: tuple[int, ...]) -> Tensor:
        torch.manual_seed(0)
        model: nn.Module = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        memory, generator = State(), torch.Generator().manual_seed(1)
        for steps in rounds:
            optimizer = optimizers.build(model, Optimizer(carry=True, **SETTINGS[kind]), memory)
            for _ in range(steps):
                for p in model.parameters():
                    p.grad = torch.randn(p.shape, generator=generator).to(memory_format=_format(p))
                optimizer.step()
            memory.update(optimizers.moments(optimizer))
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained((2, 2)), trained((4,)))


def _format(parameter: Tensor) -> torch.memory_format:
    return torch.channels_last if parameter.ndim == 4 else torch.contiguous_format


def test_a_kept_moment_does_not_move_with_the_optimiser() -> None:
    model = nn.Linear(3, 2)
    optimizer = optimizers.build(model, Optimizer(carry=True), State())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    kept = optimizers.moments(optimizer)
    before = {name: tensor.clone() for name, tensor in kept.items()}
    again = optimizers.build(model, Optimizer(carry=True), kept)
    for each in (optimizer, again):
        each.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in kept.items())


@pytest.mark.parametrize("carry", [True, False])
def test_a_local_round_keeps_moments_only_where_asked(carry: bool) -> None:
    memory = State()
    local = LocalSettings(Objective(kind="supervised"), Optimizer(carry=carry), Views(), steps=2, batch=4)
    local_round(net(), context(classes=3).data, local, seed=1, memory=memory)
    assert (f"{optimizers.PREFIX}0.exp_avg" in memory) == carry
