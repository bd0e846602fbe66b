"""Probabilities of a trained network, in eval mode, batch by batch."""

import torch
from torch import Tensor, nn

from fedperl.data.views import to_float


@torch.inference_mode()
def predict(net: nn.Module, images: Tensor, *, batch: int = 256) -> Tensor:
    """Return (n, classes) probabilities of uint8 images (n, 3, h, w), on the network's device."""
    mode = net.training
    net.eval()
    device = next(net.parameters()).device
    chunks = [
        torch.softmax(net(_last(to_float(chunk.to(device)))).float(), dim=1) for chunk in torch.split(images, batch)
    ]
    net.train(mode)
    return torch.cat(chunks)


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)
