"""FixMatch with the help of peers: L = CE_l + beta CE_u + gamma CON (paper, Eq. 2 to 7).

Beyond the paper, each off by default and on its own: class-aware thresholds, a correction of the committee's class
prior, targets weighted by agreement (docs/methods.md). A step labels by the class shares of the steps before it.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.learn.average import follow, young_decay
from fedperl.learn.objectives.base import Batch, Context, Losses, Objective
from fedperl.learn.objectives.supervised import labelled_loss, zero_like_parameters
from fedperl.learn.priors import RunningShares, correct_prior
from fedperl.learn.pseudo_labels import agreement_targets, combine_probabilities, pseudo_labels
from fedperl.learn.thresholds import class_aware_thresholds
from fedperl.settings import Objective as ObjectiveSettings

STEPS = "fixmatch.steps"


class FixMatch(Objective):
    """Without peers FixMatch, hence SSFL when clients are averaged; with peers FedPerl."""

    views = frozenset({"labelled", "weak", "strong"})

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.peers = context.peers
        self.labeller = None if settings.label_source == "current" else context.teacher
        memory, classes = context.memory, context.data.classes
        self._prior = RunningShares(memory, "fixmatch.prior", classes, settings.prior_decay)
        self._shares = RunningShares(memory, "fixmatch.shares", classes, settings.prior_decay)

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; either kind of image may be missing, not both."""
        if batch.labelled is None and batch.weak is None:
            raise ValueError("the FixMatch objective was given a batch without images")
        labelled = labelled_loss(net, batch, self.settings, self.context)
        total = zero_like_parameters(net) if labelled is None else labelled
        numbers = {} if labelled is None else {"loss_labelled": labelled.detach()}
        if batch.weak is not None and batch.strong is not None:
            unlabelled, consistency, accepted = self._unlabelled(net, batch.weak, batch.strong)
            total = total + self.settings.beta * unlabelled + self.settings.gamma * consistency
            numbers |= {"loss_unlabelled": unlabelled.detach(), "loss_consistency": consistency.detach()}
            numbers["accepted"] = accepted.float().mean()
        return Losses(total, numbers | {"loss": total.detach()})

    def after_step(self, net: nn.Module) -> None:
        """Let the running average follow the network, where it labels."""
        if self.settings.label_source == "ema" and self.labeller is not None:
            follow(self.labeller, net, young_decay(self.context.memory, STEPS, self.settings.ema_decay))

    def _unlabelled(self, net: nn.Module, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        peers = [_probabilities(peer, weak) for peer in self.peers]
        own = self._own(net, weak)
        labelling = own.detach() if self.labeller is None else _probabilities(self.labeller, weak)
        targets, accepted = self._targets(labelling, peers)
        unlabelled = accepted_loss(net, strong, targets, accepted, self.settings)
        consistency = consistency_loss(own, peers)
        if self.settings.consistency == "detached":
            # The authors add it only where at least one image was accepted; without a gradient it moves the log alone.
            consistency = consistency.detach() * accepted.any()
        return unlabelled, consistency, accepted

    def _own(self, net: nn.Module, weak: Tensor) -> Tensor:
        """Return the network's probabilities on the weak views, with a graph only where the consistency needs one."""
        mode = net.training
        needs_graph = bool(self.peers) and self.settings.consistency == "gradient" and self.settings.gamma > 0
        if self.settings.label_mode == "eval":
            net.eval()
        with nullcontext() if needs_graph else torch.no_grad():
            probabilities = torch.softmax(net(weak).float(), dim=1)
        net.train(mode)
        return probabilities

    def _targets(self, own: Tensor, peers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return labels (n,) or soft targets (n, classes), and which images are accepted, (n,).

        The committee's scores decide what is accepted, whatever the targets: tau keeps its meaning, and soft targets
        differ from labels only where the models disagree on an accepted image.
        """
        scores, *models = self._scores(own, peers)
        labels, accepted = pseudo_labels(scores, self._thresholds(scores))
        if self.settings.targets == "agreement":
            labels = agreement_targets(models[0], models[1:], self.settings.agreement_scale, self.settings.peer_weight)
        return labels, accepted

    def _scores(self, own: Tensor, peers: Sequence[Tensor]) -> list[Tensor]:
        """Return the committee's scores, the own probabilities and each peer's, all corrected by the running prior."""
        power = self.settings.prior_correction
        scores = combine_probabilities(own, peers, self.settings.combine, self.settings.peer_weight)
        if power == 0:
            return [scores, own, *peers]
        prior = self._prior.now(scores)
        self._prior.follow(scores)
        return [correct_prior(each, prior, power) for each in (scores, own, *peers)]

    def _thresholds(self, scores: Tensor) -> float | Tensor:
        """Return tau, or the thresholds (classes,) below it."""
        if self.settings.thresholds == "fixed":
            return self.settings.tau
        shares = self._shares.now(scores)
        self._shares.follow(scores)
        return class_aware_thresholds(shares, self.settings.tau)


def accepted_loss(
    net: nn.Module, views: Tensor, targets: Tensor, accepted: Tensor, settings: ObjectiveSettings
) -> Tensor:
    """Return the cross-entropy of the accepted images' views with their labels (n,) or soft targets (n, classes).

    The mean is over the accepted images or over all of them, `unlabelled_mean`; zero where none is accepted.
    """
    if settings.strong_pass == "accepted":
        kept = accepted.nonzero().squeeze(1)
        if len(kept) < 2:  # batch norm has no statistics of one image
            return zero_like_parameters(net)
        losses = F.cross_entropy(net(views[kept]).float(), targets[kept], reduction="none")
    else:
        losses = F.cross_entropy(net(views).float(), targets, reduction="none") * accepted
    count = accepted.sum().clamp_min(1) if settings.unlabelled_mean == "accepted" else len(views)
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
