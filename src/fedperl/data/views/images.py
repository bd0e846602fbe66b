"""What every view asks of a batch of images: float32 (n, 3, h, w) in [0, 1], and a draw with one row an image."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# About ten images at 224 pixels: their intermediate results stay in the processor's cache.
_PIXELS_AT_ONCE = 1 << 19


def to_float(images: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1]."""
    if images.dtype != torch.uint8:
        raise ValueError(f"to_float wants uint8 images, was given {images.dtype}")
    return images.to(torch.float32).div_(255)


def check(images: Tensor, drawn: Tensor) -> None:
    """Raise ValueError unless `images` is float32 (n, 3, h, w) and `drawn` has n rows on the same device."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images must have the shape (n, 3, h, w), was given {tuple(images.shape)}")
    if images.dtype != torch.float32:
        raise ValueError(f"images must be float32 in [0, 1] (see to_float), was given {images.dtype}")
    if len(images) != len(drawn):
        raise ValueError(f"was given {len(images)} images and a draw for {len(drawn)}, wanted as many of both")
    if images.device != drawn.device:
        raise ValueError(f"images are on {images.device}, the draw on {drawn.device}: move it with drawn.to(device)")


def chunks(images: Tensor) -> Iterator[slice]:
    """Yield the rows to work on together: all of them on an accelerator, on a CPU what fits its cache."""
    step = max(1, len(images))
    if images.device.type == "cpu":
        step = max(1, _PIXELS_AT_ONCE // max(1, images.shape[-2] * images.shape[-1]))
    for start in range(0, len(images), step):
        yield slice(start, start + step)
