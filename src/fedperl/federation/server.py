"""The server's side of a round: plan what goes to whom, absorb what comes back. No transport, no clock."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedperl.config import config_hash
from fedperl.errors import ConfigError
from fedperl.federation.aggregate import fedavg
from fedperl.federation.ledger import Ledger
from fedperl.federation.messages import EvaluateTask, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.schema import find_fault
from fedperl.federation.state_files import StateFiles
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.schedule import of_round
from fedperl.learn.state import State
from fedperl.peers import (
    AnonymizedPeer,
    RawPeers,
    apply_policy,
    committee,
    profile,
    random_peers,
    similarity_rows,
    top_peers,
)
from fedperl.peers.committee import FEWEST
from fedperl.peers.profiles import Profile
from fedperl.seeds import seed_for
from fedperl.settings import Config

PROFILE = "__profile__"

Score = Callable[[State], tuple[float, float]]
"""Accuracy and loss of a model on the server's own images."""
Teach = Callable[[State, int], State]
"""A model after the server's own training in a round, on its own labelled images."""


@dataclass
class RoundSummary:
    """What happened in one round, as far as the server knows."""

    round: int
    cohort: list[int]
    committees: dict[int, list[int]] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)
    void: bool = False
    profile_age: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    numbers: dict[int, dict[str, float]] = field(default_factory=dict)


class Server:
    """Holds the global model, the bank of last models (on disk) and the profiles."""

    def __init__(
        self,
        config: Config,
        sizes: Sequence[int],
        steps: int,
        initial: State,
        bank: StateFiles,
        ledger: Ledger,
        score: Score | None = None,
        teach: Teach | None = None,
        evaluators: Sequence[int] | None = None,
    ) -> None:
        """Start with an initial model.

        Args:
            sizes: training images of each client; one with none is never in a cohort.
            steps: optimiser steps a client and round.
            score: needed where profiles carry the server's score.
            teach: where the server has labels of its own: trains the initial model and every averaged one.
            evaluators: the clients that validate the global model; by default all.
        Raises:
            ConfigError: the cohort or T does not fit the number of clients.
        """
        self.config, self.sizes = config, list(sizes)
        self.trainers = [client for client, size in enumerate(sizes) if size > 0]
        self.evaluators = list(range(len(sizes)) if evaluators is None else evaluators)
        clients = len(self.trainers)
        if config.federation.cohort > clients:
            without = f" with something to train on, of {len(sizes)}" if clients < len(sizes) else ""
            raise ConfigError(f"federation.cohort = {config.federation.cohort}; there are {clients} clients{without}")
        if config.peer_learning and clients - 1 < config.peers.T:
            raise ConfigError(f"peers.T = {config.peers.T}; a client has {clients - 1} others")
        self.model = GlobalModel(0, initial)
        self.bank, self.ledger, self.score, self.teach = bank, ledger, score, teach
        self.run = config_hash(config)[:16]
        self.profiles: dict[int, Profile] = {}
        self._names = list(initial)  # the order of a profile's features; a loaded state comes in another
        self._settings = LocalSettings(config.objective, config.optimizer, config.views, steps, config.federation.batch)
        self._summary = RoundSummary(0, [])

    # A round

    @property
    def round(self) -> int:
        """The round that was planned last."""
        return self._summary.round

    def begin(self) -> None:
        """Let the server train the initial model, where it has labels: clients then have something to label with."""
        if self.teach is not None:
            self.model = GlobalModel(0, self.teach(self.model.state, 0))

    def plan(self, round: int) -> Iterator[TrainTask]:
        """Return the round's tasks; each one's release is in the ledger before it is handed out.

        With `peers.snapshot` all are made from the bank as it is now. Without, each is made when it is asked for, so
        that it may hold what an earlier client of this round sent: the authors' simulator does that.
        """
        cohort = self._draw_cohort(round)
        self._summary = RoundSummary(round, cohort)
        chosen = self._choose_committees(round, cohort)
        if not self.config.peers.snapshot:
            return self._one_by_one(round, chosen)
        tasks = [self._task(round, client, chosen.get(client, [])) for client in cohort]
        self.ledger.append([self._release(round, tasks)])
        return iter(tasks)

    def _one_by_one(self, round: int, chosen: dict[int, list[int]]) -> Iterator[TrainTask]:
        for client in self._summary.cohort:
            task = self._task(round, client, chosen.get(client, []))
            self.ledger.append([self._release(round, [task])])
            yield task

    def absorb(self, updates: Iterable[Update | Failure]) -> RoundSummary:
        """Check, bank, profile and average what came back from the tasks of the last `plan`.

        A bad update is rejected, counted and named, and the round goes on with the rest; with fewer than `quorum` left
        it is void: nothing is banked (save without `peers.snapshot`) and the old global model stays.
        """
        summary, held = self._summary, dict[int, Update]()
        for update in updates:
            fault = self._find_fault(update, held)
            if fault is not None or isinstance(update, Failure):
                summary.rejected[update.client] = fault or "it failed"
                continue
            summary.bytes_up += update.size()
            held[update.client] = update
            summary.numbers[update.client] = update.numbers
            if not self.config.peers.snapshot:
                self._bank(update)
        summary.accepted = sorted(held)
        for client in summary.cohort:
            if client not in held:
                summary.rejected.setdefault(client, "no update came back")
        summary.void = len(held) < self.config.federation.quorum
        if not summary.void:
            self._average([held[client] for client in summary.accepted])
        self.ledger.append([self._outcome(summary)])
        return summary

    def evaluation_tasks(self) -> Iterator[EvaluateTask]:
        """Yield the validation of the global model, at every client that has images for it."""
        for client in self.evaluators:
            yield EvaluateTask(self.run, self.model.round, client, self.model, "validation")

    def restore(self, model: GlobalModel) -> None:
        """Take the global model of a checkpoint over, and the profiles from the bank's files."""
        self.model = model
        self.profiles = {client: self.bank.get_tensor(client, PROFILE).numpy() for client in self.bank.records}

    # Planning

    def _draw_cohort(self, round: int) -> list[int]:
        generator = np.random.default_rng(seed_for(self.config.seed, "cohort", round))
        sizes = np.array([self.sizes[client] for client in self.trainers], dtype=np.float64)
        chances = sizes / sizes.sum() if self.config.federation.client_sampling == "size" else None
        cohort = generator.choice(len(sizes), self.config.federation.cohort, replace=False, p=chances)
        return [self.trainers[place] for place in cohort]

    def _choose_committees(self, round: int, cohort: list[int]) -> dict[int, list[int]]:
        """Return the peers kept for each client of the cohort; absent where there are too few."""
        peers = self.config.peers
        if not self.config.peer_learning or round <= peers.warmup or len(self.profiles) < peers.min_profiles:
            return {}
        eligible = [k for k in sorted(self.profiles) if self._may_help(k, round)]
        ages = [round - self.bank.records[k].round for k in eligible]
        self._summary.profile_age = float(np.mean(ages)) if ages else None
        similar = self._most_similar(cohort, eligible) if peers.selector == "profile" else {}
        chosen = {}
        for client in cohort:
            if peers.selector == "random" or (client not in self.profiles and peers.unprofiled == "random"):
                generator = np.random.default_rng(seed_for(self.config.seed, "random peers", round, client))
                candidates = random_peers(eligible, client, peers.T, generator)
            else:
                candidates = similar.get(client, [])
            kept = apply_policy(peers.policy, candidates)
            if len(kept) >= (FEWEST if peers.anonymize else 1):
                chosen[client] = kept
        return chosen

    def _may_help(self, client: int, round: int) -> bool:
        peers = self.config.peers
        age = round - self.bank.records[client].round
        return client not in peers.exclude and (peers.max_age is None or age <= peers.max_age)

    def _most_similar(self, cohort: list[int], eligible: list[int]) -> dict[int, list[int]]:
        """Return the top T of each profiled client of the cohort; only these rows of the matrix are computed."""
        known = sorted(self.profiles)
        place = {client: i for i, client in enumerate(known)}
        receivers = [client for client in cohort if client in place]
        if not receivers:
            return {}
        stacked = np.stack([self.profiles[client] for client in known])
        rows = similarity_rows(stacked, [place[client] for client in receivers], self.config.profile.scale)
        barred = np.ones(len(known), dtype=bool)
        barred[[place[client] for client in eligible]] = False
        rows[:, barred] = np.nan
        return {
            client: [known[k] for k in top_peers(row, place[client], self.config.peers.T)]
            for client, row in zip(receivers, rows, strict=True)
        }

    def _task(self, round: int, client: int, members: list[int]) -> TrainTask:
        task = TrainTask(
            self.run,
            round,
            client,
            self.model,
            self._peer(members),
            replace(self._settings, optimizer=of_round(self.config.optimizer, round, self.config.federation.rounds)),
            seed_for(self.config.seed, "local round", round, client),
        )
        self._summary.committees[client] = members
        self._summary.bytes_down += task.size()
        return task

    def _peer(self, members: list[int]) -> AnonymizedPeer | RawPeers | None:
        if not members:
            return None
        states = {k: {n: t for n, t in self.bank.get(k).items() if n != PROFILE} for k in members}
        if self.config.peers.anonymize:
            return committee(states, self.config.peers.batch_norm)
        return RawPeers(tuple(states[k] for k in members))

    # Absorbing

    def _find_fault(self, update: Update | Failure, held: dict[int, Update]) -> str | None:
        if update.run != self.run or update.round != self._summary.round:
            return f"it answers run {update.run}, round {update.round}; wanted {self.run}, round {self._summary.round}"
        if update.client not in self._summary.cohort:
            return f"client {update.client} has no task in this round"
        if update.client in held:
            return "a second update in one round"
        if isinstance(update, Failure):
            return f"it failed with {update.kind}"
        return find_fault(update.state, self.model.state)

    def _average(self, updates: list[Update]) -> None:
        if self.config.peers.snapshot:
            for update in updates:
                self._bank(update)
        by_size = self.config.federation.weights == "size"
        weights = [float(self.sizes[update.client]) if by_size else 1.0 for update in updates]
        average = fedavg([update.state for update in updates], weights)
        if self.teach is not None:
            average = self.teach(average, self._summary.round)
        self.model = GlobalModel(self._summary.round, average)

    def _bank(self, update: Update) -> None:
        settings = self.config.profile
        ordered = {name: update.state[name] for name in self._names}
        features = profile(ordered, tensors=settings.tensors, std=settings.std)
        if settings.server_score:
            if self.score is None:
                raise ConfigError("profile.server_score = true needs images at the server, and there are none")
            features = np.append(features, self.score(update.state))
        self.profiles[update.client] = features
        self.bank.put(update.client, update.round, {**update.state, PROFILE: torch.from_numpy(features)})

    # Ledger

    def _release(self, round: int, tasks: list[TrainTask]) -> dict[str, object]:
        releases = [
            {
                "to": task.client,
                "global": task.model.round,
                "committee": [[k, self.bank.records[k].round] for k in self._summary.committees[task.client]],
                "bytes": task.size(),
            }
            for task in tasks
        ]
        return {"kind": "send", "round": round, "releases": releases}

    def _outcome(self, summary: RoundSummary) -> dict[str, object]:
        return {
            "kind": "receive",
            "round": summary.round,
            "accepted": summary.accepted,
            "rejected": {str(client): reason for client, reason in sorted(summary.rejected.items())},
            "void": summary.void,
            "bytes": summary.bytes_up,
            "validated": {
                "global": self.model.round,
                "by": "every client" if len(self.evaluators) == len(self.sizes) else self.evaluators,
            },
        }
