"""Views of images with one launch for all of a batch, whatever is done to each: pixels, and the weak view.

Images are (n, 3, h, w), float32 in [0, 1], or uint8 where they are first read. Products and sums come in the order of
data/views, each rounded by itself: many a result is rounded to 8-bit levels next, and a fused one may fall to the other
side. A program has one image, and reads nothing of the others.
"""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda.kernels_common import inline, kernel
from fedperl.engines.cuda.tiles import blocks

PIXELS = 512  # of a tile
WEAK_ENTRIES = tl.constexpr(9)  # matrix, brightness before saturation, saturation, brightness after it


@inline
def of_level(level: tl.tensor) -> tl.tensor:
    """Return level / 255 for whole numbers 0 to 255, to the last bit: only the second product is not exact."""
    return level * (257 / 65536) + level * (1 / 255 - 257 / 65536)


@inline
def read(plane: tl.tensor, place: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return pixels of one channel in [0, 1]; 0 where they are not inside."""
    value = tl.load(plane + place, mask=inside, other=0).to(tl.float32)
    if plane.dtype.element_ty == tl.uint8:
        value = of_level(value)
    return value


@inline
def rounded(x: tl.tensor) -> tl.tensor:
    """Return the nearest whole number, the even one of two, for |x| < 2^22: beside 1.5 * 2^23 floats have no others."""
    return (x + 12582912.0) - 12582912.0


@inline
def clipped(x: tl.tensor) -> tl.tensor:
    """Return x, brought back to [0, 1]."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@inline
def blend(degenerate: tl.tensor, image: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """Return `degenerate` at weight 0, the image at 1, beyond it above 1; clipped."""
    return clipped(image * weight + degenerate * (1.0 - weight))


@inline
def grey(red: tl.tensor, green: tl.tensor, blue: tl.tensor) -> tl.tensor:
    """Return the pixels' grey, as PIL weighs colours."""
    return red * 0.299 + green * 0.587 + blue * 0.114


@inline
def grey_at(image: tl.tensor, pixel: tl.tensor, pixels: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return the grey of an image of so many pixels, read at some of them."""
    red, green = read(image, pixel, inside), read(image + pixels, pixel, inside)
    return grey(red, green, read(image + 2 * pixels, pixel, inside))


@inline
def _place(matrix: tl.tensor, x: tl.tensor, y: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Return where along one side the output pixels x, y (from the centre) are read; the matrix counts half sides."""
    at = tl.load(matrix) * x + (tl.load(matrix + 1) * y + tl.load(matrix + 2))
    return (at + 1.0) * (size * 0.5) - 0.5


@inline
def _corner(
    plane: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    FILL: tl.constexpr,
) -> tl.tensor:
    """Return source pixels, measured from the fill: what lies outside the image is 0."""
    known = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.where(known, read(plane, row * width + column, known) - FILL, 0.0)


@inline
def moved(
    plane: tl.tensor,
    matrix: tl.tensor,
    pixel: tl.tensor,
    inside: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    FILL: tl.constexpr,
) -> tl.tensor:
    """Return pixels of one channel read bilinearly through the image's matrix."""
    x = (pixel % width).to(tl.float32) - (width - 1) * 0.5
    y = (pixel // width).to(tl.float32) - (height - 1) * 0.5
    at_x, at_y = _place(matrix, x, y, width), _place(matrix + 3, x, y, height)
    left, top = tl.floor(at_x), tl.floor(at_y)
    from_left, from_top = at_x - left, at_y - top
    to_right, to_bottom = 1.0 - from_left, 1.0 - from_top
    row, column = top.to(tl.int32), left.to(tl.int32)
    value = _corner(plane, row, column, inside, height, width, FILL) * (to_bottom * to_right)
    value += _corner(plane, row, column + 1, inside, height, width, FILL) * (to_bottom * from_left)
    value += _corner(plane, row + 1, column, inside, height, width, FILL) * (from_top * to_right)
    value += _corner(plane, row + 1, column + 1, inside, height, width, FILL) * (from_top * from_left)
    return clipped(value + FILL)


@kernel
def _weak(
    source: tl.tensor,
    target: tl.tensor,
    table: tl.tensor,
    first: int,
    height: int,
    width: int,
    BP: tl.constexpr,
    MOVES: tl.constexpr,
    JITTERS: tl.constexpr,
) -> None:
    pixels = height * width
    image, tile = tl.program_id(0) // tl.cdiv(pixels, BP), tl.program_id(0) % tl.cdiv(pixels, BP)
    pixel = tile * BP + tl.arange(0, BP)
    inside = pixel < pixels
    entries = table + (first + image) * WEAK_ENTRIES
    start = source + image.to(tl.int64) * 3 * pixels
    if MOVES:
        red = moved(start, entries, pixel, inside, height, width, 0.0)
        green = moved(start + pixels, entries, pixel, inside, height, width, 0.0)
        blue = moved(start + 2 * pixels, entries, pixel, inside, height, width, 0.0)
    else:
        red, green = read(start, pixel, inside), read(start + pixels, pixel, inside)
        blue = read(start + 2 * pixels, pixel, inside)
    if JITTERS:
        before, saturation, after = tl.load(entries + 6), tl.load(entries + 7), tl.load(entries + 8)
        red, green, blue = clipped(red * before), clipped(green * before), clipped(blue * before)
        shade = grey(red, green, blue)
        red = clipped(blend(shade, red, saturation) * after)
        green = clipped(blend(shade, green, saturation) * after)
        blue = clipped(blend(shade, blue, saturation) * after)
    out = target + image.to(tl.int64) * 3 * pixels + pixel * 3
    tl.store(out, red, mask=inside)
    tl.store(out + 1, green, mask=inside)
    tl.store(out + 2, blue, mask=inside)


def weak(images: Tensor, table: Tensor, moves: bool, jitters: bool, first: int) -> Tensor:
    """Return the weak views of images (n, 3, h, w), uint8 or float32, in channels_last memory.

    Args:
        table: (rows, 9) on the device: matrix and factors.
        first: the row of the first image.
    """
    n, _, height, width = images.shape
    out = torch.empty_like(images, dtype=torch.float32, memory_format=torch.channels_last)
    _weak[(n * blocks(height * width, PIXELS),)](
        images.contiguous(),
        out,
        table,
        first,
        height,
        width,
        BP=PIXELS,
        MOVES=moves,
        JITTERS=jitters,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
