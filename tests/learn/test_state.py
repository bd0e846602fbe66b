"""Tensors of a state, copied and put into a network."""

import pytest
import torch
from torch import nn

from fedperl.learn import optimizers
from fedperl.learn.state import copied, copy_into, with_prefix
from fedperl.settings import Optimizer


def test_a_copy_has_memory_of_its_own_laid_out_as_before() -> None:
    state = {
        "conv": torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        "turned": torch.randn(3, 5).t(),
        "line": torch.randn(6),
        "half": torch.randn(6).bfloat16(),
        "count": torch.tensor(3),
    }
    before = {name: tensor.clone() for name, tensor in state.items()}
    found = copied(state)
    assert list(found) == list(state)
    for name, tensor in found.items():
        assert tensor.dtype == state[name].dtype
        assert tensor.stride() == state[name].stride()
        state[name].zero_()
        assert tensor.equal(before[name])
    assert copied({}) == {}


def test_kept_moments_do_not_follow_the_optimiser() -> None:
    net, settings = nn.Linear(3, 2), Optimizer(lr=0.1, carry=True)
    optimizer = optimizers.build(net, settings, {})

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    step()
    kept = optimizers.moments(optimizer)
    before = {name: tensor.clone() for name, tensor in kept.items()}
    step()
    assert len(kept) == 6
    assert all(tensor.equal(before[name]) for name, tensor in kept.items())
    later = optimizers.moments(optimizer)
    assert not any(tensor.equal(before[name]) for name, tensor in later.items())
    optimizers.reset(optimizer, kept)
    assert all(tensor.equal(before[name]) for name, tensor in optimizers.moments(optimizer).items())
    optimizers.reset(optimizer, {})
    assert not any(tensor.any() for tensor in optimizers.moments(optimizer).values())


def test_what_is_kept_stays_where_it_lies() -> None:
    """A device without memory stands in for a GPU."""
    state = {
        "weight": torch.empty(3, device="meta"),
        "count": torch.tensor(2),
        "number": torch.empty((), device="meta"),
    }
    found = with_prefix(state, "own.")
    assert {name: tensor.device.type for name, tensor in found.items()} == {
        "own.weight": "meta",
        "own.count": "cpu",
        "own.number": "meta",
    }
    assert int(found["own.count"]) == 2
    assert found["own.count"] is not state["count"]


def test_a_copy_is_told_once_of_what_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of another type, device or layout would have the others copied one by one."""
    told: list[int] = []
    monkeypatch.setattr(torch, "_foreach_copy_", lambda targets, sources: told.append(len(targets)))
    names = ("one", "two", "elsewhere", "turned", "half")
    source = {name: torch.zeros(2, 3) for name in names} | {"elsewhere": torch.zeros(2, 3, device="meta")}
    source |= {"half": torch.zeros(2, 3).bfloat16()}
    copy_into(source | {"turned": torch.zeros(3, 2).t()}, source)
    assert sorted(told) == [1, 1, 1, 2]
