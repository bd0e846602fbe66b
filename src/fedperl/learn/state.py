"""A model's state as a plain dictionary of tensors, and the few things done to it everywhere."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

RUNNING = ("running_mean", "running_var")


def state_of(net: nn.Module) -> State:
    """Return a copy of the network's state, contiguous and on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in net.state_dict().items()}


def load_into(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy a state into the network's own tensors; names may be missing (they keep their values), never unknown."""
    own = net.state_dict()
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def is_running_statistic(name: str) -> bool:
    """Whether a tensor is a batch norm's running mean or variance: close to the client's own image statistics."""
    return name.rpartition(".")[2] in RUNNING


def batch_norm_names(net: nn.Module) -> set[str]:
    """Return the names of all that belongs to a network's batch-norm layers: scale, shift, running statistics."""
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    names = {name for name in net.state_dict() if name.rpartition(".")[0] in layers}
    halves = {"psi." + name.removeprefix("sigma.") for name in names if name.startswith("sigma.")}
    return names | (halves & net.state_dict().keys())  # a decomposed layer has its other half elsewhere


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def with_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the tensors under names that start with a prefix, copied to the CPU."""
    return {prefix + name: t.detach().to("cpu", copy=True).contiguous() for name, t in state.items()}


def size_in_bytes(state: Mapping[str, Tensor]) -> int:
    """Return the bytes of all tensors: what one exchange of the state costs, headers apart."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
