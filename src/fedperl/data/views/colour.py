"""Colour operations on batches of images (n, 3, h, w) in [0, 1], each image with its own factor.

They mean what PIL's ImageEnhance and ImageOps mean, on floats: only `posterize`, `solarize` and `equalize` are defined
on 8 bits and round to them. None depends on how many images are in the batch, not even in the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedperl.data.views.images import to_float

# ITU-R 601, as PIL's conversion to "L"
_RED, _GREEN, _BLUE = 0.299, 0.587, 0.114


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with black: 0 gives black, 1 the image."""
    return (images * _per_image(factor)).clamp_(0, 1)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with their grey version (PIL calls it Color): 0 gives grey, 1 the image."""
    return _blend(_grey(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with their mean grey: 0 gives one flat grey, 1 the image."""
    # In whole numbers, because a sum of floats depends on its order, and that on the batch and the threads.
    levels = _grey(images).mul_(1 << 16).round_().to(torch.int32)
    pixels = images.shape[-2] * images.shape[-1]
    mean = levels.sum(dim=(1, 2, 3), dtype=torch.int64).to(torch.float32) / ((1 << 16) * pixels)
    return _blend(_per_image(mean), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with PIL's SMOOTH of them: 0 blurs, 1 is the image, 2 sharpens; the border stays."""
    result = images.clone()
    if min(images.shape[-2:]) < 3:
        return result
    centre = images[:, :, 1:-1, 1:-1]
    rows = images[:, :, :-2] + images[:, :, 1:-1]
    rows += images[:, :, 2:]
    smooth = rows[..., :-2] + rows[..., 1:-1]
    smooth += rows[..., 2:]
    smooth += centre * 4  # the kernel is 1 all around and 5 in the middle
    result[:, :, 1:-1, 1:-1] = _blend(smooth.div_(13), centre, factor)
    return result


def autocontrast(images: Tensor) -> Tensor:
    """Return the images with every channel stretched to fill [0, 1]; a flat channel stays as it is."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    # flat is what 8 bits would call so, or the rounding errors of earlier operations would become an image
    flat = high - low < 0.5 / 255
    low, high = low.masked_fill(flat, 0.0), high.masked_fill(flat, 1.0)
    return (images - low).div_(high - low)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Return the images with only the first `bits` of every 8-bit level kept."""
    dropped = 8 - bits.to(torch.int32)
    mask = ((255 << dropped) & 255).to(torch.uint8)
    return to_float(_levels(images).to(torch.uint8).bitwise_and_(_per_image(mask)))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Return the images with every 8-bit level at or above `threshold` (0 to 256) inverted."""
    levels = _levels(images)
    return torch.where(levels < _per_image(threshold), levels, 255 - levels).div_(255)


def equalize(images: Tensor) -> Tensor:
    """Return the images with every channel's 8-bit histogram made as even as a table of levels can, as ImageOps."""
    levels = _levels(images).to(torch.int64).flatten(0, 1).flatten(1)  # (n * 3, h * w)
    histogram = levels.new_zeros(len(levels), 256).scatter_add_(1, levels, torch.ones_like(levels))
    cumulated = histogram.cumsum(1)
    highest = levels.amax(1, keepdim=True)
    step = (cumulated[:, -1:] - histogram.gather(1, highest)) // 255
    table = (step // 2 + cumulated - histogram) // step.clamp(min=1)
    unchanged = torch.arange(256, device=levels.device).expand_as(table)
    table = torch.where(step == 0, unchanged, table).clamp_(max=255)
    return table.gather(1, levels).view(images.shape).to(torch.float32).div_(255)


def _grey(images: Tensor) -> Tensor:
    return (images[:, 0:1] * _RED).add_(images[:, 1:2] * _GREEN).add_(images[:, 2:3] * _BLUE)


def _blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Return PIL's blend: `degenerate` at 0, the images, exactly, at 1, beyond them above 1; clipped.

    Multiplied and added in steps: a fused kernel may round the last few elements of a batch otherwise than the rest.
    """
    weight = _per_image(factor)
    return (images * weight).add_(degenerate * (1 - weight)).clamp_(0, 1)


def _levels(images: Tensor) -> Tensor:
    return (images * 255).round_()


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
