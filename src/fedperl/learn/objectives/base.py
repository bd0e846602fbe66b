"""The contract of an objective: what one step gives it and what it returns."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Batch:
    """One step's images as floats in [0, 1], (n, 3, h, w); None where the client has none of the kind."""

    labelled: Tensor | None  # weak views
    labels: Tensor | None  # (n,)
    weak: Tensor | None  # of the unlabelled images
    strong: Tensor | None  # of the same images


@dataclass(frozen=True)
class Losses:
    """The loss to minimise and the numbers to log; values stay tensors, so that no step waits for the device."""

    total: Tensor
    numbers: dict[str, Tensor]


class Objective(Protocol):
    """Computes the losses of one step; gradients flow into the network alone."""

    uses_unlabelled: bool

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one batch."""
        ...
