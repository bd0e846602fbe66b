"""The average of a round, by whatever rule: the new global model, and how much of each client is in it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedperl.federation.aggregate import coarse, fedavg
from fedperl.federation.known import Known
from fedperl.federation.robust import clip_to_median, fltrust, min_mixed, multi_krum, trimmed_mean
from fedperl.federation.weighing import average_weights
from fedperl.learn.state import State
from fedperl.peers.committee import FEWEST
from fedperl.settings import Config


@dataclass(frozen=True)
class Average:
    """A global model, and the weight of each upload in it; running statistics may have weights of their own."""

    state: State
    weights: dict[int, float]


@dataclass(frozen=True)
class Bounded:
    """The updates as they count and are banked."""

    states: dict[int, State]
    trust: dict[int, float] | None = None
    """FLTrust: what they weigh."""


def bounded(config: Config, states: Mapping[int, State], start: State, trusted: Callable[[], State]) -> Bounded | None:
    """Return the updates, none longer than the median one where averages are robust; None where none may be trusted.

    Args:
        trusted: the start after the server's own steps; for `fltrust`.
    """
    if config.federation.robust == "none":
        return Bounded(dict(states))
    clipped, _ = clip_to_median(list(states.values()), start)
    if config.federation.robust != "fltrust":
        return Bounded(dict(zip(states, clipped, strict=True)))
    found = fltrust(clipped, start, trusted())
    if found is None:
        return None
    weights = {client: weight for client, weight in zip(states, found.weights, strict=True) if weight > 0}
    return Bounded(dict(zip(states, found.states, strict=True)), weights)


def average(
    config: Config,
    updates: Bounded,
    sizes: Sequence[int],
    labelled: Sequence[bool],
    known: Mapping[int, Known],
    round: int,
) -> Average | None:
    """Return the average of bounded updates, or None where too few would be mixed in it.

    Args:
        sizes: training images of every client.
        labelled: which clients have labels.
        known: what the server knows of the clients, these models included.
    """
    federation, states = config.federation, updates.states
    clients = list(states if updates.trust is None else updates.trust)
    if federation.robust == "multi_krum":
        if len(clients) < 2 * federation.faulty + 3:
            return None
        kept = multi_krum(list(states.values()), federation.faulty, len(clients) - federation.faulty)
        clients = [clients[place] for place in kept]
    trim = federation.faulty if federation.robust == "trimmed_mean" else 0
    mixed = min_mixed("trimmed_mean", len(clients), trim=trim)
    if mixed < 1 or (config.privacy != "research" and mixed < max(FEWEST, config.coalition + 2)):
        return None
    models = {client: states[client] for client in clients}
    if trim:
        weights = [1.0 / len(clients)] * len(clients)
        state = trimmed_mean(list(models.values()), trim)
    else:
        if updates.trust is None:
            weights = average_weights(config, models, sizes, labelled, known, round)
        else:
            weights = coarse([updates.trust[client] for client in clients])
        state = fedavg(list(models.values()), weights)
    return Average(state, dict(zip(clients, weights, strict=True)))
