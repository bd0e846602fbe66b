"""The optimiser of a local round, and its moments as tensors that a client can keep from round to round."""

import torch
from torch import nn

from fedperl.learn.state import State, copied, copy_into, moved
from fedperl.settings import Optimizer

PREFIX = "optimizer."


def build(
    net: nn.Module, settings: Optimizer, memory: State, *, rate: torch.Tensor | None = None
) -> torch.optim.Optimizer:
    """Return the optimiser of a network's parameters; with `carry` it goes on from the moments in the memory.

    Args:
        rate: the learning rate as a tensor on the device, for steps that are recorded and played again.
    """
    optimizer: torch.optim.Optimizer
    lr, decay = settings.lr if rate is None else rate, settings.weight_decay
    if settings.kind == "adam":
        optimizer = torch.optim.Adam(net.parameters(), lr, weight_decay=decay, fused=True, capturable=rate is not None)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr, momentum=settings.momentum, weight_decay=decay, fused=True)
    if settings.carry:
        _restore(optimizer, memory)
    return optimizer


def moments(optimizer: torch.optim.Optimizer) -> State:
    """Return the optimiser's tensors by parameter and name, copied where they lie: a GPU waits for each that leaves."""
    found: State = {}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                found[f"{PREFIX}{number}.{name}"] = value.detach()
    return copied(found)


@torch.no_grad()
def reset(optimizer: torch.optim.Optimizer, memory: State) -> None:
    """Put the moments, in place, to those that a client kept; to nothing without any."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    memory = moved({name: kept for name, kept in memory.items() if name.startswith(PREFIX)}, parameters[0].device)
    own = {
        f"{PREFIX}{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }
    copy_into(own, {name: kept for name, kept in memory.items() if name in own})
    if nothing := [value for name, value in own.items() if name not in memory]:
        torch._foreach_zero_(nothing)


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
