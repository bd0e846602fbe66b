"""The learning rate of a round."""

import math

from fedperl.settings import Optimizer


def of_round(settings: Optimizer, round: int, rounds: int) -> Optimizer:
    """Return the optimiser's settings in one of the rounds 1 to `rounds`.

    `cosine` starts at the full rate and falls along half a cosine; the last round still moves.
    """
    if settings.schedule == "constant":
        return settings
    share = 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
    return settings.changed(lr=settings.lr * share)
