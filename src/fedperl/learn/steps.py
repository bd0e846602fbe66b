"""The optimiser's steps of a local round. How a device is told to take them is an engine's business: `Steps`."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fedperl.learn import optimizers
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


class MakeSteps(Protocol):
    """What an engine gives to a local round."""

    def __call__(
        self, net: nn.Module, objective: Objective, optimizer: Optimizer, mu: float, memory: State, seed: int
    ) -> Steps:
        """Return the steps of one round; the network holds the received model, `seed` is that of its dropout."""


class EagerSteps:
    """Operation by operation, on any device, with dropout from torch's own generator."""

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
        """Take one step, or several where the objective minimises one thing after the other."""
        then: Callable[[], Losses] | None = partial(self.objective, self.net, batch)
        while then is not None:
            losses = self.proximal(then())
            if losses.total.requires_grad:  # not where nothing is labelled and nothing was accepted
                self.optimizer.zero_grad(set_to_none=True)
                losses.total.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
            for name, value in losses.numbers.items():
                self._totals[name] = self._totals[name] + value if name in self._totals else value
            then = losses.then
        self.objective.after_step(self.net)

    def totals(self) -> dict[str, float]:
        """Return the sum over the steps of each logged number."""
        return {name: float(value) for name, value in self._totals.items()}

    def moments(self) -> State:
        """Return the optimiser's moments, for a client that keeps them."""
        return optimizers.moments(self.optimizer)
