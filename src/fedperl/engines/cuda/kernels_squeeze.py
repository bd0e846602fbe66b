"""Squeeze-and-excitation: pooling of the activated depthwise output, the two small layers, and their gradients."""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import inline, kernel, norm_row, sigmoid, silu, silu_slope

SQUEEZED = 64  # of the widest squeezed layer, 48, a power of two
IMAGES, CHANNELS = 16, 64  # of a tile in the small layers


@kernel
def _pool(
    z: tl.tensor,
    given: tl.tensor,
    stats: tl.tensor,
    part: tl.tensor,
    pixels: int,
    images: int,
    run: int,
    length: int,
    channels8: int,
    SUMS: tl.constexpr,
    GIVEN: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(2)
    group = image // images
    inside = channel < channels
    scale = norm_row(stats, 2, group, length, channel, inside)
    shift = norm_row(stats, 3, group, length, channel, inside)
    total = tl.zeros((BM, BC), tl.float32)
    slopes = tl.zeros((BM, BC), tl.float32)
    with_z = tl.zeros((BM, BC), tl.float32)
    first = image.to(tl.int64) * pixels * channels
    start = tl.program_id(1) * run
    for tile in tl.range(start, tl.minimum(start + run, tl.cdiv(pixels, BM)), num_stages=STAGES):
        pixel = tile * BM + tl.arange(0, BM)
        mask = (pixel < pixels)[:, None] & inside[None, :]
        place = first + pixel[:, None] * channels + channel[None, :]
        value = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        y = value * scale[None, :] + shift[None, :]
        if GIVEN:
            weight = tl.load(given + place, mask=mask, other=0.0).to(tl.float32)
        else:
            weight = tl.where(mask, 1.0, 0.0)
        total += weight * silu(y)
        if SUMS == 3:
            slope = weight * silu_slope(y)
            slopes += slope
            with_z += slope * value
    place = part + (image * tl.num_programs(1) + tl.program_id(1)) * SUMS * channels + channel
    tl.store(place, tl.sum(total, 0), mask=inside)
    if SUMS == 3:
        tl.store(place + channels, tl.sum(slopes, 0), mask=inside)
        tl.store(place + 2 * channels, tl.sum(with_z, 0), mask=inside)


def pool_sums(z: Tensor, stats: Tensor, pixels: int, *, slopes: bool, given: Tensor | None = None) -> Tensor:
    """Return partial sums over pixels of silu(y), y = scale z + shift: (images, parts, 1 or 3, channels).

    Args:
        slopes: also of silu'(y) and of silu'(y) z, which the backward pass needs.
        given: what multiplies all of them, of z's shape; nothing unless given.
    """
    images, channels = z.shape[0] // pixels, z.shape[1]
    columns, steps = tiles.blocks(channels, tiles.CHANNELS), tiles.blocks(pixels, tiles.PIXELS)
    run = tiles.run(steps, columns * images)
    part = torch.empty(images, tiles.blocks(steps, run), 3 if slopes else 1, channels, device=z.device)
    _pool[(columns, part.shape[1], images)](
        z, z if given is None else given, stats, part, pixels, images // len(stats), run, stats.stride(1),
        channels // 8, SUMS=part.shape[2], GIVEN=given is not None, BM=tiles.PIXELS, BC=tiles.CHANNELS,
        STAGES=tiles.stages(z, 2 if given is None else 3), num_warps=2,
    )  # fmt: skip
    return part


@inline
def _added(place: tl.tensor, mask: tl.tensor, count: tl.tensor, stride: tl.tensor) -> tl.tensor:
    """Return the sum of `count` tiles of float32, `stride` elements apart."""
    total = tl.zeros(place.shape, tl.float32)
    for start in range(0, count, 4):
        for step in tl.static_range(4):
            total += tl.load(place + (start + step) * stride, mask=mask & (start + step < count), other=0.0)
    return total


@kernel
def _squeeze(
    part: tl.tensor,
    weight: tl.tensor,
    pooled: tl.tensor,
    hidden: tl.tensor,
    images: int,
    parts: int,
    squeezed: int,
    pixels: int,
    channels8: int,
    SUMS: tl.constexpr,
    BI: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(1) * BI + tl.arange(0, BI)
    unit = tl.arange(0, BR)
    inside = channel < channels
    mask = (image < images)[:, None] & inside[None, :]
    for quantity in tl.static_range(SUMS):
        place = part + image[:, None] * (parts * SUMS * channels) + (quantity * channels + channel)[None, :]
        total = _added(place, mask, parts, SUMS * channels)
        if quantity == 0:
            total = total / pixels
            place = weight + unit[None, :] * channels + channel[:, None]
            taps = tl.load(place, mask=inside[:, None] & (unit < squeezed)[None, :], other=0.0)
            before = tl.dot(total, taps, input_precision="tf32x3")
            place = hidden + (tl.program_id(0) * images + image)[:, None] * squeezed + unit[None, :]
            tl.store(place, before, mask=(image < images)[:, None] & (unit < squeezed)[None, :])
        tl.store(pooled + (image * SUMS + quantity)[:, None] * channels + channel[None, :], total, mask=mask)


@kernel
def _excite(
    part: tl.tensor,
    reduce_bias: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    hidden: tl.tensor,
    gate: tl.tensor,
    images: int,
    parts: int,
    squeezed: int,
    channels8: int,
    BI: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(1) * BI + tl.arange(0, BI)
    unit = tl.arange(0, BR)
    inside = channel < channels
    real = unit < squeezed
    mask = (image < images)[:, None] & real[None, :]
    place = image[:, None] * squeezed + unit[None, :]
    before = _added(part + place, mask, parts, images * squeezed)
    before += tl.load(reduce_bias + unit, mask=real, other=0.0)[None, :]
    tl.store(hidden + place, before, mask=mask & (tl.program_id(0) == 0))
    taps = tl.load(
        weight + channel[None, :] * squeezed + unit[:, None], mask=real[:, None] & inside[None, :], other=0.0
    )
    open = tl.dot(silu(before), taps, input_precision="tf32x3")
    open += tl.load(bias + channel, mask=inside, other=0.0)[None, :]
    mask = (image < images)[:, None] & inside[None, :]
    tl.store(gate + image[:, None] * channels + channel[None, :], sigmoid(open), mask=mask)


def squeeze_gate(
    part: Tensor, weights: tuple[Tensor, Tensor, Tensor, Tensor], pixels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pooled (images, 1 or 3, channels), hidden (images, squeezed) before its activation, and the gate.

    Args:
        part: of pool_sums; the first pooled quantity is the mean over pixels, the others stay sums.
        weights: weight and bias of the reducing layer, then of the expanding one, in float32.
    """
    images, parts, sums, channels = part.shape
    squeezed = weights[0].shape[0]
    if squeezed > SQUEEZED:
        raise ValueError(f"a squeezed layer has {squeezed} units; wanted at most {SQUEEZED}")
    grid = (tiles.blocks(channels, CHANNELS), tiles.blocks(images, IMAGES))
    sizes = {"BI": IMAGES, "BC": CHANNELS, "BR": SQUEEZED}
    pooled, before = part.new_empty(images, sums, channels), part.new_empty(grid[0], images, squeezed)
    hidden, gate = part.new_empty(images, squeezed), part.new_empty(images, channels)
    _squeeze[grid](part, weights[0], pooled, before, images, parts, squeezed, pixels, channels // 8, SUMS=sums, **sizes)
    _excite[grid](before, *weights[1:], hidden, gate, images, grid[0], squeezed, channels // 8, **sizes)
    return pooled, hidden, gate


@kernel
def _excite_back(
    part: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    d_open: tl.tensor,
    d_after: tl.tensor,
    images: int,
    parts: int,
    squeezed: int,
    channels8: int,
    BI: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(1) * BI + tl.arange(0, BI)
    unit = tl.arange(0, BR)
    inside = channel < channels
    real = unit < squeezed
    mask = (image < images)[:, None] & inside[None, :]
    total = _added(part + image[:, None] * (parts * 3 * channels) + channel[None, :], mask, parts, 3 * channels)
    share = tl.load(gate + image[:, None] * channels + channel[None, :], mask=mask, other=0.0)
    total = total * share * (1.0 - share)
    tl.store(d_open + image[:, None] * channels + channel[None, :], total, mask=mask)
    taps = tl.load(
        weight + channel[:, None] * squeezed + unit[None, :], mask=inside[:, None] & real[None, :], other=0.0
    )
    place = d_after + (tl.program_id(0) * images + image)[:, None] * squeezed + unit[None, :]
    mask = (image < images)[:, None] & real[None, :]
    tl.store(place, tl.dot(total, taps, input_precision="tf32x3"), mask=mask)


@kernel
def _squeeze_back(
    part: tl.tensor,
    d_after: tl.tensor,
    pooled: tl.tensor,
    hidden: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    d_hidden: tl.tensor,
    d_pooled: tl.tensor,
    sums: tl.tensor,
    images: int,
    parts: int,
    after_parts: int,
    squeezed: int,
    pixels: int,
    channels8: int,
    BI: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    image = tl.program_id(1) * BI + tl.arange(0, BI)
    unit = tl.arange(0, BR)
    inside = channel < channels
    real = unit < squeezed
    mask = (image < images)[:, None] & real[None, :]
    place = image[:, None] * squeezed + unit[None, :]
    d_before = _added(d_after + place, mask, after_parts, images * squeezed)
    d_before *= silu_slope(tl.load(hidden + place, mask=mask, other=0.0))
    tl.store(d_hidden + place, d_before, mask=mask & (tl.program_id(0) == 0))
    taps = tl.load(
        weight + unit[:, None] * channels + channel[None, :], mask=real[:, None] & inside[None, :], other=0.0
    )
    d_pool = tl.dot(d_before, taps, input_precision="tf32x3") / pixels
    mask = (image < images)[:, None] & inside[None, :]
    place = image[:, None] * channels + channel[None, :]
    tl.store(d_pooled + place, d_pool, mask=mask)
    share = tl.load(gate + place, mask=mask, other=0.0)
    for quantity in tl.static_range(2):
        place = image[:, None] * (parts * 3 * channels) + ((quantity + 1) * channels + channel)[None, :]
        total = _added(part + place, mask, parts, 3 * channels)
        place = (image * 3 + quantity + 1)[:, None] * channels + channel[None, :]
        slope = tl.load(pooled + place, mask=mask, other=0.0)
        place = (image * 2 + quantity)[:, None] * channels + channel[None, :]
        tl.store(sums + place, share * total + d_pool * slope, mask=mask)


def squeeze_back(
    part: Tensor, saved: tuple[Tensor, Tensor, Tensor], weights: tuple[Tensor, Tensor], pixels: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return d_open (images, channels), d_hidden, d_pooled over pixels, and the sums for the norm before the gate.

    The norm's gradient dy = (dA gate + d_pooled) silu'(y) is linear in the gate and in d_pooled, both constant over
    an image: its sums follow from sums that were taken before either was known, (images, 1, 2, channels).

    Args:
        part: (images, parts, 3, channels), partial sums of dA silu(y), dA silu'(y) and dA silu'(y) z.
        saved: what squeeze_gate returned.
        weights: of the reducing and of the expanding layer.
    """
    images, parts, _, channels = part.shape
    pooled, hidden, gate = saved
    squeezed = hidden.shape[1]
    grid = (tiles.blocks(channels, CHANNELS), tiles.blocks(images, IMAGES))
    sizes = {"BI": IMAGES, "BC": CHANNELS, "BR": SQUEEZED}
    d_open, d_pooled, d_hidden = torch.empty_like(gate), torch.empty_like(gate), torch.empty_like(hidden)
    sums, d_after = part.new_empty(images, 1, 2, channels), part.new_empty(grid[0], images, squeezed)
    _excite_back[grid](part, gate, weights[1], d_open, d_after, images, parts, squeezed, channels // 8, **sizes)
    _squeeze_back[grid](
        part, d_after, pooled, hidden, gate, weights[0], d_hidden, d_pooled, sums,
        images, parts, grid[0], squeezed, pixels, channels // 8, **sizes,
    )  # fmt: skip
    return d_open, d_hidden, d_pooled, sums


@kernel
def _gate_weights(
    pooled: tl.tensor,
    hidden: tl.tensor,
    d_open: tl.tensor,
    d_hidden: tl.tensor,
    reduce_weight: tl.tensor,
    reduce_bias: tl.tensor,
    expand_weight: tl.tensor,
    expand_bias: tl.tensor,
    images: int,
    squeezed: int,
    channels8: int,
    BI: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    unit = tl.arange(0, BR)
    real = unit < squeezed
    reducing = tl.zeros((BR, BC), tl.float32)
    expanding = tl.zeros((BC, BR), tl.float32)
    opening = tl.zeros((BI, BC), tl.float32)
    hiding = tl.zeros((BI, BR), tl.float32)
    for start in range(0, images, BI):
        image = start + tl.arange(0, BI)
        wide = (image < images)[:, None] & inside[None, :]
        narrow = (image < images)[:, None] & real[None, :]
        d_y = tl.load(d_open + image[:, None] * channels + channel[None, :], mask=wide, other=0.0)
        d_h = tl.load(d_hidden + image[:, None] * squeezed + unit[None, :], mask=narrow, other=0.0)
        mean = tl.load(pooled + image[:, None] * (3 * channels) + channel[None, :], mask=wide, other=0.0)
        after = silu(tl.load(hidden + image[:, None] * squeezed + unit[None, :], mask=narrow, other=0.0))
        expanding = tl.dot(tl.trans(d_y), after, expanding, input_precision="tf32x3")
        reducing = tl.dot(tl.trans(d_h), mean, reducing, input_precision="tf32x3")
        opening += d_y
        hiding += d_h
    mask = inside[:, None] & real[None, :]
    tl.store(expand_weight + channel[:, None] * squeezed + unit[None, :], expanding, mask=mask)
    mask = real[:, None] & inside[None, :]
    tl.store(reduce_weight + unit[:, None] * channels + channel[None, :], reducing, mask=mask)
    tl.store(expand_bias + channel, tl.sum(opening, 0), mask=inside)
    tl.store(reduce_bias + unit, tl.sum(hiding, 0), mask=real & (tl.program_id(0) == 0))


def squeeze_weights_back(
    saved: tuple[Tensor, Tensor], d_open: Tensor, d_hidden: Tensor, out: tuple[Tensor, Tensor, Tensor, Tensor]
) -> None:
    """Write the gradients of both layers' weights and biases to out, summed over images in their order.

    Args:
        saved: pooled and hidden of squeeze_gate.
    """
    images, channels = d_open.shape
    _gate_weights[(tiles.blocks(channels, CHANNELS),)](
        *saved, d_open, d_hidden, *out, images, d_hidden.shape[1], channels // 8,
        BI=2 * IMAGES, BC=CHANNELS, BR=SQUEEZED,
    )  # fmt: skip
