"""The gradient of the weights of a block's first pointwise convolution and norm, and of the head's.

With z = x W^T, dz = scale (dy - m - u (z - mean)) and dy = dA silu'(y), the weight's gradient is
dW = scale (dy^T x - m sum(x) - u (z - mean)^T x): one pass over dA takes the sums that m, u and dW follow from, and
one over x the products x^T x, with which z^T x = W x^T x needs no z.
"""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import (
    active_gradient,
    kernel,
    norm_row,
    product,
    row_tile,
    row_tiles,
    silu_slope,
    weight_tiles,
)
from fedperl.engines.cuda.kernels_sums import sum_parts

FEW = 16  # channels of a program that makes the weight's gradient


@kernel
def _expand_weight_sums(
    x: tl.tensor,
    weight: tl.tensor,
    d_active: tl.tensor,
    stats: tl.tensor,
    part: tl.tensor,
    rows: int,
    pixels: int,
    run: int,
    length: int,
    width8: int,
    channels8: int,
    HEAD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    group = tl.program_id(2)
    row = tl.arange(0, BM)
    inside = channel < channels
    weights = weight_tiles(weight, channel, inside, width, BK, KB)
    scale = norm_row(stats, 2, group, length, channel, inside)
    shift = norm_row(stats, 3, group, length, channel, inside)
    d_sum = tl.zeros((BM, BC), tl.float32)
    d_x = (tl.zeros((BK, BC), tl.float32),) * KB
    start = tl.program_id(1) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(rows, BM)), num_stages=STAGES):
        first = group.to(tl.int64) * rows + tile * BM
        present = row < rows - tile * BM
        inputs = row_tiles(x + first * width, row, present, width, BK, KB)
        z = product(inputs, weights, KB)
        d_y = active_gradient(d_active, first, row, present, channels, channel, inside, pixels, HEAD)
        # rounded before any sum, so that all sums are of the same numbers
        d_y = (d_y * silu_slope(z * scale[None, :] + shift[None, :])).to(x.dtype.element_ty)
        more: tl.tuple = ()
        for block in tl.static_range(KB):
            more += (tl.dot(tl.trans(inputs[block]), d_y, d_x[block], input_precision="tf32x3"),)
        d_x = more
        d_sum += d_y.to(tl.float32)
    part += (group.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * ((channels + width) * (width + 1))
    for block in tl.static_range(KB):
        k = block * BK + tl.arange(0, BK)
        place = part + channel[None, :] * width + k[:, None]
        tl.store(place, d_x[block], mask=inside[None, :] & (k < width)[:, None])
    tl.store(part + channels * width + channel, tl.sum(d_sum, 0), mask=inside)


@kernel
def _gram(
    x: tl.tensor,
    part: tl.tensor,
    rows: int,
    run: int,
    width8: int,
    channels8: int,
    BM: tl.constexpr,
    BK: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    group = tl.program_id(2)
    row = tl.arange(0, BM)
    x_sum = tl.zeros((BK,), tl.float32)
    squares = tl.zeros((BK, BK), tl.float32)
    begin = tl.program_id(1) * run
    end = tl.minimum(begin + run, rows)
    for start in tl.range(begin, end, BM, num_stages=STAGES):
        source = x + (group.to(tl.int64) * rows + start) * width
        inputs = row_tile(source, row, row < end - start, width, tl.program_id(0) // KB, BK)
        others = inputs
        if KB > 1:
            others = row_tile(source, row, row < end - start, width, tl.program_id(0) % KB, BK)
        squares = tl.dot(tl.trans(inputs), others, squares, input_precision="tf32x3")
        x_sum += tl.sum(inputs.to(tl.float32), 0)
    part += (group.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * ((channels + width) * (width + 1))
    part += channels * (width + 1)
    one = tl.program_id(0) // KB * BK + tl.arange(0, BK)
    other = tl.program_id(0) % KB * BK + tl.arange(0, BK)
    place = part + one[:, None] * width + other[None, :]
    tl.store(place, squares, mask=(one < width)[:, None] & (other < width)[None, :])
    tl.store(part + width * width + one, x_sum, mask=(one < width) & (tl.program_id(0) % KB == 0))


@kernel
def _expand_weight(
    sums: tl.tensor,
    weight: tl.tensor,
    stats: tl.tensor,
    d_weight: tl.tensor,
    d_gain: tl.tensor,
    d_bias: tl.tensor,
    slopes: tl.tensor,
    groups: int,
    length: int,
    width8: int,
    out_width: int,
    channels8: int,
    one_over: float,
    live: float,
    PRECISION: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    inside = channel < channels
    mine = inside[:, None] & (k < width)[None, :]
    gradient = tl.zeros((BC, BK), tl.float32)
    gain_sum = tl.zeros((BC,), tl.float32)
    bias_sum = tl.zeros((BC,), tl.float32)
    gram = channels * (width + 1)
    for group in range(groups):
        d_yz = tl.zeros((BC,), tl.float32)
        z_x = tl.zeros((BC, BK), tl.float32)
        for start in range(0, width, BK):
            column = start + tl.arange(0, BK)
            mask = inside[:, None] & (column < width)[None, :]
            place = channel[:, None] * width + column[None, :]
            taps = tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
            d_yz += tl.sum(taps * tl.load(sums + place, mask=mask, other=0.0), 1)
            mask = (column < width)[:, None] & (k < width)[None, :]
            squares = tl.load(sums + gram + column[:, None] * width + k[None, :], mask=mask, other=0.0)
            z_x = tl.dot(taps, squares, z_x, input_precision=PRECISION)
        d_x = tl.load(sums + channel[:, None] * width + k[None, :], mask=mine, other=0.0)
        d_y = tl.load(sums + channels * width + channel, mask=inside, other=0.0)
        x_sum = tl.load(sums + gram + width * width + k, mask=k < width, other=0.0)
        mean = norm_row(stats, 0, group, length, channel, inside)
        inverse = norm_row(stats, 1, group, length, channel, inside)
        scale = norm_row(stats, 2, group, length, channel, inside)
        d_yx = inverse * (d_yz - mean * d_y)
        gain_sum += d_yx
        bias_sum += d_y
        middle = d_y * one_over * live
        lean = inverse * d_yx * one_over * live
        gradient += scale[:, None] * (d_x - (middle - lean * mean)[:, None] * x_sum[None, :] - lean[:, None] * z_x)
        out = slopes + group * 2 * channels + channel
        tl.store(out, -scale * lean, mask=inside)
        tl.store(out + channels, scale * (lean * mean - middle), mask=inside)
        sums += (channels + width) * (width + 1)
    tl.store(d_weight + channel[:, None] * out_width + k[None, :], gradient, mask=mine & (k < out_width)[None, :])
    tl.store(d_gain + channel, gain_sum, mask=inside)
    tl.store(d_bias + channel, bias_sum, mask=inside)


def expand_weight_back(
    x: Tensor,
    weight: Tensor,
    d_active: Tensor,
    stats: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
    *,
    live: bool,
    pixels: int | None = None,
) -> Tensor:
    """Write the gradients of the convolution's weight and of the norm's to out; return slope and offset of dz.

    Args:
        d_active: the gradient of the activated tensor, (rows, channels).
        out: the convolution's weight, (channels, at most width), then the norm's weight and bias.
        live: the statistics are the batch's own, and gradients flow through them.
        pixels: at the head, where d_active is that of the mean over them, (images, channels) in float32.
    """
    groups, rows, (channels, width) = len(stats), x.shape[0] // len(stats), weight.shape
    slopes = stats.new_empty(groups, 2, channels)
    block = 32 if width <= 32 else 64
    _expand_weight[(tiles.blocks(channels, FEW), tiles.blocks(width, block))](
        _gradient_sums(x, weight, d_active, stats, pixels), weight, stats, *out, slopes, groups, stats.stride(1),
        width // 8, out[0].shape[1], channels // 8, 1 / rows, float(live),
        PRECISION="tf32x3" if x.dtype == torch.float32 else "tf32", BC=FEW, BK=block,
    )  # fmt: skip
    return slopes


def _gradient_sums(x: Tensor, weight: Tensor, d_active: Tensor, stats: Tensor, pixels: int | None) -> Tensor:
    """Return for each group in a row dy^T x, the sums of dy, x^T x, and the sums of x."""
    groups, rows, (channels, width) = len(stats), x.shape[0] // len(stats), weight.shape
    block, count = tiles.inner(width)
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(rows, tiles.PIXELS)
    run = tiles.run(steps, columns * groups, tiles.PROGRAMS // 2 if count > 1 else tiles.PROGRAMS)
    parts = tiles.blocks(steps, run)
    part = torch.empty(groups, parts, (channels + width) * (width + 1), device=x.device)
    sizes = {"BK": block, "KB": count}
    _expand_weight_sums[(columns, parts, groups)](
        x, weight, d_active, stats, part, rows, pixels or 1, run, stats.stride(1), width // 8, channels // 8,
        HEAD=pixels is not None, BM=tiles.PIXELS, BC=tiles.CHANNELS, STAGES=tiles.stages(x, 3 if count == 1 else 2),
        **sizes,
    )  # fmt: skip
    _gram[(count * count, parts, groups)](
        x, part, rows, run * tiles.PIXELS, width // 8, channels // 8, BM=2 * tiles.PIXELS,
        STAGES=tiles.stages(x), **sizes,
    )  # fmt: skip
    return sum_parts(part)
