"""FedMatch: labelled images train sigma, then unlabelled ones psi, with the help of other clients (Jeong et al. 2021).

    sigma:  lambda_s CE(y, f(x))
    psi:    where max f(u) >= tau:  helpers / H  sum_h KL(f_h(u) || f(u))  +  votes CE(vote, f(strong view of u))
            always:                 closeness ||sigma - psi||^2  +  sparsity ||psi||_1

Each line is an optimiser step of its own. Without decomposition there is one step on one parameter set, and no psi to
regularise. Of the settings of FixMatch, those that label in another way and `strong_pass` have no say here.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.learn.distances import absolute_sum, squared_distance
from fedperl.learn.nets.decomposed import Decomposed
from fedperl.learn.objectives.base import Batch, Losses, Objective
from fedperl.learn.objectives.supervised import labelled_loss, zero_like_parameters
from fedperl.learn.passes import Forward, together
from fedperl.learn.pseudo_labels import pseudo_labels


@dataclass(frozen=True)
class _Unlabelled:
    """The two terms of unlabelled images, unweighted."""

    divergence: Tensor
    votes: Tensor
    accepted: Tensor  # (n,)

    def numbers(self) -> dict[str, Tensor]:
        return {
            "loss_unlabelled": self.votes.detach(),
            "loss_consistency": self.divergence.detach(),
            "accepted": self.accepted.float().mean(),
        }


class FedMatch(Objective):
    """Inter-client consistency with the peers of the context as helpers; the weak view is meant to be the image."""

    views = frozenset({"labelled", "weak", "strong"})

    @property
    def repeats(self) -> bool:
        """Always: all strong views pass the network, and the mask is in the loss."""
        return True

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of sigma's step, psi's to follow; without labelled images those of psi.

        Raises:
            ValueError: no images, or a network that is not decomposed where the settings are, or the reverse.
        """
        if batch.labelled is None and batch.weak is None:
            raise ValueError("the FedMatch objective was given a batch without images")
        if self.settings.fedmatch.decompose != isinstance(net, Decomposed):
            raise ValueError(
                f"objective.fedmatch.decompose = {self.settings.fedmatch.decompose}, and the network is a "
                f"{type(net).__name__}; wanted a Decomposed network with decompose = true, and only then"
            )
        if not isinstance(net, Decomposed):
            return self._joint(net, batch)
        net.train_only("sigma")
        labelled = labelled_loss(net, batch, self.settings, self.context)
        psi_step = partial(self._psi_step, net, batch)
        if labelled is None:
            return psi_step()
        numbers = {"loss": labelled.detach(), "loss_labelled": labelled.detach()}
        return Losses(labelled, numbers, then=None if batch.weak is None else psi_step)

    @property
    def helpers(self) -> Sequence[nn.Module]:
        """The peers."""
        return self.context.peers

    def after_step(self, net: nn.Module) -> None:
        """Leave the network as it was found: all of it trainable."""
        if isinstance(net, Decomposed):
            net.train_both()

    def _psi_step(self, net: Decomposed, batch: Batch) -> Losses:
        """Return the losses of psi; sigma is what the labelled step made of it."""
        net.train_only("psi")
        terms, weights = self._unlabelled(net, batch), self.settings.fedmatch
        sigma, psi = zip(*net.pairs(), strict=True)
        total = weights.helpers * terms.divergence + weights.votes * terms.votes
        total = total + weights.closeness * squared_distance(psi, sigma) + weights.sparsity * absolute_sum(psi)
        return Losses(total, terms.numbers() | {"loss": total.detach()})

    def _joint(self, net: nn.Module, batch: Batch) -> Losses:
        """Return both kinds of losses on one parameter set."""
        labelled = labelled_loss(net, batch, self.settings, self.context)
        total = zero_like_parameters(net) if labelled is None else labelled
        numbers = {} if labelled is None else {"loss_labelled": labelled.detach()}
        if batch.weak is not None:
            terms, weights = self._unlabelled(net, batch), self.settings.fedmatch
            total = total + weights.helpers * terms.divergence + weights.votes * terms.votes
            numbers |= terms.numbers()
        return Losses(total, numbers | {"loss": total.detach()})

    def _unlabelled(self, net: nn.Module, batch: Batch) -> _Unlabelled:
        weak, strong = batch.weak, batch.strong
        if weak is None or strong is None:
            raise ValueError("the FedMatch objective was given unlabelled images without a weak or a strong view")
        # The two passes are one where that saves something: the network is a sum, whatever it is shown.
        once = isinstance(net, Decomposed) and self.settings.label_mode == "train"
        forward = together(net, [weak, strong], [self._needs_graph, True]) if once else net
        own = self._own(net, forward, weak)
        label, accepted = pseudo_labels(torch.softmax(own.detach(), dim=1), self.settings.tau)
        helpers = [self.said(peer, batch) for peer in self.helpers]
        target = vote([label, *(helper.argmax(1) for helper in helpers)], own.shape[1])
        votes = F.cross_entropy(forward(strong).float(), target, reduction="none")  # (n,)
        count = accepted.sum().clamp_min(1) if self.settings.unlabelled_mean == "accepted" else len(weak)
        return _Unlabelled(
            (divergence(own, helpers) * accepted).sum() / count, (votes * accepted).sum() / count, accepted
        )

    @property
    def _needs_graph(self) -> bool:
        """Whether the divergence from helpers wants a gradient through the logits of weak views."""
        return bool(self.context.peers) and self.settings.fedmatch.helpers > 0

    def _own(self, net: nn.Module, forward: Forward, weak: Tensor) -> Tensor:
        """Return the network's logits on the weak views, with a graph only where the divergence needs one."""
        mode = net.training
        if self.settings.label_mode == "eval":
            net.eval()
        with nullcontext() if self._needs_graph else torch.no_grad():
            logits: Tensor = forward(weak).float()
        net.train(mode)
        return logits


def divergence(own: Tensor, helpers: Sequence[Tensor]) -> Tensor:
    """Return the mean over helpers of KL(helper || own) of each image, (n,), from logits; zero without helpers."""
    if not helpers:
        return own.new_zeros(len(own))
    log_own = torch.log_softmax(own, dim=1)
    terms = [
        F.kl_div(log_own, torch.log_softmax(helper, dim=1), reduction="none", log_target=True).sum(1)
        for helper in helpers
    ]
    return torch.stack(terms).mean(0)


def vote(labels: Sequence[Tensor], classes: int) -> Tensor:
    """Return the class that most models name for each image, (n,); of several equally often named, the first."""
    return F.one_hot(torch.stack(list(labels)), classes).sum(0).argmax(1)
