"""A mean teacher at every client (Tarvainen and Valpola 2017): what RSCFed's clients do, and one half of FedIRM."""

import math

import torch
from torch import Tensor, nn

from fedperl.learn.average import RunningAverage
from fedperl.learn.objectives.base import Batch, Context, Losses, Objective
from fedperl.learn.objectives.supervised import labelled_loss, zero_like_parameters
from fedperl.learn.objectives.uda import sharpen
from fedperl.learn.passes import Forward, together
from fedperl.learn.state import State
from fedperl.settings import Objective as ObjectiveSettings

STEPS = "mean_teacher.steps"


class MeanTeacher(Objective):
    """L = CE_l + weight w(t) ||f(weak) - teacher(other weak)||^2, the teacher a running average kept by the client."""

    views = frozenset({"labelled", "weak", "weak_again"})

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        super().__init__(settings, context)
        if context.teacher is None:
            raise ValueError(f"objective.kind = {settings.kind!r} needs a teacher: a running average of the network")
        self.teacher = context.teacher
        weight = settings.teacher.weight * ramp_up(context.round - settings.start, settings.teacher.ramp)
        self.weight = torch.tensor(weight, device=context.data.device)  # of this round
        self._average = RunningAverage(context.teacher, context.memory, STEPS, settings.ema_decay)

    @property
    def repeats(self) -> bool:
        """Always: the weight of the round and the teacher's steps are tensors."""
        return True

    def tensors(self) -> State:
        """Return also the weight and the teacher's steps."""
        return super().tensors() | {"teacher.weight": self.weight, STEPS: self._average.steps}

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; either kind of image may be missing, not both."""
        if batch.labelled is None and batch.weak is None:
            raise ValueError(f"the objective {self.settings.kind!r} was given a batch without images")
        views = [view for view in (batch.labelled, batch.labelled_again, batch.weak) if view is not None]
        forward = together(net, views, [True] * len(views))
        labelled = self._labelled(forward, batch)
        total = zero_like_parameters(net) if labelled is None else labelled
        numbers = {} if labelled is None else {"loss_labelled": labelled.detach()}
        if batch.weak is not None and batch.weak_again is not None:
            taught, more = self.taught(net, forward(batch.weak).float(), batch.weak, batch.weak_again)
            total, numbers = total + taught, numbers | more
        return Losses(total, numbers | {"loss": total.detach()})

    def taught(
        self, net: nn.Module, logits: Tensor, weak: Tensor, weak_again: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted loss of the unlabelled images and the numbers to log.

        Args:
            logits: (n, classes), the network's on `weak`, with a graph.
        """
        with torch.no_grad():
            target = torch.softmax(self.teacher(weak_again).float(), dim=1)
            target = sharpen(target, self.settings.teacher.temperature)
        consistency = (torch.softmax(logits, dim=1) - target).square().sum(1).mean()
        return self.weight * consistency, {"loss_teacher": consistency.detach()}

    def after_step(self, net: nn.Module) -> None:
        """Let the teacher follow; while it is young it is the plain mean of the weights after each step so far."""
        self._average.follow(net)

    def _labelled(self, forward: Forward, batch: Batch) -> Tensor | None:
        return labelled_loss(forward, batch, self.settings, self.context)


def ramp_up(t: int, ramp: int) -> float:
    """Return w(t) = exp(-5 (1 - t / ramp)^2) for t rounds with unlabelled images; 1 from `ramp` on.

    Before such rounds, where t is negative, that of t = 0: no image is there that it would weigh.
    """
    t = max(t, 0)
    return 1.0 if t >= ramp else math.exp(-5 * (1 - t / ramp) ** 2)
