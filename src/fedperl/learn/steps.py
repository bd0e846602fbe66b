"""The optimiser's steps of a local round, and the views they are taken on.

How a device is told to take and to make them is an engine's business: `Steps`, `MakeViews`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedperl.data.views import StrongDraw, WeakDraw, apply_strong, apply_weak, to_float
from fedperl.learn import optimizers
from fedperl.learn.local_images import LocalImages
from fedperl.learn.objectives import Batch, Losses, Objective
from fedperl.learn.proximal import Proximal
from fedperl.learn.state import State
from fedperl.settings import Optimizer


class Steps(Protocol):
    """Takes the steps of one local round, one call a batch."""

    def __call__(self, batch: Batch) -> None:
        """Take one step on a batch."""

    def totals(self) -> dict[str, float]:
        """Return the sum over the steps of each logged number.

        Asked for when the last step is taken: from then on the objective and its memory are what the steps made them.
        """

    def moments(self) -> State:
        """Return the optimiser's moments, for a client that keeps them."""


RoundViews = Callable[[slice], Sequence[Tensor]]
"""From some of the rows of a round, the views (n, 3, h, w) of their images, one tensor a draw."""


class MakeViews(Protocol):
    """Prepares the views of a round."""

    def __call__(self, data: LocalImages, rows: Tensor, draws: Sequence[WeakDraw | StrongDraw]) -> RoundViews:
        """Return what makes the views; the draws lie on the CPU and have one entry for each of the rows of images."""


class EagerViews:
    """Operation by operation, on any device."""

    def __init__(self, data: LocalImages, rows: Tensor, draws: Sequence[WeakDraw | StrongDraw]) -> None:
        self.data, self.rows, self.draws = data, rows, [draw.to(data.device) for draw in draws]

    def __call__(self, part: slice) -> list[Tensor]:
        """Return each draw's views of the images at some of the rows."""
        images = to_float(self.data.pixels(self.rows[part]))
        return [
            apply_weak(images, draw[part]) if isinstance(draw, WeakDraw) else apply_strong(images, draw[part])
            for draw in self.draws
        ]


class MakeSteps(Protocol):
    """What an engine gives to a local round."""

    @property
    def make_views(self) -> MakeViews:
        """How the views are made that the steps are taken on."""

    def __call__(
        self, net: nn.Module, objective: Objective, optimizer: Optimizer, mu: float, memory: State, seed: int
    ) -> Steps:
        """Return the steps of one round; the network holds the received model, `seed` is that of its dropout."""


AtWork = Callable[[], AbstractContextManager[tuple[nn.Module, MakeSteps]]]
"""Gives, for as long as a round takes, a network and how its steps are taken."""


def take_step(
    net: nn.Module,
    objective: Objective,
    batch: Batch,
    proximal: Proximal,
    optimizer: torch.optim.Optimizer,
    totals: dict[str, Tensor],
) -> None:
    """Take a step, or several where the objective minimises one thing after the other; add the numbers to totals."""
    then: Callable[[], Losses] | None = partial(objective, net, batch)
    while then is not None:
        losses = proximal(then())
        if losses.total.requires_grad:  # not where nothing is labelled and nothing was accepted
            optimizer.zero_grad(set_to_none=True)
            losses.total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, value in losses.numbers.items():
            totals.setdefault(name, torch.zeros_like(value)).add_(value)
        then = losses.then
    objective.after_step(net)


class EagerSteps:
    """Operation by operation, on any device, with dropout from torch's own generator."""

    make_views: ClassVar[MakeViews] = EagerViews

    def __init__(
        self, net: nn.Module, objective: Objective, optimizer: Optimizer, mu: float, memory: State, seed: int
    ) -> None:
        self.net, self.objective = net, objective
        self.optimizer = optimizers.build(net, optimizer, memory)
        self.proximal = Proximal(net, mu)
        self._totals: dict[str, Tensor] = {}
        torch.manual_seed(seed)
        objective.begin(net)

    def __call__(self, batch: Batch) -> None:
        """Take one step."""
        take_step(self.net, self.objective, batch, self.proximal, self.optimizer, self._totals)

    def totals(self) -> dict[str, float]:
        """Return the sum over the steps of each logged number."""
        return {name: float(value) for name, value in self._totals.items()}

    def moments(self) -> State:
        """Return the optimiser's moments, for a client that keeps them."""
        return optimizers.moments(self.optimizer)
