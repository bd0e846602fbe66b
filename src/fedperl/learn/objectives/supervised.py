"""Cross-entropy on labelled images: the lower bound with few labels, the upper bound with all."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.learn.objectives.base import Batch, Context, Losses, Objective
from fedperl.learn.passes import Forward
from fedperl.settings import Objective as ObjectiveSettings


def labelled_loss(net: Forward, batch: Batch, settings: ObjectiveSettings, context: Context) -> Tensor | None:
    """Return the loss of the labelled images, mixed ones with both labels; None without any."""
    if batch.labelled is None or batch.labels is None:
        return None
    logits = net(batch.labelled).float()
    return settings.labelled_weight * cross_entropy(logits, batch.labels, settings, context, batch.mixed)


def cross_entropy(
    logits: Tensor, labels: Tensor, settings: ObjectiveSettings, context: Context, share: Tensor | None = None
) -> Tensor:
    """Return the weighted cross-entropy of logits (n, classes), divided by the sum of weights; label -100 is left out.

    An image counts by the weight of its own class, also where labels are smoothed: torch would weigh the smoothing by
    the weights of all classes, and pull every prediction towards the rare ones.
    `logit_adjusted` adds the log of the client's own class shares, so that a rare class must win by more in training
    and is favoured by as much in use (Menon et al. 2021, Eq. 10); a class without labels counts as one image.

    Args:
        share: (n,) of each image that shows the one from the other end of the batch: it counts so much by that label.
    """
    if settings.labelled_loss == "logit_adjusted":
        logits = logits + context.log_class_shares
    weights = context.class_weights
    if not settings.label_smoothing and share is None:
        return F.cross_entropy(logits, labels, weight=weights)
    losses, counts = _each(logits, labels, settings.label_smoothing, weights)
    if share is not None:
        others, their_counts = _each(logits, labels.flip(0), settings.label_smoothing, weights)
        losses, counts = torch.cat([losses, others]), torch.cat([(1 - share) * counts, share * their_counts])
    return (losses * counts).sum() / counts.sum()


def _each(logits: Tensor, labels: Tensor, smoothing: float, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each image, and how much it counts: by its class, nothing without a label."""
    losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    counts = (labels >= 0).to(losses.dtype) if weights is None else weights[labels.clamp_min(0)] * (labels >= 0)
    return losses, counts


class Supervised(Objective):
    """L = CE(y, f(weak view))."""

    @property
    def repeats(self) -> bool:
        """Always: class weights and shares are tensors."""
        return True

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the cross-entropy; a batch without labels has nothing to learn from."""
        loss = labelled_loss(net, batch, self.settings, self.context)
        if loss is None:
            raise ValueError("the supervised objective was given a batch without labelled images")
        return Losses(loss, {"loss": loss.detach(), "loss_labelled": loss.detach()})


def zero_like_parameters(net: nn.Module) -> Tensor:
    """Return a zero on the network's device that a sum of losses can start from."""
    return torch.zeros((), device=next(net.parameters()).device)
