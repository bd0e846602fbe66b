"""FedMatch's decomposition: a network whose weights are the sum of two sets, theta = sigma + psi (Jeong et al. 2021).

Labelled images train sigma, unlabelled ones psi, so that neither overwrites what the other taught.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedperl.learn.state import State

Part = Literal["sigma", "psi"]

SIGMA, PSI = "sigma.", "psi."


class Decomposed(nn.Module):
    """Any of our networks with sigma + psi for its parameters; it takes the network over.

    The state holds `sigma.<name>` and `psi.<name>` for every parameter, and buffers once, under `sigma.<name>`.
    theta starts as the given network, to the bit up to a share of 1, so that methods with and without decomposition
    start from one model.
    """

    def __init__(self, net: nn.Module, *, share: float = 0.2, zero: float = 5e-6) -> None:
        """Split the network's parameters.

        Args:
            share: psi starts at this share of sigma.
            zero: in eval mode, entries of psi up to this size count as 0.
        Raises:
            ValueError: a share or a size below 0.
        """
        if not (share >= 0 and zero >= 0):
            raise ValueError(f"decomposed network: wanted share and zero of at least 0, found {share} and {zero}")
        super().__init__()
        self.sigma = net
        self.psi = nn.Module()
        self.zero = zero
        with torch.no_grad():
            for name, sigma in net.named_parameters():
                start = sigma.clone(memory_format=torch.preserve_format)
                sigma.div_(1 + share)
                # The difference of two floats within a factor of 2 is exact: the sum of both is the start again.
                _hang(self.psi, name, nn.Parameter(start - sigma))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, 3, h, w); batch norm's statistics move as in the plain network."""
        out: Tensor = functional_call(self.sigma, self.theta(), (images,))
        return out

    def theta(self) -> State:
        """Return the sum under the plain network's names; in eval mode without the small entries of psi."""
        psi = dict(self.psi.named_parameters())
        zero = None if self.training else self.zero
        return {name: _sum(sigma, psi[name], zero) for name, sigma in self.sigma.named_parameters()}

    def pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Yield (sigma, psi) of every parameter."""
        psi = dict(self.psi.named_parameters())
        for name, sigma in self.sigma.named_parameters():
            yield sigma, psi[name]

    def train_only(self, part: Part) -> None:
        """Let gradients flow into one of the two alone, until told otherwise.

        The other has no gradient at all, not one of 0, so that neither momentum nor weight decay moves it; and terms
        that are added to the losses later, such as FedProx's, obey too.
        """
        self.sigma.requires_grad_(part == "sigma")
        self.psi.requires_grad_(part == "psi")

    def train_both(self) -> None:
        """Let gradients flow into both again."""
        self.requires_grad_(True)


def is_decomposed(state: Mapping[str, Tensor]) -> bool:
    """Whether a state is one of a decomposed network."""
    return any(name.startswith(PSI) for name in state) and all(name.startswith((SIGMA, PSI)) for name in state)


def merged(state: Mapping[str, Tensor], zero: float) -> State:
    """Return the plain network's state: sigma + psi as in eval mode, buffers as they are, contiguous copies.

    Args:
        state: of a decomposed network.
        zero: entries of psi up to this size count as 0.
    Raises:
        ValueError: the state is not that of a decomposed network.
    """
    if not is_decomposed(state):
        raise ValueError(f"wanted the state of a decomposed network, sigma.* and psi.*; found {', '.join(state)[:200]}")
    result: State = {}
    for name, sigma in state.items():
        if name.startswith(SIGMA):
            plain = name.removeprefix(SIGMA)
            psi = state.get(PSI + plain)
            whole = sigma.clone() if psi is None else _sum(sigma, psi, zero)
            result[plain] = whole.detach().contiguous()
    return result


def _sum(sigma: Tensor, psi: Tensor, zero: float | None) -> Tensor:
    return sigma + psi if zero is None else sigma + psi.masked_fill(psi.abs() <= zero, 0.0)


def _hang(tree: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under a name with dots, as its original is in the network."""
    *path, last = name.split(".")
    for step in path:
        if step not in dict(tree.named_children()):
            tree.add_module(step, nn.Module())
        tree = tree.get_submodule(step)
    tree.register_parameter(last, parameter)
