"""The networks, by name."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from fedperl.learn.nets.efficientnet import efficientnet_b0
from fedperl.learn.nets.group_norm import with_group_norm
from fedperl.learn.nets.resnet9 import ResNet9
from fedperl.learn.nets.small_cnn import SmallCNN

__all__ = ["NETS", "InputScale", "build_net"]

NETS: dict[str, Callable[..., nn.Module]] = {
    "efficientnet_b0": efficientnet_b0,
    "resnet9": ResNet9,
    "small_cnn": SmallCNN,
}

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class InputScale(nn.Module):
    """Normalises pixels of [0, 1] by ImageNet's statistics; not part of the state that travels."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return (images - mean) / std; images: (n, 3, h, w)."""
        return (images - self.mean) / self.std


def _behind(scale: InputScale, net: nn.Module) -> nn.Module:
    """Return the network with the scale in front of it, its parameters under their own names."""
    net.add_module("input_scale", scale)
    net.register_forward_pre_hook(lambda _, inputs: (scale(inputs[0]),))
    return net


def build_net(
    name: str,
    classes: int,
    *,
    seed: int,
    input_scale: Literal["unit", "imagenet"] = "unit",
    dropout: float | None = None,
    norm: Literal["batch", "group"] = "batch",
    init_scale: float = 1.0,
) -> nn.Module:
    """Return the named network with freshly drawn weights: the same for the same seed, on the CPU.

    Args:
        dropout: before the classifier; it has no part in the weights. None is the network's own.
        norm: `group` puts group norm in the place of batch norm; the other weights are the same.
        init_scale: what the weights of convolutions and linear layers are multiplied by.
    Raises:
        ValueError: no network has that name.
    """
    if name not in NETS:
        raise ValueError(f"net {name!r} is unknown; wanted one of {', '.join(NETS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = NETS[name](classes) if dropout is None else NETS[name](classes, dropout=dropout)
    if init_scale != 1:
        with torch.no_grad():
            for parameter in (one for one in net.parameters() if one.ndim > 1):
                parameter.mul_(init_scale)
    if norm == "group":
        net = with_group_norm(net)
    return _behind(InputScale(), net) if input_scale == "imagenet" else net
