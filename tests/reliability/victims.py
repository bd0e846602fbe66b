"""What processes do that are killed: commit round after round, or train a run."""

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedperl.benchmarking.reliability.dying import moments
from fedperl.config import load_config
from fedperl.engines.local import LocalExchange
from fedperl.federation import run_folder, state_files
from fedperl.federation.client import Client
from fedperl.federation.messages import Failure, TrainTask, Update
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.packing import packed
from fedperl.training import train

CLIENTS = 3


def state(client: int, round: int) -> dict[str, Tensor]:
    """Return the model that a client has after a round."""
    return {"weight": torch.full((120, 100), client + round / 4096), "round": torch.tensor(round)}


def commit_rounds(path: Path, rounds: int, told: Path, naive: bool = False) -> None:
    """Go on from the last checkpoint and commit rounds; each that is done is told in a file.

    Args:
        naive: write every file in its place, as most programs do: what that is worth is counted too.
    """
    if naive:
        for module in (run_folder, state_files):
            module.write_durably = _in_place  # type: ignore[attr-defined]
    folder = RunFolder(path)
    folder.open()
    content = folder.restore() or {"round": 0}
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for round in range(content["round"] + 1, content["round"] + rounds + 1):
        for client in range(CLIENTS):
            folder.bank.put(client, round, state(client, round))
            folder.client_states.put(client, round, state(client + CLIENTS, round))
        folder.models.put(round, round, state(-1, round))
        folder.models.keep_only([round])
        folder.ledger.append([{"kind": "send", "round": round}, {"kind": "receive", "round": round}])
        folder.append_metrics({"round": round})
        folder.commit({"round": round})
        os.write(descriptor, f"{round}\n".encode())
    folder.close()


def _in_place(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def train_run(config: Path, out: Path) -> None:
    """Train a run, or go on with it; before and after each client's training is a moment to die, too."""
    trains = Client.train

    def train_here(self: Client, *given: Any) -> Any:
        moments.pass_by("a client begins")
        found = trains(self, *given)
        moments.pass_by("a client is done")
        return found

    Client.train = train_here  # type: ignore[assignment, method-assign]
    train(load_config(config), out, resume=True)


def train_and_note(config: Path, out: Path, notes: Path, last: int | None) -> None:
    """Train a run, noting what every client is handed and what it sends; die when the last of so many is handed out."""
    trains, handed = LocalExchange.train, 0

    def note(name: str, content: bytes) -> None:
        descriptor = os.open(notes / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, content)
        os.close(descriptor)

    def handing(tasks: Iterable[TrainTask]) -> Iterator[TrainTask]:
        nonlocal handed
        for task in tasks:
            peer = b"" if task.peer is None else packed(task.peer_states()[0])
            note(f"sent-{task.round}-{task.client}-{task.model.round}", peer)
            handed += 1
            if handed == last:
                os.kill(os.getpid(), signal.SIGKILL)
            yield task

    def train_here(self: LocalExchange, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        for answer in trains(self, handing(tasks)):
            assert isinstance(answer, Update)
            note(f"got-{answer.round}-{answer.client}", packed(answer.state))
            yield answer

    LocalExchange.train = train_here  # type: ignore[method-assign]
    train(load_config(config), out, resume=True)
