"""The forward pass up to the pooled features, and what of it the backward pass needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedperl.engines.cuda.kernels_depthwise import Window, depthwise_active, depthwise_forward
from fedperl.engines.cuda.kernels_expand import expand_forward, expand_sums, head_features
from fedperl.engines.cuda.kernels_norm import batch_statistics, norm_add
from fedperl.engines.cuda.kernels_project import gated_input, project_end, project_forward
from fedperl.engines.cuda.kernels_squeeze import pool_sums, squeeze_gate
from fedperl.engines.cuda.kernels_stem import TAPS, stem_columns
from fedperl.engines.cuda.layout import STEM_KERNEL, STEM_STRIDE, BlockLayout, NetLayout
from fedperl.engines.cuda.packed import PackedWeights, running_statistics


@dataclass(frozen=True)
class Sources:
    """What a pass reads: the network's layout, its parameters and norms by name, and the weights as kernels want them.

    Attributes:
        order: of the groups, consecutive parts of the batch whose statistics are taken apart: the first in it is the
            first to move the running statistics.
        training: batch statistics, which move the running ones.
    """

    layout: NetLayout
    parameters: Mapping[str, Tensor]
    norms: Mapping[str, nn.BatchNorm2d]
    packed: PackedWeights
    order: tuple[int, ...]
    training: bool

    @property
    def groups(self) -> int:
        """How many parts of the batch have statistics of their own."""
        return len(self.order)

    def measured(self, part: Tensor, norm: str, rows: int) -> Tensor:
        """Return the statistics that follow from partial sums; `rows` are those of all groups."""
        return batch_statistics(part, self.norms[norm], rows // self.groups, self.order)

    def squeeze(self, prefix: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weight and bias of a block's reducing layer, then of its expanding one."""
        reduce, expand = f"{prefix}._se_reduce", f"{prefix}._se_expand"
        weights = [self.parameters[f"{layer}.{what}"] for layer in (reduce, expand) for what in ("weight", "bias")]
        return weights[0], weights[1], weights[2], weights[3]

    def statistics(self) -> dict[str, Tensor]:
        """Return the running statistics of every norm, or nothing where the batch's own are to be taken."""
        if self.training:
            return {}
        buffers = {f"{name}.{b}": value for name, norm in self.norms.items() for b, value in norm.named_buffers()}
        return running_statistics(list(self.norms), self.parameters, buffers, self.layout.eps)


@dataclass(frozen=True)
class BlockTrace:
    """What a block leaves for the backward pass; tensors (rows, channels), statistics (groups, 4, channels)."""

    x: Tensor
    window: Window
    first_stats: Tensor
    active: Tensor
    z: Tensor
    stats: Tensor
    pooled: Tensor
    hidden: Tensor
    gate: Tensor
    gated: Tensor
    end: Tensor
    end_stats: Tensor
    keep: Tensor | None


@dataclass(frozen=True)
class Trace:
    """What the whole pass leaves: its blocks, the head's input and statistics, and the pixels of an image there."""

    blocks: list[BlockTrace]
    x: Tensor
    stats: Tensor
    pixels: int

    def first(self, some: int, groups: int) -> "Trace":
        """Return the trace of the first groups alone."""

        def part(saved: BlockTrace | Trace) -> dict[str, Any]:
            # statistics that are the same for all groups are one row, which stays
            return {
                name: value[: -(-len(value) * some // groups)] if isinstance(value, Tensor) else value
                for name, value in vars(saved).items()
            }

        return Trace(**part(self) | {"blocks": [BlockTrace(**part(block)) for block in self.blocks]})


def stem_input(
    batches: Sequence[Tensor], layout: NetLayout, scale: tuple[Tensor, Tensor], dtype: torch.dtype
) -> tuple[Tensor, tuple[int, int]]:
    """Return the stem's inputs side by side, (rows, 32), of all batches one after the other, and its output's size."""
    n, _, height, width = batches[0].shape
    size = layout.stem.out((height, width), STEM_KERNEL, STEM_STRIDE)
    columns = torch.empty(len(batches), n * size[0] * size[1], TAPS, dtype=dtype, device=batches[0].device)
    for batch, out in zip(batches, columns, strict=True):
        stem_columns(batch, *scale, out, size, layout.stem.first)
    return columns.flatten(0, 1), size


def backbone(
    sources: Sources, x: Tensor, size: tuple[int, int], keep: Sequence[Tensor | None], *, save: bool
) -> tuple[Tensor, Trace | None]:
    """Return the pooled features, (images, channels) in float32, and the trace where it is to be saved.

    Args:
        x, size: of stem_input.
        keep: for each block what drop-connect multiplies its images by, where it has a skip.
    """
    known = sources.statistics()
    traces = []
    for block, share in zip(sources.layout.blocks, keep, strict=True):
        if sources.training or save:
            x, size, trace = _block(sources, block, known, x, size, share, slopes=save)
            if save:
                traces.append(trace)
            del trace
        else:
            x, size = _block_at_rest(sources, block, known, x, size)
    pixels = size[0] * size[1]
    weight = sources.packed.pointwise["_conv_head.weight"]
    stats = known.get("_bn1")
    if stats is None:
        stats = sources.measured(expand_sums(x, weight, sources.groups), "_bn1", len(x))
    features = head_features(x, weight, stats, pixels)
    return features, Trace(traces, x, stats, pixels) if save else None


def _block(
    sources: Sources,
    block: BlockLayout,
    known: Mapping[str, Tensor],
    x: Tensor,
    size: tuple[int, int],
    keep: Tensor | None,
    *,
    slopes: bool,
) -> tuple[Tensor, tuple[int, int], BlockTrace]:
    """Return a block's output, its size and its trace; with batch statistics unless they are known."""
    groups = sources.groups if sources.training else 1
    window, packed = block.window(size), sources.packed
    first, end = packed.pointwise[f"{block.first}.weight"], packed.pointwise[f"{block.prefix}._project_conv.weight"]
    pixels = window.out[0] * window.out[1]
    first_stats = known.get(block.first_norm)
    if first_stats is None:
        first_stats = sources.measured(expand_sums(x, first, groups), block.first_norm, len(x))
    active = expand_forward(x, first, first_stats)
    z, part = depthwise_forward(active, packed.depthwise[f"{block.prefix}._depthwise_conv.weight"], window, groups)
    stats = known.get(f"{block.prefix}._bn1")
    if stats is None:
        stats = sources.measured(part, f"{block.prefix}._bn1", len(z))
    squeeze = squeeze_gate(pool_sums(z, stats, pixels, slopes=slopes), sources.squeeze(block.prefix), pixels)
    gated = gated_input(z, stats, squeeze[2])
    out, part = project_forward(gated, end, groups)
    end_stats = known.get(f"{block.prefix}._bn2")
    if end_stats is None:
        end_stats = sources.measured(part, f"{block.prefix}._bn2", len(z))
    y = norm_add(out, end_stats, pixels, (keep, x) if keep is not None else None)
    trace = BlockTrace(x, window, first_stats, active, z, stats, *squeeze, gated, out, end_stats, keep)
    return y, window.out, trace


def _block_at_rest(
    sources: Sources, block: BlockLayout, known: Mapping[str, Tensor], x: Tensor, size: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """Return a block's output and its size with the running statistics and nothing kept."""
    window, packed, prefix = block.window(size), sources.packed, block.prefix
    pixels = window.out[0] * window.out[1]
    active = expand_forward(x, packed.pointwise[f"{block.first}.weight"], known[block.first_norm])
    active, part = depthwise_active(
        active, packed.depthwise[f"{prefix}._depthwise_conv.weight"], window, known[f"{prefix}._bn1"]
    )
    _, _, gate = squeeze_gate(part, sources.squeeze(prefix), pixels)
    weight = packed.pointwise[f"{prefix}._project_conv.weight"]
    return project_end(active, gate, weight, known[f"{prefix}._bn2"], x if block.skip else None), window.out
