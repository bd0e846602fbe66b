"""The optimiser of a local round, and its moments as tensors that a client can keep from round to round."""

import torch
from torch import nn

from fedperl.learn.state import State
from fedperl.settings import Optimizer

PREFIX = "optimizer."


def build(net: nn.Module, settings: Optimizer, memory: State) -> torch.optim.Optimizer:
    """Return the optimiser of a network's parameters; with `carry` it goes on from the moments in the memory."""
    optimizer: torch.optim.Optimizer
    if settings.kind == "adam":
        optimizer = torch.optim.Adam(net.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)
    else:
        optimizer = torch.optim.SGD(
            net.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
        )
    if settings.carry:
        _restore(optimizer, memory)
    return optimizer


def moments(optimizer: torch.optim.Optimizer) -> State:
    """Return the optimiser's tensors by parameter and name, copied to the CPU."""
    found: State = {}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                found[f"{PREFIX}{number}.{name}"] = value.detach().to("cpu", copy=True).contiguous()
    return found


def _restore(optimizer: torch.optim.Optimizer, memory: State) -> None:
    kept: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in memory.items():
        if key.startswith(PREFIX):
            number, _, name = key.removeprefix(PREFIX).partition(".")
            kept.setdefault(int(number), {})[name] = value.clone()
    if not kept:
        return
    optimizer.load_state_dict({"state": kept, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            # Fused kernels walk raw memory: a moment must lie in it as its parameter does (channels last).
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                values[name] = torch.empty_like(parameter).copy_(value)
