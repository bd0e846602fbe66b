"""FedIRM's knowledge of the labelled clients, averaged by the server (Liu et al. 2021, section 2.2)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def average_relation(matrices: Mapping[int, Tensor], rows: Mapping[int, Sequence[int]]) -> Tensor | None:
    """Return the mean of relation matrices (classes, classes), by client, row by row; None where no row is named.

    Args:
        rows: by class, whose rows are averaged; those of other classes stay unknown, zeros.
    """
    if not any(rows.values()):
        return None
    mean = torch.zeros_like(next(iter(matrices.values())), dtype=torch.float64)
    for label, clients in rows.items():
        if clients:
            mean[label] = torch.stack([matrices[k][label].double() for k in clients]).sum(dim=0) / len(clients)
    return mean.float()


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
