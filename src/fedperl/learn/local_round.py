"""One client's local round: a fixed number of optimiser steps on its own images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedperl.data.batches import draw_indices
from fedperl.data.views import apply_strong, apply_weak, draw_strong, draw_weak, to_float
from fedperl.learn.class_weights import median_frequency
from fedperl.learn.objectives import Batch, build_objective
from fedperl.learn.objectives import Objective as ObjectiveFunction
from fedperl.seeds import seed_for
from fedperl.settings import Objective, Optimizer, Views

VIEW_MEMORY = 64 * 2**20  # bytes of views made ahead at a time


@dataclass(frozen=True)
class LocalImages:
    """What one client trains on: its images, and which of them it has labels for."""

    images: Tensor  # (n, 3, h, w) uint8
    labels: Tensor  # (n,)
    labelled: Tensor  # positions in images
    unlabelled: Tensor  # positions in images
    classes: int


@dataclass(frozen=True)
class LocalSettings:
    """What the server tells a client about its round."""

    objective: Objective
    optimizer: Optimizer
    views: Views
    steps: int
    batch: int


def local_round(
    net: nn.Module,
    data: LocalImages,
    settings: LocalSettings,
    *,
    seed: int,
    peers: Sequence[nn.Module] = (),
    teacher: nn.Module | None = None,
) -> dict[str, float]:
    """Train the network in place for the given number of steps and return the mean of each logged number.

    Args:
        net: starts from the received global model.
        seed: of this run, round and client; batches, views and dropout each draw their own stream from it.
        peers: networks that help to label, in eval mode.
        teacher: labels instead of `net` where `objective.label_source` says so; with `ema` it follows `net`.

    Raises:
        ValueError: the client has no image that the objective could use.
    """
    objective = _objective(data, settings, peers, teacher)
    optimizer = _optimizer(net, settings.optimizer)
    average = teacher if settings.objective.label_source == "ema" else None
    totals: dict[str, Tensor] = {}
    net.train()
    with torch.random.fork_rng(devices=[]):  # dropout draws from torch's own generator
        torch.manual_seed(seed_for(seed, "network"))
        for batch in batches(data, settings, seed, unlabelled=objective.uses_unlabelled):
            losses = objective(net, batch)
            if losses.total.requires_grad:  # not where nothing is labelled and nothing was accepted
                optimizer.zero_grad(set_to_none=True)
                losses.total.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if average is not None:
                _follow(average, net, settings.objective.ema_decay)
            for name, value in losses.numbers.items():
                totals[name] = totals[name] + value if name in totals else value
    return {name: float(value) / settings.steps for name, value in totals.items()}


def batches(data: LocalImages, settings: LocalSettings, seed: int, *, unlabelled: bool) -> Iterator[Batch]:
    """Yield one batch a step. Views are made many steps at a time: small batches would cost mostly overhead."""
    n, device = settings.steps * settings.batch, data.images.device
    labelled_rows = _rows(data.labelled, n, seed, "labelled")
    labelled_draw = draw_weak(n, _generator(seed, "labelled views"), settings.views.weak).to(device)
    rows = _rows(data.unlabelled, n, seed, "unlabelled") if unlabelled else None
    weak_draw = draw_weak(n, _generator(seed, "weak views"), settings.views.weak).to(device)
    strong_draw = draw_strong(
        n,
        _generator(seed, "strong views"),
        settings.views.strong,
        operations=settings.views.operations,
        magnitude=settings.views.magnitude,
    ).to(device)
    image_bytes = 4 * data.images[0].numel()
    chunk = max(1, VIEW_MEMORY // (3 * settings.batch * image_bytes)) * settings.batch
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        labelled = weak = strong = None
        if labelled_rows is not None:
            labelled = apply_weak(to_float(data.images[labelled_rows[part]]), labelled_draw[part])
        if rows is not None:
            images = to_float(data.images[rows[part]])
            weak, strong = apply_weak(images, weak_draw[part]), apply_strong(images, strong_draw[part])
        for step in range(0, part.stop - start, settings.batch):
            here = slice(step, step + settings.batch)
            there = slice(start + step, start + step + settings.batch)
            yield Batch(
                _batch(labelled, here),
                None if labelled_rows is None else data.labels[labelled_rows[there]],
                _batch(weak, here),
                _batch(strong, here),
            )


def client_weights(data: LocalImages, objective: Objective) -> Tensor | None:
    """Return the class weights of a client's own labels, on the CPU; None where classes are not weighted."""
    if objective.class_weights == "none" or not len(data.labelled):
        return None
    return median_frequency(data.labels[data.labelled].cpu(), data.classes, objective.absent_class_weight)


def _objective(
    data: LocalImages, settings: LocalSettings, peers: Sequence[nn.Module], teacher: nn.Module | None
) -> ObjectiveFunction:
    weights = client_weights(data, settings.objective)
    weights = None if weights is None else weights.to(data.labels.device)
    if settings.objective.label_source != "current" and teacher is None:
        raise ValueError(f"label_source = {settings.objective.label_source!r} needs a teacher network")
    objective = build_objective(settings.objective, class_weights=weights, peers=peers, labeller=teacher)
    if not len(data.labelled) and not (objective.uses_unlabelled and len(data.unlabelled)):
        raise ValueError(
            f"nothing to train on: {len(data.labelled)} labelled and {len(data.unlabelled)} unlabelled images "
            f"for the objective {settings.objective.kind!r}"
        )
    return objective


def _optimizer(net: nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    if settings.kind == "adam":
        return torch.optim.Adam(net.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        net.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
    )


def _rows(pool: Tensor, n: int, seed: int, purpose: str) -> Tensor | None:
    if not len(pool):
        return None
    return pool[draw_indices(len(pool), n, _generator(seed, purpose)).to(pool.device)]


def _batch(images: Tensor | None, part: slice) -> Tensor | None:
    return None if images is None else images[part].contiguous(memory_format=torch.channels_last)


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_for(seed, purpose))


@torch.no_grad()
def _follow(average: nn.Module, net: nn.Module, decay: float) -> None:
    """Move the running average towards the network; counters are copied."""
    for mean, value in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, 1 - decay)
        else:
            mean.copy_(value)
