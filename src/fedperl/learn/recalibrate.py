"""Batch-norm statistics measured anew: an averaged network fits neither its members' statistics nor their mean."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedperl.data.views import to_float
from fedperl.learn.state import load_into


@torch.no_grad()
def recalibrate(net: nn.Module, images: Tensor, *, batch: int = 64) -> None:
    """Set every batch norm's running mean and variance to the average over batches of uint8 images (n, 3, h, w).

    Batches count by their images. The network is left in eval mode; parameters, momentum and counters stay as they
    were, and nothing draws at random. A last batch of one image is left out, since it may have no variance; for the
    same reason nothing at all is done with fewer than two images, nor without batch norm.

    Raises:
        ValueError: batches of one image.
    """
    if batch < 2:
        raise ValueError(f"batch norm has no statistics of one image; batch = {batch}, wanted at least 2")
    layers = [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    if not layers or len(images) < 2:
        return
    device = next(net.parameters()).device
    momentum = [layer.momentum for layer in layers]
    counters = {name: value.clone() for name, value in net.state_dict().items() if name.endswith("num_batches_tracked")}
    net.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
    seen = 0
    for chunk in torch.split(images, batch):
        if len(chunk) == 1:
            continue
        seen += len(chunk)
        for layer in layers:  # momentum = None would do it, but ask the device for its counter in every layer
            layer.momentum = len(chunk) / seen
        net(to_float(chunk.to(device)).contiguous(memory_format=torch.channels_last))
    for layer, own in zip(layers, momentum, strict=True):
        layer.momentum = own
    load_into(net, counters)
    net.eval()
