"""Norms of whole networks as terms of a loss: a handful of launches for all tensors, forward and back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def squared_distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the sum of all squared differences; a gradient flows into both."""
    return _SquaredDistance.apply(len(ones), *ones, *others)  # type: ignore[no-any-return, no-untyped-call]


def absolute_sum(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of all absolute values; the slope at 0 is 0."""
    return _AbsoluteSum.apply(*tensors)  # type: ignore[no-any-return, no-untyped-call]


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        ctx.count, ctx.apart = count, torch._foreach_sub(tensors[:count], tensors[count:])
        return torch.stack(torch._foreach_norm(ctx.apart)).square().sum()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        up = torch._foreach_mul(ctx.apart, 2 * slopes[0])
        wanted = ctx.needs_input_grad[1:]
        down = torch._foreach_neg(up) if any(wanted[ctx.count :]) else up
        every = zip(wanted, (*up, *down), strict=True)
        return None, *(slope if asked else None for asked, slope in every)


class _AbsoluteSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.stack(torch._foreach_norm(tensors, 1)).sum()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch._foreach_mul(torch._foreach_sign(ctx.saved_tensors), slopes[0]))
