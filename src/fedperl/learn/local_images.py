"""What one client trains on."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LocalImages:
    """One client's images, and which of them it has labels for.

    Labels lie on the device that computes. Images and positions lie there too, or stay in the host's memory.
    """

    images: Tensor  # (n, 3, h, w) uint8
    labels: Tensor  # (n,)
    labelled: Tensor  # positions in images
    unlabelled: Tensor  # positions in images
    classes: int

    @property
    def device(self) -> torch.device:
        """Where the client's networks compute."""
        return self.labels.device

    def pixels(self, rows: Tensor) -> Tensor:
        """Return the images at these positions, (n, 3, h, w) uint8, on the device; the host does not wait for it."""
        return fetched(self.images, rows, self.device)


def fetched(images: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Return rows of images on a device, through memory that it can read by itself where they lie elsewhere."""
    if images.device == device:
        return images[rows]
    found = torch.empty(len(rows), *images.shape[1:], dtype=images.dtype, pin_memory=True)
    torch.index_select(images, 0, rows.cpu(), out=found)
    return found.to(device, non_blocking=True)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; from the host's memory to another device, without waiting for what that does."""
    if values.device == device:
        return values
    return values.pin_memory().to(device, non_blocking=True)
