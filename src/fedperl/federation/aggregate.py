"""FedAvg, the weighted mean of the clients' models (McMahan et al. 2017; paper, Eq. 1 and algorithm 1), and weights.

Every aggregator here is a convex combination of the cohort's models: a function that returns weights, then `fedavg`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedperl.learn.state import State, as_one_on_gpu, is_running_statistic

LEAST_SIMILARITY = 1e-3
"""Nobody who took part is left out of the average for resembling nobody."""


def fedavg(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Return the mean of every float tensor, batch-norm statistics included, summed in double precision.

    Integer buffers are counters that have no mean: the largest is kept. A state of weight 0 is not looked at.

    Args:
        states: of one schema.
        weights: one a state, 0 or more, one of them positive; they need not sum to 1.
    Raises:
        ValueError: no state, a number of weights that differs, a weight that is negative or not finite, or all are 0.
    """
    fine = all(math.isfinite(weight) and weight >= 0 for weight in weights) and sum(weights) > 0
    if len(states) != len(weights) or not fine:
        raise ValueError(
            f"fedavg: wanted as many weights as states, 0 or more and one positive, found {len(states)} states "
            f"and the weights {list(weights)}"
        )
    total = float(sum(weights))
    states = [state for state, weight in zip(states, weights, strict=True) if weight > 0]
    weights = [weight for weight in weights if weight > 0]
    floats = [name for name, tensor in states[0].items() if tensor.is_floating_point()]
    joined, apart = as_one_on_gpu(states, floats)
    means: State = {}
    for name, first in joined[0].items():
        mean = first.double() * (weights[0] / total)
        for state, weight in zip(joined[1:], weights[1:], strict=True):
            mean.add_(state[name], alpha=weight / total)
        means[name] = mean.to(first.dtype)
    result = apart(means)
    for name in states[0].keys() - set(floats):
        result[name] = torch.stack([state[name] for state in states]).amax(0)
    return {name: result[name] for name in states[0]}


def similarity_weights(similarity: npt.NDArray[np.float64]) -> list[float]:
    """Return each client's mean similarity with the others of the cohort, as shares of 1: the stranger counts less.

    Args:
        similarity: (cohort, cohort), of the models that are averaged; the diagonal is not looked at.
    Raises:
        ValueError: no client, no square matrix, or a value that is not finite.
    """
    if similarity.ndim != 2 or len(set(similarity.shape)) != 1 or not similarity.size:
        raise ValueError(f"similarity: wanted (cohort, cohort), found shape {similarity.shape}")
    if not np.isfinite(similarity).all():
        raise ValueError("similarity: wanted finite values, found one that is not")
    if len(similarity) == 1:
        return [1.0]
    others = ~np.eye(len(similarity), dtype=bool)
    means = similarity.mean(axis=1, where=others)
    return _shares(np.maximum(means, LEAST_SIMILARITY))


def distance_weights(states: Sequence[Mapping[str, Tensor]], *, floor: float = 0.01) -> list[float]:
    """Return weights ~ 1 / ||w_k - mean of the cohort||, as shares of 1 (inverse distance aggregation, IDA).

    Yeganeh et al. 2020, of the paper's own group. Identical models weigh the same.

    Args:
        floor: no distance counts as less than this share of the mean distance: a model that happens to be the mean
            would otherwise be the whole average.
    Raises:
        ValueError: no model, one that is not finite, or a floor that is not positive.
    """
    if not floor > 0:
        raise ValueError(f"floor = {floor}; wanted more than 0")
    distances = _distances_to_mean(states, np.ones(len(states)))
    least = floor * distances.mean()
    return _shares(1.0 / np.maximum(distances, least) if least > 0 else np.ones(len(states)))


def consensus_weights(
    states: Sequence[Mapping[str, Tensor]],
    sizes: Sequence[float],
    *,
    subsets: int = 3,
    members: int = 5,
    scale: float = 1.0,
    generator: np.random.Generator,
) -> list[float]:
    """Return the weights of random sampling consensus, as shares of 1 (RSCFed, Liang et al. 2022).

    In each of a few random subsets, weight_k ~ size_k exp(-scale ||w_k - mean|| / size_k), where the mean is that of
    the subset, weighted by size; the weights are averaged over the subsets. More are drawn until everyone is in one: an
    average of two clients alone would let each of them solve for the other.

    The authors' code adds the norms of the tensors up instead of taking one of all, and has a scale of 1e4. It boosts
    a labelled client within each subset; here `labelled_boost` comes after the mean over the subsets.

    Args:
        sizes: images of each client, positive.
        subsets: how many are drawn at least.
        members: clients in each; all of a smaller cohort.
    Raises:
        ValueError: no model, one that is not finite, a number of sizes that differs, a size that is not positive, no
            subset, fewer than two members, or a negative scale.
    """
    if len(states) != len(sizes) or not all(math.isfinite(size) and size > 0 for size in sizes):
        raise ValueError(f"consensus: wanted as many positive sizes as states, found {len(states)} and {list(sizes)}")
    if subsets < 1 or members < 2 or not 0 <= scale < math.inf:
        raise ValueError(
            f"consensus: subsets = {subsets}, members = {members}, scale = {scale}; "
            "wanted at least 1 subset of at least 2 members, and a scale of 0 or more"
        )
    weights, missing, drawn_so_far = np.zeros(len(states)), set(range(len(states))), 0
    while drawn_so_far < subsets or missing:
        drawn = np.sort(generator.choice(len(states), size=min(members, len(states)), replace=False))
        drawn_so_far += 1
        missing -= set(drawn.tolist())
        amounts = np.array([float(sizes[k]) for k in drawn])
        distances = _distances_to_mean([states[k] for k in drawn], amounts)
        exponents = np.log(amounts) - scale * distances / amounts
        weights[drawn] += _shares(np.exp(exponents - exponents.max()))
    return _shares(weights)


def mixed(weights: Sequence[float], *, most: float, least: float = 0.0) -> list[float]:
    """Return the weights as shares that sum to 1: about none below `least`, none above `most`.

    A global model that is nearly all one client's would hand that client's model to everyone, and one of two clients
    lets each solve for the other. What is cut goes to the others in proportion.
    """
    total = float(sum(weights))
    shares = [max(weight / total, min(least, 0.5 / len(weights))) for weight in weights]
    total = sum(shares)
    shares = [share / total for share in shares]
    largest = max(range(len(shares)), key=shares.__getitem__)
    if len(shares) < 2 or shares[largest] <= most:
        return shares
    rest = 1.0 - shares[largest]
    others = [share / rest if rest > 0 else 1.0 / (len(shares) - 1) for share in shares]
    return [most if place == largest else (1.0 - most) * other for place, other in enumerate(others)]


def coarse(weights: Sequence[float], most: float = 1.0) -> list[float]:
    """Return the weights as shares in quarters of an equal one, each at least one: 4 + 3 + 5 twelfths of three clients.

    Shares that are nearly, and not quite, equal would hide a client from exact algebra alone: less the mean of two, an
    average of three in such shares is the third but for a hundredth.

    Args:
        most: no share is above it, as far as that can be.
    """
    parts, total = 4 * len(weights), float(sum(weights))
    highest = max(int(most * parts), 4)
    wanted = [parts * weight / total for weight in weights]
    counts = [min(max(1, round(share)), highest) for share in wanted]
    while sum(counts) != parts:
        step = 1 if sum(counts) < parts else -1
        able = [k for k, count in enumerate(counts) if 1 <= count + step <= highest]
        counts[max(able, key=lambda k: step * (wanted[k] - counts[k]))] += step
    return [count / parts for count in counts]


def labelled_boost(sizes: Sequence[float], labelled: Sequence[bool], factor: float) -> list[float]:
    """Return the sizes, those of clients with labels times a factor (RSCFed: 200 on skin; CBAFed: 10).

    Raises:
        ValueError: as many flags as sizes were not given, or the factor is not positive.
    """
    if len(sizes) != len(labelled):
        raise ValueError(f"labelled boost: wanted a flag a size, found {len(sizes)} sizes and {len(labelled)} flags")
    if not 0 < factor < math.inf:
        raise ValueError(f"labelled boost: factor = {factor}; wanted more than 0")
    return [float(size) * (factor if has_labels else 1.0) for size, has_labels in zip(sizes, labelled, strict=True)]


def residual(model: Mapping[str, Tensor], predecessor: Mapping[str, Tensor], share: float = 0.5) -> State:
    """Return the global model averaged with its stored predecessor (CBAFed, Li et al. 2023, every five rounds).

    Args:
        share: the predecessor's; 0 leaves the model as it is.
    Raises:
        ValueError: a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"residual: share = {share}; wanted 0 to 1")
    return fedavg([model, predecessor], [1.0 - share, share])


def running_mean(mean: Mapping[str, Tensor], model: Mapping[str, Tensor], decay: float, count: int) -> State:
    """Return the running mean of the global models once another is in it.

    It is the plain mean of the first 1 / (1 - decay) of them, and from then on decay times itself and 1 - decay times
    the new one: the first models, which know least, do not linger.

    Args:
        count: how many models are then in it; what was there before the first does not count.
    Raises:
        ValueError: a decay outside [0, 1), or a count below 1.
    """
    if not 0 <= decay < 1 or count < 1:
        raise ValueError(f"running_mean: decay = {decay}, count = {count}; wanted 0 to below 1, and 1 or more")
    share = max(1.0 - decay, 1.0 / count)
    return fedavg([mean, model], [1.0 - share, share])


def _shares(weights: npt.NDArray[np.float64]) -> list[float]:
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def _distances_to_mean(
    states: Sequence[Mapping[str, Tensor]], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the Euclidean distance of each model to their weighted mean, tensor by tensor in double precision.

    Running statistics are left out: they are a client's image statistics, not what it has learnt, and as variances
    would drown the weights.
    """
    if not states:
        raise ValueError("weights by distance need at least one model")
    shares = torch.from_numpy(weights / weights.sum())
    squares = np.zeros(len(states))
    for name, first in states[0].items():
        if not first.is_floating_point() or is_running_statistic(name):
            continue
        stacked = torch.stack([state[name].detach().double().flatten().cpu() for state in states])  # (models, elements)
        squares += (stacked - shares @ stacked).square().sum(dim=1).numpy()
    if not np.isfinite(squares).all():
        raise ValueError("weights by distance need finite models; a distance is not finite")
    return np.sqrt(squares)
