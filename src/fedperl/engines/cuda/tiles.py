"""How tensors are cut into tiles: plain functions of the shape, so that start-up is short and sums keep their order."""

import torch
from torch import Tensor

CHANNELS = 32  # channels of a tile: the contiguous axis, 64 bytes of bfloat16
PIXELS = 64  # pixels of a tile within one image
ROWS = 128  # rows of a tile where images follow one another
PROGRAMS = 1056  # eight on each of 132 multiprocessors


def blocks(total: int, size: int) -> int:
    """Return how many tiles of a size cover the total."""
    return -(-total // size)


def inner(width: int) -> tuple[int, int]:
    """Return the block of an inner dimension of a matrix product, and how many blocks cover the width."""
    if width > 128:
        return 64, blocks(width, 64)
    return max(32, 1 << (width - 1).bit_length()), 1


def outer(width: int) -> int:
    """Return the block of a narrow outer dimension (16 to 320 channels)."""
    return inner(width)[0]


def run(tiles: int, beside: int, programs: int | None = None) -> int:
    """Return how many consecutive tiles one program walks, where `beside` programs share each run.

    Long runs keep partial sums few; short ones keep all multiprocessors busy.
    """
    wanted = max(1, (programs or PROGRAMS) // max(1, beside))
    return blocks(tiles, min(tiles, wanted))


def stages(values: Tensor, wanted: int = 2) -> int:
    """Return how many tiles are loaded ahead; in float32, where tiles are twice as large, only the present one."""
    return wanted if values.dtype == torch.bfloat16 else 1
