"""What a client's unlabelled images are taken to be: running class shares, and the correction of labels by them.

The correction is FedDB's (Zhu et al. 2024): a network trained on mostly one class sees that class everywhere, and the
mean of its probabilities over unlabelled images tells by how much.
"""

import torch
from torch import Tensor

from fedperl.learn.state import State

LEAST = 1e-6  # a share of 0 cannot be divided by


class RunningShares:
    """Class shares that follow the scores of every step and stay in a client's memory from round to round.

    They start flat. The memory holds a tensor on the scores' device, replaced in every step and never changed in place,
    so that no step waits for the device.
    """

    def __init__(self, memory: State, name: str, classes: int, decay: float) -> None:
        """Follow with a decay a step.

        Raises:
            ValueError: the memory holds shares of another number of classes.
        """
        kept = memory.get(name)
        if kept is not None and kept.shape != (classes,):
            raise ValueError(f"the client's memory holds {name!r} of shape {tuple(kept.shape)}; wanted ({classes},)")
        self.memory, self.name, self.classes, self.decay = memory, name, classes, decay

    def now(self, scores: Tensor) -> Tensor:
        """Return (classes,) shares, on the device of the scores and in their type."""
        kept = self.memory.get(self.name)
        return scores.new_full((self.classes,), 1 / self.classes) if kept is None else kept.to(scores)

    @torch.no_grad()
    def follow(self, scores: Tensor) -> None:
        """Move the shares towards the mean of scores (n, classes); scores may sum to anything but 0.

        A step that is not finite is left out: the server refuses such an update, but the shares would stay NaN.
        """
        before, mean = self.now(scores), scores.mean(0)
        after = torch.lerp(mean / mean.sum(), before, self.decay)
        self.memory[self.name] = torch.where(after.isfinite().all(), after, before)


def correct_prior(scores: Tensor, prior: Tensor, power: float) -> Tensor:
    """Return scores * (uniform / prior)^power, (n, classes), scaled so that each image's sum is what it was.

    With a uniform prior or power 0 nothing changes; with power 1 the prior's classes become alike.
    """
    corrected = scores * (1 / scores.shape[1] / prior.clamp_min(LEAST)) ** power
    return corrected * (scores.sum(1, keepdim=True) / corrected.sum(1, keepdim=True))
