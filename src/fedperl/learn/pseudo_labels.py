"""Labels for unlabelled images from the client's own and its peers' probabilities (paper, Eq. 3 to 5)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
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
    weights = _model_weights(len(peers), peer_weight)
    models = [own, *peers]
    if combine == "logit_mean":
        logs = [w * torch.log(p.clamp_min(1e-12)) for w, p in zip(weights, models, strict=True)]
        return torch.softmax(torch.stack(logs).sum(0), dim=1)
    mean = torch.stack([w * p for w, p in zip(weights, models, strict=True)]).sum(0)
    return mean * len(models) if combine == "sum" else mean


def pseudo_labels(scores: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return (label, accepted) of each image: the class of the largest score, and whether that reaches tau.

    tau is one number, or (classes,) with a threshold for each label.
    """
    best, label = scores.max(dim=1)  # (n,), (n,)
    return label, best >= (tau[label] if isinstance(tau, Tensor) else tau)


def agreement_targets(
    own: Tensor, peers: Sequence[Tensor], scale: float = 0.05, peer_weight: float | None = None
) -> Tensor:
    """Return soft targets (n, classes): the models' labels, each weighted by how close its confidence is to the best.

    A model's weight for an image is 2^(-(best confidence - its confidence) / scale) times its share in
    `combine_probabilities`, and the weights of an image sum to 1 (after SAGE, CVPR 2025, which has two
    models, local and global). Where all models agree the target is exactly their label; where they are equally sure it
    is the mean of their votes.
    """
    confidence, label = torch.stack([own, *peers]).max(dim=2)  # (models, n), (models, n)
    shares = _model_weights(len(peers), peer_weight)
    # Powers of two relative to the best are a softmax: it cannot divide 0 by 0, however small the scale is.
    exponents = [c * (math.log(2) / scale) + _log(w) for c, w in zip(confidence, shares, strict=True)]
    weights = torch.softmax(torch.stack(exponents), dim=0)
    votes = (F.one_hot(label, own.shape[1]) * weights.unsqueeze(2)).sum(0)
    return votes / votes.sum(1, keepdim=True)


def _model_weights(peers: int, peer_weight: float | None) -> list[float]:
    """Return the share of the own model and of each peer."""
    if not peers:
        return [1.0]
    share = peers / (peers + 1) if peer_weight is None else peer_weight
    return [1 - share] + [share / peers] * peers


def _log(weight: float) -> float:
    return math.log(weight) if weight > 0 else -math.inf
