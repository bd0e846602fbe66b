"""FedAvg: the weighted mean of the clients' models (McMahan et al. 2017; paper, Eq. 1 and algorithm 1)."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedperl.learn.state import State


def fedavg(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Return the mean of every float tensor, batch-norm statistics included, summed in double precision.

    Integer buffers are counters that have no mean: the largest is kept.

    Args:
        states: of one schema.
        weights: one a state, positive; they need not sum to 1.
    Raises:
        ValueError: no state, a number of weights that differs, or a weight that is not positive.
    """
    if not states or len(states) != len(weights) or min(weights) <= 0:
        raise ValueError(f"fedavg: wanted as many positive weights as states, found {len(states)} and {list(weights)}")
    total = float(sum(weights))
    result: State = {}
    for name, first in states[0].items():
        if not first.is_floating_point():
            result[name] = max((state[name] for state in states), key=lambda t: t.sum().item()).clone()
            continue
        mean = first.double() * (weights[0] / total)
        for state, weight in zip(states[1:], weights[1:], strict=True):
            mean.add_(state[name], alpha=weight / total)
        result[name] = mean.to(first.dtype)
    return result
