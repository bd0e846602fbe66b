"""FedMatch's sparse transmission: entries that hardly moved are not sent, and the receiver keeps its old ones.

Lossy, not only cheaper: what is left out is gone for the receiver (Jeong et al. 2021).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedperl.learn.state import State, size_in_bytes

VALUE, POSITION = 4, 4  # bytes of one entry that is sent


def sparsify(new: Mapping[str, Tensor], old: Mapping[str, Tensor], threshold: float) -> tuple[State, Tensor]:
    """Return the state the receiver ends up with, and how many float entries were sent: a number on their device.

    Float entries that moved by more than the threshold are new, all others old; integer tensors are new. With a
    threshold of 0 all that differ are sent. What is not a number is sent, for the receiver to refuse.

    Args:
        new: the sender's state.
        old: the one the receiver has; it may hold more names.
    Raises:
        ValueError: a threshold below 0, or a tensor whose like the receiver does not have.
    """
    if not threshold >= 0:
        raise ValueError(f"wanted a threshold of at least 0, found {threshold}")
    result: State = {}
    sent = torch.zeros((), dtype=torch.int64)
    for name, tensor in new.items():
        if name not in old or old[name].shape != tensor.shape:
            found = tuple(old[name].shape) if name in old else "none"
            raise ValueError(f"{name}: wanted an old tensor of shape {tuple(tensor.shape)}, found {found}")
        if not tensor.is_floating_point():
            result[name] = tensor.clone()
            continue
        moved = ~((tensor - old[name]).abs() <= threshold)
        result[name] = torch.where(moved, tensor, old[name])
        sent = sent.to(moved.device) + moved.sum()
    return result, sent


def sparse_bytes(changed: int, state: Mapping[str, Tensor]) -> int:
    """Return the bytes of sending so many float entries with their positions, and the integer tensors whole.

    Never more than the whole state's: beyond half of the entries that is the cheaper way.
    """
    counters = {name: tensor for name, tensor in state.items() if not tensor.is_floating_point()}
    return min(changed * (VALUE + POSITION) + size_in_bytes(counters), size_in_bytes(state))
