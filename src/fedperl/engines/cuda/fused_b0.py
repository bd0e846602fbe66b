"""EfficientNet-B0 as MONAI computes it, with kernels that move as few bytes as they can.

The module has MONAI's parameters and buffers under MONAI's names. Activations are (rows, channels) in bfloat16 (or
float32), arithmetic is in float32, and all sums are taken in a fixed order.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedperl.engines.cuda.backward import GradientPlan, backbone_back, gradient_plan
from fedperl.engines.cuda.captured import Record
from fedperl.engines.cuda.forward import Sources, Trace, backbone, stem_input
from fedperl.engines.cuda.kernels_common import rehearsal
from fedperl.engines.cuda.layout import net_layout
from fedperl.engines.cuda.packed import PackedWeights
from fedperl.engines.cuda.recorded_pass import PassGraphs, RecordedPasses


class FusedB0(nn.Module):
    """EfficientNet-B0 in hand-written kernels; takes over the parameters and buffers of a MONAI network.

    Args:
        net: what `build_net("efficientnet_b0", ...)` gives, with or without a scale in front.
        dtype: of activations and of the weights in matrix products; parameters stay in float32.
        record: passes in eval mode that want no gradient; as CUDA graphs on a GPU, and elsewhere not, unless given.
    Raises:
        ValueError: the network is not MONAI's, or has layers that EfficientNet-B0 does not have.
    """

    _bn0: nn.BatchNorm2d
    _dropout: nn.Dropout
    _fc: nn.Linear

    def __init__(self, net: nn.Module, *, dtype: torch.dtype = torch.bfloat16, record: Record | None = None) -> None:
        super().__init__()
        self.layout = net_layout(net)
        self.dtype = dtype
        self._record = record
        for name, child in net.named_children():
            self.add_module(name, child)
        self.training = net.training
        self.groups_of_one_size = True
        self._forget()

    def _forget(self) -> None:
        """Drop what is derived from the parameters' device; it is made again when needed."""
        self._packed: PackedWeights | None = None
        self._constants: dict[str, Tensor] = {}
        self._plans: dict[tuple[object, ...], GradientPlan] = {}
        self._passes: RecordedPasses | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None, "_constants": {}, "_plans": {}, "_passes": None}

    def _apply(self, fn: Any, recurse: bool = True) -> "FusedB0":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (n, classes) in float32; images: (n, 3, h, w), best channels_last in memory."""
        return self.forward_groups([images])[0]

    def forward_groups(self, images: Sequence[Tensor], graph: Sequence[bool] | None = None) -> list[Tensor]:
        """Return the logits of several batches of one size, as separate calls in this order would, in one pass.

        Batch statistics are taken for each batch apart, and the running ones move batch after batch.

        Args:
            graph: which batches' logits have a gradient; all unless given.
        Raises:
            ValueError: no batch, batches of different shapes, or of a shape the network does not take; `graph` does
                not say one thing for each batch.
        """
        _check(images, graph)
        if len(images) == 1 and self._recordable(images[0]):
            return [self._fc(self._dropout(self._recorded(images[0])))]
        parameters = self._backbone()
        wanted = torch.is_grad_enabled() and any(value.requires_grad for value in parameters.values())
        kept = [True] * len(images) if graph is None else list(graph)
        places, order = _order(kept)
        with torch.cuda.device_of(images[0]):  # type: ignore[no-untyped-call]
            sources = self._sources(parameters, order)
            ordered = [images[group] for group in places]
            if wanted and any(kept):
                features = _Backbone.apply(self, sources, ordered, sum(kept), *parameters.values())  # type: ignore[no-untyped-call]
            else:
                features, _ = self._features(sources, ordered, save=False)
        every = self._fc(self._dropout(features))
        logits = every.split(len(every) // len(images))  # more rows than images where a hook has the dropout repeated
        return [logits[place] if of else logits[place].detach() for place, of in zip(order, kept, strict=True)]

    def _recordable(self, images: Tensor) -> bool:
        """Return whether a pass over images may be played from a recording, or make one."""
        if self.training or self._measures or torch.is_grad_enabled():
            return False
        if images.is_cuda:
            return not torch.cuda.is_current_stream_capturing()  # then it becomes part of what is being recorded
        return self._record is not None

    def _recorded(self, images: Tensor) -> Tensor:
        """Return the pooled features; nothing that they follow from is remembered from one pass to the next."""
        with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
            if self._passes is None:
                self._passes = RecordedPasses(self, self._record or PassGraphs())
            return self._passes(self._at_rest, images)

    def _at_rest(self, images: Tensor) -> Tensor:
        features, _ = self._features(self._sources(self._backbone(), [0]), [images], save=False)
        return features

    def prepare(self, shape: Sequence[int], graph: Sequence[bool] = (False,)) -> None:
        """Compile the kernels of a pass, many at a time, before the first such pass is made.

        Args:
            shape: of a batch, (n, 3, height, width).
            graph: for each batch that forward_groups will be given whether its logits have a gradient.
        """
        images, some = [torch.empty(*shape, device=self._fc.weight.device)] * len(graph), sum(graph)
        if not images[0].is_cuda:
            return
        device = images[0].device
        with torch.no_grad(), torch.cuda.device(device), rehearsal(device):
            sources = self._sources(self._backbone(), _order(graph)[1])
            x, size = stem_input(images, self.layout, self._scale(device), self.dtype)
            share = torch.empty(len(graph) * shape[0], device=device)
            keep = [share if block.skip else None for block in self.layout.blocks]
            features, trace = backbone(sources, x, size, keep, save=some > 0)
            if trace is not None:
                trace = trace.first(some, len(graph))
                backbone_back(sources, trace, features[: some * shape[0]], self._plan(sources, trace))

    @property
    def _measures(self) -> bool:
        """Whether batch norms take each batch's own statistics; they may be told to while the rest is in eval mode."""
        return self._bn0.training

    def _backbone(self) -> dict[str, Tensor]:
        """Return the parameters before the last layer by name."""
        return {name: value for name, value in self.named_parameters() if not name.startswith("_fc.")}

    def _sources(self, parameters: dict[str, Tensor], order: Sequence[int]) -> Sources:
        """Return what a pass reads, the weights freshly cast."""
        if self._packed is None:
            with torch.inference_mode(False):  # it is written again in training
                self._packed = PackedWeights(self.layout, parameters, self.dtype)
        self._packed.refresh(parameters)
        norms = {name: module for name, module in self.named_modules() if isinstance(module, nn.BatchNorm2d)}
        return Sources(self.layout, parameters, norms, self._packed, tuple(order), self._measures)

    def _features(self, sources: Sources, images: Sequence[Tensor], *, save: bool) -> tuple[Tensor, Trace | None]:
        """Return the pooled features of all batches, and the trace where it is to be saved."""
        with torch.no_grad():
            x, size = stem_input(images, self.layout, self._scale(images[0].device), self.dtype)
            keep = self._keep(sum(map(len, images)), images[0].device)
            found = backbone(sources, x, size, keep, save=save)
            if self._measures:
                counters = [cast(Tensor, norm.num_batches_tracked) for norm in sources.norms.values()]
                torch._foreach_add_(counters, sources.groups)
        return found

    def _scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return what is subtracted from each colour and what it is then divided by."""
        scale = getattr(self, "input_scale", None)
        if scale is not None:
            return scale.mean, scale.std
        if "zero" not in self._constants:
            self._constants |= {"zero": torch.zeros(3, device=device), "one": torch.ones(3, device=device)}
        return self._constants["zero"], self._constants["one"]

    def _keep(self, images: int, device: torch.device) -> list[Tensor | None]:
        """Return for each block what drop-connect multiplies the images of its skip by: 0 or 1 / (1 - rate)."""
        blocks = self.layout.blocks
        if not any(block.skip for block in blocks):
            return [None] * len(blocks)
        if "chance" not in self._constants:
            rates = [1 - block.rate for block in blocks]
            self._constants["chance"] = torch.tensor(rates, device=device)[:, None]
        chance = self._constants["chance"]
        shares = torch.ones(len(blocks), -(-images // 4) * 4, device=device)  # rows begin at multiples of 16 bytes
        if self.training:
            shares = torch.rand_like(shares).add_(chance).floor_().div_(chance)
        return [share[:images] if block.skip else None for block, share in zip(blocks, shares.unbind(), strict=True)]

    def _plan(self, sources: Sources, trace: Trace) -> GradientPlan:
        """Return where gradients go for batches of this shape; made once for each."""
        key = (*trace.x.shape, trace.pixels, trace.blocks[0].window.size, len(trace.stats))
        if key not in self._plans:
            self._plans[key] = gradient_plan(sources, trace)
        return self._plans[key]


def _check(images: Sequence[Tensor], graph: Sequence[bool] | None) -> None:
    if not images or any(batch.shape != images[0].shape for batch in images):
        raise ValueError(f"batches of shapes {[tuple(b.shape) for b in images]}; wanted one shape, at least one batch")
    if images[0].ndim != 4 or images[0].shape[1] != 3:
        raise ValueError(f"images of shape {tuple(images[0].shape)}; wanted (n, 3, height, width)")
    if graph is not None and len(graph) != len(images):
        raise ValueError(f"graph says {len(graph)} things for {len(images)} batches; wanted one for each")


def _order(graph: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Return the batches as a pass takes them, those with a gradient first, and where each given one is then."""
    places = sorted(range(len(graph)), key=lambda group: not graph[group])
    return places, [places.index(group) for group in range(len(graph))]


class _Backbone(torch.autograd.Function):
    """The network up to the pooled features; gradients for its parameters, none for the images."""

    @staticmethod
    def forward(
        ctx: Any, net: FusedB0, sources: Sources, images: Sequence[Tensor], graph: int, *parameters: Tensor
    ) -> Tensor:
        features, trace = net._features(sources, images, save=True)
        assert trace is not None
        ctx.net, ctx.sources, ctx.trace = net, sources, trace.first(graph, len(images))
        ctx.rows = graph * len(images[0])
        return features

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        if ctx.trace is None:
            raise RuntimeError("a second backward through the same graph: its activations were freed")
        trace, ctx.trace = ctx.trace, None
        with torch.cuda.device_of(gradients[0]):  # type: ignore[no-untyped-call]
            plan = ctx.net._plan(ctx.sources, trace)
            d_features = gradients[0][: ctx.rows].contiguous().float()
            found = backbone_back(ctx.sources, trace, d_features, plan)
        return (None, None, None, None, *found)
