"""Max-pooling of two by two and ReLU in one pass, forward and back: the largest of four, where it is above 0."""

from typing import Any

import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor, nn

from fedperl.engines.cuda.kernels_common import kernel

BLOCK = 1024  # outputs of one program


@kernel
def _pool(
    x: tl.tensor, y: tl.tensor, which: tl.tensor, total: int, width: int, channels: int, KEEP: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < total
    pixel = place // channels
    first = x + (pixel // width * 4 * width + pixel % width * 2) * channels + place % channels
    best = tl.load(first, mask=inside).to(tl.float32)
    largest = tl.zeros((SIZE,), tl.int32)
    for number in tl.static_range(1, 4):
        other = tl.load(first + (number // 2 * 2 * width + number % 2) * channels, mask=inside).to(tl.float32)
        larger = (other > best) | (other != other)  # what is not a number stays seen
        best = tl.where(larger, other, best)
        largest = tl.where(larger, number, largest)
    tl.store(y + place, tl.where(best <= 0, 0.0, best), mask=inside)
    if KEEP:
        tl.store(which + place, tl.where(best <= 0, 4, largest).to(tl.uint8), mask=inside)


@kernel
def _pool_back(
    slope: tl.tensor, which: tl.tensor, out: tl.tensor, total: int, width: int, channels: int, SIZE: tl.constexpr
) -> None:
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < total
    pixel = place // channels
    first = out + (pixel // width * 4 * width + pixel % width * 2) * channels + place % channels
    value = tl.load(slope + place, mask=inside).to(tl.float32)
    largest = tl.load(which + place, mask=inside)
    for number in tl.static_range(4):
        part = tl.where(largest == number, value, 0.0)
        tl.store(first + (number // 2 * 2 * width + number % 2) * channels, part, mask=inside)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        images, channels, height, width = ctx.shape = x.shape
        y = x.new_empty(images, channels, height // 2, width // 2).to(memory_format=torch.channels_last)
        keep = ctx.needs_input_grad[0]
        which = torch.empty_like(y, dtype=torch.uint8) if keep else y
        _pool[(-(-y.numel() // BLOCK),)](x, y, which, y.numel(), width // 2, channels, KEEP=keep, SIZE=BLOCK)
        ctx.save_for_backward(which)
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        slope, (which,) = slopes[0].contiguous(memory_format=torch.channels_last), ctx.saved_tensors
        out = slope.new_empty(ctx.shape).to(memory_format=torch.channels_last)
        _pool_back[(-(-slope.numel() // BLOCK),)](
            slope, which, out, slope.numel(), slope.shape[3], slope.shape[1], SIZE=BLOCK
        )
        return out


class FastPooled(nn.Module):
    """Stands for `PooledReLU` where images lie channels-last and have even sides."""

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(max_pool2d(x, 2))."""
        if x.is_contiguous(memory_format=torch.channels_last) and x.shape[2] % 2 == x.shape[3] % 2 == 0:
            return _Pooled.apply(x)  # type: ignore[no-any-return, no-untyped-call]
        return F.relu(F.max_pool2d(x, 2))
