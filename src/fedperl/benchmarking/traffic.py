"""The bytes that a client's step must at least move through the device's memory: a floor by counting.

The model is one of layers that run one after the other, each as well as can be:

- A convolution or linear layer reads its input and writes its output: forward. Backward it reads the input again, reads
  the gradient of the output and writes the gradient of the input; of the images themselves no gradient is wanted.
- Everything between two such layers (batch norm, activation, padding, pooling, squeeze and excitation's product, the
  sum with a skip connection) costs nothing: it is done while one layer writes or the next reads.
- Activations have the width of the device's arithmetic: 2 bytes on a GPU (bf16), 4 on a CPU.
- The weights are read once forward and once backward, whatever the number of views, their gradients are written once,
  and the optimiser reads and writes parameters, gradients and moments in single precision. Every other network (a peer,
  a teacher) has its weights read once.
- A view is read as bytes and written in the width of the arithmetic.

No real step reaches it: batch norm's backward pass, for one, reads a layer's output once more. It would be undercut
only by layers that keep activations on the chip from one to the next.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedperl.settings import Config, Optimizer

SINGLE = 4
"""Bytes of a parameter, its gradient and each of its moments."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one network moves."""

    forward: int
    """Activations of one view, forward."""
    backward: int
    """Activations and gradients of one view, backward."""
    parameters: int
    """How many there are."""
    image: int
    """Values of one view."""
    width: int
    """Bytes of an activation."""


@dataclass(frozen=True)
class Passes:
    """What one step asks of the networks."""

    gradient: int
    """Views that the trained network sees with a gradient."""
    plain: int
    """Views that it sees without."""
    others: tuple[int, ...] = ()
    """Views that each other network sees."""
    views: int = 0
    """Views that are made."""


def network_traffic(net: nn.Module, size: int, width: int) -> Traffic:
    """Return what a network moves for one image of `size` pixels, from the shapes alone: nothing is computed.

    The network is moved to the meta device and of no use afterwards.
    """
    net = net.to("meta").eval()
    forward = backward = 0
    padded: list[tuple[Tensor, Tensor]] = []  # after and before: held, so that a tensor is found again by identity

    def pad(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        padded.append((output, inputs[0]))

    def layer(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal forward, backward
        given = next((before for after, before in padded if after is inputs[0]), inputs[0])
        read, written = given.numel() * width, output.numel() * width
        forward += read + written
        backward += read + written + (read if given.requires_grad else 0)

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(layer)
        elif isinstance(module, nn.ConstantPad2d):
            module.register_forward_hook(pad)
    image = torch.empty(1, 3, size, size, device="meta")
    net(image)
    return Traffic(forward, backward, sum(p.numel() for p in net.parameters()), image.numel(), width)


def step_bytes(traffic: Traffic, passes: Passes, optimizer: Optimizer) -> int:
    """Return the bytes of one step."""
    activations = passes.gradient * (traffic.forward + traffic.backward)
    activations += (passes.plain + sum(passes.others)) * traffic.forward
    moments = 2 if optimizer.kind == "adam" else int(optimizer.momentum > 0)
    touched = 1 + 3 + 2 * moments  # gradient written; gradient and parameter read, parameter written; moments both
    weights = traffic.parameters * (2 * traffic.width + touched * SINGLE)
    weights += len(passes.others) * traffic.parameters * traffic.width
    return activations + weights + passes.views * traffic.image * (1 + traffic.width)


def passes_of(config: Config, peers: int) -> Passes | None:
    """Return what a step of a client with that many peer networks asks for; None where it is not counted.

    Counted are the objectives `supervised` and `fixmatch`, with all strong views passed: what others do depends on
    rounds and images.
    """
    objective, batch = config.objective, config.federation.batch
    if objective.kind == "supervised":
        return Passes(batch, 0, (), batch)
    if objective.kind != "fixmatch" or objective.strong_pass != "all":
        return None
    unlabelled = config.federation.unlabelled_batch or batch
    consistent = peers > 0 and objective.consistency == "gradient" and objective.gamma > 0
    others = peers + (objective.teacher_source != "none")
    return Passes(
        batch + unlabelled + (unlabelled if consistent else 0),
        0 if consistent else unlabelled,
        (unlabelled,) * others,
        batch + 2 * unlabelled,
    )
