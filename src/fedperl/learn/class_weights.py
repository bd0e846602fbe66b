"""Weights that let rare classes count: median frequency over the client's own labels."""

import torch
from torch import Tensor


def median_frequency(labels: Tensor, classes: int, absent: float = 1.0, power: float = 1.0) -> Tensor:
    """Return (classes,) weights: median of the present classes' counts / count, and `absent` where there is none.

    Args:
        power: of the weights of classes that are there; less than 1 lets them differ less.
    """
    counts = torch.bincount(labels, minlength=classes).to(torch.float32)
    present = counts > 0
    if not present.any():
        return torch.full((classes,), absent)
    # The middle of an even number of counts is their mean; torch.median would take the lower one.
    median = torch.quantile(counts[present], 0.5)
    return torch.where(present, (median / counts.clamp_min(1)) ** power, absent)
