"""A running average of a network's weights: a steadier teacher than the weights of any one step."""

from itertools import chain

import torch
from torch import Tensor, nn

from fedperl.learn.state import State


class RunningAverage:
    """A network that follows another; its steps are counted in a client's memory, over the client's whole life.

    The count is a tensor on the network's device, changed in place, so that no step waits for the device.
    """

    def __init__(self, average: nn.Module, memory: State, name: str, decay: float) -> None:
        self.average, self.memory, self.name, self.decay = average, memory, name, decay
        device = next(average.parameters()).device
        self.steps = memory.get(name, torch.tensor(0)).to(device, torch.int64, copy=True)

    def follow(self, net: nn.Module) -> None:
        """Move towards the network after a step."""
        follow(self.average, net, young_decay(self.steps, self.decay))
        self.steps += 1
        self.memory[self.name] = self.steps


@torch.no_grad()
def follow(average: nn.Module, net: nn.Module, decay: float | Tensor) -> None:
    """Move the running average towards the network, batch-norm statistics included; counters are copied."""
    means, values = list[Tensor](), list[Tensor]()
    for mean, value in zip(_tensors(average), _tensors(net), strict=True):
        if mean.is_floating_point():
            means.append(mean)
            values.append(value)
        else:
            mean.copy_(value)
    weight = torch.as_tensor(1 - decay, dtype=torch.float32, device=means[0].device)
    if weight.is_cuda:  # lerp takes a weight on the device tensor by tensor only: hundreds of launches
        torch._foreach_mul_(means, 1 - weight)
        torch._foreach_add_(means, torch._foreach_mul(values, weight))
    else:
        torch._foreach_lerp_(means, values, [weight] * len(means))


def young_decay(steps: Tensor, decay: float) -> Tensor:
    """Return the decay after so many steps, min(1 - 1 / (steps + 1), decay), in 64 bits.

    While it is young, the average is the plain mean of the weights after each step so far, and an untrained start does
    not linger in it.
    """
    return (1 - 1 / (steps + 1).double()).clamp_max(decay)


def _tensors(net: nn.Module) -> chain[Tensor]:
    return chain(net.parameters(), net.buffers())
