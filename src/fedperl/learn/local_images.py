"""What one client trains on."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LocalImages:
    """One client's images, and which of them it has labels for."""

    images: Tensor  # (n, 3, h, w) uint8
    labels: Tensor  # (n,)
    labelled: Tensor  # positions in images
    unlabelled: Tensor  # positions in images
    classes: int
