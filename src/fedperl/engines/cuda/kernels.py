"""Which kernels of our own a run uses: those that compile on its GPU and give there what torch's operations give."""

import logging
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from fedperl.data.views import StrongDraw, WeakDraw, draw_strong, draw_weak
from fedperl.learn.local_images import LocalImages
from fedperl.learn.nets import build_net
from fedperl.learn.steps import EagerViews, MakeViews
from fedperl.settings import Config, Views

PASS = 256
"""Images that pass a network at a time where no gradient is wanted."""
AMPERE = (8, 0)
"""The first GPUs that compute in bfloat16."""
NEAR = 0.3
"""How far, relative to their size, logits in bfloat16 may be from those in float32."""
FLIPPED = 0.02
"""The share of a view's values that may lie on another level of brightness, where rounding decides."""

log = logging.getLogger(__name__)


def finish(config: Config) -> Callable[[nn.Module], nn.Module]:
    """Return what makes a network fast: kernels of our own where there are some for it, else bfloat16 layers."""
    device = torch.device(config.device)
    if config.gpu == "reference" or torch.cuda.get_device_capability(device) < AMPERE:
        return lambda net: net
    if config.model.net == "efficientnet_b0" and not config.objective.decomposed and b0_works(config.device):
        from fedperl.engines.cuda.fused_b0 import FusedB0

        return FusedB0
    return in_bfloat16


def in_bfloat16(net: nn.Module) -> nn.Module:
    """Let a network's layers compute in bfloat16 where they may; weights and logits stay in float32."""
    forward = net.forward

    def half(images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a cache would outlive a recorded step
            logits: Tensor = forward(images)
        return logits.float()

    net.forward = half
    return net


@cache
def b0_works(device: str) -> bool:
    """Return whether EfficientNet-B0's kernels compile on the device and give what MONAI's network gives.

    A small batch forward, in training and at rest, and its gradient: on a GPU or with a compiler they were never tried
    on, a run is slower rather than wrong.
    """
    try:
        from fedperl.engines.cuda.fused_b0 import FusedB0

        images = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(1)).to(device)
        images = images.contiguous(memory_format=torch.channels_last)
        results = []
        for kind in (FusedB0, lambda net: net):
            net = kind(_undropped(build_net("efficientnet_b0", 8, seed=1, dropout=0.0)).to(device))
            logits = net.train()(images)
            logits.square().sum().backward()
            last = dict(net.named_parameters())["_conv_head.weight"].grad
            with torch.no_grad():
                results.append([logits.detach(), last, net.eval()(images)])
        off = [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(*results, strict=True)]
    except Exception as error:
        log.warning("EfficientNet-B0 runs without kernels of our own: %s: %s", type(error).__name__, _first(error))
        return False
    if not max(off) < NEAR:
        log.warning("EfficientNet-B0 runs without kernels of our own: they are off by %.2g on this GPU", max(off))
        return False
    return True


def _undropped(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if hasattr(module, "drop_connect_rate"):
            module.drop_connect_rate = 0.0  # type: ignore[assignment]
    return net


def compile_ahead(config: Config) -> None:
    """Compile our own kernels for the shapes of a run, many at a time: the first round then need not wait for each."""
    net = finish(config)(build_net(config.model.net, 8, seed=0)).to(config.device)
    prepare: Callable[..., None] | None = getattr(net, "prepare", None)
    if prepare is None:
        return
    federation, objective = config.federation, config.objective
    shapes: list[tuple[int, tuple[bool, ...]]] = [(federation.batch, (True,)), (PASS, (False,))]
    if objective.kind == "fixmatch" and federation.unlabelled_batch in (None, federation.batch):
        # labelled, weak and strong views in one pass; the weak ones with a gradient where a peer is to be resembled
        graphs = {False, config.peer_learning and objective.consistency == "gradient" and objective.gamma > 0}
        shapes = [(federation.batch, (True, graph, True)) for graph in sorted(graphs)] + shapes[1:]
    elif objective.kind != "supervised":
        shapes += [(federation.unlabelled_batch or federation.batch, (graph,)) for graph in (True, False)]
    for batch, graph in dict.fromkeys(shapes):
        net.train(batch != PASS)
        prepare((batch, 3, config.data.size, config.data.size), graph)
    del net
    torch.cuda.empty_cache()


def fast_views(config: Config) -> MakeViews:
    """Return what makes views fast: kernels of our own, else torch's operations."""
    if config.gpu == "reference" or not views_work(config.views, config.device):
        return EagerViews
    from fedperl.engines.cuda.views import KernelViews, prepare

    prepare(config.views, config.data.size, torch.device(config.device))
    return KernelViews


@cache
def views_work(views: Views, device: str) -> bool:
    """Return whether the kernels that make views compile on the device and give what torch's operations give."""
    try:
        from fedperl.engines.cuda.views import KernelViews

        images = torch.arange(32 * 3 * 24 * 24, device=device).mul(7919).remainder(251).to(torch.uint8)
        rows, labels = torch.arange(32, device=device), torch.zeros(32, dtype=torch.int64, device=device)
        data = LocalImages(images.view(32, 3, 24, 24), labels, rows, rows, 1)
        number = torch.Generator().manual_seed(1)
        strong = draw_strong(32, number, views.strong, operations=views.operations, magnitude=views.magnitude)
        draws: list[WeakDraw | StrongDraw] = [draw_weak(32, number, views.weak), strong]
        ours, theirs = (make(data, rows, draws)(slice(0, 32)) for make in (KernelViews, EagerViews))
        off = [_share_off(one, other) for one, other in zip(ours, theirs, strict=True)]
    except Exception as error:
        log.warning("views are made without kernels of our own: %s: %s", type(error).__name__, _first(error))
        return False
    if not max(off) < FLIPPED:
        log.warning("views are made without kernels of our own: %.2g of their values are off on this GPU", max(off))
        return False
    return True


def _share_off(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).abs() > 1e-4).float().mean())


def _first(error: Exception) -> str:
    lines: Sequence[str] = str(error).splitlines() or [""]
    return lines[0][:200]
