"""The strong view: one launch an operation, and one before it where some image must first be seen as a whole."""

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from fedperl.data.views import Operation
from fedperl.engines.cuda.kernels_common import inline, kernel
from fedperl.engines.cuda.kernels_views import PIXELS, blend, clipped, grey, grey_at, moved, of_level, read, rounded
from fedperl.engines.cuda.tiles import blocks

MANY = 4096  # pixels of a tile where a program walks a whole image
STRONG_ENTRIES = tl.constexpr(8)  # operation, value, matrix
GREY = tl.constexpr(128 / 255)  # what lies outside an image that was moved

OF_THE_WHOLE = (Operation.AUTOCONTRAST, Operation.EQUALIZE, Operation.CONTRAST)
"""Operations that need to know something of the whole image first."""

_FIRST_MOVE, _LAST_MOVE = tl.constexpr(Operation.ROTATE.value), tl.constexpr(Operation.TRANSLATE_Y.value)
_AUTOCONTRAST, _EQUALIZE = tl.constexpr(Operation.AUTOCONTRAST.value), tl.constexpr(Operation.EQUALIZE.value)
_SOLARIZE, _POSTERIZE = tl.constexpr(Operation.SOLARIZE.value), tl.constexpr(Operation.POSTERIZE.value)
_COLOUR, _CONTRAST = tl.constexpr(Operation.COLOUR.value), tl.constexpr(Operation.CONTRAST.value)
_BRIGHTNESS, _SHARPNESS = tl.constexpr(Operation.BRIGHTNESS.value), tl.constexpr(Operation.SHARPNESS.value)


@inline
def _column_sum(plane: tl.tensor, place: tl.tensor, inside: tl.tensor, width: tl.tensor) -> tl.tensor:
    above, here = read(plane, place - width, inside), read(plane, place, inside)
    return above + here + read(plane, place + width, inside)


@inline
def _sharpened(
    plane: tl.tensor,
    image: tl.tensor,
    factor: tl.tensor,
    pixel: tl.tensor,
    inside: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
) -> tl.tensor:
    row, column = pixel // width, pixel % width
    inner = inside & (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    smooth = _column_sum(plane, pixel - 1, inner, width) + _column_sum(plane, pixel, inner, width)
    smooth = smooth + _column_sum(plane, pixel + 1, inner, width) + image * 4.0
    return tl.where(inner, blend(tl.div_rn(smooth, 13.0), image, factor), image)


@kernel
def _statistics(
    source: tl.tensor,
    table: tl.tensor,
    sums: tl.tensor,
    ends: tl.tensor,
    levels: tl.tensor,
    first: int,
    pixels: int,
    BP: tl.constexpr,
) -> None:
    image, part = tl.program_id(0), tl.program_id(1)
    operation = tl.load(table + (first + image) * STRONG_ENTRIES).to(tl.int32)
    start = source + image.to(tl.int64) * 3 * pixels
    mine = image * 3 + part
    plane = start + part * pixels
    if operation == _CONTRAST:
        # each of the three programs has a third of the pixels, and adds whole numbers
        total = tl.zeros((BP,), tl.int32)
        for begin in range(part * BP, pixels, 3 * BP):
            pixel = begin + tl.arange(0, BP)
            total += rounded(grey_at(start, pixel, pixels, pixel < pixels) * 65536.0).to(tl.int32)
        tl.store(sums + mine, tl.sum(total.to(tl.int64)))
    elif operation == _AUTOCONTRAST:
        low, high = tl.full((BP,), 2.0, tl.float32), tl.full((BP,), -1.0, tl.float32)
        for begin in range(0, pixels, BP):
            pixel = begin + tl.arange(0, BP)
            value = read(plane, pixel, pixel < pixels)
            low = tl.minimum(low, tl.where(pixel < pixels, value, 2.0))
            high = tl.maximum(high, tl.where(pixel < pixels, value, -1.0))
        tl.store(ends + mine * 2, tl.min(low))
        tl.store(ends + mine * 2 + 1, tl.max(high))
    elif operation == _EQUALIZE:
        count = tl.zeros((256,), tl.int32)
        for begin in range(0, pixels, BP):
            pixel = begin + tl.arange(0, BP)
            level = rounded(read(plane, pixel, pixel < pixels) * 255.0).to(tl.int32)
            count += tl.histogram(level, 256, mask=pixel < pixels)
        level = tl.arange(0, 256)
        highest = tl.max(tl.where(count > 0, level, 0))
        step = (pixels - tl.sum(tl.where(level == highest, count, 0))) // 255
        even = tl.minimum((step // 2 + tl.cumsum(count) - count) // tl.maximum(step, 1), 255)
        tl.store(levels + mine * 256 + level, tl.where(step == 0, level, even))


@kernel
def _operate(
    source: tl.tensor,
    target: tl.tensor,
    table: tl.tensor,
    sums: tl.tensor,
    ends: tl.tensor,
    levels: tl.tensor,
    first: int,
    height: int,
    width: int,
    stride_c: int,
    stride_p: int,
    BP: tl.constexpr,
) -> None:
    pixels = height * width
    image, tile = tl.program_id(0) // tl.cdiv(pixels, BP), tl.program_id(0) % tl.cdiv(pixels, BP)
    pixel = tile * BP + tl.arange(0, BP)
    inside = pixel < pixels
    entries = table + (first + image) * STRONG_ENTRIES
    operation, factor = tl.load(entries).to(tl.int32), tl.load(entries + 1)
    start = source + image.to(tl.int64) * 3 * pixels
    out = target + image.to(tl.int64) * 3 * pixels + pixel * stride_p
    if (operation >= _FIRST_MOVE) & (operation <= _LAST_MOVE):
        red = moved(start, entries + 2, pixel, inside, height, width, GREY)
        green = moved(start + pixels, entries + 2, pixel, inside, height, width, GREY)
        blue = moved(start + 2 * pixels, entries + 2, pixel, inside, height, width, GREY)
    else:
        red, green = read(start, pixel, inside), read(start + pixels, pixel, inside)
        blue = read(start + 2 * pixels, pixel, inside)
    given = (red, green, blue)
    for channel in tl.static_range(3):
        value, mine = given[channel], image * 3 + channel
        if operation == _BRIGHTNESS:
            value = clipped(value * factor)
        elif operation == _COLOUR:
            value = blend(grey(red, green, blue), value, factor)
        elif operation == _CONTRAST:
            third = sums + image * 3
            total = (tl.load(third) + tl.load(third + 1) + tl.load(third + 2)).to(tl.float32)
            value = blend(tl.div_rn(total, pixels * 65536.0), value, factor)
        elif operation == _SHARPNESS:
            value = _sharpened(start + channel * pixels, value, factor, pixel, inside, height, width)
        elif operation == _AUTOCONTRAST:
            low, high = tl.load(ends + mine * 2), tl.load(ends + mine * 2 + 1)
            flat = high - low < 0.5 / 255
            low, high = tl.where(flat, 0.0, low), tl.where(flat, 1.0, high)
            value = tl.div_rn(value - low, high - low)
        elif operation == _EQUALIZE:
            level = rounded(value * 255.0).to(tl.int32)
            value = of_level(tl.load(levels + mine * 256 + level).to(tl.float32))
        elif operation == _SOLARIZE:
            level = rounded(value * 255.0)
            value = of_level(tl.where(level < factor, level, 255.0 - level))
        elif operation == _POSTERIZE:
            kept = (255 << (8 - factor.to(tl.int32))) & 255
            value = of_level((rounded(value * 255.0).to(tl.int32) & kept).to(tl.float32))
        tl.store(out + channel * stride_c, value, mask=inside)


def strong(images: Tensor, table: Tensor, of_the_whole: Sequence[bool], first: int) -> Tensor:
    """Return the strong views of images (n, 3, h, w), uint8 or float32, in channels_last memory.

    Args:
        table: (slots, rows, 8) on the device: operation, value and matrix.
        of_the_whole: whether one of OF_THE_WHOLE is among the operations of each slot.
        first: the row of the first image.
    """
    n, _, height, width = images.shape
    out = torch.empty_like(images, dtype=torch.float32, memory_format=torch.channels_last)
    spare = torch.empty(images.shape, device=images.device)
    sums = torch.empty(n, 3, dtype=torch.int64, device=images.device)
    ends = torch.empty(n, 3, 2, device=images.device)
    levels = torch.empty(n, 3, 256, dtype=torch.int32, device=images.device)
    known, exact = (table, sums, ends, levels), {"enable_fp_fusion": False}
    source, pixels, last = images.contiguous(), height * width, len(of_the_whole) - 1
    for slot, asked in enumerate(of_the_whole):
        row = slot * table.shape[1] + first
        if asked:
            _statistics[n, 3](source, *known, row, pixels, BP=MANY, num_warps=8, **exact)
        # the memory of the result serves every other slot before the last, there with channel after channel
        target = spare if (last - slot) % 2 else out
        strides = (1, 3) if slot == last else (pixels, 1)
        grid = (n * blocks(pixels, PIXELS),)
        _operate[grid](source, target, *known, row, height, width, *strides, BP=PIXELS, num_warps=4, **exact)
        source = target
    return out
