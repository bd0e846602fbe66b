"""FedIRM's knowledge of the labelled clients, averaged by the server (Liu et al. 2021, section 2.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def average_relation(matrices: Sequence[Tensor | None], *, fewest: int) -> Tensor | None:
    """Return the mean of relation matrices (classes, classes), row by row over those that know the row.

    A row of zeros is unknown. One that fewer than `fewest` clients know stays unknown in the mean, because it would be
    one client's own; None where no row is known.
    """
    found = [matrix.double() for matrix in matrices if matrix is not None]
    if not found:
        return None
    stacked = torch.stack(found)  # (clients, classes, classes)
    known = (stacked.sum(dim=2) > 0).sum(dim=0)  # (classes,)
    mean = stacked.sum(dim=0) / known.clamp_min(1)[:, None]
    mean[known < fewest] = 0.0
    return mean.float() if bool((known >= fewest).any()) else None


def find_relation_fault(matrix: Tensor, classes: int) -> str | None:
    """Return what is wrong with a relation matrix that a client sent, or None."""
    if not isinstance(matrix, Tensor):
        return f"its relation matrix is a {type(matrix).__name__}; wanted a tensor"
    if matrix.shape != (classes, classes) or matrix.dtype != torch.float32:
        return f"its relation matrix is {matrix.dtype} {tuple(matrix.shape)}; wanted float32 {(classes, classes)}"
    if not torch.isfinite(matrix).all() or (matrix < 0).any():
        return "its relation matrix has values that are negative or not finite"
    sums = matrix.sum(dim=1)
    if not (torch.isclose(sums, torch.ones(()), atol=1e-3) | (sums == 0)).all():
        return "its relation matrix has rows that are neither probabilities nor unknown"
    return None
