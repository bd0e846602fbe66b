"""The parameters as the kernels read them: cast once a forward pass, in a handful of launches."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedperl.engines.cuda.kernels_stem import TAPS
from fedperl.engines.cuda.layout import NetLayout

ALIGNED = 64  # elements between the beginnings of neighbours in a flat buffer


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where tensors of these sizes begin in one flat buffer, and the buffer's length."""
    begins, total = [], 0
    for size in sizes:
        begins.append(total)
        total += -(-size // ALIGNED) * ALIGNED
    return begins, total


class PackedWeights:
    """Pointwise weights (out, in) in the network's type and depthwise weights (kernel * kernel, channels) in float32.

    The buffers stay where they are between steps, as a captured CUDA graph wants it.
    """

    def __init__(self, layout: NetLayout, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        blocks = layout.blocks
        self.device = next(iter(parameters.values())).device
        self.pointwise_names = [f"{b.prefix}._project_conv.weight" for b in blocks]
        self.pointwise_names += [f"{b.first}.weight" for b in blocks[1:]] + ["_conv_head.weight"]
        self.depthwise_names = [f"{b.prefix}._depthwise_conv.weight" for b in blocks]
        shapes = [(len(parameters[name]), parameters[name].shape[1]) for name in self.pointwise_names]
        begins, total = places([out * width for out, width in shapes])
        flat = torch.empty(total, dtype=dtype, device=self.device)
        views = [flat[b : b + o * w].view(o, w) for b, (o, w) in zip(begins, shapes, strict=True)]
        self.pointwise = dict(zip(self.pointwise_names, views, strict=True))
        stem = len(parameters["_conv_stem.weight"])
        self.stem = torch.zeros(stem, TAPS, dtype=dtype, device=self.device)
        self.pointwise["_conv_stem.weight"] = self.stem
        self._depthwise([parameters[name] for name in self.depthwise_names])

    def _depthwise(self, weights: list[Tensor]) -> None:
        """Lay out two flat buffers, by channel and by tap, and the index that leads from one to the other."""
        begins, total = places([weight.numel() for weight in weights])
        self.by_channel, self.by_tap = torch.empty(2, total, device=self.device).unbind()
        order = torch.arange(total)
        self.depthwise, self.sources = {}, []
        for name, begin, weight in zip(self.depthwise_names, begins, weights, strict=True):
            channels, taps = len(weight), weight[0].numel()
            end = begin + channels * taps
            order[begin:end] = begin + torch.arange(channels * taps).view(channels, taps).t().reshape(-1)
            self.sources.append(self.by_channel[begin:end].view(channels, taps))
            self.depthwise[name] = self.by_tap[begin:end].view(taps, channels)
        self.order = order.to(self.device)

    def refresh(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy the parameters' present values."""
        with torch.no_grad():
            names = self.pointwise_names
            torch._foreach_copy_([self.pointwise[n] for n in names], [_matrix(parameters[n]) for n in names])
            stem = _matrix(parameters["_conv_stem.weight"])
            self.stem[:, : stem.shape[1]].copy_(stem)
            torch._foreach_copy_(self.sources, [_matrix(parameters[name]) for name in self.depthwise_names])
            torch.index_select(self.by_channel, 0, self.order, out=self.by_tap)


def _matrix(weight: Tensor) -> Tensor:
    """Return a convolution's weight as (out, the rest), without a copy where it is contiguous."""
    return weight.detach().reshape(len(weight), -1)


def running_statistics(
    names: Sequence[str], parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], eps: float
) -> dict[str, Tensor]:
    """Return (1, 4, channels) for each norm: mean, 1/std, scale and shift from its running statistics."""
    begins, total = places([len(parameters[f"{name}.weight"]) for name in names])
    flat = parameters[f"{names[0]}.weight"].new_empty(4, total)
    rows = zip(
        ("running_mean", "running_var", "weight", "bias"), (buffers, buffers, parameters, parameters), strict=True
    )
    with torch.no_grad():
        into, sources = [], []
        for row, (what, where) in enumerate(rows):
            for name, begin in zip(names, begins, strict=True):
                source = where[f"{name}.{what}"].detach()
                into.append(flat[row, begin : begin + len(source)])
                sources.append(source)
        torch._foreach_copy_(into, sources)
        flat[1].add_(eps).rsqrt_()
        flat[2].mul_(flat[1])
        flat[3].addcmul_(flat[0], flat[2], value=-1)
    sizes = [len(parameters[f"{name}.weight"]) for name in names]
    return {name: flat[None, :, begin : begin + size] for name, begin, size in zip(names, begins, sizes, strict=True)}
