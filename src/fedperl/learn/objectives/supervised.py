"""Cross-entropy on labelled images: the lower bound with few labels, the upper bound with all."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.learn.objectives.base import Batch, Losses


def labelled_loss(net: nn.Module, batch: Batch, class_weights: Tensor | None) -> Tensor | None:
    """Return the weighted cross-entropy, divided by the sum of weights; None without labelled images."""
    if batch.labelled is None or batch.labels is None:
        return None
    return F.cross_entropy(net(batch.labelled).float(), batch.labels, weight=class_weights)


class Supervised:
    """L = CE(y, f(weak view))."""

    uses_unlabelled = False

    def __init__(self, class_weights: Tensor | None = None) -> None:
        self.class_weights = class_weights

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the cross-entropy; a batch without labels has nothing to learn from."""
        loss = labelled_loss(net, batch, self.class_weights)
        if loss is None:
            raise ValueError("the supervised objective was given a batch without labelled images")
        return Losses(loss, {"loss": loss.detach(), "loss_labelled": loss.detach()})


def zero_like_parameters(net: nn.Module) -> Tensor:
    """Return a zero on the network's device that a sum of losses can start from."""
    return torch.zeros((), device=next(net.parameters()).device)
