"""Labels for unlabelled images from the client's own and its peers' probabilities (paper, Eq. 3 to 5)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Combine = Literal["mean", "sum", "logit_mean"]


def combine_probabilities(
    own: Tensor, peers: Sequence[Tensor], combine: Combine = "mean", peer_weight: float | None = None
) -> Tensor:
    """Return one score per image and class, (n, classes), from own and peer probabilities of the same shape.

    `mean` divides the sum by the number of models; `sum` is Eq. 3 as printed, so that tau compares with a sum that
    reaches 1 + peers; `logit_mean` is the normalised geometric mean. `peer_weight` is the share of all peers
    together; None gives each model the same share, so that the own share is 1 / (peers + 1).
    """
    if not peers:
        return own
    share = len(peers) / (len(peers) + 1) if peer_weight is None else peer_weight
    weights = [1 - share] + [share / len(peers)] * len(peers)
    models = [own, *peers]
    if combine == "logit_mean":
        logs = [w * torch.log(p.clamp_min(1e-12)) for w, p in zip(weights, models, strict=True)]
        return torch.softmax(torch.stack(logs).sum(0), dim=1)
    mean = torch.stack([w * p for w, p in zip(weights, models, strict=True)]).sum(0)
    return mean * len(models) if combine == "sum" else mean


def pseudo_labels(scores: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return (label, accepted) of each image: the class of the largest score, and whether that reaches tau."""
    best, label = scores.max(dim=1)  # (n,), (n,)
    return label, best >= tau
