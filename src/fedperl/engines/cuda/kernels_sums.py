"""Sums of partial results in a fixed order: no atomic operation, so that a run can be repeated to the bit."""

import torch
import triton.language as tl
from torch import Tensor

from fedperl.engines.cuda.kernels_common import kernel
from fedperl.engines.cuda.tiles import blocks

LENGTH = 128  # elements that one program sums
PARTS = 16  # partial results that it reads at a time
MANY = 64  # more parts than these are read by more programs


@kernel
def _sum_parts(part: tl.tensor, out: tl.tensor, parts: int, length: int, BP: tl.constexpr, BL: tl.constexpr) -> None:
    element = tl.program_id(0) * BL + tl.arange(0, BL)
    group = tl.program_id(1)
    part += group.to(tl.int64) * parts * length
    total = tl.zeros((BP, BL), tl.float32)
    for start in range(0, parts, BP):
        step = start + tl.arange(0, BP)
        mask = (step < parts)[:, None] & (element < length)[None, :]
        total += tl.load(part + step[:, None].to(tl.int64) * length + element[None, :], mask=mask, other=0.0)
    tl.store(out + group * length + element, tl.sum(total, 0), mask=element < length)


def sum_parts(part: Tensor) -> Tensor:
    """Return the sums over parts, (groups, length), of (groups, parts, length)."""
    groups, parts, length = part.shape
    out = part.new_empty(groups, length)
    share = 4 if parts > MANY else 1  # of a program's columns, given up for more rows
    _sum_parts[(blocks(length, LENGTH // share), groups)](
        part, out, parts, length, BP=PARTS * share, BL=LENGTH // share, num_warps=2
    )
    return out


@kernel
def _sum_segments(part: tl.tensor, table: tl.tensor, out: tl.tensor, BP: tl.constexpr, BL: tl.constexpr) -> None:
    table += tl.program_id(0) * 5
    part += tl.load(table)
    parts = tl.load(table + 1)
    length = tl.load(table + 2)
    left = tl.load(table + 3)
    element = tl.arange(0, BL)
    total = tl.zeros((BP, BL), tl.float32)
    for start in range(0, parts, BP):
        step = start + tl.arange(0, BP)
        mask = (step < parts)[:, None] & (element < left)[None, :]
        total += tl.load(part + step[:, None] * length + element[None, :], mask=mask, other=0.0)
    tl.store(out + tl.load(table + 4) + element, tl.sum(total, 0), mask=element < left)


def segment_table(segments: list[tuple[int, int, int, int]], device: torch.device) -> Tensor:
    """Return what sum_segments needs to sum many partial results in one launch.

    Args:
        segments: of each where its parts begin, how many parts there are, their length, and where the sum goes.
    """
    rows = [
        (begin + offset, parts, length, min(LENGTH, length - offset), goal + offset)
        for begin, parts, length, goal in segments
        for offset in range(0, length, LENGTH)
    ]
    return torch.tensor(rows, dtype=torch.int64, device=device)


def sum_segments(part: Tensor, table: Tensor, out: Tensor) -> None:
    """Write the sums of all segments of the flat buffer `part` to their places in the flat buffer out."""
    _sum_segments[(len(table),)](part, table, out, BP=PARTS, BL=LENGTH, num_warps=8)
