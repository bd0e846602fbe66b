"""The class relation matrix: which classes a network confuses with which (FedIRM, Liu et al. 2021).

Row c is the softmax, at a temperature, of the mean logits of the images of class c. Clients with labels send theirs;
clients without are asked to relate the classes they predict in the same way.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def relation_matrix(
    logits: Tensor, labels: Tensor, classes: int, temperature: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return (matrix, counts) of one batch: (classes, classes), and the images behind each row, (classes,).

    The mean over no images is taken as zero logits, so that the row of an absent class is uniform.

    Args:
        logits: (n, classes), float.
        labels: (n,), true or predicted.
        mask: (n,), whether an image counts; None counts all.
    """
    sums, counts = _sums(logits, labels, classes, mask)
    return _rows(sums, counts, temperature), counts


class RelationSum:
    """Adds up a round's labelled batches; the values stay on the device until a matrix is asked for."""

    def __init__(self, classes: int, temperature: float, device: torch.device) -> None:
        self.classes, self.temperature, self.batches = classes, temperature, 0
        self._sums = torch.zeros(classes, classes, device=device)
        self._counts = torch.zeros(classes, device=device)
        self._matrices = torch.zeros(classes, classes, device=device)

    @torch.no_grad()
    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count the images of one batch."""
        sums, counts = _sums(logits.float(), labels, self.classes)
        self.batches += 1
        self._sums += sums
        self._counts += counts
        self._matrices += _rows(sums, counts, self.temperature)

    def over_images(self) -> Tensor | None:
        """Return the matrix whose rows are means over all images, on the CPU; None without any.

        A class that was never seen has a row of zeros: unknown, which no softmax can be.
        """
        if not self.batches:
            return None
        return (_rows(self._sums, self._counts, self.temperature) * (self._counts > 0)[:, None]).cpu()

    def over_batches(self) -> Tensor | None:
        """Return the mean of the batches' matrices, on the CPU, as the authors' code has it; None without any.

        A class is uniform in every batch that it is missing from, so that the rows of rare classes drift to uniform.
        """
        return (self._matrices / self.batches).cpu() if self.batches else None


def relation_divergence(matrix: Tensor, other: Tensor, rows: Tensor) -> Tensor:
    """Return the mean over the marked rows of (KL(a || b) + KL(b || a)) / 2; 0, with no gradient in it, for no rows.

    Args:
        rows: (classes,), whether a row is known on both sides.
    """
    logs = [torch.log(m.clamp_min(1e-12)) for m in (matrix, other)]
    divergence = ((matrix - other) * (logs[0] - logs[1])).sum(1) / 2  # (classes,)
    return (divergence * rows).sum() / rows.sum().clamp_min(1)


def _sums(logits: Tensor, labels: Tensor, classes: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    members = F.one_hot(labels, classes).to(logits.dtype)  # (n, classes)
    if mask is not None:
        members = members * mask[:, None]
    return members.T @ logits, members.sum(0)


def _rows(sums: Tensor, counts: Tensor, temperature: float) -> Tensor:
    return torch.softmax(sums / counts.clamp_min(1)[:, None] / temperature, dim=1)
