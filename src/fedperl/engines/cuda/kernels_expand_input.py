"""The gradient of the input of a block's first pointwise convolution, and of the head's."""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import (
    active_gradient,
    inline,
    kernel,
    norm_row,
    pointwise,
    row_tile,
    silu_slope,
    weight_tiles,
)

FUSED = 64  # widest input whose gradient is formed without storing dz


@inline
def _d_z(given: tl.tensor, z: tl.tensor, norm: tl.tuple) -> tl.tensor:
    """Return dz = scale dA silu'(y) + slope z + offset for a tile."""
    scale, shift, slope, offset = norm
    y = z * scale[None, :] + shift[None, :]
    return scale[None, :] * given * silu_slope(y) + slope[None, :] * z + offset[None, :]


@inline
def _norm(
    stats: tl.tensor,
    slopes: tl.tensor,
    group: tl.tensor,
    length: tl.tensor,
    channels: tl.tensor,
    channel: tl.tensor,
    inside: tl.tensor,
) -> tl.tuple:
    """Return scale, shift, slope and offset of a block of channels."""
    scale = norm_row(stats, 2, group, length, channel, inside)
    shift = norm_row(stats, 3, group, length, channel, inside)
    slope = tl.load(slopes + group * 2 * channels + channel, mask=inside, other=0.0)
    offset = tl.load(slopes + (group * 2 + 1) * channels + channel, mask=inside, other=0.0)
    return scale, shift, slope, offset


@kernel
def _expand_input(
    x: tl.tensor,
    weight: tl.tensor,
    d_active: tl.tensor,
    stats: tl.tensor,
    slopes: tl.tensor,
    skip: tl.tensor,
    d_x: tl.tensor,
    rows: int,
    length: int,
    has_skip: int,
    width8: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    group = tl.program_id(1)
    row = tl.arange(0, BM)
    first = group.to(tl.int64) * rows + tl.program_id(0) * BM
    present = row < rows - tl.program_id(0) * BM
    inputs = row_tile(x + first * width, row, present, width, 0, BK)
    total = tl.zeros((BM, BK), tl.float32)
    for start in tl.range(0, channels, BC, num_stages=STAGES):
        channel = start + tl.arange(0, BC)
        inside = channel < channels
        taps = weight_tiles(weight, channel, inside, width, BK, 1)[0]
        z = tl.dot(inputs, tl.trans(taps), input_precision="tf32x3")
        given = active_gradient(d_active, first, row, present, channels, channel, inside, 1, False)
        d_z = _d_z(given, z, _norm(stats, slopes, group, length, channels, channel, inside))
        total = tl.dot(d_z.to(taps.dtype), taps, total, input_precision="tf32x3")
    k = tl.arange(0, BK)
    mask = present[:, None] & (k < width)[None, :]
    place = first * width + row[:, None] * width + k[None, :]
    total += tl.load(skip + place, mask=mask & (has_skip != 0), other=0.0).to(tl.float32)
    tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=mask)


@kernel
def _expand_output(
    x: tl.tensor,
    weight: tl.tensor,
    d_active: tl.tensor,
    stats: tl.tensor,
    slopes: tl.tensor,
    d_z: tl.tensor,
    rows: int,
    pixels: int,
    length: int,
    width8: int,
    channels8: int,
    HEAD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    KB: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    group = tl.program_id(2)
    row = tl.arange(0, BM)
    inside = channel < channels
    first = group.to(tl.int64) * rows + tl.program_id(1) * BM
    present = row < rows - tl.program_id(1) * BM
    weights = weight_tiles(weight, channel, inside, width, BK, KB)
    z = pointwise(x + first * width, row, present, width, weights, BK, KB)
    given = active_gradient(d_active, first, row, present, channels, channel, inside, pixels, HEAD)
    value = _d_z(given, z, _norm(stats, slopes, group, length, channels, channel, inside))
    place = d_z + first * channels + row[:, None] * channels + channel[None, :]
    tl.store(place, value.to(d_z.dtype.element_ty), mask=present[:, None] & inside[None, :])


def expand_back(
    x: Tensor, weight: Tensor, d_active: Tensor, stats: Tensor, slopes: Tensor, skip: Tensor | None
) -> Tensor:
    """Return the gradient of x, (rows, width), with what came through the skip added.

    Where x is narrow, dz is formed and used in one kernel; else it is stored in the place of dA and multiplied by
    the weights, which keeps more multiprocessors busy on small images.
    """
    groups, rows, (channels, width) = len(stats), x.shape[0] // len(stats), weight.shape
    if width > FUSED:
        _store_d_z(x, weight, d_active, stats, slopes, d_active, None)
        return d_active @ weight if skip is None else torch.addmm(skip, d_active, weight)
    d_x = torch.empty_like(x)
    _expand_input[(tiles.blocks(rows, tiles.PIXELS), groups)](
        x, weight, d_active, stats, slopes, x if skip is None else skip, d_x, rows, stats.stride(1),
        int(skip is not None), width // 8, channels // 8, BM=tiles.PIXELS, BC=tiles.CHANNELS,
        BK=tiles.inner(width)[0], STAGES=1,
    )  # fmt: skip
    return d_x


def head_back(x: Tensor, weight: Tensor, d_features: Tensor, stats: Tensor, slopes: Tensor, pixels: int) -> Tensor:
    """Return the gradient of the head's input, given that of the mean over pixels, (images, channels) in float32."""
    d_z = x.new_empty(len(x), len(weight))
    _store_d_z(x, weight, d_features, stats, slopes, d_z, pixels)
    return d_z @ weight


def _store_d_z(
    x: Tensor, weight: Tensor, given: Tensor, stats: Tensor, slopes: Tensor, d_z: Tensor, pixels: int | None
) -> None:
    groups, rows, (channels, width) = len(stats), x.shape[0] // len(stats), weight.shape
    block, count = tiles.inner(width)
    _expand_output[(tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(rows, tiles.PIXELS), groups)](
        x, weight, given, stats, slopes, d_z, rows, pixels or 1, stats.stride(1), width // 8, channels // 8,
        HEAD=pixels is not None, BM=tiles.PIXELS, BC=tiles.CHANNELS, BK=block, KB=count,
    )  # fmt: skip
