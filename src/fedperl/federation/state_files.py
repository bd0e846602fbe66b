"""Models on disk, one file a key and version, hashed; memory holds the index and a few that were used last.

The bank of the clients' last models and the clients' own state are both kept this way: a new version gets a new name,
and the old file goes only after a checkpoint names the new one. Files are written while the run goes on, or where that
is told, with the next checkpoint; it waits for them. The few tensors of a state that are asked for alone have a hash of
their own, so that the rest need not be read for them.
"""

import io
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch

from fedperl.errors import RunError
from fedperl.files import digest, write_durably
from fedperl.learn.packing import packed, packed_part
from fedperl.learn.state import State, moved, size_in_bytes

RECENT = 256 * 2**20
"""Bytes of states kept in memory: small federations read nothing back."""
WRITERS = 4
WAITING = 16
"""Most states that wait to be written."""


@dataclass(frozen=True)
class Record:
    """One stored state: the round that made it, its file and the file's hashes, known once it is written."""

    round: int
    file: str
    sha256: str = ""
    part_sha256: str = ""
    """Of the tensors that can be read alone."""


class StateFiles:
    """A dictionary from a number (client or round) to a model, kept in a folder as safetensors."""

    def __init__(self, folder: Path, prefix: str, part: str = "") -> None:
        """Open a folder.

        Args:
            prefix: how the files' names start.
            part: how the names of those tensors start that `get_part` reads alone; by default of none.
        """
        self.folder = folder
        self.prefix, self.part = prefix, part
        self.records: dict[int, Record] = {}
        self.device = "cpu"
        """Where states are wanted."""
        self.recent = RECENT
        """Bytes of states that stay in memory."""
        self.wait = False
        """Whether writing waits for a checkpoint, or until memory is full: what is replaced before is never written."""
        self._waiting: dict[int, Record] = {}
        self._named: set[str] = set()
        self._replaced: set[str] = set()
        self._recent: dict[int, State] = {}
        self._recent_bytes = 0
        self._writing: dict[int, tuple[Record, Future[tuple[str, str]]]] = {}
        self._pool: ThreadPoolExecutor | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, key: int, round: int, state: State) -> None:
        """Point the index at a state under a new name; it is written durably by the time of `settle`.

        The tensors are given away: nobody may change them afterwards.
        """
        record = Record(round, f"{self.prefix}-{key:05d}-{round:06d}.safetensors")
        self._replace(key)
        self.records[key] = record
        if self.wait:
            self._waiting[key] = record
        else:
            self._begin(key, record, state)
        self._remember(key, {name: state[name] for name in sorted(state)})

    def _replace(self, key: int) -> None:
        """Let a file go: with the next checkpoint, or at once where the last one does not name it."""
        if key not in self.records:
            return
        file = self.records[key].file
        self._waiting.pop(key, None)
        if file in self._named or not self.wait:
            self._replaced.add(file)
            return
        if key in self._writing:
            self._settle(key)
        (self.folder / file).unlink(missing_ok=True)

    def _begin(self, key: int, record: Record, state: State) -> None:
        while key in self._writing or len(self._writing) >= WAITING:
            self._settle(key if key in self._writing else next(iter(self._writing)))
        self._pool = self._pool or ThreadPoolExecutor(WRITERS)
        self._writing[key] = record, self._pool.submit(_write, self.folder / record.file, state, self.part)

    def close(self) -> None:
        """Wait for what is being written, and leave unwritten what no checkpoint names yet."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def settle(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: something could not be.
        """
        for key in list(self._waiting):
            self._begin(key, self._waiting.pop(key), self._recent[key])
        for key in list(self._writing):
            self._settle(key)

    def _settle(self, key: int) -> None:
        record, written = self._writing[key]
        sha256, part_sha256 = written.result()
        del self._writing[key]
        if self.records.get(key) == record:
            self.records[key] = replace(record, sha256=sha256, part_sha256=part_sha256)

    def _remember(self, key: int, state: State) -> None:
        self._forget(key)
        self._recent[key] = state
        self._recent_bytes += size_in_bytes(state)
        while len(self._recent) > 1 and self._recent_bytes > self.recent:
            oldest = next(iter(self._recent))
            if oldest in self._waiting:
                self._begin(oldest, self._waiting.pop(oldest), self._recent[oldest])
            self._forget(oldest)

    def _forget(self, key: int) -> None:
        self._recent_bytes -= size_in_bytes(self._recent.pop(key, {}))

    def get(self, key: int) -> State:
        """Return the last state put under a key.

        Raises:
            KeyError: there is none.
            RunError: the file is missing or not the one that was written.
        """
        if key in self._recent:
            self._recent[key] = self._recent.pop(key)  # used last
            return dict(self._recent[key])
        if key in self._writing:
            self._settle(key)
        loaded = safetensors.torch.load(self._content(self.records[key]))
        ordered = {name: loaded[name] for name in sorted(loaded)}  # it comes in another order every time
        self._remember(key, moved(ordered, self.device))
        return dict(self._recent[key])

    def get_part(self, key: int, prefix: str) -> State:
        """Return the tensors of a state whose names start with a prefix; the others are not kept in memory.

        Where the prefix is this folder's `part`, they are not read either.

        Raises:
            RunError: the file is missing or not the one that was written.
        """
        self.settle()
        record = self.records[key]
        alone = prefix == self.part and record.part_sha256 != ""
        loaded = safetensors.torch.load(self._part(record) if alone else self._content(record))
        return {name: loaded[name].clone() for name in sorted(loaded) if name.startswith(prefix)}

    def _content(self, record: Record) -> bytes:
        path = self.folder / record.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
        return _checked(path, content, record.sha256)

    def _part(self, record: Record) -> bytes:
        path = self.folder / record.file
        try:
            with path.open("rb") as file:
                content = packed_part(file, self.part)
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
        except ValueError:
            content = b""
        return _checked(path, content, record.part_sha256)

    def keep_only(self, keys: Iterable[int]) -> None:
        """Forget every other key; `prune` deletes their files."""
        for key in self.records.keys() - set(keys):
            self._replace(key)
            self._forget(key)
            del self.records[key]

    def prune(self) -> None:
        """Delete the files that were replaced or forgotten since the last time."""
        self.settle()
        for file in self._replaced - {record.file for record in self.records.values()}:
            (self.folder / file).unlink(missing_ok=True)
        self._replaced.clear()

    def sweep(self) -> None:
        """Delete every file of its own that no record names: what a crash left behind."""
        named = {record.file for record in self.records.values()}
        for path in self.folder.glob(f"{self.prefix}-*"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def to_json(self) -> dict[str, Any]:
        """Return the index for the checkpoint, all of it written."""
        self.settle()
        self._named = {record.file for record in self.records.values()}
        return {str(key): vars(record) for key, record in self.records.items()}

    def restore(self, index: dict[str, Any]) -> None:
        """Take the index of a checkpoint over and delete what it does not name."""
        self.look(index)
        self.sweep()

    def look(self, index: dict[str, Any]) -> None:
        """Take an index over and delete nothing: another process may be writing here.

        Raises:
            RunError: it names a file that is not there, or not in this folder.
        """
        self.records = {int(key): Record(**record) for key, record in index.items()}
        self._recent, self._recent_bytes = {}, 0
        elsewhere = [r.file for r in self.records.values() if Path(r.file).name != r.file]
        if elsewhere:
            raise RunError(f"{self.folder}: the checkpoint names {elsewhere[0]!r}; wanted a file of this folder")
        missing = [r.file for r in self.records.values() if not (self.folder / r.file).is_file()]
        if missing:
            raise RunError(f"{self.folder / missing[0]}: missing, though the checkpoint names it")
        self._named = {record.file for record in self.records.values()}


def _checked(path: Path, content: bytes, sha256: str) -> bytes:
    """Return what was read of a file.

    Raises:
        RunError: it is not what was written.
    """
    if digest(content) != sha256:
        raise RunError(f"{path}: its hash is not the one in the checkpoint; wanted {sha256[:16]}...")
    return content


def _write(path: Path, state: State, part: str) -> tuple[str, str]:
    """Write a state durably; return the file's hash, and that of the tensors that can be read alone."""
    content = packed(state)
    write_durably(path, content)
    return digest(content), digest(packed_part(io.BytesIO(content), part)) if part else ""
