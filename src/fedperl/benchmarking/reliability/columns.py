"""The same toy federation three times: ours, our average without any guard, and Flower's own FedAvg.

Each can average one round of given answers, and run a whole federation into a folder, where it goes on with what it
finds there.
"""

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors.torch

from fedperl.benchmarking.reliability.toy import CLIENTS, ROUNDS, Clients, Script, initial
from fedperl.config import resolve
from fedperl.engines.flower.about import read_about
from fedperl.errors import FedPerlError
from fedperl.federation.aggregate import fedavg
from fedperl.federation.ledger import Ledger
from fedperl.federation.members import Member
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.rounds import Rounds
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.federation.stopwatch import Stopwatch
from fedperl.federation.wire import Parcel, WireError
from fedperl.learn.packing import packed
from fedperl.learn.state import State
from fedperl.settings import Config

FINAL = "final.safetensors"
"""Where a finished federation leaves its model."""
TRAINED = "trained"
"""A file that has one letter for every round that was trained."""


@dataclass(frozen=True)
class Averaged:
    """What became of one round."""

    model: State
    refused: str = ""
    """What was said against the answer in question, where it was left out."""


Given = Sequence[tuple[int, State, int]]
"""Answers: client, model, and the number of images that it says it has."""


class Column(ABC):
    """One way to federate."""

    name: str
    quorum: int
    """Answers of which a new model is made at least."""
    writes: bool
    """Whether it keeps anything on disk, so that it can go on."""

    @abstractmethod
    def average(self, start: State, given: Given, suspect: int, folder: Path) -> Averaged:
        """Return what a server makes of the answers of one round, after one in which all were honest."""

    @abstractmethod
    def federate(self, folder: Path, script: Script) -> None:
        """Run all rounds that are left, and write the model."""

    def record(self, folder: Path) -> object:
        """Return what else it has written down of its rounds, and must be right."""
        return None


# Ours


def our_config(cohort: int = CLIENTS) -> Config:
    """Return the settings of a hospital's federation."""
    return resolve(
        {
            "privacy": "hospital",
            "threads": 1,
            "federation": {"rounds": ROUNDS, "cohort": cohort, "steps": 1, "batch": 2},
            "peers": {"warmup": 1},
        }
    )


class ToyExchange:
    """Carries tasks to the toy's clients."""

    def __init__(self, clients: Clients, trained: Path | None = None) -> None:
        self.clients, self.trained = clients, trained
        self.left: set[int] = set()

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield what comes back, answers to the round before included."""
        tasks = list(tasks)
        first = tasks[0]
        found = self.clients.answer(first.model.state, first.round, sorted(task.client for task in tasks))
        for client, state in found.late.items():
            yield Update(first.run, first.round - 1, client, state, {"loss": 1.0})
        for client, state in found.states.items():
            yield Update(first.run, first.round, client, state, {"loss": 1.0})
        for client in sorted(found.errors):
            yield Failure(first.run, first.round, client, "OSError")
        note_round(self.trained)

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield an accuracy a client."""
        for task in tasks:
            yield Evaluation(task.run, task.round, task.client, task.part, {"accuracy": 0.5})

    def in_use(self, client: int, model: GlobalModel) -> State:
        """Return the model: nobody has anything of its own."""
        return model.state

    def keep(self, rounds: set[int], best: Mapping[int, int]) -> None:
        """Nothing is kept."""


def note_round(path: Path | None) -> None:
    """Note that a round was trained."""
    if path is not None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)


class Ours(Column):
    """FedPerl's own server, rounds and run folder, as they are."""

    name, writes = "fedperl", True
    quorum = our_config().quorum

    def average(self, start: State, given: Given, suspect: int, folder: Path) -> Averaged:
        """As `Column`: the answers to the second round of a server."""
        told = {client: said for client, _, images in given if (said := _said_of(images))}
        given = [answer for answer in given if answer[0] not in told]  # such a site is no member of the run
        run = RunFolder(folder)
        run.open()
        run.ledger.open()
        sizes = dict.fromkeys(range(CLIENTS), 20) | dict.fromkeys(told, 0) | {client: n for client, _, n in given}
        server = Server(our_config(CLIENTS - len(told)), list(sizes.values()), 1, start, run.bank, run.ledger)
        tasks = {task.client: task for task in server.plan(1)}
        honest = ToyExchange(Clients({}))
        server.absorb(honest.train(tasks.values()))
        before, tasks = server.model.state, {task.client: task for task in server.plan(2)}
        moved = [(client, _moved(state, start, before), images) for client, state, images in given]
        summary = server.absorb(
            Update(server.run, 2, client, state, {"loss": 1.0}) for client, state, _ in moved if client in tasks
        )
        run.close()
        said = told.get(suspect) or summary.rejected.get(suspect, "" if suspect in tasks else "it is never asked")
        if suspect in summary.idle:
            said = "it changed nothing, and is left out"
        if not said and summary.void:
            said = f"{len(summary.accepted)} of {len(summary.cohort)} answers are too few"
        return Averaged(_moved(server.model.state, before, start), said)

    def federate(self, folder: Path, script: Script) -> None:
        """As `Column`: a run folder's rounds."""
        run = RunFolder(folder / "run")
        run.open()
        try:
            server = Server(our_config(), [20] * CLIENTS, 1, initial(), run.bank, run.ledger)
            rounds = Rounds(server, ToyExchange(Clients(script), folder / TRAINED), run, Stopwatch())
            rounds.restore()
            rounds.run()
            (folder / FINAL).write_bytes(packed(server.model.state))
        finally:
            run.close()

    def record(self, folder: Path) -> object:
        """As `Column`: the numbers of every round, and the ledger."""
        run = RunFolder(folder / "run")
        lines = [{k: v for k, v in line.items() if k != "seconds"} for line in run.read_metrics()]
        return lines, list(Ledger(run.state / "ledger.jsonl").entries())


def _said_of(images: int) -> str:
    """Return what is said against a number of images, which a site tells before the first round."""
    about = {name: images if name == "labelled" else 0 for name in Member.__dataclass_fields__}
    try:
        read_about(Parcel(json.dumps(about | {"classes": ["A", "B"], "size": 16, "digest": "", "version": ""})))
    except WireError as error:
        return str(error)
    return ""


def _moved(state: State, old: State, new: State) -> State:
    """Return a model as it would be had it started elsewhere; what does not fit stays as it is."""
    fits = {name for name in state if name in old and state[name].shape == old[name].shape}
    return {
        name: (tensor - old[name] + new[name]).to(tensor.dtype) if name in fits else tensor
        for name, tensor in state.items()
    }


# Without guards


class Bare(Column):
    """Our average alone: no schema, no quorum, no screen; files written in their place."""

    name, writes, quorum = "fedperl, guards off", True, 2

    def average(self, start: State, given: Given, suspect: int, folder: Path) -> Averaged:
        """As `Column`: by `fedavg`, weighed by images."""
        return Averaged(fedavg([state for _, state, _ in given], [images for _, _, images in given]))

    def federate(self, folder: Path, script: Script) -> None:
        """As `Column`: a loop, with model and round in a file each."""
        clients, model, done = Clients(script), initial(), 0
        if (folder / "model.safetensors").exists():
            model = safetensors.torch.load((folder / "model.safetensors").read_bytes())
            done = int(json.loads((folder / "round.json").read_text()))
        for round in range(done + 1, ROUNDS + 1):
            found = clients.answer(model, round, range(CLIENTS))
            states = [*found.late.values(), *found.states.values()]
            model = fedavg(states, [1.0] * len(states))
            note_round(folder / TRAINED)
            _write(folder / "model.safetensors", packed(model))
            _write(folder / "round.json", str(round).encode())
        (folder / FINAL).write_bytes(packed(model))


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


# Flower


class Flower(Column):
    """Flower's FedAvg: its own `aggregate_train`, and its own `start` over a grid that answers at once."""

    name, writes, quorum = "Flower FedAvg", False, 2

    def __init__(self) -> None:
        import flwr
        from flwr.supercore.task_identity import TaskIdentity

        logging.getLogger("flwr").setLevel(logging.ERROR)
        self.version = flwr.__version__
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # a message wants to know them

    def average(self, start: State, given: Given, suspect: int, folder: Path) -> Averaged:
        """As `Column`: by `aggregate_train`."""
        from flwr.serverapp.strategy import FedAvg

        arrays, _ = FedAvg().aggregate_train(1, [_reply(_question(client), s, n) for client, s, n in given])
        return Averaged(start if arrays is None else _state(arrays))

    def federate(self, folder: Path, script: Script) -> None:
        """As `Column`: by `start`, which knows of no earlier rounds."""
        from flwr.app import ArrayRecord
        from flwr.serverapp.strategy import FedAvg

        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        grid: Any = ToyGrid(Clients(script), folder / TRAINED)
        found = strategy.start(grid, ArrayRecord(initial()), num_rounds=ROUNDS)
        (folder / FINAL).write_bytes(packed(_state(found.arrays) if found.arrays else initial()))


class ToyGrid:
    """Answers at once. What is late comes to nobody: Flower reads answers to the questions of the round alone."""

    def __init__(self, clients: Clients, trained: Path) -> None:
        self.clients, self.trained = clients, trained

    def get_node_ids(self) -> list[int]:
        """Return the nodes."""
        return list(range(1, CLIENTS + 1))

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Return the answers."""
        from flwr.app import Error, Message

        asked = {message.metadata.dst_node_id - 1: message for message in messages}
        if not asked:
            return []
        content = next(iter(asked.values())).content
        model, round = _state(content["arrays"]), int(content["config"]["server-round"])
        found = self.clients.answer(model, round, sorted(asked))
        note_round(self.trained)
        replies = [_reply(asked[client], state, 20) for client, state in found.states.items()]
        return replies + [Message(Error(0, "OSError"), reply_to=asked[client]) for client in sorted(found.errors)]


def _question(client: int) -> Any:
    from flwr.app import Message, MessageType, RecordDict

    return Message(RecordDict(), client + 1, MessageType.TRAIN)


def _reply(question: Any, state: State, images: int) -> Any:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    arrays = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in state.items()})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": images})})
    return Message(content, reply_to=question)


def _state(arrays: Mapping[str, Any]) -> State:
    import torch

    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def columns() -> list[Column]:
    """Return ours, ours without guards, and Flower's where it is installed."""
    return [Ours(), Bare(), *([Flower()] if find_spec("flwr") else [])]


def federate(name: str, folder: Path, script: Script) -> None:
    """Run the federation of a column; in a process of its own.

    Raises:
        FedPerlError: what it raises of its own; anything else is no error that says what to do.
    """
    kind = {column.name: column for column in (Ours, Bare, Flower)}[name]
    try:
        kind().federate(folder, script)
    except (FedPerlError, OSError) as error:
        raise NamedError(str(error)) from None


class NamedError(Exception):
    """An error that a person can act on."""
