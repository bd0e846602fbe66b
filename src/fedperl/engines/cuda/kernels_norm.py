"""Batch norm over groups of images: statistics from partial sums, and the linear norm at the end of a block.

With x = (z - mean) / std, y = weight x + bias and N values a channel, the gradient is
dz = scale (dy - mean(dy) - x mean(dy x)), here written as scale dy + slope z + offset.
"""

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor, nn

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import inline, kernel, norm_row

FEW = 8  # channels of a program that adds up partial sums
FEW_PARTS, PARTS = 64, 256  # sums that it reads at a time


@inline
def _two_sums(
    part: tl.tensor, count: tl.tensor, channels: tl.tensor, channel: tl.tensor, inside: tl.tensor, BP: tl.constexpr
) -> tl.tensor:
    """Return the sums over `count` partial rows of both quantities kept for a block of channels."""
    first = tl.zeros((BP, channel.shape[0]), tl.float32)
    second = tl.zeros((BP, channel.shape[0]), tl.float32)
    for start in range(0, count, BP):
        row = start + tl.arange(0, BP)
        mask = (row < count)[:, None] & inside[None, :]
        place = part + row[:, None] * (2 * channels) + channel[None, :]
        first += tl.load(place, mask=mask, other=0.0)
        second += tl.load(place + channels, mask=mask, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@kernel
def _statistics(
    part: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    running_mean: tl.tensor,
    running_var: tl.tensor,
    stats: tl.tensor,
    count: int,
    channels8: int,
    one_over: float,
    unbiased: float,
    momentum: float,
    eps: float,
    ORDER: tl.constexpr,
    GROUPS: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    gain = tl.load(weight + channel, mask=inside, other=0.0)
    shift = tl.load(bias + channel, mask=inside, other=0.0)
    past_mean = tl.load(running_mean + channel, mask=inside, other=0.0)
    past_var = tl.load(running_var + channel, mask=inside, other=0.0)
    for turn in tl.static_range(GROUPS):
        group = ORDER // 100**turn % 100
        total, squares = _two_sums(part + group * count * 2 * channels, count, channels, channel, inside, BP)
        mean = total * one_over
        var = tl.maximum(squares * one_over - mean * mean, 0.0)
        inverse = 1.0 / tl.sqrt_rn(var + eps)
        place = stats + group * 4 * channels + channel
        tl.store(place, mean, mask=inside)
        tl.store(place + channels, inverse, mask=inside)
        tl.store(place + 2 * channels, gain * inverse, mask=inside)
        tl.store(place + 3 * channels, shift - mean * gain * inverse, mask=inside)
        past_mean += momentum * (mean - past_mean)
        past_var += momentum * (var * unbiased - past_var)
    tl.store(running_mean + channel, past_mean, mask=inside)
    tl.store(running_var + channel, past_var, mask=inside)


def batch_statistics(part: Tensor, norm: nn.BatchNorm2d, values: int, order: Sequence[int] | None = None) -> Tensor:
    """Return (groups, 4, channels): mean, 1/std, scale and shift; the running statistics move group after group.

    Args:
        part: (groups, parts, 2, channels), partial sums of z and z^2.
        values: of a channel in a group.
        order: in which the groups move the running statistics; as they stand unless given.
    """
    groups, count, _, channels = part.shape
    stats = part.new_empty(groups, 4, channels)
    scalars = (1 / values, values / max(1, values - 1), norm.momentum or 0.0, norm.eps)
    _statistics[(tiles.blocks(channels, FEW),)](
        part, norm.weight, norm.bias, norm.running_mean, norm.running_var, stats, count, channels // 8, *scalars,
        ORDER=sum(group * 100**turn for turn, group in enumerate(order or range(groups))), GROUPS=groups,
        BP=PARTS if count > FEW_PARTS else FEW_PARTS, BC=FEW, num_warps=2,
    )  # fmt: skip
    return stats


@kernel
def _norm_gradients(
    part: tl.tensor,
    stats: tl.tensor,
    d_weight: tl.tensor,
    d_bias: tl.tensor,
    slopes: tl.tensor,
    count: int,
    length: int,
    channels8: int,
    one_over: float,
    live: float,
    GROUPS: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    gain_sum = tl.zeros((BC,), tl.float32)
    bias_sum = tl.zeros((BC,), tl.float32)
    for group in tl.static_range(GROUPS):
        d_y, d_yz = _two_sums(part + group * count * 2 * channels, count, channels, channel, inside, BP)
        mean = norm_row(stats, 0, group, length, channel, inside)
        inverse = norm_row(stats, 1, group, length, channel, inside)
        scale = norm_row(stats, 2, group, length, channel, inside)
        d_yx = inverse * (d_yz - mean * d_y)
        gain_sum += d_yx
        bias_sum += d_y
        slope = -scale * inverse * d_yx * one_over * live
        place = slopes + group * 2 * channels + channel
        tl.store(place, slope, mask=inside)
        tl.store(place + channels, -slope * mean - scale * d_y * one_over * live, mask=inside)
    tl.store(d_weight + channel, gain_sum, mask=inside)
    tl.store(d_bias + channel, bias_sum, mask=inside)


def norm_gradients(part: Tensor, stats: Tensor, out: tuple[Tensor, Tensor], values: int, *, live: bool) -> Tensor:
    """Write the gradients of weight and bias to out; return (groups, 2, channels): slope and offset of dz.

    Args:
        part: (groups, parts, 2, channels), partial sums of dy and dy z.
        live: the statistics are the batch's own, and gradients flow through them.
    """
    groups, count, _, channels = part.shape
    slopes = part.new_empty(groups, 2, channels)
    _norm_gradients[(tiles.blocks(channels, FEW),)](
        part, stats, *out, slopes, count, stats.stride(1), channels // 8, 1 / values, float(live),
        GROUPS=groups, BP=PARTS if count > FEW_PARTS else FEW_PARTS, BC=FEW, num_warps=2,
    )  # fmt: skip
    return slopes


@kernel
def _norm_add(
    z: tl.tensor,
    stats: tl.tensor,
    keep: tl.tensor,
    skip: tl.tensor,
    out: tl.tensor,
    rows: int,
    pixels: int,
    length: int,
    has_skip: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    columns = tl.cdiv(channels, BC)
    channel = tl.program_id(0) % columns * BC + tl.arange(0, BC)
    start = tl.program_id(0) // columns * BM
    row = start + tl.arange(0, BM)
    group = tl.program_id(1)
    inside = channel < channels
    mask = (row < rows)[:, None] & inside[None, :]
    place = (group.to(tl.int64) * rows + start) * channels + tl.arange(0, BM)[:, None] * channels + channel[None, :]
    scale = norm_row(stats, 2, group, length, channel, inside)
    shift = norm_row(stats, 3, group, length, channel, inside)
    share = tl.load(keep + (group * rows + row) // pixels, mask=(row < rows) & (has_skip != 0), other=1.0)
    y = tl.load(z + place, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    y = y * share[:, None] + tl.load(skip + place, mask=mask & (has_skip != 0), other=0.0).to(tl.float32)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=mask)


def norm_add(z: Tensor, stats: Tensor, pixels: int, skip: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the end of a block: (z scale + shift) keep[image] + input, the latter two where it has a skip.

    Args:
        z: (rows, channels).
        skip: keep, (images,) in float32, and the block's input.
    """
    rows, channels, groups = z.shape[0] // len(stats), z.shape[1], len(stats)
    keep, given = skip or (stats, z)
    out = torch.empty_like(z)
    grid = (tiles.blocks(channels, tiles.CHANNELS) * tiles.blocks(rows, tiles.ROWS), groups)
    _norm_add[grid](
        z, stats, keep, given, out, rows, pixels, stats.stride(1), int(skip is not None), channels // 8,
        BM=tiles.ROWS, BC=tiles.CHANNELS,
    )  # fmt: skip
    return out


@kernel
def _linear_sums(
    d_out: tl.tensor,
    z: tl.tensor,
    keep: tl.tensor,
    part: tl.tensor,
    rows: int,
    pixels: int,
    run: int,
    has_skip: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    group = tl.program_id(2)
    first = group.to(tl.int64) * rows
    inside = channel < channels
    total = tl.zeros((BM, BC), tl.float32)
    with_z = tl.zeros((BM, BC), tl.float32)
    start = tl.program_id(1) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(rows, BM)), num_stages=STAGES):
        row = tile * BM + tl.arange(0, BM)
        mask = (row < rows)[:, None] & inside[None, :]
        place = (first + tile * BM) * channels + tl.arange(0, BM)[:, None] * channels + channel[None, :]
        share = tl.load(keep + (group * rows + row) // pixels, mask=(row < rows) & (has_skip != 0), other=1.0)
        d_y = tl.load(d_out + place, mask=mask, other=0.0).to(tl.float32) * share[:, None]
        total += d_y
        with_z += d_y * tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
    place = part + (group * tl.num_programs(1) + tl.program_id(1)) * 2 * channels + channel
    tl.store(place, tl.sum(total, 0), mask=inside)
    tl.store(place + channels, tl.sum(with_z, 0), mask=inside)


def linear_sums(d_out: Tensor, z: Tensor, groups: int, pixels: int, keep: Tensor | None) -> Tensor:
    """Return partial sums of dy and dy z for the norm at the end of a block, (groups, parts, 2, channels)."""
    rows, channels = z.shape[0] // groups, z.shape[1]
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(rows, tiles.ROWS)
    run = tiles.run(steps, columns * groups, tiles.PROGRAMS // 2)
    part = torch.empty(groups, tiles.blocks(steps, run), 2, channels, device=z.device)
    _linear_sums[(columns, part.shape[1], groups)](
        d_out, z, part if keep is None else keep, part, rows, pixels, run, int(keep is not None), channels // 8,
        BM=tiles.ROWS, BC=tiles.CHANNELS, STAGES=1,
    )  # fmt: skip
    return part


@kernel
def _linear_back(
    d_out: tl.tensor,
    z: tl.tensor,
    keep: tl.tensor,
    stats: tl.tensor,
    slopes: tl.tensor,
    d_z: tl.tensor,
    rows: int,
    pixels: int,
    length: int,
    has_skip: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    columns = tl.cdiv(channels, BC)
    channel = tl.program_id(0) % columns * BC + tl.arange(0, BC)
    start = tl.program_id(0) // columns * BM
    row = start + tl.arange(0, BM)
    group = tl.program_id(1)
    inside = channel < channels
    mask = (row < rows)[:, None] & inside[None, :]
    place = (group.to(tl.int64) * rows + start) * channels + tl.arange(0, BM)[:, None] * channels + channel[None, :]
    share = tl.load(keep + (group * rows + row) // pixels, mask=(row < rows) & (has_skip != 0), other=1.0)
    scale = norm_row(stats, 2, group, length, channel, inside)
    slope = tl.load(slopes + group * 2 * channels + channel, mask=inside, other=0.0)
    offset = tl.load(slopes + (group * 2 + 1) * channels + channel, mask=inside, other=0.0)
    d_y = tl.load(d_out + place, mask=mask, other=0.0).to(tl.float32) * share[:, None]
    value = d_y * scale[None, :] + offset[None, :]
    value += slope[None, :] * tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(d_z + place, value.to(d_z.dtype.element_ty), mask=mask)


def linear_back(d_out: Tensor, z: Tensor, stats: Tensor, slopes: Tensor, pixels: int, keep: Tensor | None) -> Tensor:
    """Return dz of the norm at the end of a block, given the gradient of the block's output."""
    rows, channels, groups = z.shape[0] // len(stats), z.shape[1], len(stats)
    d_z = torch.empty_like(z)
    grid = (tiles.blocks(channels, tiles.CHANNELS) * tiles.blocks(rows, tiles.ROWS), groups)
    _linear_back[grid](
        d_out, z, stats if keep is None else keep, stats, slopes, d_z, rows, pixels, stats.stride(1),
        int(keep is not None), channels // 8, BM=tiles.ROWS, BC=tiles.CHANNELS,
    )  # fmt: skip
    return d_z
