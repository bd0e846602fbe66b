"""Probabilities of a trained network, in eval mode, batch by batch."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fedperl.data.views import to_float
from fedperl.learn.local_images import sent


def predict(net: nn.Module, images: Tensor, *, batch: int = 256) -> Tensor:
    """Return (n, classes) probabilities of uint8 images (n, 3, h, w), on the network's device."""
    return _predicted(net, torch.split(images, batch))


def predict_parts(net: nn.Module, parts: Sequence[Tensor], *, batch: int = 256) -> list[Tensor]:
    """Return the probabilities of several parties' images; all batches are full but the last, whoever's they are."""
    return list(torch.split(_predicted(net, _filled(parts, batch)), [len(part) for part in parts]))


@torch.no_grad()
def _predicted(net: nn.Module, chunks: Iterable[Tensor]) -> Tensor:
    mode = net.training
    net.eval()
    device = next(net.parameters()).device
    found = [torch.softmax(net(_last(to_float(sent(chunk, device)))).float(), dim=1) for chunk in chunks]
    net.train(mode)
    return torch.cat(found)


def _filled(parts: Sequence[Tensor], batch: int) -> Iterator[Tensor]:
    waiting: list[Tensor] = []
    for part in parts:
        while len(part):
            room = batch - sum(map(len, waiting))
            waiting.append(part[:room])
            part = part[room:]
            if sum(map(len, waiting)) == batch:
                yield torch.cat(waiting)
                waiting = []
    if waiting:
        yield torch.cat(waiting)


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)
