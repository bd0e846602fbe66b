"""A client's profile: mean and standard deviation of every tensor of its model (paper, section 2.3.1)."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedperl.learn.state import is_running_statistic

Profile = npt.NDArray[np.float64]


def profile(
    state_dict: Mapping[str, Tensor],
    *,
    tensors: Literal["all", "parameters", "modules"] = "all",
    std: Literal["population", "unbiased"] = "population",
) -> Profile:
    """Return F = (mean_1, std_1, mean_2, std_2, ...) over the float tensors of a state, in its order.

    Integer counters never count. EfficientNet-B0 has 311 float tensors, hence 622 features.

    Args:
        tensors: `all` of them, batch-norm statistics included, as the authors' code does; `parameters` alone, as the
            text says; or `modules`: all float tensors of one module taken together.
        std: the unbiased one is undefined for a single element and taken as 0 there.
    Raises:
        ValueError: no float tensor, or a value that is not finite.
    """
    groups = _groups(state_dict, tensors)
    if not groups:
        raise ValueError(f"a profile needs float tensors; the state has {len(state_dict)} entries, none of them float")
    correction = 1 if std == "unbiased" else 0
    if groups[0].device.type == "cpu":
        moments = torch.stack([torch.stack(_mean_and_std(values, correction)) for values in groups])
    else:
        moments = _means_and_stds(groups, correction)
    features = moments.flatten().cpu().numpy()
    if not np.isfinite(features).all():
        raise ValueError("a profile needs finite tensors; a mean or standard deviation is not finite")
    return features


def _groups(state_dict: Mapping[str, Tensor], tensors: str) -> list[Tensor]:
    floats = {name: tensor for name, tensor in state_dict.items() if tensor.is_floating_point()}
    if tensors == "parameters":
        floats = {name: tensor for name, tensor in floats.items() if not is_running_statistic(name)}
    if tensors != "modules":
        return list(floats.values())
    modules: dict[str, list[Tensor]] = {}
    for name, tensor in floats.items():
        modules.setdefault(name.rpartition(".")[0], []).append(tensor.flatten())
    return [torch.cat(parts) for parts in modules.values()]


def _mean_and_std(values: Tensor, correction: int) -> tuple[Tensor, Tensor]:
    values = values.detach().double()
    if values.numel() <= correction:
        return values.mean(), values.new_zeros(())
    return values.mean(), values.std(correction=correction)


def _means_and_stds(groups: list[Tensor], correction: int) -> Tensor:
    """Return (groups, 2), all groups at once: on a GPU each by itself would take as long as all."""
    values = torch.cat([group.detach().flatten() for group in groups]).double()
    lengths = torch.tensor([group.numel() for group in groups], device=values.device)
    means = torch.segment_reduce(values, "mean", lengths=lengths)
    off = values - means.repeat_interleave(lengths, output_size=len(values))
    squares = torch.segment_reduce(off * off, "sum", lengths=lengths)
    return torch.stack([means, (squares / (lengths - correction).clamp_min(1)).sqrt()], dim=1)
