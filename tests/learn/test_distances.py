"""Norms of whole networks: values and gradients against plain autograd."""

import pytest
import torch
from torch import Tensor

from fedperl.learn.distances import absolute_sum, squared_distance


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).double() for shape in ((3, 2, 3, 3), (5,), (4, 7), ())]


@pytest.mark.parametrize("both", [False, True])
def test_squared_distance_against_naive(both: bool) -> None:
    ones = [one.requires_grad_() for one in tensors(1)]
    others = [other.requires_grad_(both) for other in tensors(2)]
    ours = squared_distance(ones, others)
    naive = torch.stack([(one - other).square().sum() for one, other in zip(ones, others, strict=True)]).sum()
    assert ours.item() == pytest.approx(naive.item())
    inputs = [*ones, *(others if both else [])]
    for found, wanted in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * naive, inputs), strict=True
    ):
        assert torch.allclose(found, wanted)


def test_absolute_sum_against_naive() -> None:
    values = tensors(3)
    values[1][2] = 0.0  # has no slope
    for value in values:
        value.requires_grad_()
    ours, naive = absolute_sum(values), torch.stack([value.abs().sum() for value in values]).sum()
    assert ours.item() == pytest.approx(naive.item())
    for found, wanted in zip(
        torch.autograd.grad(-2 * ours, values), torch.autograd.grad(-2 * naive, values), strict=True
    ):
        assert torch.allclose(found, wanted)
