"""A model's state as a plain dictionary of tensors, and the few things done to it everywhere."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

RUNNING = ("running_mean", "running_var")


def state_of(net: nn.Module) -> State:
    """Return a copy of the network's state, contiguous and on its device."""
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    if _on_cpu(state):
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    joined, apart = as_one([state], list(state))
    return apart(joined[0])


def load_into(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy a state into the network's own tensors; names may be missing (they keep their values), never unknown."""
    own = net.state_dict()
    with torch.no_grad():
        if _on_cpu(own):
            for name, tensor in state.items():
                own[name].copy_(tensor)
        elif state:
            copy_into(own, moved(state, own[next(iter(state))].device))


def moved(state: Mapping[str, Tensor], device: torch.device | str) -> State:
    """Return the state on a device, in few copies where it comes from or goes to a GPU."""
    here = {name: tensor for name, tensor in state.items() if tensor.device == torch.device(device)}
    if len(here) == len(state):
        return here
    joined, apart = as_one([{name: tensor for name, tensor in state.items() if name not in here}])
    there = apart({key: tensor.to(device) for key, tensor in joined[0].items()}) | here
    return {name: there[name] for name in state}


def copied(state: Mapping[str, Tensor]) -> State:
    """Return the state with memory of its own, laid out as before; on a GPU in few copies."""
    found = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    with torch.no_grad():
        copy_into(found, state)
    return found


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy tensors into those of the same names; a GPU is told once of all that are of a type and laid out alike."""
    groups: dict[tuple[torch.dtype, torch.device, bool], list[str]] = {}
    for name, tensor in source.items():
        alike = tensor.stride() == target[name].stride()
        groups.setdefault((tensor.dtype, tensor.device, alike), []).append(name)
    for names in groups.values():
        torch._foreach_copy_([target[name] for name in names], [source[name] for name in names])


def as_one(
    states: Sequence[Mapping[str, Tensor]], names: Sequence[str] | None = None
) -> tuple[list[State], Callable[[State], State]]:
    """Return the states with their named tensors joined end to end, and what takes a result of that form apart.

    A GPU works on a million numbers in the time that it takes to be told of ten: so all tensors of a type are one.
    """
    first = states[0]
    groups: dict[str, list[str]] = {}
    for name in first if names is None else names:
        groups.setdefault(f"{first[name].dtype} {first[name].device}", []).append(name)
    joined = [{key: torch.cat([s[name].flatten() for name in of]) for key, of in groups.items()} for s in states]

    def apart(result: State) -> State:
        found: State = {}
        for key, flat in result.items():
            parts = torch.split(flat, [first[name].numel() for name in groups[key]])
            found |= {name: part.view(first[name].shape) for name, part in zip(groups[key], parts, strict=True)}
        return {name: found[name] for name in first if name in found}

    return joined, apart


def as_one_on_gpu(
    states: Sequence[Mapping[str, Tensor]], names: Sequence[str]
) -> tuple[list[State], Callable[[State], State]]:
    """Return as `as_one` on a GPU; on the CPU the named tensors as they are, to the bit of tensor by tensor."""
    if not _on_cpu(states[0]):
        return as_one(states, names)
    return [{name: state[name] for name in names} for state in states], lambda result: result


def _on_cpu(state: Mapping[str, Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in state.values())


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
    """Return copies of the tensors, where they lie, under names that start with a prefix."""
    return {prefix + name: tensor for name, tensor in copied(state).items()}


def size_in_bytes(state: Mapping[str, Tensor]) -> int:
    """Return the bytes of all tensors: what one exchange of the state costs, headers apart."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
