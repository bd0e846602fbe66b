"""Tensors of a state, copied and put into a network."""

import torch
from torch import nn

from fedperl.learn import optimizers
from fedperl.learn.state import copied
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
