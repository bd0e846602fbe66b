"""A running average of a network's weights: a steadier teacher than the weights of any one step."""

import torch
from torch import nn


@torch.no_grad()
def follow(average: nn.Module, net: nn.Module, decay: float) -> None:
    """Move the running average towards the network, batch-norm statistics included; counters are copied."""
    for mean, value in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, 1 - decay)
        else:
            mean.copy_(value)
