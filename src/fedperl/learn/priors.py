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

    They start flat. `now` is a tensor on the device, the client's own copy, changed in place alone, so that no step
    waits for the device; the memory holds it from the first step on.
    """

    def __init__(
        self, memory: State, name: str, classes: int, decay: float, device: torch.device | None = None
    ) -> None:
        """Follow with a decay a step.

        Args:
            device: that of the scores.
        Raises:
            ValueError: the memory holds shares of another number of classes.
        """
        kept = memory.get(name)
        if kept is not None and kept.shape != (classes,):
            raise ValueError(f"the client's memory holds {name!r} of shape {tuple(kept.shape)}; wanted ({classes},)")
        self.memory, self.name, self.decay = memory, name, decay
        flat = torch.full((classes,), 1 / classes, device=device)
        self.now = flat if kept is None else kept.to(flat, copy=True)  # (classes,)

    @torch.no_grad()
    def follow(self, scores: Tensor) -> None:
        """Move the shares towards the mean of scores (n, classes); scores may sum to anything but 0.

        A step that is not finite is left out: the server refuses such an update, but the shares would stay NaN.
        """
        mean = scores.mean(0)
        after = torch.lerp(mean / mean.sum(), self.now, self.decay)
        self.now.copy_(torch.where(after.isfinite().all(), after, self.now))
        self.memory[self.name] = self.now


def correct_prior(scores: Tensor, prior: Tensor, power: float) -> Tensor:
    """Return scores * (uniform / prior)^power, (n, classes), scaled so that each image's sum is what it was.

    With a uniform prior or power 0 nothing changes; with power 1 the prior's classes become alike.
    """
    corrected = scores * (1 / scores.shape[1] / prior.clamp_min(LEAST)) ** power
    return corrected * (scores.sum(1, keepdim=True) / corrected.sum(1, keepdim=True))
