"""How much each client of a cohort counts in the average."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedperl.federation.aggregate import (
    coarse,
    consensus_weights,
    distance_weights,
    labelled_boost,
    mixed,
    similarity_weights,
)
from fedperl.federation.known import Known
from fedperl.learn.state import State
from fedperl.peers import similarity_rows
from fedperl.seeds import seed_for
from fedperl.settings import Config

MOST_SHARE, LEAST_SHARE = 0.5, 0.05
"""Of one client in the average, outside of research."""


def average_weights(
    config: Config,
    states: Mapping[int, State],
    sizes: Sequence[int],
    labelled: Sequence[bool],
    known: Mapping[int, Known],
    round: int,
) -> list[float]:
    """Return the share of each model in a round's average, in the order of `states`.

    Args:
        states: the accepted models, by client.
        sizes: training images of every client.
        labelled: which clients have labels.
        known: what the server knows of the clients, these models included.
    """
    federation, clients, models = config.federation, list(states), list(states.values())
    weights = [float(sizes[client]) if federation.weights == "size" else 1.0 for client in clients]
    if federation.aggregator == "consensus":
        weights = consensus_weights(
            models,
            weights,
            subsets=federation.subsets,
            members=federation.members,
            scale=federation.distance_scale,
            generator=np.random.default_rng(seed_for(config.seed, "subsets", round)),
        )
    elif federation.aggregator == "similarity":
        everyone = sorted(known)
        places = [everyone.index(client) for client in clients]
        profiles = np.stack([known[client].profile for client in everyone])
        factors = similarity_weights(similarity_rows(profiles, places, config.profile.scale)[:, places])
        weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    elif federation.aggregator == "distance":
        weights = [weight * factor for weight, factor in zip(weights, distance_weights(models), strict=True)]
    weights = labelled_boost(weights, [labelled[client] for client in clients], federation.labelled_factor)
    most = 1.0 if config.privacy == "research" else MOST_SHARE
    # By size alone a small client's share is what it is; an aggregator's choice must leave everyone a part in it.
    free = config.privacy == "research" or federation.aggregator == "fedavg"
    shares = mixed(weights, most=most, least=0.0 if free else LEAST_SHARE)
    return coarse(shares, most) if config.coalition else shares
