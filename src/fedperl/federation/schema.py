"""What an update must look like: the tensors of the global model, exactly, and finite."""

from collections.abc import Mapping

import torch
from torch import Tensor


def find_fault(state: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> str | None:
    """Return what is wrong with a state, naming the first tensor, or None; nothing is broadcast or converted."""
    missing = [name for name in reference if name not in state]
    if missing:
        return f"tensor {missing[0]!r} is missing ({len(missing)} of {len(reference)})"
    extra = [name for name in state if name not in reference]
    if extra:
        return f"tensor {str(extra[0])!r} is not part of the model"
    for name, wanted in reference.items():
        found = state[name]
        if not isinstance(found, Tensor):
            return f"{name!r} is a {type(found).__name__}; wanted a tensor"
        if found.layout != torch.strided or found.device != wanted.device:
            return f"tensor {name!r} is {found.layout} on {found.device}; wanted a dense tensor on {wanted.device}"
        if found.shape != wanted.shape:
            return f"tensor {name!r} has shape {tuple(found.shape)}; wanted {tuple(wanted.shape)}"
        if found.dtype != wanted.dtype:
            return f"tensor {name!r} is {found.dtype}; wanted {wanted.dtype}"
    floats = [name for name, tensor in reference.items() if tensor.is_floating_point() and tensor.numel()]
    if not floats:
        return None
    largest = torch.stack(torch._foreach_norm([state[name] for name in floats], torch.inf))
    wrong = (~torch.isfinite(largest)).nonzero()
    return f"tensor {floats[int(wrong[0])]!r} has values that are not finite" if len(wrong) else None
