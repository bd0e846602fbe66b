"""A running average of a network's weights: a steadier teacher than the weights of any one step."""

from itertools import chain

import torch
from torch import Tensor, nn

from fedperl.learn.state import State


@torch.no_grad()
def follow(average: nn.Module, net: nn.Module, decay: float) -> None:
    """Move the running average towards the network, batch-norm statistics included; counters are copied."""
    means, values = list[Tensor](), list[Tensor]()
    for mean, value in zip(_tensors(average), _tensors(net), strict=True):
        if mean.is_floating_point():
            means.append(mean)
            values.append(value)
        else:
            mean.copy_(value)
    torch._foreach_lerp_(means, values, 1 - decay)


def young_decay(memory: State, name: str, decay: float) -> float:
    """Return the decay of the next step, counted in a client's memory over its whole life.

    min(1 - 1 / (step + 1), decay): while it is young, the average is the plain mean of the weights after each step so
    far, and an untrained start does not linger in it.
    """
    step = int(memory.get(name, torch.tensor(0)))
    memory[name] = torch.tensor(step + 1)
    return min(1 - 1 / (step + 1), decay)


def _tensors(net: nn.Module) -> chain[Tensor]:
    return chain(net.parameters(), net.buffers())
