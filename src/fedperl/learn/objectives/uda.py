"""Unsupervised data augmentation (Xie et al. 2020): FixMatch with soft targets and easy labels held back."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedperl.learn.objectives.base import Batch, Losses
from fedperl.learn.objectives.fixmatch import FixMatch
from fedperl.learn.objectives.supervised import cross_entropy
from fedperl.learn.passes import Forward
from fedperl.learn.pseudo_labels import pseudo_labels


class UDA(FixMatch):
    """L = CE of the labelled images not yet learnt + beta CE(sharpened target, f(strong view)) + gamma CON.

    The cross-entropy with a soft target is the paper's divergence from it, up to a constant.
    """

    @property
    def repeats(self) -> bool:
        """As FixMatch; the threshold of a step is made of the batch's progress."""
        return super().repeats

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; either kind of image may be missing, not both."""
        if batch.labelled is None or batch.labels is None:
            return super().__call__(net, batch)
        forward = self._forward(net, batch)
        total = self._annealed(forward, batch.labelled, batch.labels, batch.progress)
        numbers = {"loss_labelled": total.detach()}
        if batch.weak is not None:
            losses = self._losses(net, forward, replace(batch, labelled=None, labels=None))
            total, numbers = total + losses.total, losses.numbers | numbers
        return Losses(total, numbers | {"loss": total.detach()})

    def _annealed(self, net: Forward, images: Tensor, labels: Tensor, progress: float | Tensor) -> Tensor:
        """Return the loss of the images whose true class is not above the threshold yet; 0 without any."""
        logits = net(images).float()
        own = torch.softmax(logits.detach(), dim=1).gather(1, labels[:, None]).squeeze(1)
        counts = own <= annealing_threshold(progress, logits.shape[1], self.settings.uda.tsa)
        # A label of -100 is left out of the mean. Without any other it would be 0 / 0: then all count, times 0.
        some = counts.any()
        loss = cross_entropy(logits, labels.masked_fill(~counts & some, -100), self.settings, self.context)
        return self.settings.labelled_weight * loss * some

    def _targets(self, own: Tensor, peers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return sharpened targets (n, classes), and which images are accepted, (n,), by the scores as they were."""
        scores = self._scores(own, peers)[0]
        _, accepted = pseudo_labels(scores, self._thresholds(scores))
        return sharpen(scores, self.settings.uda.temperature), accepted


def sharpen(scores: Tensor, temperature: float) -> Tensor:
    """Return p^(1 / temperature) of scores (n, classes), normalised; by logarithms, so that it is never 0 / 0."""
    return torch.softmax(torch.log(scores.clamp_min(1e-12)) / temperature, dim=1)


def annealing_threshold(
    progress: float | Tensor, classes: int, schedule: Literal["none", "linear", "log", "exp"]
) -> float | Tensor:
    """Return eta = alpha (1 - 1 / classes) + 1 / classes, alpha rising from about 0 to 1 over the run; `none`: 1."""
    alpha = {
        "none": 1.0,
        "linear": progress,
        "log": 1 - _exp(-5 * progress),
        "exp": _exp(5 * (progress - 1)),
    }[schedule]
    return alpha * (1 - 1 / classes) + 1 / classes


def _exp(value: float | Tensor) -> float | Tensor:
    return value.exp() if isinstance(value, Tensor) else math.exp(value)
