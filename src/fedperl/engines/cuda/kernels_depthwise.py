"""The depthwise convolutions, forward and backward.

A program owns a block of channels and lanes: a lane is one column of a strip of rows in one image. Going down the
strip, each input is loaded once for a column of the kernel and used for every row of outputs it reaches.
"""

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda import tiles
from fedperl.engines.cuda.kernels_common import inline, kernel, norm_row, silu

LANES = 16
STRIP = 7  # rows of a strip: divides 112, 56, 28, 14 and 7
ALL_COLUMNS = 3  # widest kernel whose weight gradient is summed in one program
STRIP_BACK = {1: 7, 2: 4}  # rows of the gradient that reach a strip of inputs, by stride


@dataclass(frozen=True)
class Window:
    """A depthwise convolution's geometry: kernel, stride, padding above and to the left, sizes in and out."""

    kernel: int
    stride: int
    padding: tuple[int, int]
    size: tuple[int, int]
    out: tuple[int, int]


@kernel
def _depthwise_forward(
    x: tl.tensor,
    weight: tl.tensor,
    stats: tl.tensor,
    out: tl.tensor,
    part: tl.tensor,
    images: int,
    strips: int,
    run: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    length: int,
    channels8: int,
    ACTIVE: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    R: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    group = tl.program_id(2)
    inside = channel < channels
    if ACTIVE:
        scale = norm_row(stats, 2, 0, length, channel, inside)
        shift = norm_row(stats, 3, 0, length, channel, inside)
    total = tl.zeros((BP, BC), tl.float32)
    squares = tl.zeros((BP, BC), tl.float32)
    start = tl.program_id(1) * run
    for tile in range(start, tl.minimum(start + run, tl.cdiv(images * strips * out_width, BP))):
        lane = tile * BP + tl.arange(0, BP)
        strip = lane // out_width
        column = lane % out_width
        image = strip // strips
        top = strip % strips * R
        present = image < images
        image = (group * images + image).to(tl.int64)
        source = x + (image * (height * width * channels))[:, None] + channel[None, :]
        goal = out + (image * (out_height * out_width * channels))[:, None] + channel[None, :]
        sums = (tl.zeros((BP, BC), tl.float32),) * R
        for j in range(K):
            w = column * S + j - LEFT
            across = present & (w >= 0) & (w < width)
            taps: tl.tuple = ()
            for i in tl.static_range(K):
                taps += (tl.load(weight + (i * K + j) * channels + channel, mask=inside, other=0.0),)
            for step in tl.static_range(S * (R - 1) + K):
                h = top * S + step - TOP
                mask = (across & (h >= 0) & (h < height))[:, None] & inside[None, :]
                value = tl.load(source + ((h * width + w) * channels)[:, None], mask=mask, other=0.0).to(tl.float32)
                more: tl.tuple = ()
                for r in tl.static_range(R):
                    if (step - S * r >= 0) and (step - S * r < K):
                        more += (sums[r] + value * taps[step - S * r][None, :],)
                    else:
                        more += (sums[r],)
                sums = more
        for r in tl.static_range(R):
            mask = (present & (top + r < out_height))[:, None] & inside[None, :]
            value = tl.where(mask, silu(sums[r] * scale[None, :] + shift[None, :]) if ACTIVE else sums[r], 0.0)
            place = goal + (((top + r) * out_width + column) * channels)[:, None]
            tl.store(place, value.to(out.dtype.element_ty), mask=mask)
            total += value
            if not ACTIVE:
                squares += value * value
    place = part + (group * tl.num_programs(1) + tl.program_id(1)) * (1 if ACTIVE else 2) * channels + channel
    tl.store(place, tl.sum(total, 0), mask=inside)
    if not ACTIVE:
        tl.store(place + channels, tl.sum(squares, 0), mask=inside)


def depthwise_forward(x: Tensor, weight: Tensor, window: Window, groups: int) -> tuple[Tensor, Tensor]:
    """Return the convolution z, (rows, channels), and partial sums of z and z^2, (groups, parts, 2, channels).

    Args:
        x: (images * height * width, channels).
        weight: (kernel * kernel, channels) in float32.
    """
    return _forward(x, weight, window, groups, None)


def depthwise_active(x: Tensor, weight: Tensor, window: Window, stats: Tensor) -> tuple[Tensor, Tensor]:
    """Return silu(scale z + shift) with known statistics, and its partial sums, (images, parts, 1, channels)."""
    return _forward(x, weight, window, x.shape[0] // (window.size[0] * window.size[1]), stats)


def _forward(x: Tensor, weight: Tensor, window: Window, groups: int, stats: Tensor | None) -> tuple[Tensor, Tensor]:
    images, channels = x.shape[0] // (window.size[0] * window.size[1]), x.shape[1]
    strips, columns = tiles.blocks(window.out[0], STRIP), tiles.blocks(channels, tiles.CHANNELS)
    each = images // groups * strips * window.out[1]
    lanes = LANES if each > LANES // 2 else LANES // 2  # a single image may have no more than 7
    run = tiles.run(tiles.blocks(each, lanes), columns * groups)
    out = x.new_empty(images * window.out[0] * window.out[1], channels)
    parts = tiles.blocks(tiles.blocks(each, lanes), run)
    part = torch.empty(groups, parts, 2 if stats is None else 1, channels, device=x.device)
    norm = part if stats is None else stats
    _depthwise_forward[(columns, parts, groups)](
        x, weight, norm, out, part, images // groups, strips, run, *window.size, *window.out, norm.stride(1),
        channels // 8, ACTIVE=stats is not None, S=window.stride, K=window.kernel, TOP=window.padding[0],
        LEFT=window.padding[1], R=STRIP, BP=lanes, BC=tiles.CHANNELS, num_warps=4 if lanes == LANES else 2,
    )  # fmt: skip
    return out, part


@inline
def _column_taps(
    weight: tl.tensor,
    channel: tl.tensor,
    inside: tl.tensor,
    channels: tl.tensor,
    j: tl.tensor,
    S: tl.constexpr,
    K: tl.constexpr,
) -> tl.tensor:
    """Return the taps of kernel columns j to j + S - 1, row after row; zero for columns the kernel does not have."""
    taps: tl.tuple = ()
    for i in tl.static_range(K):
        for c in tl.static_range(S):
            mask = inside & (j + c >= 0) & (j + c < K)
            taps += (tl.load(weight + (i * K + j + c) * channels + channel, mask=mask, other=0.0),)
    return taps


@kernel
def _depthwise_back(
    d_out: tl.tensor,
    weight: tl.tensor,
    d_x: tl.tensor,
    images: int,
    strips: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    channels8: int,
    S: tl.constexpr,
    K: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    R: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    blocks = tl.cdiv(channels, BC)
    channel = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    lane = tl.program_id(0) // blocks * BP + tl.arange(0, BP)
    inside = channel < channels
    columns = tl.cdiv(width, S)
    strip = lane // columns
    column = lane % columns
    image = (strip // strips).to(tl.int64)
    top = strip % strips * R
    present = image < images
    d_out += (image * (out_height * out_width * channels))[:, None] + channel[None, :]
    d_x += (image * (height * width * channels))[:, None] + channel[None, :]
    # an output row a reaches the input rows S a + i - TOP: of a strip's rows, those from UP before it on
    UP: tl.constexpr = (K - 1 - TOP) // S
    BEFORE: tl.constexpr = (K - 1 - LEFT) // S
    sums = (tl.zeros((BP, BC), tl.float32),) * (S * R * S)
    for left in range(BEFORE + (S - 1 + LEFT) // S + 1):
        w = column + left - BEFORE
        across = present & (w >= 0) & (w < out_width)
        taps = _column_taps(weight, channel, inside, channels, LEFT - S * (left - BEFORE), S, K)
        for step in tl.static_range(UP + (S * R - 1 + TOP) // S + 1):
            h = top + step - UP
            mask = (across & (h >= 0) & (h < out_height))[:, None] & inside[None, :]
            value = tl.load(d_out + ((h * out_width + w) * channels)[:, None], mask=mask, other=0.0).to(tl.float32)
            more: tl.tuple = ()
            for r in tl.static_range(S * R):
                for c in tl.static_range(S):
                    if (r + TOP - S * (step - UP) >= 0) and (r + TOP - S * (step - UP) < K):
                        more += (sums[r * S + c] + value * taps[(r + TOP - S * (step - UP)) * S + c][None, :],)
                    else:
                        more += (sums[r * S + c],)
            sums = more
    for r in tl.static_range(S * R):
        for c in tl.static_range(S):
            h = top * S + r
            w = column * S + c
            mask = (present & (h < height) & (w < width))[:, None] & inside[None, :]
            tl.store(d_x + ((h * width + w) * channels)[:, None], sums[r * S + c].to(d_x.dtype.element_ty), mask=mask)


def depthwise_back(d_out: Tensor, weight: Tensor, window: Window) -> Tensor:
    """Return the gradient of the convolution's input, (images * height * width, channels)."""
    images, channels = d_out.shape[0] // (window.out[0] * window.out[1]), d_out.shape[1]
    rows = STRIP_BACK[window.stride]
    strips = tiles.blocks(window.size[0], rows * window.stride)
    lanes = images * strips * tiles.blocks(window.size[1], window.stride)
    d_x = d_out.new_empty(images * window.size[0] * window.size[1], channels)
    _depthwise_back[(tiles.blocks(channels, tiles.CHANNELS) * tiles.blocks(lanes, LANES),)](
        d_out, weight, d_x, images, strips, *window.size, *window.out, channels // 8,
        S=window.stride, K=window.kernel, TOP=window.padding[0], LEFT=window.padding[1],
        R=rows, BP=LANES, BC=tiles.CHANNELS,
    )  # fmt: skip
    return d_x


@kernel
def _depthwise_weight(
    x: tl.tensor,
    d_out: tl.tensor,
    part: tl.tensor,
    images: int,
    strips: int,
    run: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    channels8: int,
    S: tl.constexpr,
    K: tl.constexpr,
    J: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    R: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    channels = channels8 * 8
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    first = tl.program_id(2) * J
    sums = (tl.zeros((BP, BC), tl.float32),) * (J * K)
    start = tl.program_id(1) * run
    for tile in range(start, tl.minimum(start + run, tl.cdiv(images * strips * out_width, BP))):
        lane = tile * BP + tl.arange(0, BP)
        strip = lane // out_width
        column = lane % out_width
        image = (strip // strips).to(tl.int64)
        top = strip % strips * R
        present = image < images
        source = x + (image * (height * width * channels))[:, None] + channel[None, :]
        given = d_out + (image * (out_height * out_width * channels))[:, None] + channel[None, :]
        d_y: tl.tuple = ()
        for r in tl.static_range(R):
            mask = (present & (top + r < out_height))[:, None] & inside[None, :]
            value = tl.load(given + (((top + r) * out_width + column) * channels)[:, None], mask=mask, other=0.0)
            d_y += (value.to(tl.float32),)
        for j in tl.static_range(J):
            w = column * S + first + j - LEFT
            across = present & (w >= 0) & (w < width)
            for step in tl.static_range(S * (R - 1) + K):
                h = top * S + step - TOP
                mask = (across & (h >= 0) & (h < height))[:, None] & inside[None, :]
                value = tl.load(source + ((h * width + w) * channels)[:, None], mask=mask, other=0.0).to(tl.float32)
                more: tl.tuple = ()
                for c in tl.static_range(J):
                    for i in tl.static_range(K):
                        if (c == j) and (step >= i) and (step - i < S * R) and ((step - i) % S == 0):
                            more += (sums[c * K + i] + value * d_y[(step - i) // S],)
                        else:
                            more += (sums[c * K + i],)
                sums = more
    for j in tl.static_range(J):
        for i in tl.static_range(K):
            place = part + (tl.program_id(1) * channels + channel) * (K * K) + i * K + first + j
            tl.store(place, tl.sum(sums[j * K + i], 0), mask=inside)


def depthwise_weight_parts(window: Window, images: int, channels: int) -> tuple[int, int]:
    """Return how many parts the weight's gradient is summed in, and the tiles of lanes in each."""
    steps = tiles.blocks(images * tiles.blocks(window.out[0], STRIP) * window.out[1], LANES)
    beside = tiles.blocks(channels, tiles.CHANNELS) * (window.kernel // _columns(window))
    run = tiles.run(steps, beside, tiles.PROGRAMS // 2)
    return tiles.blocks(steps, run), run


def _columns(window: Window) -> int:
    """Return the columns of the kernel whose sums one program keeps: what registers hold."""
    return window.kernel if window.kernel <= ALL_COLUMNS else 1


def depthwise_weight_back(x: Tensor, d_out: Tensor, part: Tensor, window: Window) -> None:
    """Write partial sums of the weight's gradient to part: (parts, channels, kernel * kernel)."""
    images, channels = x.shape[0] // (window.size[0] * window.size[1]), x.shape[1]
    parts, run = depthwise_weight_parts(window, images, channels)
    columns = _columns(window)
    _depthwise_weight[(tiles.blocks(channels, tiles.CHANNELS), parts, window.kernel // columns)](
        x, d_out, part, images, tiles.blocks(window.out[0], STRIP), run, *window.size, *window.out, channels // 8,
        S=window.stride, K=window.kernel, J=columns, TOP=window.padding[0], LEFT=window.padding[1],
        R=STRIP, BP=LANES, BC=tiles.CHANNELS,
    )  # fmt: skip
