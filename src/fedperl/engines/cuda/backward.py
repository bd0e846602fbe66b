"""The backward pass: from the gradient of the pooled features to those of all parameters before them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedperl.engines.cuda.forward import BlockTrace, Sources, Trace
from fedperl.engines.cuda.kernels_depthwise import depthwise_back, depthwise_weight_back, depthwise_weight_parts
from fedperl.engines.cuda.kernels_expand_input import expand_back, head_back
from fedperl.engines.cuda.kernels_expand_weight import expand_weight_back
from fedperl.engines.cuda.kernels_norm import linear_back, linear_sums, norm_gradients
from fedperl.engines.cuda.kernels_project import gated_back, project_weight_back, project_weight_parts
from fedperl.engines.cuda.kernels_squeeze import pool_sums, squeeze_back, squeeze_weights_back
from fedperl.engines.cuda.kernels_sums import segment_table, sum_segments
from fedperl.engines.cuda.layout import BlockLayout
from fedperl.engines.cuda.packed import places


@dataclass(frozen=True)
class GradientPlan:
    """Where gradients and their partial sums lie in two flat buffers.

    Attributes:
        begins: of each parameter's gradient, in the parameters' order.
        parts: where the partial sums of a weight begin, and how many there are, by the weight's name.
        table: of sum_segments.
    """

    begins: Mapping[str, int]
    total: int
    parts: Mapping[str, tuple[int, int]]
    parts_total: int
    table: Tensor


def gradient_plan(sources: Sources, trace: Trace) -> GradientPlan:
    """Return the plan for batches of a trace's shape."""
    begins, total = places([parameter.numel() for parameter in sources.parameters.values()])
    where = dict(zip(sources.parameters, begins, strict=True))
    counts: dict[str, int] = {}
    for block, saved in zip(sources.layout.blocks, trace.blocks, strict=True):
        images, pixels = len(saved.gate), saved.window.out[0] * saved.window.out[1]
        depthwise, _ = depthwise_weight_parts(saved.window, images, block.channels)
        project, _ = project_weight_parts(block.out, block.channels, images * pixels)
        counts[f"{block.prefix}._depthwise_conv.weight"] = depthwise
        counts[f"{block.prefix}._project_conv.weight"] = project
    sizes = {name: sources.parameters[name].numel() for name in counts}
    part_begins, parts_total = places([counts[name] * sizes[name] for name in counts])
    parts = {name: (begin, counts[name]) for name, begin in zip(counts, part_begins, strict=True)}
    segments = [(begin, count, sizes[name], where[name]) for name, (begin, count) in parts.items()]
    return GradientPlan(where, total, parts, parts_total, segment_table(segments, trace.x.device))


class Gradients:
    """One flat buffer of gradients in float32, and one of the partial sums that are added up at the end."""

    def __init__(self, plan: GradientPlan, parameters: Mapping[str, Tensor], device: torch.device) -> None:
        self.plan, self.parameters = plan, parameters
        self.flat = torch.empty(plan.total, device=device)
        self.part = torch.empty(plan.parts_total, device=device)

    def of(self, name: str) -> Tensor:
        """Return where a parameter's gradient goes, in the parameter's shape."""
        begin, parameter = self.plan.begins[name], self.parameters[name]
        return self.flat[begin : begin + parameter.numel()].view(parameter.shape)

    def norm(self, name: str) -> tuple[Tensor, Tensor]:
        """Return where the gradients of a norm's weight and bias go."""
        return self.of(f"{name}.weight"), self.of(f"{name}.bias")

    def first(self, convolution: str, norm: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the gradients of a pointwise convolution, as (out, in), and of its norm go."""
        return (self.of(f"{convolution}.weight").flatten(1), *self.norm(norm))

    def parts(self, name: str) -> Tensor:
        """Return where the partial sums of a weight's gradient go, (parts, elements)."""
        begin, count = self.plan.parts[name]
        size = self.parameters[name].numel()
        return self.part[begin : begin + count * size].view(count, size)

    def finish(self) -> list[Tensor]:
        """Add up what came in parts; return all gradients in the parameters' order."""
        sum_segments(self.part, self.plan.table, self.flat)
        return [self.of(name) for name in self.parameters]


def backbone_back(sources: Sources, trace: Trace, d_features: Tensor, plan: GradientPlan) -> list[Tensor]:
    """Return the gradients of all backbone parameters in their order.

    Args:
        d_features: (images, channels), the gradient of the pooled features.
    """
    gradients = Gradients(plan, sources.parameters, d_features.device)
    weight, live = sources.packed.pointwise["_conv_head.weight"], sources.training
    head = gradients.first("_conv_head", "_bn1")
    slopes = expand_weight_back(trace.x, weight, d_features, trace.stats, head, live=live, pixels=trace.pixels)
    d_out = head_back(trace.x, weight, d_features, trace.stats, slopes, trace.pixels)
    for block, saved in zip(reversed(sources.layout.blocks), reversed(trace.blocks), strict=True):
        d_out = _block_back(sources, block, saved, d_out, gradients)
    return gradients.finish()


def _block_back(sources: Sources, block: BlockLayout, saved: BlockTrace, d_out: Tensor, gradients: Gradients) -> Tensor:
    """Return the gradient of a block's input (of nothing at the first, whose input are the images)."""
    packed, prefix, live = sources.packed, block.prefix, sources.training
    d_active = _gated_part(sources, block, saved, d_out, gradients)
    name = f"{prefix}._depthwise_conv.weight"
    depthwise_weight_back(saved.active, d_active, gradients.parts(name), saved.window)
    d_active = depthwise_back(d_active, packed.depthwise[name], saved.window)
    weight, out = packed.pointwise[f"{block.first}.weight"], gradients.first(block.first, block.first_norm)
    slopes = expand_weight_back(saved.x, weight, d_active, saved.first_stats, out, live=live)
    if block.first == "_conv_stem":
        return d_active
    return expand_back(saved.x, weight, d_active, saved.first_stats, slopes, d_out if block.skip else None)


def _gated_part(sources: Sources, block: BlockLayout, saved: BlockTrace, d_out: Tensor, gradients: Gradients) -> Tensor:
    """Return the gradient of the depthwise convolution's output."""
    prefix, live = block.prefix, sources.training
    images, pixels = len(saved.gate), saved.window.out[0] * saved.window.out[1]
    groups = len(saved.stats)
    values = len(saved.z) // groups
    sums = linear_sums(d_out, saved.end, groups, pixels, saved.keep)
    slopes = norm_gradients(sums, saved.end_stats, gradients.norm(f"{prefix}._bn2"), values, live=live)
    d_end = linear_back(d_out, saved.end, saved.end_stats, slopes, pixels, saved.keep)
    name = f"{prefix}._project_conv.weight"
    weight = sources.packed.pointwise[name]
    project_weight_back(d_end, saved.gated, gradients.parts(name))
    d_active = d_end @ weight
    part = pool_sums(saved.z, saved.stats, pixels, slopes=True, given=d_active)
    reduce, _, expand, _ = sources.squeeze(prefix)
    squeeze = (saved.pooled, saved.hidden, saved.gate)
    d_open, d_hidden, d_pooled, sums = squeeze_back(part, squeeze, (reduce, expand), pixels)
    layers = [f"{prefix}.{layer}.{what}" for layer in ("_se_reduce", "_se_expand") for what in ("weight", "bias")]
    into = [gradients.of(layer) for layer in layers]
    squeeze_weights_back(squeeze[:2], d_open, d_hidden, (into[0], into[1], into[2], into[3]))
    sums = sums.view(groups, images // groups, 2, -1)
    slopes = norm_gradients(sums, saved.stats, gradients.norm(f"{prefix}._bn1"), values, live=live)
    return gated_back(d_active, saved.z, saved.stats, (saved.gate, d_pooled), slopes)
