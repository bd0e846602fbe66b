"""All that a run says and writes: every byte to every party, and every file, also those that are gone again."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedperl.engines.local import LocalExchange
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, TrainTask, Update
from fedperl.federation.wire import Parcel, evaluate_parcel, evaluation_parcel, train_parcel, update_parcel
from fedperl.learn.packing import packed
from fedperl.peers import RawPeers
from tests.reliability.canaries import Canary, tensor_canaries


@dataclass
class Traffic:
    """The bytes of every message, and the tensors of every client's models."""

    to_client: list[tuple[int, bytes]] = field(default_factory=list)
    """Client and one piece of a message."""
    to_server: list[tuple[int, bytes]] = field(default_factory=list)
    tensors: list[Canary] = field(default_factory=list)
    peers: int = 0

    def note_update(self, update: Update, task: TrainTask) -> None:
        """Remember a client's model, where it differs from the one that it was sent."""
        self.tensors += tensor_canaries(update.client, update.round, update.state, task.model.state)

    def down(self, client: int, parcel: Parcel, *more: bytes) -> None:
        """Note what a client is sent."""
        self.to_client += [(client, piece) for piece in (parcel.text.encode(), *parcel.pieces.values(), *more)]

    def up(self, client: int, parcel: Parcel) -> None:
        """Note what the server is sent."""
        self.to_server += [(client, piece) for piece in (parcel.text.encode(), *parcel.pieces.values())]


class RecordingExchange(LocalExchange):
    """The local engine, of which every message is noted in the form in which it would be sent."""

    traffic: Traffic

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        asked: dict[int, TrainTask] = {}

        def noted() -> Iterator[TrainTask]:
            for task in tasks:
                asked[task.client] = task
                raw = task.peer.states if isinstance(task.peer, RawPeers) else ()
                sent = train_parcel(replace(task, peer=None) if raw else task)  # never sent otherwise
                self.traffic.down(task.client, sent, *map(packed, raw))
                self.traffic.peers += task.peer is not None
                yield task

        for answer in super().train(noted()):
            if isinstance(answer, Update):
                self.traffic.note_update(answer, asked[answer.client])
                self.traffic.up(answer.client, update_parcel(answer))
            else:
                self.traffic.up(answer.client, Parcel(repr(answer)))
            yield answer

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        def noted() -> Iterator[EvaluateTask]:
            for task in tasks:
                self.traffic.down(task.client, evaluate_parcel(task))
                yield task

        for evaluation in super().evaluate(noted()):
            self.traffic.up(evaluation.client, evaluation_parcel(evaluation))
            yield evaluation


# Files

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


class Files:
    """While it is on, keeps the content of every file that Python writes, before it is changed or goes."""

    def __init__(self) -> None:
        self.on = False
        self.paths: set[str] = set()
        self.contents: dict[str, set[bytes]] = {}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & WRITING
            if writes and isinstance(path, str | bytes | os.PathLike):
                self.paths.add(os.path.abspath(os.fsdecode(path)))
                self._keep(path)
        elif event in ("os.rename", "os.remove", "os.truncate", "os.link", "os.symlink"):
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self.paths.add(os.path.abspath(os.fsdecode(path)))
                    self._keep(path)

    def _keep(self, path: str | bytes | os.PathLike[str]) -> None:
        place = os.path.abspath(os.fsdecode(path))
        try:
            with open(place, "rb") as file:
                self.contents.setdefault(place, set()).add(file.read())
        except OSError:
            return

    def written(self, folder: Path) -> dict[str, list[bytes]]:
        """Return what was written into a folder, by path, in all versions that there were.

        A name written aside counts as the file that it becomes.
        """
        for path in self.paths:
            self._keep(path)
        inside = {path: all_of for path, all_of in self.contents.items() if Path(path).is_relative_to(folder)}
        found: dict[str, set[bytes]] = {}
        for path, versions in inside.items():
            found.setdefault(str(Path(path).relative_to(folder)).removesuffix(".tmp"), set()).update(versions)
        return {name: [content for content in versions if content] for name, versions in found.items()}

    def elsewhere(self, *folders: Path) -> list[str]:
        """Return what was written outside of these folders, Python's own caches left out."""
        others = (path for path in self.paths if not any(Path(path).is_relative_to(folder) for folder in folders))
        return sorted(path for path in others if "__pycache__" not in path and path != os.devnull)


@cache  # an audit hook cannot be taken away again
def _hook() -> Files:
    found = Files()
    sys.addaudithook(found)
    return found


@contextmanager
def writing() -> Iterator[Files]:
    """Note every file that is written."""
    files = _hook()
    files.paths, files.contents, files.on = set(), {}, True
    try:
        yield files
    finally:
        files.on = False
