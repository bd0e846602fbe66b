"""Averages that a few faulty or hostile clients cannot steer, and the screen that keeps their models from being peers.

All look at what a client *changed*: its model minus the one it was sent. Clipping that to the cohort's median is safe
with any cohort, and what follows is still a mean of all; the trimmed mean, Multi-Krum and FLTrust need larger ones.
Krum itself and the coordinate-wise median of an odd number are not here: what they give out is one client's numbers.
Each rule says of how many clients its result is a mixture (`min_mixed`).

Running batch-norm statistics follow a client's camera rather than its training, and would drown the weights: lengths,
distances and angles are those of the weights. But statistics are bounded too, on their own: those of no image at all,
sent with weights that did not move, would ruin a mean.

Sums are in double precision over names in alphabetical order: a resumed run has its tensors in another order.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedperl.federation.schema import find_fault
from fedperl.learn.state import State, as_one_on_gpu, is_running_statistic

Model = Mapping[str, Tensor]
Rule = Literal["mean", "clip", "trimmed_mean", "multi_krum", "fltrust"]


class Trusted(NamedTuple):
    """What FLTrust makes of a cohort: models, to be averaged with these weights."""

    states: list[State]
    weights: list[float]
    """0 to 1, one of them positive; they need not sum to 1."""
    factors: list[float]
    """Of each client's change, running statistics apart: the average is linear in weight times factor."""


def movement(state: Model, start: Model) -> float:
    """Return the Euclidean length of what a client changed, running batch-norm statistics left out.

    Raises:
        ValueError: models of different tensors, or a value that is not finite.
    """
    _check([state], start)
    return _lengths([state], start, _names(start)[0])[0]


def turned(state: Model, start: Model, factor: float, statistics: float | None = None) -> State:
    """Return start + factor (state - start) for all float tensors; counters are the state's.

    Args:
        statistics: a factor of their own for the running statistics, where the other might make a variance negative.
    Raises:
        ValueError: models of different tensors, or a value or factor that is not finite.
    """
    _check([state], start)
    return _turned(state, start, factor, factor if statistics is None else statistics)


def clip_to_median(states: Sequence[Model], start: Model, kappa: float = 1.0) -> tuple[list[State], list[float]]:
    """Return the models with no change longer than `kappa` times the cohort's median, and the factor of each.

    The factor is that of the weights; running statistics have a median and a factor of their own. Where it is 1.0,
    nothing was cut and the tensors are the client's own. Of an even number the lower median counts: the upper one would
    be set by whoever is one of two. Where half of a cohort does not move, nobody does.

    Raises:
        ValueError: no model, models of different tensors, a value that is not finite, or a kappa that is not positive.
    """
    if not 0 < kappa < math.inf:
        raise ValueError(f"clip: kappa = {kappa}; wanted more than 0")
    _check(states, start)
    weights, statistics = (_lengths(states, start, names) for names in _names(start))
    factors = _cuts(weights, kappa * median_low(weights))
    clipped = [
        _turned(state, start, factor, calm)
        for state, factor, calm in zip(states, factors, _cuts(statistics, kappa * median_low(statistics)), strict=True)
    ]
    return clipped, factors


def trimmed_mean(states: Sequence[Model], trim: int) -> State:
    """Return the mean of each number without its `trim` largest and smallest (Yin et al. 2018); counters: the largest.

    Running statistics are trimmed like all else. Every number has other clients in it, so that the result is no
    weighted mean of models.

    Raises:
        ValueError: nobody is left, models of different tensors, or a value that is not finite.
    """
    if trim < 0 or len(states) <= 2 * trim:
        raise ValueError(f"trimmed mean: trim = {trim} of {len(states)} models; wanted 0 or more, and somebody left")
    _check(states, states[0])
    weights, statistics = _names(states[0])
    joined, apart = as_one_on_gpu(states, weights + statistics)
    means: State = {}
    for name, first in joined[0].items():
        ordered = torch.stack([state[name].double() for state in joined]).sort(dim=0).values
        means[name] = ordered[trim : len(states) - trim].mean(0).to(first.dtype)
    result = apart(means)
    for name in states[0].keys() - result.keys():
        result[name] = torch.stack([state[name] for state in states]).amax(0)
    return {name: result[name] for name in states[0]}


def multi_krum(states: Sequence[Model], faulty: int, keep: int) -> list[int]:
    """Return the places of the `keep` models with the nearest neighbours, in order (Blanchard et al. 2017).

    A model's score is the sum of squared distances to its n - faulty - 2 nearest others; of equal ones the first is
    kept. Running statistics have no part in it: average the models as `clip_to_median` leaves them.

    Args:
        faulty: how many of the models may be anything, at most.
        keep: no more than are not faulty.
    Raises:
        ValueError: fewer than 2 faulty + 3 models, models of different tensors, or a value that is not finite.
    """
    n = len(states)
    if faulty < 0 or n < 2 * faulty + 3 or not 1 <= keep <= n - faulty:
        raise ValueError(
            f"Multi-Krum: {n} models, faulty = {faulty}, keep = {keep}; wanted faulty of 0 or more, at least "
            "2 faulty + 3 models, and 1 to models - faulty of them kept"
        )
    _check(states, states[0])
    joined, _ = as_one_on_gpu(states, _names(states[0])[0])
    squares = torch.zeros(n * (n - 1) // 2, dtype=torch.float64)
    for name in joined[0]:
        squares += F.pdist(torch.stack([state[name].double().flatten() for state in joined])).square().cpu()
    distances = torch.zeros(n, n, dtype=torch.float64)
    distances[tuple(torch.triu_indices(n, n, 1))] = squares
    nearest = (distances + distances.T).sort(dim=1).values[:, 1 : n - faulty - 1]  # the first is the model itself
    scores = nearest.sum(dim=1).tolist()
    return sorted(sorted(range(n), key=scores.__getitem__)[:keep])


def fltrust(states: Sequence[Model], start: Model, trusted: Model) -> Trusted | None:
    """Return each change at the length of the server's own, weighted by their cosine or by 0 (Cao et al. 2021).

    None where no change points the server's way: there is nothing to take, and the round is void. Running statistics
    are only ever shortened, to the length of the server's own: beyond a client's, a variance might be negative.

    Args:
        trusted: the start after the server's own steps on labelled images.
    Raises:
        ValueError: no model, models of different tensors, a value that is not finite, or a server that did not move.
    """
    _check([trusted, *states], start)
    weights, statistics = _names(start)
    length, *lengths = _lengths([trusted, *states], start, weights)
    if not states or not length:
        raise ValueError(f"FLTrust: {len(states)} models, and a server that moved by {length}; wanted both more than 0")
    products = _products(states, start, trusted, weights)
    cosines = [product / (length * other or 1.0) for product, other in zip(products, lengths, strict=True)]
    if max(cosines) <= 0:
        return None
    factors = [length / other if other else 1.0 for other in lengths]
    own, *others = _lengths([trusted, *states], start, statistics)
    scaled = [
        _turned(state, start, factor, calm)
        for state, factor, calm in zip(states, factors, _cuts(others, own), strict=True)
    ]
    return Trusted(scaled, [max(0.0, cosine) for cosine in cosines], factors)


def min_mixed(rule: Rule, survivors: int, *, trim: int = 0, keep: int = 0) -> int:
    """Return of at least how many clients every number of a rule's result is a mixture.

    Args:
        survivors: updates that are averaged, without copies of the start, which hide nobody; for FLTrust, those of a
            positive weight.
        trim: of the trimmed mean, at either end.
        keep: of Multi-Krum.
    """
    if rule == "trimmed_mean":
        return max(0, survivors - 2 * trim)
    return min(survivors, keep) if rule == "multi_krum" else survivors


def reach(start: Model) -> float:
    """Return the length of a model's weights, each tensor about its mean.

    The same numbers in another order are about sqrt(2) times as far away, and share nothing with the model but its
    profile.

    Raises:
        ValueError: a value that is not finite.
    """
    _check([start], start)
    spreads = [start[name].double() - start[name].double().mean() for name in _names(start)[0]]
    return math.sqrt(float(sum(spread.square().sum() for spread in spreads)))


def screened(
    fresh: Mapping[int, float], last: Mapping[int, float], reach: float = math.inf, factor: float = 3.0
) -> set[int]:
    """Return the clients of a cohort whose models may not serve as peers: they moved too far.

    A profile is blind to order: the weights of any model, shuffled within each tensor, have the profile of that model
    and resemble it more than an honest client does. But they are far from the start. Too far is more than `factor`
    times the median of the cohort's movements, or of everyone's last ones where that is less: the first keeps up when
    movements shrink from round to round, the second is not in the hands of whoever is most of one cohort.

    Args:
        fresh: the movements of this round, by client.
        last: everyone's last movement before it.
        reach: of the start; where honest clients move far, it is the smaller bound.
    Raises:
        ValueError: a movement that is negative or not finite, a reach that is not positive, or a factor below 1.
    """
    everyone = {**last, **fresh}
    wrong = {client: moved for client, moved in everyone.items() if not 0 <= moved < math.inf}
    if wrong or not reach > 0 or not 1 <= factor < math.inf:
        raise ValueError(
            f"screen: factor = {factor}, reach = {reach}, wrong movements {wrong}; wanted 1 or more, more than 0, and "
            "finite lengths"
        )
    if not fresh:
        return set()
    most = min(reach, factor * min(median_low(fresh.values()), median_low(everyone.values())))
    return {client for client, moved in fresh.items() if moved > most}


def _names(state: Model) -> tuple[list[str], list[str]]:
    """Return the float tensors that are weights, and those that are running statistics."""
    floats = sorted(name for name, tensor in state.items() if tensor.is_floating_point())
    return [n for n in floats if not is_running_statistic(n)], [n for n in floats if is_running_statistic(n)]


def _check(states: Sequence[Model], reference: Model) -> None:
    """Refuse what is not of one schema and finite: a sort has some place for what is no number, and might choose it."""
    if not states:
        raise ValueError("robust aggregation: wanted at least one model, found none")
    for whose, state in [("the start", reference), *((f"model {place}", state) for place, state in enumerate(states))]:
        fault = find_fault(state, reference)
        if fault is not None:
            raise ValueError(f"robust aggregation: {whose}: {fault}")


def _lengths(states: Sequence[Model], start: Model, names: Sequence[str]) -> list[float]:
    """Return the Euclidean length of each model's change in these tensors."""
    joined, _ = as_one_on_gpu([start, *states], names)
    lengths = []
    for state in joined[1:]:
        squares = [(state[name].double() - tensor.double()).square().sum() for name, tensor in joined[0].items()]
        lengths.append(math.sqrt(float(sum(squares))))
    if not all(map(math.isfinite, lengths)):
        raise ValueError(f"robust aggregation: lengths {lengths}; wanted models whose distances are finite")
    return lengths


def _products(states: Sequence[Model], start: Model, trusted: Model, names: Sequence[str]) -> list[float]:
    """Return the inner product of each model's change with the trusted one's, in these tensors."""
    (origin, own, *joined), _ = as_one_on_gpu([start, trusted, *states], names)
    change = {name: own[name].double() - tensor.double() for name, tensor in origin.items()}
    return [
        float(sum(((state[name].double() - origin[name].double()) * change[name]).sum() for name in origin))
        for state in joined
    ]


def _cuts(lengths: Sequence[float], most: float) -> list[float]:
    """Return what each length is to be multiplied by to be no more than `most`; 1.0 where it is not."""
    return [1.0 if length <= most else most / length for length in lengths]


def _turned(state: Model, start: Model, factor: float, statistics: float) -> State:
    if not (math.isfinite(factor) and math.isfinite(statistics)):
        raise ValueError(f"turned: factors {factor} and {statistics}; wanted finite ones")
    result = dict(state)
    for names, by in zip(_names(start), (factor, statistics), strict=True):
        if by == 1.0:
            continue
        (origin, there), apart = as_one_on_gpu([start, state], names)
        result |= apart(
            {
                name: (tensor.double() + by * (there[name].double() - tensor.double())).to(tensor.dtype)
                for name, tensor in origin.items()
            }
        )
    return result
