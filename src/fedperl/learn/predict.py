"""Probabilities of a trained network, in eval mode, batch by batch."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fedperl.data.views import to_float
from fedperl.learn.local_images import sent


def predict(net: nn.Module, images: Tensor, *, batch: int = 256, orientations: int = 1) -> Tensor:
    """Return (n, classes) probabilities of uint8 images (n, 3, h, w), on the network's device.

    Args:
        orientations: in how many each image is shown; the probabilities are their mean.
    """
    return mean_of(_said(net, torch.split(images, batch), orientations))


def predict_parts(net: nn.Module, parts: Sequence[Tensor], *, batch: int = 256, orientations: int = 1) -> list[Tensor]:
    """Return the probabilities of several parties' images; all batches are full but the last, whoever's they are."""
    return [mean_of(said) for said in predict_apart(net, parts, batch=batch, orientations=orientations)]


def predict_apart(
    net: nn.Module, parts: Sequence[Tensor], *, batch: int = 256, orientations: int = 1, first: int = 0
) -> list[Tensor]:
    """Return as `predict_parts` what the network says in each orientation apart, (orientations, n, classes).

    Args:
        first: leaves out so many orientations, of which it is known.
    """
    said = _said(net, _filled(parts, batch), orientations, first)
    return list(torch.split(said, [len(part) for part in parts], dim=1))


def predict_further(
    net: nn.Module, parts: Sequence[Tensor], said: Sequence[Tensor], *, orientations: int = 1
) -> list[Tensor]:
    """Return as `predict_parts` the probabilities of several parties' images, in the orientations that are left.

    Args:
        said: what the network says of each party's images as they are, (n, classes).
    """
    if orientations == 1 or not parts:
        return list(said)
    others = predict_apart(net, parts, orientations=orientations, first=1)
    return [mean_of(torch.cat([one[None], more])) for one, more in zip(said, others, strict=True)]


def mean_of(said: Tensor) -> Tensor:
    """Return the mean over orientations, (n, classes), of what is said in each."""
    return said[0] if len(said) == 1 else said.mean(0)


def oriented(images: Tensor, count: int) -> list[Tensor]:
    """Return square images (..., h, w) as they are, and mirrored, upside down, both, and all four with axes swapped.

    Args:
        count: how many of these eight, the first ones: 1, 2, 4 or 8.
    """
    found = [images]
    if count > 1:
        found += [images.flip(-1)]
    if count > 2:
        found += [one.flip(-2) for one in found]
    return found + ([one.transpose(-1, -2) for one in found] if count > 4 else [])


@torch.no_grad()
def _said(net: nn.Module, chunks: Iterable[Tensor], orientations: int, first: int = 0) -> Tensor:
    mode = net.training
    net.eval()
    device = next(net.parameters()).device
    found = []
    for chunk in chunks:
        views = oriented(to_float(sent(chunk, device)), orientations)[first:]
        found.append(torch.stack([torch.softmax(net(_last(view)).float(), dim=1) for view in views]))
    net.train(mode)
    return torch.cat(found, dim=1)


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
