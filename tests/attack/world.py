"""A federation of random models: its ledger and what was kept of it, where it is known what can be solved for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.federation.kept_uploads import Kept

Array = npt.NDArray[np.float64]
Rounding = Callable[[Array], npt.NDArray[Any]]


def single(vector: Array) -> npt.NDArray[np.float32]:
    return vector.astype(np.float32)


class World:
    """Rounds of FedAvg with committees; what is sent is rounded as `rounding` says."""

    def __init__(self, size: int = 60, seed: int = 0, rounding: Rounding = lambda vector: vector) -> None:
        self.generator = np.random.default_rng(seed)
        self.rounding = rounding
        self.model = self.generator.normal(0, 0.05, size)
        self.entries: list[dict[str, Any]] = []
        self.kept = Kept(models={0: [rounding(self.model)]})
        self.bank: dict[int, tuple[int, Array]] = {}
        self.models = {0: self.model}
        self.latest = 0

    def round(
        self,
        number: int,
        cohort: Sequence[int],
        committees: Mapping[int, Sequence[int]] | None = None,
        *,
        weights: Mapping[int, float] | None = None,
        accepted: Sequence[int] | None = None,
        lengths: Mapping[int, float] | None = None,
        residual: int | None = None,
        by: Sequence[int] | None = None,
        movement: Mapping[int, Array] | None = None,
    ) -> None:
        """Send, train, average; with nobody accepted the round is void.

        Args:
            lengths: how much of a client's movement is averaged, where it is not all.
        """
        releases = []
        for client in cohort:
            members = (committees or {}).get(client, [])
            if members:
                mean = np.mean([self.bank[k][1] for k in members], axis=0)
                self.kept.peers[client, number] = [self.rounding(mean)]
            made = [[k, self.bank[k][0]] for k in members]
            releases.append({"to": client, "global": self.latest, "committee": made, "bytes": 0})
        self.entries.append({"kind": "send", "round": number, "releases": releases})
        uploads = {}
        for client in cohort:
            drawn = self.generator.normal(0, 0.01, self.model.shape)
            moved = drawn if movement is None or client not in movement else movement[client]
            uploads[client] = self.model + moved
            self.kept.uploads[client, number] = uploads[client]
        took = list(cohort if accepted is None else accepted)
        shares = {k: (weights or {}).get(k, 1.0) / sum((weights or {}).get(k, 1.0) for k in took) for k in took}
        if took:
            factors = {k: (lengths or {}).get(k, 1.0) for k in took}
            parts = [shares[k] * factors[k] * (uploads[k] - self.model) for k in took]
            average = self.model + np.sum(parts, axis=0)
            shares = {k: shares[k] * factors[k] for k in took}
            if residual is not None:
                average = 0.5 * average + 0.5 * self.models[residual]
            self.model, self.latest = average, number
            self.models[number] = average
            self.kept.models[number] = [self.rounding(average)]
            self.bank |= {k: (number, uploads[k]) for k in took}
        self.entries.append(
            {
                "kind": "receive",
                "round": number,
                "accepted": took,
                "void": not took,
                "weights": {str(k): share for k, share in shares.items()},
                "residual": residual,
                "validated": {"global": self.latest, "by": "every client" if by is None else list(by)},
            }
        )


def simulate(
    rounds: int,
    *,
    cohort: int = 3,
    T: int = 2,
    communities: Sequence[int] = (5, 3, 1, 1),
    warmup: int = 10,
    seed: int = 0,
    size: int = 60,
    rounding: Rounding = single,
    weights: Mapping[int, float] | None = None,
) -> World:
    """Return a world whose clients move towards their community, and are helped by the T most similar ones."""
    world = World(size, seed, rounding)
    generator = world.generator
    community = np.repeat(np.arange(len(communities)), communities)
    clients = len(community)
    centres = generator.normal(0, 1, (len(communities), size))
    own = centres[community] + 0.7 * generator.normal(0, 1, (clients, size))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    for number in range(1, rounds + 1):
        chosen = [int(k) for k in generator.choice(clients, cohort, replace=False)]
        committees = {}
        for client in chosen:
            others = [k for k in world.bank if k != client]
            if T and number > warmup and client in world.bank and len(others) >= T:
                near = {k: float(own[client] @ own[k] + 0.1 * generator.normal()) for k in others}
                committees[client] = sorted(others, key=lambda k: -near[k])[:T]
        step = 0.01 * np.sqrt(size)
        movement = {k: step * (0.7 * own[k] + 0.7 * generator.normal(0, size**-0.5, size)) for k in chosen}
        world.round(number, chosen, committees, movement=movement, weights=weights)
    return world
