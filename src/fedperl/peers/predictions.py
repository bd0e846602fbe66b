"""Who is near whom by what their models say of one noise image: FedMatch's helpers (Jeong et al. 2021)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

BRIGHTEST = 255.0


def noise_image(size: int, *, mean: float = 125.0, std: float = 125.0, seed: int = 0) -> Tensor:
    """Return (1, 3, size, size) in [0, 1]: a normal truncated to [0, 255], divided by 255.

    Truncated by its inverse distribution function, so no mass piles up on black and white as clipping would have it.
    The defaults are FedMatch's; mean 0 and standard deviation 1 give the almost black image of the FedPerl authors'
    code, in which no pixel exceeds about 0.02.

    Raises:
        ValueError: no size, no spread, or so little of the normal within [0, 255] that nothing can be drawn.
    """
    if size < 1 or not std > 0:
        raise ValueError(f"noise image: size = {size}, std = {std}; wanted both above 0")
    ends = torch.tensor([-mean / std, (BRIGHTEST - mean) / std], dtype=torch.float64)
    low, high = torch.special.ndtr(ends).tolist()
    if not low < high:
        raise ValueError(f"noise image: mean = {mean}, std = {std} leave nothing to draw between 0 and {BRIGHTEST:g}")
    drawn = torch.from_numpy(np.random.default_rng(seed).uniform(low, high, size=(1, 3, size, size)))
    pixels: Tensor = mean + std * torch.special.ndtri(drawn)
    return (pixels.clamp(0.0, BRIGHTEST) / BRIGHTEST).float()  # rounding alone can leave the interval


def embedding(
    net: nn.Module, image: Tensor, output: Literal["softmax", "logits"] = "softmax"
) -> npt.NDArray[np.float64]:
    """Return what a model says of one image, (classes,), in eval mode; every module's mode is as it was afterwards.

    Args:
        image: (1, channels, height, width), moved to the network's device.
        output: probabilities, as FedMatch has it, or `logits`, as the FedPerl authors' baseline has it.
    Raises:
        ValueError: not one image, or an unknown output.
    """
    if image.ndim != 4 or len(image) != 1:
        raise ValueError(f"embedding: wanted one image (1, channels, height, width), found {tuple(image.shape)}")
    if output not in ("softmax", "logits"):
        raise ValueError(f"output = {output!r}; wanted 'softmax' or 'logits'")
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            logits: Tensor = net(image.to(next(net.parameters(), image).device))[0].double()
    finally:
        for module, mode in modes.items():
            module.training = mode
    found: npt.NDArray[np.float64] = (torch.softmax(logits, dim=0) if output == "softmax" else logits).cpu().numpy()
    return found


def prediction_similarity(embeddings: npt.NDArray[np.float64], rows: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return (rows, clients): minus the Euclidean distance of the embeddings, so that `top_peers` takes the nearest.

    FedMatch asks a KD-tree. With about ten numbers a client, an exact search finds the same neighbours and costs
    O(rows x clients x classes), nothing beside one forward pass. These similarities are never positive: a gate
    (`gated_similarity`) is for cosines of profiles. An embedding that is not finite is near nobody.

    Args:
        embeddings: (clients, classes), one row a client.
    Raises:
        ValueError: embeddings of another shape.
    """
    if embeddings.ndim != 2:
        raise ValueError(f"embeddings: wanted (clients, classes), found shape {embeddings.shape}")
    similarity = np.empty((len(rows), len(embeddings)))
    with np.errstate(over="ignore", invalid="ignore"):  # `top_peers` never takes what is not finite
        for place, row in enumerate(rows):
            difference = embeddings - embeddings[row]
            similarity[place] = -np.sqrt(np.einsum("ij,ij->i", difference, difference))
    return similarity
