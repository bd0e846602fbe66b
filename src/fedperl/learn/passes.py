"""A network's passes over the views of one batch: one after the other, or together where the network can."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]
"""Views in, logits out: a network, or what stands for one."""


def together(net: nn.Module, views: Sequence[Tensor], graph: Sequence[bool]) -> Forward:
    """Return the network, or its logits of these views made in one pass.

    One pass is made by a network with a method `forward_groups`, which keeps the views' batch statistics apart, so that
    it gives what passes in this order would; others are asked when the logits are wanted, view by view, and so is one
    with `groups_of_one_size` where sizes differ.

    Args:
        graph: whether a gradient is wanted through each view's logits.
    """
    grouped: Callable[..., list[Tensor]] | None = getattr(net, "forward_groups", None)
    uneven = len({len(view) for view in views}) > 1
    if grouped is None or len(views) < 2 or (uneven and getattr(net, "groups_of_one_size", False)):
        return net
    known = {id(view): logits for view, logits in zip(views, grouped(views, graph), strict=True)}
    return lambda view: known[id(view)] if id(view) in known else net(view)


@torch.no_grad()
def logits_of(nets: Sequence[nn.Module], views: Tensor, *, batch: int = 256) -> Tensor:
    """Return what each network says of the views, (networks, n, classes) in float32, without a graph."""
    parts = [part.contiguous(memory_format=torch.channels_last) for part in torch.split(views, batch)]
    return torch.stack([torch.cat([net(part).float() for part in parts]) for net in nets])
