"""The stem's 3 x 3 convolution of stride 2 as a matrix product: each output pixel's 27 inputs side by side."""

import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda.kernels_common import kernel
from fedperl.engines.cuda.tiles import blocks

TAPS = 32  # 27, rounded up to what a matrix product takes; the rest is zero


@kernel
def _stem_columns(
    images: tl.tensor,
    mean: tl.tensor,
    std: tl.tensor,
    out: tl.tensor,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    top: int,
    left: int,
    stride_n: int,
    stride_c: int,
    stride_h: int,
    stride_w: int,
    BP: tl.constexpr,
    TAPS: tl.constexpr,
) -> None:
    pixel = tl.program_id(0) * BP + tl.arange(0, BP)
    image = tl.program_id(1)
    tap = tl.arange(0, TAPS)
    colour = tap // 9
    row = (pixel // out_width * 2 - top)[:, None] + (tap % 9 // 3)[None, :]
    column = (pixel % out_width * 2 - left)[:, None] + (tap % 3)[None, :]
    known = (pixel < out_height * out_width)[:, None] & (tap < 27)[None, :]
    inside = known & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = colour[None, :] * stride_c + row * stride_h + column * stride_w
    value = tl.load(images + image.to(tl.int64) * stride_n + place, mask=inside, other=0.0).to(tl.float32)
    centre = tl.load(mean + colour, mask=tap < 27, other=0.0)
    spread = tl.load(std + colour, mask=tap < 27, other=1.0)
    value = tl.where(inside, (value - centre[None, :]) / spread[None, :], 0.0)
    start = out + image.to(tl.int64) * out_height * out_width * TAPS
    mask = (pixel < out_height * out_width)[:, None] & (tap < TAPS)[None, :]
    tl.store(start + pixel[:, None] * TAPS + tap[None, :], value.to(out.dtype.element_ty), mask=mask)


def stem_columns(
    images: Tensor, mean: Tensor, std: Tensor, out: Tensor, size: tuple[int, int], padding: tuple[int, int]
) -> None:
    """Write the scaled inputs of each output pixel, in the order of the weights, to out: (n * pixels, 32).

    Args:
        images: (n, 3, h, w) in any memory format.
        size: of the output, (height, width).
        padding: rows above and columns to the left.
    """
    n, _, height, width = images.shape
    grid = (blocks(size[0] * size[1], 64), n)
    _stem_columns[grid](
        images, mean, std, out, height, width, *size, *padding, *images.stride(), BP=64, TAPS=TAPS, num_warps=2
    )
