"""The first pointwise convolution of a block (and the head's): its products are formed anew wherever they are needed.

Z = X W^T is six times as large as X, so it is never stored: one kernel forms it for the batch statistics, one for
the activated tensor that the depthwise convolution reads, and the backward pass forms it again.
"""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import kernel, norm_row, pointwise, silu, weight_tiles


@kernel
def _expand_sums(
    x: tl.tensor,
    weight: tl.tensor,
    part: tl.tensor,
    rows: int,
    run: int,
    width8: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    row = tl.arange(0, BM)
    group = tl.program_id(2)
    inside = channel < channels
    weights = weight_tiles(weight, channel, inside, width, BK, KB)
    total = tl.zeros((BM, BC), tl.float32)
    squares = tl.zeros((BM, BC), tl.float32)
    start = tl.program_id(1) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(rows, BM)), num_stages=STAGES):
        first = group.to(tl.int64) * rows + tile * BM
        z = pointwise(x + first * width, row, row < rows - tile * BM, width, weights, BK, KB)
        total += z
        squares += z * z
    place = part + (group * tl.num_programs(1) + tl.program_id(1)) * 2 * channels + channel
    tl.store(place, tl.sum(total, 0), mask=inside)
    tl.store(place + channels, tl.sum(squares, 0), mask=inside)


def expand_sums(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Return partial sums of z and z^2 for z = x W^T: (groups, parts, 2, channels).

    Args:
        x: (rows, width), the groups one after the other.
        weight: (channels, width).
    """
    rows, (channels, width) = x.shape[0] // groups, weight.shape
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(rows, tiles.ROWS)
    run = tiles.run(steps, columns * groups, tiles.PROGRAMS // 2)
    part = torch.empty(groups, tiles.blocks(steps, run), 2, channels, device=x.device)
    block, count = tiles.inner(width)
    _expand_sums[(columns, part.shape[1], groups)](
        x,
        weight,
        part,
        rows,
        run,
        width // 8,
        channels // 8,
        BM=tiles.ROWS,
        BC=tiles.CHANNELS,
        BK=block,
        KB=count,
        STAGES=tiles.stages(x) if count == 1 else 1,
    )
    return part


@kernel
def _expand_forward(
    x: tl.tensor,
    weight: tl.tensor,
    stats: tl.tensor,
    out: tl.tensor,
    rows: int,
    run: int,
    length: int,
    width8: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    row = tl.arange(0, BM)
    group = tl.program_id(2)
    inside = channel < channels
    weights = weight_tiles(weight, channel, inside, width, BK, KB)
    scale = norm_row(stats, 2, group, length, channel, inside)
    shift = norm_row(stats, 3, group, length, channel, inside)
    start = tl.program_id(1) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(rows, BM)), num_stages=STAGES):
        first = group.to(tl.int64) * rows + tile * BM
        present = row < rows - tile * BM
        z = pointwise(x + first * width, row, present, width, weights, BK, KB)
        value = silu(z * scale[None, :] + shift[None, :]).to(out.dtype.element_ty)
        place = out + first * channels + row[:, None] * channels + channel[None, :]
        tl.store(place, value, mask=present[:, None] & inside[None, :])


def expand_forward(x: Tensor, weight: Tensor, stats: Tensor) -> Tensor:
    """Return silu(scale (x W^T) + shift), (rows, channels)."""
    groups, rows, (channels, width) = len(stats), x.shape[0] // len(stats), weight.shape
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(rows, tiles.PIXELS)
    run = tiles.run(steps, columns * groups, 4 * tiles.PROGRAMS)
    out = x.new_empty(x.shape[0], channels)
    block, count = tiles.inner(width)
    _expand_forward[(columns, tiles.blocks(steps, run), groups)](
        x, weight, stats, out, rows, run, stats.stride(1), width // 8, channels // 8,
        BM=tiles.PIXELS, BC=tiles.CHANNELS, BK=block, KB=count, STAGES=1,
    )  # fmt: skip
    return out


@kernel
def _head_features(
    x: tl.tensor,
    weight: tl.tensor,
    stats: tl.tensor,
    out: tl.tensor,
    pixels: int,
    images: int,
    length: int,
    width8: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    row = tl.arange(0, BM)
    image = tl.program_id(1)
    group = image // images
    inside = channel < channels
    weights = weight_tiles(weight, channel, inside, width, BK, KB)
    scale = norm_row(stats, 2, group, length, channel, inside)
    shift = norm_row(stats, 3, group, length, channel, inside)
    total = tl.zeros((BM, BC), tl.float32)
    for start in tl.range(0, pixels, BM, num_stages=STAGES):
        present = row < pixels - start
        z = pointwise(x + (image.to(tl.int64) * pixels + start) * width, row, present, width, weights, BK, KB)
        total += tl.where(present[:, None], silu(z * scale[None, :] + shift[None, :]), 0.0)
    tl.store(out + image * channels + channel, tl.sum(total, 0) / pixels, mask=inside)


def head_features(x: Tensor, weight: Tensor, stats: Tensor, pixels: int) -> Tensor:
    """Return the mean over pixels of silu(scale (x W^T) + shift), (images, channels) in float32."""
    images, (channels, width) = x.shape[0] // pixels, weight.shape
    out = torch.empty(images, channels, device=x.device)
    block, count = tiles.inner(width)
    _head_features[(tiles.blocks(channels, tiles.CHANNELS), images)](
        x, weight, stats, out, pixels, images // len(stats), stats.stride(1), width // 8, channels // 8,
        BM=tiles.PIXELS, BC=tiles.CHANNELS, BK=block, KB=count, STAGES=1,
    )  # fmt: skip
    return out
