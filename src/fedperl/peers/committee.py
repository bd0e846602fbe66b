"""The committee: the peers kept for one client, averaged into one anonymized peer (paper, label eq4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedperl.learn.state import State, as_one_on_gpu, is_running_statistic

BatchNorm = Literal["receiver", "mean", "moment_match"]

FEWEST = 2
"""No anonymized peer of fewer clients: the mean of one model is that model."""

_COMMITTEE = object()


class AnonymizedPeer:
    """The mean of a committee: the only form in which one client's knowledge may reach another.

    Only `committee` can make one; it does not say who was in it.
    """

    __slots__ = ("state",)

    def __init__(self, state: State, made_by: object) -> None:
        if made_by is not _COMMITTEE:
            raise TypeError("an AnonymizedPeer is made by fedperl.peers.committee alone")
        self.state = state


@dataclass(frozen=True)
class RawPeers:
    """Other clients' models as they are: the paper's rows without anonymization; for `privacy = "research"` alone."""

    states: tuple[State, ...]


def committee(members: Mapping[int, State], batch_norm: BatchNorm = "receiver") -> AnonymizedPeer:
    """Return the anonymized peer of the members' models, by client.

    Raises:
        ValueError: fewer than two members.
    """
    if len(members) < FEWEST:
        raise ValueError(f"a committee of {len(members)}: no anonymized peer is made of fewer than {FEWEST} clients")
    return AnonymizedPeer(committee_mean([members[k] for k in sorted(members)], batch_norm), _COMMITTEE)


def committee_mean(states: Sequence[Mapping[str, Tensor]], batch_norm: BatchNorm = "mean") -> State:
    """Return the tensor-wise mean of models of one schema, summed in double precision.

    Integer counters are kept from the first model.

    Args:
        batch_norm: running statistics are left out for the receiver to fill in with its own (`receiver`), averaged
            like all else (`mean`), or pooled so that the variance includes the spread of the means (`moment_match`).
    Raises:
        ValueError: no model, or models whose tensors differ in name or shape.
    """
    if not states:
        raise ValueError("a committee mean needs at least one model")
    first = states[0]
    for state in states[1:]:
        if state.keys() != first.keys() or any(state[name].shape != first[name].shape for name in first):
            raise ValueError("a committee mean needs models with the same tensors")
    result: State = {}
    averaged = []
    for name, tensor in first.items():
        if is_running_statistic(name) and batch_norm == "receiver":
            continue
        if not tensor.is_floating_point():
            if batch_norm != "receiver":
                result[name] = tensor.clone()
        elif name.endswith("running_var") and batch_norm == "moment_match":
            means = [state[name.removesuffix("var") + "mean"] for state in states]
            result[name] = _pooled_variance(means, [state[name] for state in states]).to(tensor.dtype)
        else:
            averaged.append(name)
    joined, apart = as_one_on_gpu(states, averaged)
    result |= apart({name: _mean(s[name] for s in joined).to(tensor.dtype) for name, tensor in joined[0].items()})
    return {name: result[name] for name in first if name in result}


def _mean(tensors: Iterable[Tensor]) -> Tensor:
    total, count = None, 0
    for tensor in tensors:
        total = tensor.double() if total is None else total.add_(tensor)
        count += 1
    assert total is not None
    return total.div_(count)


def _pooled_variance(means: Sequence[Tensor], variances: Sequence[Tensor]) -> Tensor:
    second_moment = _mean(v.double() + m.double() ** 2 for m, v in zip(means, variances, strict=True))
    return (second_moment - _mean(means) ** 2).clamp_min_(0.0)


def peer_state(received: Mapping[str, Tensor], peer: Mapping[str, Tensor]) -> State:
    """Return the peer as the receiver runs it: what the peer does not carry comes from the received global model."""
    return {name: peer.get(name, tensor) for name, tensor in received.items()}
