"""FedProx: a client may not go far from the model it was sent (Li et al. 2020)."""

from dataclasses import replace

import torch
from torch import nn

from fedperl.learn.distances import squared_distance
from fedperl.learn.objectives.base import Losses


class Proximal:
    """Adds mu / 2 ||w - w_received||^2 over the trainable parameters to any losses; with mu = 0 it changes nothing."""

    def __init__(self, net: nn.Module, mu: float) -> None:
        self.mu = mu
        self.parameters = [p for p in net.parameters() if p.requires_grad] if mu > 0 else []
        self.received = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def receive(self) -> None:
        """Take the weights as they are now for the received ones, in place."""
        for received, parameter in zip(self.received, self.parameters, strict=True):
            received.copy_(parameter)

    def __call__(self, losses: Losses) -> Losses:
        """Return the losses with the proximal term."""
        if not self.parameters:
            return losses
        term = 0.5 * self.mu * squared_distance(self.parameters, self.received)
        return replace(losses, total=losses.total + term, numbers=losses.numbers | {"loss_proximal": term.detach()})
