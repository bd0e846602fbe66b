"""Models on disk, one file a key and version, hashed; memory holds the index alone.

The bank of the clients' last models and the clients' own state are both kept this way: a new version gets a new name,
and the old file goes only after a checkpoint names the new one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from fedperl.errors import RunError
from fedperl.files import digest, write_durably
from fedperl.learn.state import State


@dataclass(frozen=True)
class Record:
    """One stored state: the round that made it, its file and the file's hash."""

    round: int
    file: str
    sha256: str


class StateFiles:
    """A dictionary from a number (client or round) to a model, kept in a folder as safetensors."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.prefix = prefix
        self.records: dict[int, Record] = {}
        self._replaced: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, key: int, round: int, state: State) -> None:
        """Write a state durably under a new name and point the index at it."""
        content = safetensors.torch.save(state)
        file = f"{self.prefix}-{key:05d}-{round:06d}.safetensors"
        write_durably(self.folder / file, content)
        if key in self.records:
            self._replaced.add(self.records[key].file)
        self.records[key] = Record(round, file, digest(content))

    def get(self, key: int) -> State:
        """Return the last state put under a key.

        Raises:
            KeyError: there is none.
            RunError: the file is missing or not the one that was written.
        """
        record = self.records[key]
        path = self.folder / record.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
        if digest(content) != record.sha256:
            raise RunError(f"{path}: its hash is not the one in the checkpoint; wanted {record.sha256[:16]}...")
        loaded = safetensors.torch.load(content)
        return {name: loaded[name] for name in sorted(loaded)}  # it comes in another order every time

    def get_part(self, key: int, prefix: str) -> State:
        """Return the tensors of a state whose names start with a prefix, without reading the others."""
        path = self.folder / self.records[key].file
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in sorted(file.keys()) if name.startswith(prefix)}
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from None

    def keep_only(self, keys: Iterable[int]) -> None:
        """Forget every other key; `prune` deletes their files."""
        for key in self.records.keys() - set(keys):
            self._replaced.add(self.records.pop(key).file)

    def prune(self) -> None:
        """Delete the files that were replaced or forgotten since the last time."""
        for file in self._replaced - {record.file for record in self.records.values()}:
            (self.folder / file).unlink(missing_ok=True)
        self._replaced.clear()

    def sweep(self) -> None:
        """Delete every file that no record names: what a crash left behind."""
        named = {record.file for record in self.records.values()}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)

    def to_json(self) -> dict[str, Any]:
        """Return the index for the checkpoint."""
        return {str(key): vars(record) for key, record in self.records.items()}

    def restore(self, index: dict[str, Any]) -> None:
        """Take the index of a checkpoint over and delete what it does not name."""
        self.records = {int(key): Record(**record) for key, record in index.items()}
        missing = [r.file for r in self.records.values() if not (self.folder / r.file).is_file()]
        if missing:
            raise RunError(f"{self.folder / missing[0]}: missing, though the checkpoint names it")
        self.sweep()
