"""Group norm in the place of batch norm (Wu and He 2018): what an image gives no longer depends on its batch."""

from torch import nn

MOST_GROUPS, FEWEST_CHANNELS = 32, 4
"""A group of one channel would forget how strong it is, and on a map of one pixel everything."""


def groups_of(channels: int) -> int:
    """Return the largest number of equal groups up to 32 that leaves each at least four channels; 1 if none does."""
    most = min(MOST_GROUPS, channels // FEWEST_CHANNELS)
    return max((count for count in range(1, most + 1) if channels % count == 0), default=1)


def with_group_norm(net: nn.Module) -> nn.Module:
    """Return the network with a group norm, scale 1 and shift 0, under the name of every batch norm it had."""
    for name, layer in list(net.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            parent, _, last = name.rpartition(".")
            features = layer.num_features
            net.get_submodule(parent).add_module(last, nn.GroupNorm(groups_of(features), features, eps=layer.eps))
    return net
