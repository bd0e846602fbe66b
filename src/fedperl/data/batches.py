"""Which images a client draws in a round: FedVC's equal number of steps for everyone (Hsu et al. 2020)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

MOST_STEPS = 100


def auto_steps(unlabelled: Iterable[int], batch: int) -> int:
    """Return min(100, min over clients of ceil(U_k / batch)): 26 in the paper's split.

    Clients without unlabelled images do not count, and one step is the least.
    """
    counts = [math.ceil(n / batch) for n in unlabelled if n > 0]
    return min([MOST_STEPS, *counts])


def draw_indices(available: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Return `wanted` positions below `available`: shuffled passes one after the other, cut where enough."""
    if available <= 0:
        raise ValueError(f"cannot draw {wanted} images from {available}")
    passes = [torch.randperm(available, generator=generator) for _ in range(math.ceil(wanted / available))]
    return torch.cat(passes)[:wanted]
