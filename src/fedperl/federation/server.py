"""The server's side of a round: plan what goes to whom, absorb what comes back. No transport, no clock."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedperl.config import config_hash
from fedperl.errors import ConfigError
from fedperl.federation.aggregate import residual, running_mean
from fedperl.federation.auditing import Auditing
from fedperl.federation.averaging import average, bounded
from fedperl.federation.choosing import Choice, choose_committees, organisations
from fedperl.federation.kept_uploads import KeptUploads
from fedperl.federation.known import EXTRA, Known, model_of
from fedperl.federation.ledger import Entry, Ledger
from fedperl.federation.messages import EvaluateTask, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.round_summary import RoundSummary
from fedperl.federation.schema import find_fault
from fedperl.federation.screening import Screen
from fedperl.federation.state_files import StateFiles
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.schedule import of_round
from fedperl.learn.sparse import sparse_bytes, sparsify
from fedperl.learn.state import State, size_in_bytes
from fedperl.peers import AnonymizedPeer, RawPeers, committee, committee_mean, profile
from fedperl.peers.committee import FEWEST, BatchNorm
from fedperl.peers.relations import average_relation, find_relation_fault
from fedperl.seeds import seed_for
from fedperl.settings import Config

Score = Callable[[State], tuple[float, float]]
"""Accuracy and loss of a model on the server's own images."""
Teach = Callable[[State, int], State]
"""A model after the server's own training in a round, on its own labelled images."""
Embed = Callable[[State], npt.NDArray[np.float64]]
"""What a model says about one image of noise."""

NOTHING_CAME = "no update came back"


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
        *,
        embed: Embed | None = None,
        labelled: Sequence[bool] | None = None,
        unlabelled: Sequence[bool] | None = None,
        classes: int | None = None,
        kept: KeptUploads | None = None,
    ) -> None:
        """Start with an initial model.

        Args:
            sizes: training images of each client; one with none is never in a cohort.
            steps: optimiser steps a client and round.
            score: needed where profiles carry the server's score.
            teach: where the server has labels of its own: trains the initial model and every averaged one.
            evaluators: the clients that validate the global model; by default all.
            embed: needed where peers are chosen by their predictions.
            labelled: which clients have labels, by default all: those alone train before `objective.start`.
            unlabelled: which have images without, by default all: those alone are sent relation matrices.
            classes: needed where relation matrices are exchanged.
            kept: keeps some of every model, for research.
        Raises:
            ConfigError: the cohort or T does not fit the number of clients.
        """
        self.labelled = [True] * len(sizes) if labelled is None else list(labelled)
        self.unlabelled = [True] * len(sizes) if unlabelled is None else list(unlabelled)
        self.embed, self.classes = embed, classes
        self.trainers = [client for client, size in enumerate(sizes) if size > 0]
        self.config, self.sizes = (config := config.counted(len(self.trainers))), list(sizes)
        self.evaluators = list(range(len(sizes)) if evaluators is None else evaluators)
        clients = len(self.trainers)
        if config.cohort > clients:
            without = f" with something to train on, of {len(sizes)}" if clients < len(sizes) else ""
            raise ConfigError(f"federation.cohort = {config.cohort}; there are {clients} clients{without}")
        if config.peer_learning and clients - 1 < config.peers.T:
            raise ConfigError(f"peers.T = {config.peers.T}; a client has {clients - 1} others")
        early = [client for client in self.trainers if self.labelled[client]]
        wanted = 1 if config.privacy == "research" else config.quorum
        if config.objective.start and len(early) < wanted:
            raise ConfigError(
                f"objective.start = {config.objective.start}: until then only clients with labels train, and "
                f"{len(early)} have some; wanted at least federation.quorum = {wanted} of them, or start = 0"
            )
        self.audit = Auditing(config, len(sizes), organisations(config)) if config.coalition else None
        self.screen = (
            None
            if config.privacy == "research" or config.federation.alone
            else Screen(repeats=config.dp.unit == "none")
        )
        if self.screen is not None:
            self.screen.release(initial)
        self.kept = kept
        self.model = self.shown = GlobalModel(0, initial)
        """What clients train from, and what they validate: with `running_average` its mean over the rounds."""
        self.averaged = 0
        """Of how many models."""
        self.predecessor: GlobalModel | None = None
        self.bank, self.ledger, self.score, self.teach = bank, ledger, score, teach
        self.run = config_hash(config)[:16]
        self.known: dict[int, Known] = {}
        self.withdrawn: set[int] = set()
        self._names = list(initial)  # the order of a profile's features; a loaded state comes in another
        self._settings = LocalSettings(
            config.objective,
            config.optimizer,
            config.views,
            steps,
            config.federation.batch,
            config.federation.unlabelled_batch,
            rounds=config.federation.rounds,
            report=_report(config),
            own_batch_norm=config.federation.batch_norm == "local",
            recalibrate=config.peers.batch_norm == "recalibrate",
            sparse=config.federation.sparse,
        )
        self._summary = RoundSummary(0, [])
        self._starts: dict[int, State] = {}  # what each client of the round trains from, where little is sent
        self._bytes: dict[int, int] = {}  # what each task of the round costs
        self._related: dict[int, dict[int, list[tuple[int, int]]]] = {}  # whose relation matrices, by client and class

    @property
    def _fewest(self) -> int:
        """Of how many clients anything must be that others get to see."""
        return 1 if self.config.privacy == "research" else FEWEST

    # A round

    @property
    def round(self) -> int:
        """The round that was planned last."""
        return self._summary.round

    def begin(self) -> None:
        """Let the server train the initial model, where it has labels: clients then have something to label with.

        The ledger has its fingerprint, by which a resumed server knows it, too.
        """
        if self.teach is not None:
            self._renew(0, self.teach(self.model.state, 0))
            if self.screen is not None:
                prints = {"model": self.screen.release(self.model.state)}
                self.ledger.append([{"kind": "begin", "round": 0, "prints": prints}])
        self._keep(lambda kept: kept.model(0, self.model.state))

    def plan(self, round: int) -> Iterator[TrainTask]:
        """Return the round's tasks; each one's release is in the ledger before it is handed out.

        With `peers.snapshot` all are made from the bank as it is now. Without, each is made when it is asked for, so
        that it may hold what an earlier client of this round sent: the authors' simulator does that.
        """
        cohort = self._draw_cohort(round)
        choice = choose_committees(self.config, self.known, self._made(), cohort, round)
        self._summary = RoundSummary(
            round, cohort, kept=choice.kept, similarity=choice.similarity, profile_age=choice.profile_age
        )
        self._starts, self._related = {}, {}
        if self.screen is not None:
            self.screen.begin(self.model.state)
        if not self.config.peers.snapshot:
            return self._one_by_one(round, choice)
        tasks = [self._task(round, client, self._audited(choice, client)) for client in cohort]
        self.ledger.append([self._release(round, tasks)])
        return iter(tasks)

    def _one_by_one(self, round: int, choice: Choice) -> Iterator[TrainTask]:
        for client in self._summary.cohort:
            task = self._task(round, client, self._audited(choice, client))
            self.ledger.append([self._release(round, [task])])
            yield task

    def _audited(self, choice: Choice, client: int) -> list[int]:
        """Return a client's committee, changed where it would let somebody solve for a client's model."""
        chosen = choice.committees.get(client, [])
        if self.audit is None or not chosen:
            return chosen
        found = self.audit.committee(client, chosen, choice.instead[client], self._made())
        if found.swapped:
            self._summary.swapped[client] = found.swapped
        return found.members

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
            summary.bytes_up += self._bytes_up(update)
            summary.numbers[update.client] = update.numbers
            if self.screen is not None and self.screen.is_idle(update.client):
                summary.idle.append(update.client)
                continue
            held[update.client] = update
            if not self.config.peers.snapshot:
                self._bank(update, self._know(update))
                self._keep(lambda kept, u=update: kept.upload(u.client, u.round, u.state))  # type: ignore[misc]
        summary.idle.sort()
        summary.accepted = sorted([*held, *summary.idle])
        for client in summary.cohort:
            if client not in summary.accepted:
                summary.rejected.setdefault(client, NOTHING_CAME)
        needed = max(self._fewest, min(self.config.quorum, self.config.cohort))
        if len(held) >= needed:
            summary.void = not self._average([held[client] for client in sorted(held)])
        elif len(summary.accepted) >= needed:  # too few have learnt something: nothing of theirs goes out
            self._go_on_alone()
        else:
            summary.void = True
        self.ledger.append([self._outcome(summary)])
        return summary

    def evaluation_tasks(self) -> Iterator[EvaluateTask]:
        """Yield the validation of the global model, at every client that has images for it."""
        for client in self.evaluators:
            yield EvaluateTask(self.run, self.shown.round, client, self.shown, "validation")

    def restore(
        self,
        model: GlobalModel,
        predecessor: GlobalModel | None = None,
        shown: GlobalModel | None = None,
        averaged: int = 0,
    ) -> None:
        """Take the global model of a checkpoint over, and what is known of the clients from the bank's files.

        Args:
            shown: what is validated, where it is another: the mean of so many as `averaged` says.
        """
        self.model, self.predecessor = model, predecessor
        self.shown, self.averaged = shown or model, averaged
        self.known = {client: Known.of(self.bank.get_part(client, EXTRA)) for client in self.bank.records}
        if self.audit is not None:
            self.audit.replay(self.ledger.entries(), self._made().items())
        if self.screen is not None:
            self.screen.replay(self.ledger.entries())

    def withdraw(self, client: int) -> None:
        """Leave a client out from now on, and keep neither its model nor what was made of it."""
        self.withdrawn.add(client)
        if client < len(self.sizes):  # one that was registered later is none of this run's
            self.sizes[client] = 0
        self.trainers = [k for k in self.trainers if k != client]
        self.evaluators = [k for k in self.evaluators if k != client]
        self.known.pop(client, None)
        self.bank.keep_only(k for k in list(self.bank.records) if k != client)
        self._keep(lambda kept: kept.forget(client))

    def _keep(self, what: Callable[[KeptUploads], None]) -> None:
        if self.kept is not None:
            what(self.kept)

    def _made(self) -> dict[int, int]:
        """Return the round of each client's banked model."""
        return {client: record.round for client, record in self.bank.records.items()}

    # Planning

    def _draw_cohort(self, round: int) -> list[int]:
        generator = np.random.default_rng(seed_for(self.config.seed, "cohort", round))
        early = round <= self.config.objective.start
        able = [client for client in self.trainers if self.labelled[client] or not early]
        sizes = np.array([self.sizes[client] for client in able], dtype=np.float64)
        by_size = self.config.federation.client_sampling == "size" and len(able) > 0
        chances = sizes / sizes.sum() if by_size else None
        count = min(self.config.cohort, len(able))
        return [able[place] for place in generator.choice(len(able), count, replace=False, p=chances)]

    def _task(self, round: int, client: int, members: list[int]) -> TrainTask:
        task = TrainTask(
            self.run,
            round,
            client,
            self.model,
            self._peer(members),
            replace(
                self._settings,
                optimizer=of_round(self.config.optimizer, round, self.config.federation.rounds),
                round=round,
                eval_mode=self.config.federation.alone and self.config.federation.eval_slip and round > 1,
            ),
            seed_for(self.config.seed, "local round", round, client),
            self._relation(round, client),
        )
        self._summary.committees[client] = members
        if members and self.config.peers.anonymize:
            (state,) = task.peer_states()
            self._keep(lambda kept: kept.peer(client, round, state))
        self._bytes[client] = self._bytes_down(task)
        self._summary.bytes_down += self._bytes[client]
        return task

    def _relation(self, round: int, client: int) -> Tensor | None:
        """Return the mean of others' relation matrices for a client: never its own, which it could subtract.

        A client without unlabelled images, and a round on labelled ones alone, have no use for it.
        """
        if round <= self.config.objective.start or not self.unlabelled[client]:
            return None
        found = {k: about.relation for k, about in self.known.items() if k != client and about.relation is not None}
        made, fewest = self._made(), self._fewest
        known: dict[int, list[tuple[int, int]]] = {}
        for k in sorted(found):
            for label in torch.nonzero(found[k].sum(dim=1)).flatten().tolist():
                known.setdefault(label, []).append((k, made[k]))
        known = {label: uploads for label, uploads in sorted(known.items()) if len(uploads) >= fewest}
        self._related[client] = known if self.audit is None else self.audit.related(client, known)
        return average_relation(found, {label: [k for k, _ in of] for label, of in self._related[client].items()})

    def _bytes_down(self, task: TrainTask) -> int:
        """Return what the task costs; where little is sent, only what differs from what the client holds counts."""
        sparse = self.config.federation.sparse
        if not sparse:
            return task.size()
        self._starts[task.client] = model = task.model.state
        dense = task.size() - size_in_bytes(model)
        if task.client not in self.known:
            return task.size()
        held = model_of(self.bank.get(task.client))
        self._starts[task.client], changed = sparsify(model, held, sparse)
        return dense + sparse_bytes(int(changed), model)

    def _bytes_up(self, update: Update) -> int:
        start = self._starts.get(update.client)
        if start is None:
            return update.size()
        _, changed = sparsify(update.state, start, 0.0)  # the client has left out what moved too little
        return update.size() - size_in_bytes(update.state) + sparse_bytes(int(changed), update.state)

    def _peer(self, members: list[int]) -> AnonymizedPeer | RawPeers | None:
        if not members:
            return None
        states = {k: self._helping(model_of(self.bank.get(k))) for k in members}
        if not self.config.peers.anonymize:
            return RawPeers(tuple(states[k] for k in members))
        asked = self.config.peers.batch_norm
        batch_norm: BatchNorm = "receiver" if asked == "recalibrate" else asked
        if len(members) < FEWEST:  # k_min = 1: nothing is anonymous about one client's model
            return RawPeers((committee_mean([states[k] for k in members], batch_norm),))
        return committee(states, batch_norm)

    def _helping(self, model: State) -> State:
        """Return what of a client's model helps others: all of it, or FedMatch's psi, which runs on their sigma."""
        if not self.config.objective.decomposed:
            return model
        return {name: tensor for name, tensor in model.items() if name.startswith("psi.")}

    # Absorbing

    def _find_fault(self, update: Update | Failure, held: dict[int, Update]) -> str | None:
        if update.run != self.run or update.round != self._summary.round:
            run = update.run[:20].encode("ascii", "replace").decode()
            return f"it answers run {run}, round {update.round}; wanted {self.run}, round {self._summary.round}"
        if update.client not in self._summary.cohort:
            return f"client {update.client} has no task in this round"
        if update.client in held or update.client in self._summary.idle:
            return "a second update in one round"
        if isinstance(update, Failure):
            return f"it failed with {update.kind}"
        if update.relation is not None:
            if self.classes is None:
                return "it carries a relation matrix, which this method does not ask for"
            fault = find_relation_fault(update.relation, self.classes)
            if fault is not None:
                return fault
        fault = find_fault(update.state, self.model.state)
        if fault is None and self.screen is not None:
            fault = self.screen.find_fault(update)
        return fault

    def _average(self, updates: list[Update]) -> bool:
        """Make the new global model; return False, and change nothing, where it would let a client be solved for."""
        round, every, start = self._summary.round, self.config.federation.residual_every, self.model.state
        states = {update.client: update.state for update in updates}
        taught = lambda: start if self.teach is None else self.teach(start, round)  # noqa: E731
        counted, far, known = bounded(self.config, states, start, taught), self._far(states), dict[int, Known]()
        if counted is None:
            return False
        if self.config.peers.snapshot:
            updates = [replace(update, state=counted.states[update.client]) for update in updates]
            known = {u.client: replace(self._know(u), **far.get(u.client, {})) for u in updates}
        found = average(self.config, counted, self.sizes, self.labelled, self.known | known, round)
        if found is None:
            return False
        if self.audit is not None and not self.audit.model({(k, round): w for k, w in found.weights.items()}):
            return False
        if known:  # those that the average does without help nobody either
            known |= {k: replace(known[k], screened=True) for k in known.keys() - found.weights.keys()}
        for update in updates if known else ():
            self._bank(update, known[update.client])
            self._keep(lambda kept, update=update: kept.upload(update.client, round, update.state))  # type: ignore[misc]
        if self.audit is not None:
            self.audit.keep(self._made().items())
        self._summary.weights = found.weights
        mean = found.state
        if every and round % every == 0 and self.predecessor is not None:
            mean = residual(mean, self.predecessor.state)
            self._summary.residual = self.predecessor.round
        if self.teach is not None:
            mean = self.teach(mean, round)
        self._renew(round, mean)
        self._keep(lambda kept: kept.model(round, mean))
        if every and round % every == 0:
            self.predecessor = self.model
        return True

    def _go_on_alone(self) -> None:
        """Let the server train the old model on, where it has labels."""
        if self.teach is not None:
            self._renew(self._summary.round, self.teach(self.model.state, self._summary.round))
            self._keep(lambda kept: kept.model(self.model.round, self.model.state))

    def _renew(self, round: int, state: State) -> None:
        """Take a new global model over."""
        decay, mean = self.config.federation.running_average, self.shown.state
        self.model = self.shown = GlobalModel(round, state)
        if decay and round:
            self.averaged += 1
            self.shown = GlobalModel(round, running_mean(mean, state, decay, self.averaged))

    def _far(self, states: dict[int, State]) -> dict[int, dict[str, Any]]:
        """Return how far clients moved, and whether too far to help others; nothing where that is not looked at."""
        if self.screen is None:
            return {}
        last = {k: about.moved for k, about in self.known.items() if about.moved is not None}
        moved, far = self.screen.outliers(states, last)
        return {k: {"moved": length, "screened": k in far} for k, length in moved.items()}

    def _know(self, update: Update) -> Known:
        """Return what the server sees in a model."""
        settings = self.config.profile
        ordered = {name: update.state[name] for name in self._names}
        features = profile(ordered, tensors=settings.tensors, std=settings.std)
        if settings.server_score:
            features = np.append(features, self._scored(update.state))
        score = update.numbers.get("accuracy")
        if self._scores:
            score = self._scored(update.state)[0]
        embedding = None if self.embed is None else self.embed(update.state)
        return Known(features, embedding, score, update.relation)

    def _bank(self, update: Update, known: Known) -> None:
        self.known[update.client] = known
        self.bank.put(update.client, update.round, {**update.state, **known.tensors()})

    @property
    def _scores(self) -> bool:
        """Whether a policy asks for the accuracy on the server's own images."""
        gate, policy = self.config.gate, self.config.peers.policy
        asks = policy in ("validation", "gated_validation") and gate.metric == "server_acc"
        return asks and self.config.peer_learning

    def _scored(self, state: State) -> tuple[float, float]:
        if self.score is None:
            raise ConfigError("profiles or a policy ask for accuracy on the server's images, and there are none")
        return self.score(state)

    # Ledger

    def _release(self, round: int, tasks: list[TrainTask]) -> Entry:
        releases = [
            {
                "to": task.client,
                "global": task.model.round,
                "committee": [[k, self.bank.records[k].round] for k in self._summary.committees[task.client]],
                "bytes": self._bytes[task.client],
            }
            | self._relation_release(task)
            for task in tasks
        ]
        return {"kind": "send", "round": round, "releases": releases}

    def _relation_release(self, task: TrainTask) -> Entry:
        """Return whose relation matrices, of which rounds, are in each class's row; nothing where there are none."""
        if task.relation is None:
            return {}
        return {"relation": {str(label): uploads for label, uploads in self._related[task.client].items()}}

    def _prints(self, summary: RoundSummary) -> Entry:
        """Return the fingerprints of what came and of what was made of it, by which copies are known."""
        if self.screen is None:
            return {}
        new = {"model": self.model} | ({"average": self.shown} if self.config.federation.running_average else {})
        made = {name: self.screen.release(one.state) for name, one in new.items() if one.round == summary.round}
        return {"prints": made | self.screen.uploads(summary.round, summary.accepted)}

    def _outcome(self, summary: RoundSummary) -> Entry:
        everyone = len(self.evaluators) == len(self.sizes)
        by: str | list[int] = "every client" if everyone else self.evaluators
        if not self.config.validates(summary.round):
            by = []
        decay = self.config.federation.running_average
        validated = {"global": self.model.round, "by": by} | ({"average": decay} if decay else {})
        return summary.received() | self._prints(summary) | {"validated": validated}


def _report(config: Config) -> Literal["none", "validation", "training"]:
    """Return which accuracy of its own a client has to tell."""
    if not config.peer_learning or config.peers.policy not in ("validation", "gated_validation"):
        return "none"
    return {"server_acc": "none", "own_val_acc": "validation", "train_acc": "training"}[config.gate.metric]  # type: ignore[return-value]
