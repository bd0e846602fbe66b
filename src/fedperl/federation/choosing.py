"""Whom the server chooses to help whom in a round: candidates by the selector, kept by the policy (paper, 2.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedperl.federation.known import Known
from fedperl.peers import (
    apply_policy,
    committee_sizes,
    prediction_similarity,
    random_peers,
    similarity_matrix,
    similarity_rows,
    top_peers,
)
from fedperl.peers.committee import FEWEST
from fedperl.seeds import seed_for
from fedperl.settings import Config

Rows = dict[int, npt.NDArray[np.float64]]

REACH = 8
"""How many others than the T candidates might help instead, where those may not be sent."""


@dataclass
class Choice:
    """The committees of a round, by client."""

    committees: dict[int, list[int]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    """How many peers the policy kept; fewer than `k_min` give no anonymized peer."""
    similarity: dict[int, list[float]] = field(default_factory=dict)
    """Of the T candidates with the client, best first, before the policy: what a gate must lie among to matter."""
    instead: dict[int, list[int]] = field(default_factory=dict)
    """Who else might help, by the same selector and policy, best first."""
    profile_age: float | None = None
    """Mean age, in rounds, of the models that could help."""


def choose_committees(
    config: Config, known: Mapping[int, Known], made: Mapping[int, int], cohort: Sequence[int], round: int
) -> Choice:
    """Return who helps whom in a round; nobody is chosen where peers are not yet, or not now, to help.

    Args:
        known: the clients that sent a model.
        made: the round of each one's last model.
    """
    peers, choice, of = config.peers, Choice(), organisations(config)
    early = round <= peers.warmup or len(known) < peers.min_profiles
    if not config.peer_learning or early or round % peers.every:
        return choice
    clients = sorted(known)
    able = [k for k in clients if k not in peers.exclude and not known[k].screened]
    eligible = [k for k in able if _fresh(round - made[k], peers.max_age)]
    choice.profile_age = float(np.mean([round - made[k] for k in eligible])) if eligible else None
    receivers = [client for client in cohort if client in known]
    rows = _similarities(config, known, clients, receivers)
    sizes = _sizes(config, known, clients)
    scores = {k: about.score for k, about in known.items() if about.score is not None}
    for client in cohort:
        T = sizes.get(client, peers.T)
        others = [k for k in eligible if of.get(k, k) != of.get(client, client)]
        candidates = _candidates(config, clients, others, rows.get(client), client, T, round)
        row = rows.get(client)
        similarity = {} if row is None else {k: float(row[clients.index(k)]) for k in candidates}
        if similarity:
            choice.similarity[client] = np.round([similarity[k] for k in candidates[:T]], 4).tolist()
        ranked = apply_policy(
            peers.policy,
            candidates,
            client=client,
            similarity=similarity,
            scores=scores,
            rho=config.gate.rho,
            scale=config.gate.scale,
        )
        kept = [k for k in ranked if k in candidates[:T]]
        choice.kept[client] = len(kept)
        if len({of.get(k, k) for k in kept}) >= (peers.k_min if peers.anonymize else 1):
            choice.committees[client] = kept
            choice.instead[client] = [k for k in ranked if k not in kept]
    return choice


def organisations(config: Config) -> dict[int, int]:
    """Return the organisation of each client that shares one, by its first client."""
    return {client: min(group) for group in config.federation.organisations for client in group}


def _fresh(age: int, most: int | None) -> bool:
    return most is None or age <= most


def _similarities(config: Config, known: Mapping[int, Known], clients: Sequence[int], receivers: Sequence[int]) -> Rows:
    """Return each receiver's similarity with every known client; only these rows of the matrix are computed."""
    random = config.peers.selector == "random" and config.peers.policy != "gated_similarity"
    if random or not receivers:
        return {}
    places = [clients.index(client) for client in receivers]
    if config.peers.selector == "predictions":
        rows = prediction_similarity(np.stack([_embedding(known[k]) for k in clients]), places)
    else:
        rows = similarity_rows(np.stack([known[k].profile for k in clients]), places, config.profile.scale)
    return dict(zip(receivers, rows, strict=True))


def _embedding(about: Known) -> npt.NDArray[np.float64]:
    if about.embedding is None:
        raise ValueError("peers.selector = 'predictions' needs each model's predictions, and one has none")
    return about.embedding


def _sizes(config: Config, known: Mapping[int, Known], clients: Sequence[int]) -> dict[int, int]:
    """Return T by client where it is not the same for all."""
    if config.peers.sizes == "fixed":
        return {}
    matrix = similarity_matrix([known[k].profile for k in clients], config.profile.scale)
    fewest = FEWEST if config.peers.anonymize else 1
    sizes = committee_sizes(matrix, most=config.peers.T, fewest=fewest)
    return dict(zip(clients, sizes, strict=True))


def _candidates(
    config: Config,
    clients: Sequence[int],
    eligible: Sequence[int],
    row: npt.NDArray[np.float64] | None,
    client: int,
    T: int,
    round: int,
) -> list[int]:
    """Return who may help a client: the T candidates, then a few others, best first."""
    peers = config.peers
    if peers.selector == "random" or (client not in clients and peers.unprofiled == "random"):
        generator = np.random.default_rng(seed_for(config.seed, "random peers", round, client))
        drawn = random_peers(eligible, client, T, generator)
        return drawn + random_peers([k for k in eligible if k not in drawn], client, REACH, generator)
    if row is None:
        return []
    barred = ~np.isin(clients, eligible)
    return [clients[k] for k in top_peers(np.where(barred, np.nan, row), clients.index(client), T + REACH)]
