"""Rotation, shear, translation and flips of a batch of images: small matrices, and one bilinear resampling.

A matrix (2, 3) maps an output pixel to the place in the source it is read from, both in pixels from the centre of
the image: x to the right, y down. Every image of a batch has its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rotation(degrees: Tensor) -> Tensor:
    """Return the (n, 2, 3) matrices that turn images counter-clockwise, as PIL does, around the centre."""
    # in double, because a vectorised cosine may differ in the last bit from that of an element left over
    radians = torch.deg2rad(degrees.to(torch.float64))
    cosine, sine = radians.cos().to(degrees.dtype), radians.sin().to(degrees.dtype)
    zero = torch.zeros_like(degrees)
    return _matrices(cosine, -sine, zero, sine, cosine, zero)


def shear_x(factor: Tensor, height: int) -> Tensor:
    """Return matrices that read row y of the source `factor * y` pixels further right.

    The top left corner stays where it is, not the centre: so do PIL's AFFINE as the authors call it, and torchvision's
    RandAugment.
    """
    one, zero = torch.ones_like(factor), torch.zeros_like(factor)
    return _matrices(one, factor, factor * (height / 2), zero, one, zero)


def shear_y(factor: Tensor, width: int) -> Tensor:
    """Return matrices that read column x of the source `factor * x` pixels further down; see `shear_x`."""
    one, zero = torch.ones_like(factor), torch.zeros_like(factor)
    return _matrices(one, zero, zero, factor, one, factor * (width / 2))


def translation_x(fraction: Tensor, width: int) -> Tensor:
    """Return matrices that read `fraction` of the width further right."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return _matrices(one, zero, fraction * width, zero, one, zero)


def translation_y(fraction: Tensor, height: int) -> Tensor:
    """Return matrices that read `fraction` of the height further down."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return _matrices(one, zero, zero, zero, one, fraction * height)


def flipped(matrices: Tensor, horizontal: Tensor, vertical: Tensor) -> Tensor:
    """Return the matrices that flip first where the (n,) booleans say so, then do what `matrices` did."""
    signs = torch.stack([1 - 2 * horizontal.to(matrices.dtype), 1 - 2 * vertical.to(matrices.dtype)], dim=1)
    return matrices * signs[:, :, None]


def resample(images: Tensor, matrices: Tensor, fill: float = 0.0) -> Tensor:
    """Return the images read through their matrices, bilinearly; what lies outside an image has the value `fill`.

    Args:
        images: (n, 3, h, w) in [0, 1].
        matrices: (n, 2, 3), output pixel to source pixel.
    """
    grid = _sampling_grid(matrices, *images.shape[-2:])
    # grid_sample fills with zero: measuring from the fill makes zero mean the fill
    measured = images - fill if fill else images
    sampled = functional.grid_sample(measured, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled.add_(fill) if fill else sampled).clamp_(0, 1)


def _sampling_grid(matrices: Tensor, height: int, width: int) -> Tensor:
    """Return grid_sample's (n, h, w, 2) grid. Products and sums of one element each: no batch size changes a bit."""
    x = torch.arange(width, dtype=matrices.dtype, device=matrices.device) - (width - 1) / 2
    y = torch.arange(height, dtype=matrices.dtype, device=matrices.device) - (height - 1) / 2
    # grid_sample's coordinates go from -1 to 1 over the side
    scaled = torch.stack([matrices[:, 0] * (2 / width), matrices[:, 1] * (2 / height)], dim=1)
    along_x = scaled[:, :, 0, None] * x  # (n, 2, w)
    along_y = scaled[:, :, 1, None] * y + scaled[:, :, 2, None]  # (n, 2, h)
    return along_x.transpose(1, 2)[:, None] + along_y.transpose(1, 2)[:, :, None]


def _matrices(*entries: Tensor) -> Tensor:
    return torch.stack(entries, dim=1).view(-1, 2, 3)
