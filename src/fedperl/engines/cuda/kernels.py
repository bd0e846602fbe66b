"""Which kernels of our own a run uses: those that compile on its GPU and give there what torch's operations give."""

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedperl.data.views import StrongDraw, WeakDraw, draw_strong, draw_weak
from fedperl.engines.cuda.captured import WARM
from fedperl.learn.local_images import LocalImages
from fedperl.learn.nets import build_net
from fedperl.learn.nets.resnet9 import PooledReLU, ResNet9
from fedperl.learn.recalibrate import recalibrate
from fedperl.learn.state import batch_norm_names, is_running_statistic
from fedperl.learn.steps import EagerViews, MakeViews
from fedperl.settings import Config, Views

if TYPE_CHECKING:
    from fedperl.engines.cuda.fused_b0 import FusedB0

PASS = 256
"""Images that pass a network at a time where no gradient is wanted."""
FEW = 16
"""Of these, how many MONAI's network is shown, too."""
AMPERE = (8, 0)
"""The first GPUs that compute in bfloat16."""
NEAR = 0.3
"""How far, relative to their size, logits in bfloat16 may be from those in float32."""
FLIPPED = 0.02
"""The share of a view's values that may lie on another level of brightness, where rounding decides."""

log = logging.getLogger(__name__)


Shapes = tuple[tuple[int, tuple[bool, ...]], ...]
"""Of the passes of a run: images in a batch, and for each batch that passes with others whether it has a gradient."""


def finish(config: Config) -> Callable[[nn.Module], nn.Module]:
    """Return what makes a network fast: kernels of our own where there are some for it, else bfloat16 layers."""
    device = torch.device(config.device)
    if config.gpu == "reference" or torch.cuda.get_device_capability(device) < AMPERE:
        return lambda net: net
    own = config.model.net == "efficientnet_b0" and config.model.norm == "batch" and not config.objective.decomposed
    measures = config.peers.batch_norm == "recalibrate"
    if own and b0_works(shapes_of(config), config.data.size, config.device, measures=measures):
        from fedperl.engines.cuda.fused_b0 import FusedB0

        return FusedB0
    if config.model.net == "resnet9" and pooling_works(config.device):
        return lambda net: in_bfloat16(_pooling_fast(net))
    return in_bfloat16


def in_bfloat16(net: nn.Module) -> nn.Module:
    """Let a network's layers compute in bfloat16 where they may; weights and logits stay in float32."""
    forward = net.forward

    def half(images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a cache would outlive a recorded step
            logits: Tensor = forward(images)
        return logits.float()

    net.forward = half
    if not batch_norm_names(net):
        net.forward_groups = partial(_one_pass, net)  # type: ignore[assignment]
    return net


def _pooling_fast(net: nn.Module) -> nn.Module:
    from fedperl.engines.cuda.kernels_pooled import FastPooled

    for module in net.modules():
        if isinstance(module, ResNet9):
            module.pooled = FastPooled()
    return net


@cache
def pooling_works(device: str) -> bool:
    """Return whether the kernels that pool compile on the device and give what torch's operations give, to the bit."""
    try:
        from fedperl.engines.cuda.kernels_common import one_compiles
        from fedperl.engines.cuda.kernels_pooled import FastPooled

        numbers = torch.randn(3, 24, 8, 12, generator=torch.Generator().manual_seed(1)).round(decimals=1)
        found = []
        with one_compiles("pooled"):
            for module in (FastPooled(), PooledReLU()):
                x = numbers.to(device, torch.bfloat16).contiguous(memory_format=torch.channels_last).requires_grad_()
                y = module(x)
                found.append((y.detach(), torch.autograd.grad(y, x, y.detach() + 1)[0]))
        same = all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        log.warning("ResNet-9 pools without kernels of our own: %s: %s", type(error).__name__, first_line(error))
        return False
    if not same:
        log.warning("ResNet-9 pools without kernels of our own: on this GPU they give something else than torch")
    return same


def _one_pass(net: nn.Module, views: Sequence[Tensor], graph: Sequence[bool]) -> list[Tensor]:
    """Return the logits of several views of a network in which no image changes what another gives.

    Those with a gradient pass it together: more work a launch, and the weights' gradient is made once.
    """
    logits: dict[int, Tensor] = {}
    for wanted in (True, False):
        places = [place for place, of in enumerate(graph) if of == wanted]
        if places:
            with torch.set_grad_enabled(wanted and torch.is_grad_enabled()):
                here = [views[place] for place in places]
                found = net(torch.cat(here) if len(here) > 1 else here[0])
            logits |= zip(places, found.split([len(views[place]) for place in places]), strict=True)
    return [logits[place] for place in range(len(views))]


def shapes_of(config: Config) -> Shapes:
    """Return the passes that a run makes, in training first."""
    federation, objective = config.federation, config.objective
    if objective.kind in ("fixmatch", "uda") and federation.unlabelled_batch in (None, federation.batch):
        # labelled, weak and strong views in one pass; the weak ones with a gradient where a peer is to be resembled
        graphs = {False, config.peer_learning and objective.consistency == "gradient" and objective.gamma > 0}
        training: list[tuple[int, tuple[bool, ...]]] = [
            (federation.batch, (True, graph, True)) for graph in sorted(graphs)
        ]
        if config.scenario.labels != "clients":  # labelled views alone, or none of them
            training += [(federation.batch, (True,)), *((federation.batch, (graph, True)) for graph in sorted(graphs))]
    elif objective.kind in ("fedirm", "mean_teacher") and federation.unlabelled_batch in (None, federation.batch):
        # all that have a gradient in one pass: labelled views, FedIRM two of them, and weak ones
        views = 3 if objective.kind == "fedirm" else 2
        training = [(federation.batch, (True,) * views)]
        if config.scenario.labels != "clients":  # clients with one kind of images alone
            training += [(federation.batch, (True,) * some) for some in range(1, views)]
    else:
        sizes = [federation.batch] if objective.kind == "supervised" else [federation.batch, _unlabelled(config)]
        training = [(batch, (True,)) for batch in dict.fromkeys(sizes)]
    return (*training, (PASS, (False,)))


def _unlabelled(config: Config) -> int:
    return config.federation.unlabelled_batch or config.federation.batch


@cache
def b0_works(shapes: Shapes, size: int, device: str, *, measures: bool = False) -> bool:
    """Return whether EfficientNet-B0's kernels compile on the device and give what MONAI's network gives.

    They are compiled for the shapes of a run, many at a time, so that its first round need not wait; then each kind of
    pass is made once. On a GPU or with a compiler they were never tried on, a run is slower rather than wrong.
    """
    try:
        from fedperl.engines.cuda.fused_b0 import FusedB0
        from fedperl.engines.cuda.kernels_common import one_compiles

        theirs, same = (_undropped(build_net("efficientnet_b0", 8, seed=1, dropout=0.0)).to(device) for _ in range(2))
        ours = FusedB0(same)
        with one_compiles("b0", shapes, size):
            for batch, graph in shapes:
                ours.train(batch != PASS)
                ours.prepare((batch, 3, size, size), graph)
            off = max(_difference(ours, theirs, batch, graph, size) for batch, graph in shapes)
            if measures:
                off = max(off, _measured_difference(ours, theirs, size))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        log.warning("EfficientNet-B0 runs without kernels of our own: %s: %s", type(error).__name__, first_line(error))
        return False
    if not off < NEAR:
        log.warning("EfficientNet-B0 runs without kernels of our own: they are off by %.2g on this GPU", off)
    torch.cuda.empty_cache()
    return off < NEAR


def _difference(ours: "FusedB0", theirs: nn.Module, batch: int, graph: tuple[bool, ...], size: int) -> float:
    """Return how far logits and gradients are off in one pass, relative to their norms."""
    device, numbers = next(theirs.parameters()).device, torch.Generator().manual_seed(1)
    groups = [torch.rand(batch, 3, size, size, generator=numbers).to(device) for _ in graph]
    groups = [images.contiguous(memory_format=torch.channels_last) for images in groups]
    for net in (ours, theirs):
        net.train(batch != PASS).zero_grad()
    if batch == PASS:
        with torch.no_grad():
            for _ in range(WARM):
                ours(groups[0])  # on a GPU the next is played from a recording
            return _relative(ours(groups[0])[:FEW], theirs(groups[0][:FEW]))
    found, wanted = ours.forward_groups(groups, graph), []
    squares = torch.stack([logits.square().sum() for logits, of in zip(found, graph, strict=True) if of])
    squares.sum().backward()  # type: ignore[no-untyped-call]
    for images, of in zip(groups, graph, strict=True):  # one after the other: in float32 they take much memory
        with torch.set_grad_enabled(of):
            wanted.append(theirs(images))
        if of:
            wanted[-1].square().sum().backward()
        wanted[-1] = wanted[-1].detach()
    last = [dict(net.named_parameters())["_conv_head.weight"].grad for net in (ours, theirs)]
    return max(_relative(torch.cat(found), torch.cat(wanted)), _relative(*last))  # type: ignore[arg-type]


def _measured_difference(ours: "FusedB0", theirs: nn.Module, size: int) -> float:
    """Return how far batch-norm statistics are off that are measured anew, relative to their norms."""
    images = torch.randint(256, (FEW, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    found = []
    for net in (ours, theirs):
        recalibrate(net, images)
        found.append(torch.cat([value for name, value in net.state_dict().items() if is_running_statistic(name)]))
    return _relative(*found)


def _relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().norm() / theirs.detach().norm())


def _undropped(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if hasattr(module, "drop_connect_rate"):
            module.drop_connect_rate = 0.0  # type: ignore[assignment]
    return net


def fast_views(config: Config) -> MakeViews:
    """Return what makes views fast: kernels of our own, else torch's operations."""
    if config.gpu == "reference" or not views_work(config.views, config.data.size, config.device):
        return EagerViews
    from fedperl.engines.cuda.views import KernelViews

    return KernelViews


@cache
def views_work(views: Views, size: int, device: str) -> bool:
    """Return whether the kernels that make views compile on the device and give what torch's operations give."""
    try:
        from fedperl.engines.cuda.kernels_common import one_compiles
        from fedperl.engines.cuda.views import KernelViews, prepare

        images = torch.arange(32 * 3 * 24 * 24, device=device).mul(7919).remainder(251).to(torch.uint8)
        rows, labels = torch.arange(32, device=device), torch.zeros(32, dtype=torch.int64, device=device)
        data = LocalImages(images.view(32, 3, 24, 24), labels, rows, rows, 1)
        number = torch.Generator().manual_seed(1)
        strong = draw_strong(32, number, views.strong, operations=views.operations, magnitude=views.magnitude)
        draws: list[WeakDraw | StrongDraw] = [draw_weak(32, number, views.weak), strong]
        with one_compiles("views", views, size):
            ours, theirs = (make(data, rows, draws)(slice(0, 32)) for make in (KernelViews, EagerViews))
            off = [_share_off(one, other) for one, other in zip(ours, theirs, strict=True)]
            if images.is_cuda:
                prepare(views, size, images.device)
    except Exception as error:
        log.warning("views are made without kernels of our own: %s: %s", type(error).__name__, first_line(error))
        return False
    if not max(off) < FLIPPED:
        log.warning("views are made without kernels of our own: %.2g of their values are off on this GPU", max(off))
        return False
    return True


def _share_off(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).abs() > 1e-4).float().mean())


def first_line(error: Exception) -> str:
    """Return what an error says, in short."""
    lines: Sequence[str] = str(error).splitlines() or [""]
    return lines[0][:200]
