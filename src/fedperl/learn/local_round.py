"""One client's local round: a fixed number of optimiser steps on its own images."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from fedperl.data.batches import draw_indices
from fedperl.data.views import StrongDraw, WeakDraw, draw_strong, draw_weak
from fedperl.learn.class_weights import median_frequency
from fedperl.learn.local_images import LocalImages, sent
from fedperl.learn.objectives import Batch, Context, View, build_objective
from fedperl.learn.objectives import Objective as ObjectiveFunction
from fedperl.learn.passes import logits_of
from fedperl.learn.state import State
from fedperl.learn.steps import EagerSteps, EagerViews, MakeSteps, MakeViews
from fedperl.seeds import seed_for
from fedperl.settings import Objective, Optimizer, Views

Result = TypeVar("Result")

VIEW_MEMORY = {"cpu": 64 * 2**20, "cuda": 384 * 2**20}
"""Bytes of views made ahead at a time: what stays in a cache, or what makes launches worth their cost."""


@dataclass(frozen=True)
class LocalSettings:
    """What the server tells a client about its round."""

    objective: Objective
    optimizer: Optimizer
    views: Views
    steps: int
    batch: int
    unlabelled_batch: int | None = None
    """Unlabelled images a step, where they are not as many as labelled ones."""
    round: int = 1
    rounds: int = 1
    eval_mode: bool = False
    """Train with frozen batch-norm statistics and without dropout: the authors' slip in local models."""
    report: Literal["none", "validation", "training"] = "none"
    """The accuracy of its trained model that the client tells: on its own validation or labelled training images."""
    own_batch_norm: bool = False
    """The client goes on from its own batch-norm layers, not from the averaged ones."""
    recalibrate: bool = False
    """Peers get batch-norm statistics of the client's own images."""
    sparse: float = 0.0
    """Entries that moved no more than this count as not sent."""


@dataclass(frozen=True)
class LocalResult:
    """What a local round leaves beside the trained network."""

    numbers: dict[str, float] = field(default_factory=dict)
    """The mean of each logged number."""
    relation: Tensor | None = None
    """FedIRM: the relation matrix of the labelled images."""


def local_round(
    net: nn.Module,
    data: LocalImages,
    settings: LocalSettings,
    *,
    seed: int,
    peers: Sequence[nn.Module] = (),
    teacher: nn.Module | None = None,
    relation: Tensor | None = None,
    memory: State | None = None,
    make_steps: MakeSteps = EagerSteps,
) -> LocalResult:
    """Train the network in place, as `local_steps`, and return what is to be told of it."""
    return drained(
        local_steps(
            net,
            data,
            settings,
            seed=seed,
            peers=peers,
            teacher=teacher,
            relation=relation,
            memory=memory,
            make_steps=make_steps,
        )
    )


def drained(going: Generator[None, None, Result]) -> Result:
    """Return what comes at the end of steps that are taken one by one."""
    while True:
        try:
            next(going)
        except StopIteration as end:
            return cast(Result, end.value)


def local_steps(
    net: nn.Module,
    data: LocalImages,
    settings: LocalSettings,
    *,
    seed: int,
    peers: Sequence[nn.Module] = (),
    teacher: nn.Module | None = None,
    relation: Tensor | None = None,
    memory: State | None = None,
    make_steps: MakeSteps = EagerSteps,
) -> Generator[None, None, LocalResult]:
    """Train the network in place for the given number of steps, yield after each, and return what is to be told of it.

    Args:
        net: starts from the received global model.
        seed: of this run, round and client; batches, views and dropout each draw their own stream from it.
        peers: networks that help to label, in eval mode.
        teacher: the network of `objective.teacher_source`; a running average follows `net`.
        relation: FedIRM's averaged relation matrix.
        memory: what the client kept from its last round, replaced in place by what it is to keep.
        make_steps: how the device is told to take a step, and to make views.
    Raises:
        ValueError: the client has no image that the objective could use.
    """
    memory = {} if memory is None else memory
    weights = client_weights(data, settings.objective)
    context = Context(
        data,
        None if weights is None else weights.to(data.device),
        peers,
        teacher,
        None if relation is None else relation.to(data.device),
        memory,
        settings.round,
        settings.rounds,
    )
    net.requires_grad_(True)  # whatever a round that failed left behind
    objective = objective_for(settings, context)
    net.train(not settings.eval_mode)
    with torch.random.fork_rng(devices=[]):
        step = make_steps(net, objective, settings.optimizer, settings.objective.mu, memory, seed_for(seed, "network"))
        ahead = objective.helpers if data.device.type != "cpu" else ()
        for batch in batches(data, settings, seed, objective.views, ahead, make_steps.make_views):
            step(batch)
            yield
    if settings.optimizer.carry:
        memory.update(step.moments())
    numbers = {name: total / settings.steps for name, total in step.totals().items()}
    return LocalResult(numbers, objective.relation())


def batches(
    data: LocalImages,
    settings: LocalSettings,
    seed: int,
    views: frozenset[View],
    ahead: Sequence[nn.Module] = (),
    make_views: MakeViews = EagerViews,
) -> Iterator[Batch]:
    """Yield one batch a step. Views are made many steps at a time: small batches would cost mostly overhead.

    In the rounds of `objective.start` there are labelled images only.

    Args:
        ahead: networks that are asked about all weak views at once; on a CPU, batches that fit its cache are no slower.
        make_views: how the device is told to make views.
    """
    pool = partial(_Pool, data, settings, seed, views, make_views)
    labelled = pool(data.labelled, settings.batch, ("labelled", "labelled_again"))
    unlabelled = data.unlabelled if settings.round > settings.objective.start else data.unlabelled[:0]
    size = settings.unlabelled_batch or settings.batch
    others = pool(unlabelled, size, ("weak", "weak_again", "strong"), ahead)
    shares = _mixed_shares(data, settings, seed)
    for step, (one, other) in enumerate(zip(labelled, others, strict=True)):
        progress = ((settings.round - 1) * settings.steps + step) / (settings.rounds * settings.steps)
        share, images = None if shares is None else shares[step], one.views.get("labelled")
        yield Batch(
            images if share is None or images is None else mixed(images, share),
            None if one.rows is None else data.labels[one.rows],
            other.views.get("weak"),
            other.views.get("strong"),
            one.views.get("labelled_again"),
            other.views.get("weak_again"),
            other.rows,
            other.told,
            progress,
            share,
        )


@dataclass(frozen=True)
class _Drawn:
    rows: Tensor | None = None
    views: dict[View, Tensor] = field(default_factory=dict)
    told: Tensor | None = None


PURPOSE: dict[View, str] = {
    "labelled": "labelled views",
    "labelled_again": "other labelled views",
    "weak": "weak views",
    "weak_again": "other weak views",
    "strong": "strong views",
}


class _Pool:
    """Yields, for every step, the rows drawn from one pool of a client's images and the views asked for."""

    def __init__(
        self,
        data: LocalImages,
        settings: LocalSettings,
        seed: int,
        wanted: frozenset[View],
        make_views: MakeViews,
        pool: Tensor,
        batch: int,
        possible: tuple[View, ...],
        ahead: Sequence[nn.Module] = (),
    ) -> None:
        self.ahead = ahead
        self.data, self.steps, self.batch, self.settings = data, settings.steps, batch, settings
        n = settings.steps * batch
        self.names = [name for name in possible if name in wanted] if len(pool) else []
        purpose = "labelled" if "labelled" in possible else "unlabelled"
        self.rows = _rows(pool, n, seed, purpose) if self.names else pool[:0]
        draws = [draw_view(name, n, _generator(seed, PURPOSE[name]), settings.views) for name in self.names]
        self.views = make_views(data, self.rows, draws)

    def __iter__(self) -> Iterator[_Drawn]:
        if not self.names:
            yield from [_Drawn()] * self.steps
            return
        step_bytes = (1 + len(self.names)) * self.batch * 4 * self.data.images[0].numel()
        chunk = max(1, VIEW_MEMORY.get(self.data.device.type, VIEW_MEMORY["cpu"]) // step_bytes) * self.batch
        on_device = sent(self.rows, self.data.device)
        for start in range(0, len(self.rows), chunk):
            part = slice(start, min(start + chunk, len(self.rows)))
            made = dict(zip(self.names, self.views(part), strict=True))
            told = logits_of(self.ahead, made["weak"]) if self.ahead and "weak" in made else None
            for step in range(0, part.stop - start, self.batch):
                here = slice(step, step + self.batch)
                rows = on_device[start + step : start + step + self.batch]
                views = {name: _batch(view, here) for name, view in made.items()}
                yield _Drawn(rows, views, None if told is None else told[:, here])


def draw_view(name: View, n: int, generator: torch.Generator, views: Views) -> WeakDraw | StrongDraw:
    """Return what a view of this name does to each of n images."""
    if (views.labelled if name.startswith("labelled") else name) != "strong":
        return draw_weak(n, generator, views.weak)
    return draw_strong(n, generator, views.strong, operations=views.operations, magnitude=views.magnitude)


def client_weights(data: LocalImages, objective: Objective) -> Tensor | None:
    """Return the class weights of a client's own labels, on the CPU; None where classes are not weighted."""
    if objective.class_weights == "none" or not len(data.labelled):
        return None
    power = 0.5 if objective.class_weights == "root_median_frequency" else 1.0
    return median_frequency(data.labels[data.labelled].cpu(), data.classes, objective.absent_class_weight, power)


def objective_for(settings: LocalSettings, context: Context) -> ObjectiveFunction:
    """Return the objective of a local round.

    Raises:
        ValueError: there is nothing to train on, or no teacher where it needs one.
    """
    source, data = settings.objective.teacher_source, context.data
    if source != "none" and context.teacher is None:
        raise ValueError(f"objective.kind = {settings.objective.kind!r} with teacher {source!r} needs that network")
    objective = build_objective(settings.objective, context)
    uses_unlabelled = bool(objective.views & {"weak", "strong"}) and settings.round > settings.objective.start
    if not len(data.labelled) and not (uses_unlabelled and len(data.unlabelled)):
        raise ValueError(
            f"nothing to train on: {len(data.labelled)} labelled and {len(data.unlabelled)} unlabelled images "
            f"for the objective {settings.objective.kind!r} in round {settings.round}"
        )
    return objective


def mixed(images: Tensor, share: Tensor) -> Tensor:
    """Return images (n, 3, h, w) of which so large a share, (n,), is another: the first with the last, and so on.

    Their order was drawn, so that whoever is at the other end is anyone.
    """
    found = torch.lerp(images, images.flip(0), share.to(images.dtype)[:, None, None, None])
    return found.contiguous(memory_format=torch.channels_last)


def _mixed_shares(data: LocalImages, settings: LocalSettings, seed: int) -> Tensor | None:
    """Return which share of each step's labelled images is another one's, (steps, n); None where nothing is mixed."""
    if not settings.objective.mixup or not len(data.labelled):
        return None
    drawn = torch.rand(settings.steps, settings.batch, generator=_generator(seed, "mixed shares"))
    return sent(settings.objective.mixup * drawn, data.device)


def _rows(pool: Tensor, n: int, seed: int, purpose: str) -> Tensor:
    return pool[draw_indices(len(pool), n, _generator(seed, purpose)).to(pool.device)]


def _batch(images: Tensor, part: slice) -> Tensor:
    return images[part].contiguous(memory_format=torch.channels_last)


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_for(seed, purpose))
