"""The second pointwise convolution of a block, of the normed, activated and gated output of the depthwise one."""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import kernel, norm_row, silu, silu_slope


@kernel
def _gated(
    z: tl.tensor,
    stats: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    pixels: int,
    images: int,
    run: int,
    length: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(2)
    inside = channel < channels
    scale = norm_row(stats, 2, image // images, length, channel, inside)[None, :]
    shift = norm_row(stats, 3, image // images, length, channel, inside)[None, :]
    share = tl.load(gate + image * channels + channel, mask=inside, other=0.0)[None, :]
    start = tl.program_id(1) * run
    for tile in range(start, tl.minimum(start + run, tl.cdiv(pixels, BM))):
        pixel = tile * BM + tl.arange(0, BM)
        mask = (pixel < pixels)[:, None] & inside[None, :]
        place = image.to(tl.int64) * pixels * channels + pixel[:, None] * channels + channel[None, :]
        value = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + place, (silu(value * scale + shift) * share).to(out.dtype.element_ty), mask=mask)


def gated_input(z: Tensor, stats: Tensor, gate: Tensor) -> Tensor:
    """Return silu(scale z + shift) gate, (rows, channels); gate: (images, channels) in float32."""
    (images, channels), pixels = gate.shape, z.shape[0] // len(gate)
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(pixels, tiles.PIXELS)
    run = tiles.run(steps, columns * images, 4 * tiles.PROGRAMS)
    out = torch.empty_like(z)
    _gated[(columns, tiles.blocks(steps, run), images)](
        z, stats, gate, out, pixels, images // len(stats), run, stats.stride(1), channels // 8,
        BM=tiles.PIXELS, BC=tiles.CHANNELS,
    )  # fmt: skip
    return out


@kernel
def _project_forward(
    x: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    part: tl.tensor,
    skip: tl.tensor,
    end: tl.tensor,
    rows: int,
    run: int,
    length: int,
    has_skip: int,
    width8: int,
    channels8: int,
    END: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    piece = tl.program_id(2)
    row = tl.arange(0, BM)
    inside = channel < channels
    total = tl.zeros((BC,), tl.float32)
    squares = tl.zeros((BC,), tl.float32)
    start = tl.program_id(1) * run
    for tile in range(start, tl.minimum(start + run, tl.cdiv(rows, BM))):
        present = row < rows - tile * BM
        first = piece.to(tl.int64) * rows + tile * BM
        value = tl.zeros((BM, BC), tl.float32)
        for begin in tl.range(0, width, BK, num_stages=STAGES):
            k = begin + tl.arange(0, BK)
            real = k < width
            source = x + first * width + row[:, None] * width + k[None, :]
            active = tl.load(source, mask=present[:, None] & real[None, :], other=0.0)
            if END:
                share = tl.load(gate + piece * width + k, mask=real, other=0.0)
                active = (active.to(tl.float32) * share[None, :]).to(x.dtype.element_ty)
            mask = inside[:, None] & real[None, :]
            taps = tl.load(weight + channel[:, None] * width + k[None, :], mask=mask, other=0.0)
            value = tl.dot(active, tl.trans(taps), value, input_precision="tf32x3")
        mask = present[:, None] & inside[None, :]
        place = first * channels + row[:, None] * channels + channel[None, :]
        if END:
            scale = norm_row(end, 2, 0, length, channel, inside)
            shift = norm_row(end, 3, 0, length, channel, inside)
            value = value * scale[None, :] + shift[None, :]
            value += tl.load(skip + place, mask=mask & (has_skip != 0), other=0.0).to(tl.float32)
        else:
            value = tl.where(mask, value, 0.0)
            total += tl.sum(value, 0)
            squares += tl.sum(value * value, 0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=mask)
    if not END:
        place = part + (piece * tl.num_programs(1) + tl.program_id(1)) * 2 * channels + channel
        tl.store(place, total, mask=inside)
        tl.store(place + channels, squares, mask=inside)


def project_forward(gated: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return x W^T, (rows, channels), and its partial sums and sums of squares, (groups, parts, 2, channels).

    Args:
        gated: x of gated_input, (rows, width).
        weight: (channels, width).
    """
    out, parts = gated.new_empty(len(gated), len(weight)), _runs(gated, weight, groups)[0]
    part = torch.empty(groups, parts, 2, len(weight), device=out.device)
    _launch(gated, part, weight, out, part, (out, part, 0), pieces=groups, end=False)
    return out, part


def project_end(active: Tensor, gate: Tensor, weight: Tensor, end: Tensor, skip: Tensor | None) -> Tensor:
    """Return the block's output where the statistics `end` of its last norm are known beforehand.

    Args:
        active: what the gate, (images, width) in float32, is yet to multiply.
    """
    out = active.new_empty(len(active), len(weight))
    last = (out if skip is None else skip, end, int(skip is not None))
    _launch(active, gate, weight, out, gate, last, pieces=len(gate), end=True)
    return out


def _rows(channels: int) -> int:
    """Return the rows of a tile: fewer where a row of outputs is cut into several blocks, which small images have."""
    return tiles.PIXELS if tiles.outer(channels) == 64 else 2 * tiles.PIXELS


def _runs(x: Tensor, weight: Tensor, pieces: int) -> tuple[int, int]:
    """Return the programs along each piece of the rows, and how many tiles each of them walks."""
    steps = tiles.blocks(len(x) // pieces, _rows(len(weight)))
    run = tiles.run(steps, pieces * tiles.blocks(len(weight), tiles.outer(len(weight))), 2 * tiles.PROGRAMS)
    return tiles.blocks(steps, run), run


def _launch(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    out: Tensor,
    part: Tensor,
    last: tuple[Tensor, Tensor, int],
    *,
    pieces: int,
    end: bool,
) -> None:
    channels, width = weight.shape
    programs, run = _runs(x, weight, pieces)
    block = tiles.outer(channels)
    skip, norm, has_skip = last
    _project_forward[(tiles.blocks(channels, block), programs, pieces)](
        x, gate, weight, out, part, skip, norm, len(x) // pieces, run, norm.stride(1), has_skip, width // 8,
        channels // 8, END=end, BM=_rows(channels), BC=block, BK=32 if block == 32 else 64,
        STAGES=tiles.stages(x, 4 if block == 64 and not end else 3), num_warps=8 if block == 128 else 4,
    )  # fmt: skip


@kernel
def _project_weight(
    d_out: tl.tensor,
    x: tl.tensor,
    part: tl.tensor,
    rows: int,
    run: int,
    width8: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    width = width8 * 8
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    row = tl.arange(0, BM)
    inside = channel < channels
    real = k < width
    total = tl.zeros((BK, BC), tl.float32)
    start = tl.program_id(2) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(rows, BM)), num_stages=STAGES):
        first = start.to(tl.int64) * BM + (tile - start) * BM
        present = (row < rows - tile * BM)[:, None]
        source = x + first * channels + row[:, None] * channels + channel[None, :]
        active = tl.load(source, mask=present & inside[None, :], other=0.0)
        source = d_out + first * width + row[:, None] * width + k[None, :]
        given = tl.load(source, mask=present & real[None, :], other=0.0)
        total = tl.dot(tl.trans(given), active, total, input_precision="tf32x3")
    place = part + (tl.program_id(2) * width + k[:, None]) * channels + channel[None, :]
    tl.store(place, total, mask=real[:, None] & inside[None, :])


def project_weight_parts(width: int, channels: int, rows: int) -> tuple[int, int]:
    """Return how many parts the weight's gradient is summed in, and the tiles of rows in each."""
    steps = tiles.blocks(rows, tiles.PIXELS)
    beside = tiles.blocks(channels, 2 * tiles.CHANNELS) * tiles.blocks(width, tiles.outer(width))
    run = tiles.run(steps, beside, tiles.PROGRAMS // 2)
    return tiles.blocks(steps, run), run


def project_weight_back(d_out: Tensor, gated: Tensor, part: Tensor) -> None:
    """Write partial sums of the weight's gradient to part: (parts, width, channels)."""
    (rows, width), channels = d_out.shape, gated.shape[1]
    parts, run = project_weight_parts(width, channels, rows)
    block = tiles.outer(width)
    _project_weight[(tiles.blocks(channels, 2 * tiles.CHANNELS), tiles.blocks(width, block), parts)](
        d_out, gated, part, rows, run, width // 8, channels // 8,
        BM=tiles.PIXELS, BC=2 * tiles.CHANNELS, BK=block, STAGES=tiles.stages(d_out, 3),
    )  # fmt: skip


@kernel
def _gated_back(
    d_active: tl.tensor,
    z: tl.tensor,
    stats: tl.tensor,
    gate: tl.tensor,
    d_pooled: tl.tensor,
    slopes: tl.tensor,
    pixels: int,
    images: int,
    run: int,
    length: int,
    channels8: int,
    BM: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(2)
    group = image // images
    inside = channel < channels
    scale = norm_row(stats, 2, group, length, channel, inside)[None, :]
    shift = norm_row(stats, 3, group, length, channel, inside)[None, :]
    share = tl.load(gate + image * channels + channel, mask=inside, other=0.0)[None, :]
    pool = tl.load(d_pooled + image * channels + channel, mask=inside, other=0.0)[None, :]
    slope = tl.load(slopes + group * 2 * channels + channel, mask=inside, other=0.0)[None, :]
    offset = tl.load(slopes + (group * 2 + 1) * channels + channel, mask=inside, other=0.0)[None, :]
    start = tl.program_id(1) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(pixels, BM)), num_stages=STAGES):
        pixel = tile * BM + tl.arange(0, BM)
        mask = (pixel < pixels)[:, None] & inside[None, :]
        place = image.to(tl.int64) * pixels * channels + pixel[:, None] * channels + channel[None, :]
        value = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        given = tl.load(d_active + place, mask=mask, other=0.0).to(tl.float32)
        d_y = (given * share + pool) * silu_slope(value * scale + shift)
        tl.store(d_active + place, (scale * d_y + slope * value + offset).to(d_active.dtype.element_ty), mask=mask)


def gated_back(d_active: Tensor, z: Tensor, stats: Tensor, squeeze: tuple[Tensor, Tensor], slopes: Tensor) -> Tensor:
    """Turn dA into dz of the norm before the gate, in place: scale (dA gate + d_pooled) silu' + slope z + offset.

    Args:
        squeeze: the gate and d_pooled, each (images, channels).
    """
    (images, channels), pixels = squeeze[0].shape, z.shape[0] // len(squeeze[0])
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(pixels, tiles.PIXELS)
    run = tiles.run(steps, columns * images, 4 * tiles.PROGRAMS)
    _gated_back[(columns, tiles.blocks(steps, run), images)](
        d_active, z, stats, *squeeze, slopes, pixels, images // len(stats), run, stats.stride(1), channels // 8,
        BM=tiles.PIXELS, BC=tiles.CHANNELS, STAGES=tiles.stages(z),
    )  # fmt: skip
    return d_active
