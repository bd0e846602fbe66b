"""FixMatch with the help of peers: L = CE_l + beta CE_u + gamma CON (paper, Eq. 2 to 7)."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.learn.objectives.base import Batch, Losses
from fedperl.learn.objectives.supervised import labelled_loss, zero_like_parameters
from fedperl.learn.pseudo_labels import combine_probabilities, pseudo_labels
from fedperl.settings import Objective as ObjectiveSettings


class FixMatch:
    """Without peers FixMatch, hence SSFL when clients are averaged; with peers FedPerl."""

    uses_unlabelled = True

    def __init__(
        self,
        settings: ObjectiveSettings,
        class_weights: Tensor | None = None,
        peers: Sequence[nn.Module] = (),
        labeller: nn.Module | None = None,
    ) -> None:
        self.settings = settings
        self.class_weights = class_weights
        self.peers = peers
        self.labeller = labeller

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; either kind of image may be missing, not both."""
        if batch.labelled is None and batch.weak is None:
            raise ValueError("the FixMatch objective was given a batch without images")
        labelled = labelled_loss(net, batch, self.class_weights)
        total = zero_like_parameters(net) if labelled is None else labelled
        numbers = {} if labelled is None else {"loss_labelled": labelled.detach()}
        if batch.weak is not None and batch.strong is not None:
            unlabelled, consistency, accepted = self._unlabelled(net, batch.weak, batch.strong)
            total = total + self.settings.beta * unlabelled + self.settings.gamma * consistency
            numbers |= {"loss_unlabelled": unlabelled.detach(), "loss_consistency": consistency.detach()}
            numbers["accepted"] = accepted.float().mean()
        return Losses(total, numbers | {"loss": total.detach()})

    def _unlabelled(self, net: nn.Module, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        peers = [_probabilities(peer, weak) for peer in self.peers]
        own = self._own(net, weak)
        labelling = own.detach() if self.labeller is None else _probabilities(self.labeller, weak)
        scores = combine_probabilities(labelling, peers, self.settings.combine, self.settings.peer_weight)
        labels, accepted = pseudo_labels(scores, self.settings.tau)
        unlabelled = self._strong_loss(net, strong, labels, accepted)
        consistency = consistency_loss(own, peers)
        if self.settings.consistency == "detached":
            # The authors add it only where at least one image was accepted; without a gradient it moves the log alone.
            consistency = consistency.detach() * accepted.any()
        return unlabelled, consistency, accepted

    def _own(self, net: nn.Module, weak: Tensor) -> Tensor:
        """Return the network's probabilities on the weak views, with a graph only where the consistency needs one."""
        needs_graph = bool(self.peers) and self.settings.consistency == "gradient" and self.settings.gamma > 0
        if self.settings.label_mode == "eval":
            net.eval()
        with nullcontext() if needs_graph else torch.no_grad():
            probabilities = torch.softmax(net(weak).float(), dim=1)
        net.train()
        return probabilities

    def _strong_loss(self, net: nn.Module, strong: Tensor, labels: Tensor, accepted: Tensor) -> Tensor:
        if self.settings.strong_pass == "accepted":
            kept = accepted.nonzero().squeeze(1)
            if len(kept) < 2:  # batch norm has no statistics of one image
                return zero_like_parameters(net)
            losses = F.cross_entropy(net(strong[kept]).float(), labels[kept], reduction="none")
        else:
            losses = F.cross_entropy(net(strong).float(), labels, reduction="none") * accepted
        count = accepted.sum().clamp_min(1) if self.settings.unlabelled_mean == "accepted" else len(strong)
        return losses.sum() / count


def consistency_loss(own: Tensor, peers: Sequence[Tensor]) -> Tensor:
    """Return the mean over peers, images and classes of the squared difference of probabilities (Eq. 6).

    The mean over classes makes it smaller than the printed squared norm by the number of classes. Zero without peers.
    """
    if not peers:
        return own.new_zeros(())
    return torch.stack([F.mse_loss(own, peer) for peer in peers]).mean()


@torch.no_grad()
def _probabilities(net: nn.Module, images: Tensor) -> Tensor:
    return torch.softmax(net(images).float(), dim=1)
