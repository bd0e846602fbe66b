"""FixMatch with the help of peers: L = CE_l + beta CE_u + gamma CON (paper, Eq. 2 to 7).

Beyond the paper, each off by default and on its own: class-aware thresholds, a correction of the committee's class
prior, targets weighted by agreement (docs/methods.md). A step labels by the class shares of the steps before it.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.learn.average import RunningAverage
from fedperl.learn.objectives.base import Batch, Context, Losses, Objective
from fedperl.learn.objectives.supervised import labelled_loss, zero_like_parameters
from fedperl.learn.passes import Forward, logits_of, together
from fedperl.learn.priors import RunningShares, correct_prior
from fedperl.learn.pseudo_labels import agreement_targets, combine_probabilities, pseudo_labels
from fedperl.learn.state import State
from fedperl.learn.thresholds import class_aware_thresholds
from fedperl.settings import Objective as ObjectiveSettings

PRIOR, SHARES, STEPS = "fixmatch.prior", "fixmatch.shares", "fixmatch.steps"  # in the client's memory


class FixMatch(Objective):
    """Without peers FixMatch, hence SSFL when clients are averaged; with peers FedPerl."""

    views = frozenset({"labelled", "weak", "strong"})

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.peers = context.peers
        self.labeller = None if settings.label_source == "current" else context.teacher
        memory, data = context.memory, context.data
        self._prior = RunningShares(memory, PRIOR, data.classes, settings.prior_decay, data.device)
        self._shares = RunningShares(memory, SHARES, data.classes, settings.prior_decay, data.device)
        self._average: RunningAverage | None = None
        if settings.label_source == "ema" and self.labeller is not None:
            self._average = RunningAverage(self.labeller, memory, STEPS, settings.ema_decay)

    @property
    def repeats(self) -> bool:
        """Unless only accepted views pass the network: how many they are is a value of every step."""
        return self.settings.strong_pass == "all"

    def tensors(self) -> State:
        """Return also the running class shares, and the steps of a running average, where they are used."""
        found = super().tensors()
        if self.settings.prior_correction > 0:
            found[PRIOR] = self._prior.now
        if self.settings.thresholds != "fixed":
            found[SHARES] = self._shares.now
        if self._average is not None:
            found[STEPS] = self._average.steps
        return found

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; either kind of image may be missing, not both."""
        if batch.labelled is None and batch.weak is None:
            raise ValueError("the FixMatch objective was given a batch without images")
        return self._losses(net, self._forward(net, batch), batch)

    def _losses(self, net: nn.Module, forward: Forward, batch: Batch) -> Losses:
        """Return the losses of a batch; `forward` gives the network's logits of its views."""
        labelled = labelled_loss(forward, batch, self.settings, self.context)
        total = zero_like_parameters(net) if labelled is None else labelled
        numbers = {} if labelled is None else {"loss_labelled": labelled.detach()}
        if batch.weak is not None and batch.strong is not None:
            unlabelled, consistency, accepted = self._unlabelled(net, forward, batch, batch.weak, batch.strong)
            total = total + self.settings.beta * unlabelled + self.settings.gamma * consistency
            numbers |= {"loss_unlabelled": unlabelled.detach(), "loss_consistency": consistency.detach()}
            numbers["accepted"] = accepted.float().mean()
        return Losses(total, numbers | {"loss": total.detach()})

    def after_step(self, net: nn.Module) -> None:
        """Let the running average follow the network, where it labels."""
        if self._average is not None:
            self._average.follow(net)

    @property
    def _needs_graph(self) -> bool:
        """Whether a gradient flows through the network's own probabilities on the weak views."""
        return bool(self.peers) and self.settings.consistency == "gradient" and self.settings.gamma > 0

    def _forward(self, net: nn.Module, batch: Batch) -> Forward:
        """Return what gives the logits of all views in this mode, in one pass if the network can."""
        if self.settings.strong_pass != "all":
            return net
        weak = batch.weak if self.settings.label_mode == "train" else None
        graph = {id(batch.labelled): True, id(weak): self._needs_graph, id(batch.strong): True}
        views = [view for view in (batch.labelled, weak, batch.strong) if view is not None]
        return together(net, views, [graph[id(view)] for view in views])

    @property
    def helpers(self) -> Sequence[nn.Module]:
        """The peers, and the received model where it labels."""
        fixed = [] if self.labeller is None or self._average is not None else [self.labeller]
        return [*self.peers, *fixed]

    def _unlabelled(
        self, net: nn.Module, forward: Forward, batch: Batch, weak: Tensor, strong: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        peers = [torch.softmax(self.said(peer, batch), dim=1) for peer in self.peers]
        own = self._own(net, forward, weak)
        labelling = own.detach()
        if self.labeller is not None:
            moves = self._average is not None
            said = logits_of([self.labeller], weak, batch=len(weak))[0] if moves else self.said(self.labeller, batch)
            labelling = torch.softmax(said, dim=1)
        targets, accepted = self._targets(labelling, peers)
        unlabelled = accepted_loss(net, forward, strong, targets, accepted, self.settings)
        consistency = consistency_loss(own, peers)
        if self.settings.consistency == "detached":
            # The authors add it only where at least one image was accepted; without a gradient it moves the log alone.
            consistency = consistency.detach() * accepted.any()
        return unlabelled, consistency, accepted

    def _own(self, net: nn.Module, forward: Forward, weak: Tensor) -> Tensor:
        """Return the network's probabilities on the weak views, with a graph only where the consistency needs one."""
        mode = net.training
        if self.settings.label_mode == "eval":
            net.eval()
        with nullcontext() if self._needs_graph else torch.no_grad():
            probabilities = torch.softmax(forward(weak).float(), dim=1)
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
        corrected = [correct_prior(each, self._prior.now, power) for each in (scores, own, *peers)]
        self._prior.follow(scores)
        return corrected

    def _thresholds(self, scores: Tensor) -> float | Tensor:
        """Return tau, or the thresholds (classes,) below it."""
        if self.settings.thresholds == "fixed":
            return self.settings.tau
        thresholds = class_aware_thresholds(self._shares.now, self.settings.tau)
        self._shares.follow(scores)
        return thresholds


def accepted_loss(
    net: nn.Module,
    forward: Forward,
    views: Tensor,
    targets: Tensor,
    accepted: Tensor,
    settings: ObjectiveSettings,
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
        losses = F.cross_entropy(forward(views).float(), targets, reduction="none") * accepted
    count = accepted.sum().clamp_min(1) if settings.unlabelled_mean == "accepted" else len(views)
    return losses.sum() / count


def consistency_loss(own: Tensor, peers: Sequence[Tensor]) -> Tensor:
    """Return the mean over peers, images and classes of the squared difference of probabilities (Eq. 6).

    The mean over classes makes it smaller than the printed squared norm by the number of classes. Zero without peers.
    """
    if not peers:
        return own.new_zeros(())
    return torch.stack([F.mse_loss(own, peer) for peer in peers]).mean()
