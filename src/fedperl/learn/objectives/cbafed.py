"""CBAFed (Li et al. 2023): each round every unlabelled image is labelled once, at thresholds that balance the classes.

L = CE_l + beta CE_u on weak views, the labels of CE_u fixed for the round. Its average with the stored predecessor is
the server's (`federation.residual_every`), its supervised rounds are `objective.start`.
"""

import torch
from torch import Tensor, nn

from fedperl.learn.objectives.base import Batch, Context, Losses, Objective
from fedperl.learn.objectives.fixmatch import accepted_loss
from fedperl.learn.objectives.supervised import labelled_loss, zero_like_parameters
from fedperl.learn.predict import predict
from fedperl.learn.state import State
from fedperl.learn.thresholds import class_balanced_thresholds
from fedperl.settings import Objective as ObjectiveSettings

ACCEPTED = "cbafed.accepted"  # in the client's memory: pseudo labels of each class in the last labelling
ROOM = 2**16
"""Clients' images are counted up to a multiple of this, so that one recorded step serves clients of all sizes."""


class CBAFed(Objective):
    """Labels the client's images in `begin`, with the received model in eval mode, and trains on them as on labels."""

    views = frozenset({"labelled", "weak"})

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        super().__init__(settings, context)
        device, room = context.data.device, -(-len(context.data.images) // ROOM) * ROOM
        self._labels = torch.zeros(room, dtype=torch.int64, device=device)
        self._accepted = torch.zeros(room, dtype=torch.bool, device=device)

    @property
    def repeats(self) -> bool:
        """Unless only accepted views pass the network: how many they are is a value of every step.

        The images are labelled before the first step; a step looks its rows up in tensors with room for any client.
        """
        return self.settings.strong_pass == "all"

    def tensors(self) -> State:
        """Return also the labels of the round, by image."""
        return super().tensors() | {"cbafed.labels": self._labels, "cbafed.accepted_images": self._accepted}

    def begin(self, net: nn.Module) -> None:
        """Label the unlabelled images as they are, without augmentation; not in the rounds on labelled images alone."""
        data, settings = self.context.data, self.settings
        if self.context.round <= settings.start or not len(data.unlabelled):
            return
        shares = self._shares()
        thresholds = class_balanced_thresholds(shares, settings.cbafed.base, settings.tau)
        probabilities = predict(net, data.images[data.unlabelled])
        labels, accepted = balanced_labels(probabilities, thresholds, shares < settings.cbafed.tail)
        self._labels[data.unlabelled], self._accepted[data.unlabelled] = labels, accepted
        self.context.memory[ACCEPTED] = torch.bincount(labels[accepted], minlength=data.classes).cpu()

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; either kind of image may be missing, not both."""
        if batch.labelled is None and batch.weak is None:
            raise ValueError("the CBAFed objective was given a batch without images")
        labelled = labelled_loss(net, batch, self.settings, self.context)
        total = zero_like_parameters(net) if labelled is None else labelled
        numbers = {} if labelled is None else {"loss_labelled": labelled.detach()}
        if batch.weak is not None:
            if batch.rows is None:
                raise ValueError("the CBAFed objective was given unlabelled images without their rows")
            accepted = self._accepted[batch.rows]
            unlabelled = accepted_loss(net, net, batch.weak, self._labels[batch.rows], accepted, self.settings)
            total = total + self.settings.beta * unlabelled
            numbers |= {"loss_unlabelled": unlabelled.detach(), "accepted": accepted.float().mean()}
        return Losses(total, numbers | {"loss": total.detach()})

    def _shares(self) -> Tensor:
        """Return (classes,) shares of the labels and of the last labelling's pseudo labels; flat without either."""
        data = self.context.data
        counts = torch.bincount(data.labels[data.labelled], minlength=data.classes)
        if ACCEPTED in self.context.memory:
            counts = counts + self.context.memory[ACCEPTED].to(counts.device)
        if not counts.any():
            counts = torch.ones_like(counts)
        return counts / counts.sum()


def balanced_labels(probabilities: Tensor, thresholds: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """Return (label, accepted) of each image, (n,), from (n, classes) probabilities.

    The best class is the label where it reaches its threshold. Where it does not and is no tail class, but the second
    best is one, that is the label if it reaches half of its threshold: a second-best class holds at most half of the
    probability, so that a whole threshold, which is hardly ever below 0.5, would never be reached.

    Args:
        thresholds: (classes,).
        tail: (classes,), whether a class is rare.
    """
    values, classes = probabilities.topk(2, dim=1)
    best, second = classes.unbind(1)
    first = values[:, 0] >= thresholds[best]
    rescued = ~first & ~tail[best] & tail[second] & (values[:, 1] >= thresholds[second] / 2)
    return torch.where(rescued, second, best), first | rescued
