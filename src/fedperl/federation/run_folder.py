"""A run's folder: configuration, metrics, checkpoint, models, results. At every moment it can be read and resumed."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedperl.config import Table, dump
from fedperl.earlier import read_resolved
from fedperl.errors import ConfigError, RunError
from fedperl.federation.known import EXTRA
from fedperl.federation.ledger import Ledger
from fedperl.federation.state_files import StateFiles
from fedperl.files import TEMPORARY, append_durably, digest, lock, sync_folder, write_durably
from fedperl.learn.state import State
from fedperl.learn.weights import write_weights
from fedperl.settings import Config

FORMAT = 2
UNAVERAGED = -1
"""Among the kept models, beside those of rounds: the one that training goes on from, where a mean of them is shown."""


class RunFolder:
    """The files of one run. Large files are written under new names; `checkpoint.json` then names them, at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self._lock: IO[bytes] | None = None
        self._made: list[Path] = []
        self._metrics_hash = hashlib.sha256()

    def open(self) -> None:
        """Create the folders, take the lock, remove what a crash left half-written.

        Raises:
            RunError: another process is working in the folder, or it cannot be written.
        """
        if (self.path / "comparison.json").exists() or (self.path / "_lock").exists():
            raise RunError(f"{self.path}: holds a suite of runs; choose another folder for a single run")
        try:
            self._made = [one for one in (self.state, self.path / "models", self.path) if not one.exists()]
            (self.path / "models").mkdir(parents=True, exist_ok=True)
            self.state.mkdir(exist_ok=True, mode=0o700)
            self._lock = lock(self.state / "lock")
        except (OSError, ValueError) as error:  # of an odd name, ValueError
            raise RunError(f"{self.path}: cannot be used as a run folder: {error}") from None
        for leftover in self.path.rglob("*" + TEMPORARY):
            leftover.unlink(missing_ok=True)
        self.bank = StateFiles(self.state / "bank", "client", EXTRA)
        self.client_states = StateFiles(self.state / "clients", "client")
        self.past_states = StateFiles(self.state / "past", "client")
        self.models = StateFiles(self.state / "models", "global")
        self.ledger = Ledger(self.state / "ledger.jsonl")

    @property
    def _files(self) -> tuple[StateFiles, ...]:
        return self.bank, self.client_states, self.past_states, self.models

    def write_later(self) -> None:
        """Write models with a checkpoint, not before."""
        for files in self._files:
            files.wait = True

    def close(self) -> None:
        """Give the lock back, once nothing is being written any more; of a run that was refused nothing is left."""
        for files in self._files:
            files.close()
        if self._made and not (self.path / "config.toml").exists():
            self._remove_empty()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _remove_empty(self) -> None:
        (self.state / "lock").unlink(missing_ok=True)
        for folder in (*self.state.iterdir(), *self._made):
            with suppress(OSError):  # something is in it
                folder.rmdir()

    @property
    def private_steps(self) -> Path:
        """The folder in which clients count their private steps; no checkpoint takes anything back there."""
        return self.state / "private_steps"

    # Configuration

    def read_config(self) -> Config:
        """Return the run's configuration, as far as this version knows its settings.

        Raises:
            RunError: the folder holds no run.
        """
        return self._read_resolved()[0]

    def read_gone(self) -> Table:
        """Return the settings, by dotted key, with which an earlier edition trained the run and that are gone."""
        return self._read_resolved()[1]

    def _read_resolved(self) -> tuple[Config, Table]:
        path = self.path / "config.toml"
        if not path.is_file():
            raise RunError(f"{self.path}: holds no run; config.toml is missing")
        try:
            return read_resolved(path)
        except ConfigError as error:
            raise RunError(f"{error}; the run folder's own configuration cannot be used") from None

    def write_start(self, config: Config, partition: str) -> None:
        """Write what the run starts from: who holds which image, and the resolved configuration."""
        if config.privacy == "hospital":
            self.path.chmod(0o700)
        write_durably(self.path / "partition.csv", partition.encode(), mode=0o644)
        write_durably(self.path / "config.toml", dump(config).encode(), mode=0o644)

    # Checkpoint

    def commit(self, content: dict[str, Any]) -> None:
        """Make this the state that a resumed run starts from; what no longer counts is deleted afterwards."""
        content = content | {
            "format": FORMAT,
            "bank": self.bank.to_json(),
            "client_states": self.client_states.to_json(),
            "past_states": self.past_states.to_json(),
            "models": self.models.to_json(),
            "ledger_lines": self.ledger.lines,
            "ledger_tail": self.ledger.tail,
            "metrics_bytes": _size(self.metrics),
            "metrics_sha256": self._metrics_hash.hexdigest(),
        }
        text = json.dumps(content, sort_keys=True)
        for files in self._files:
            sync_folder(files.folder)
        body = f'{{"sha256": "{digest(text.encode())}", "content": {text}}}'
        write_durably(self.state / "checkpoint.json", body.encode())
        sync_folder(self.state)
        for files in self._files:
            files.prune()

    def restore(self) -> dict[str, Any] | None:
        """Return the last committed content with files and ledger put back to it, or None if nothing was committed.

        Raises:
            RunError: the checkpoint was changed, or a file it names is not there.
        """
        path = self.state / "checkpoint.json"
        if not path.exists():
            self.ledger.open()
            self._cut_metrics(0)
            for files in self._files:
                files.sweep()
            return None
        try:
            outer = json.loads(path.read_bytes())
            content: dict[str, Any] = outer["content"]
            if digest(json.dumps(content, sort_keys=True).encode()) != outer["sha256"]:
                raise ValueError("its hash is not the one it states")
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}; wanted {FORMAT}")
            self.bank.restore(content["bank"])
            self.client_states.restore(content["client_states"])
            self.past_states.restore(content["past_states"])
            self.models.restore(content["models"])
            self.ledger.open(content["ledger_lines"], content["ledger_tail"])
            self._cut_metrics(content["metrics_bytes"], content.get("metrics_sha256"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{path}: cannot be used as a checkpoint: {error}") from None
        return content

    def trained_on(self, round: int) -> State:
        """Return the last round's global model as training goes on from it."""
        return self.models.get(UNAVERAGED if UNAVERAGED in self.models.records else round)

    # Metrics and results

    @property
    def metrics(self) -> Path:
        """The file with one line a round."""
        return self.path / "metrics.jsonl"

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one round's numbers."""
        content = (json.dumps(line) + "\n").encode()
        append_durably(self.metrics, content)
        self._metrics_hash.update(content)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds' numbers; a line that is being written is left out."""
        try:
            text = self.metrics.read_text() if self.metrics.exists() else ""
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.metrics}: cannot be read: {error}") from None

    def _cut_metrics(self, size: int, sha256: str | None = None) -> None:
        if _size(self.metrics) < size:
            raise RunError(f"{self.metrics}: {_size(self.metrics)} bytes; the checkpoint knows of {size}")
        if self.metrics.exists():
            os.truncate(self.metrics, size)
        self._metrics_hash = hashlib.sha256(self.metrics.read_bytes() if self.metrics.exists() else b"")
        if sha256 is not None and sha256 != self._metrics_hash.hexdigest():
            raise RunError(f"{self.metrics}: its hash is not the one in the checkpoint; it was changed")

    def write_model(self, name: str, state: State, about: dict[str, str]) -> None:
        """Write a model to be reported, with what is needed to use it."""
        write_weights(self.path / "models" / f"{name}.safetensors", state, about)

    def write_curves(self, curves: dict[str, Any]) -> None:
        """Write the counts behind curves and diagrams; before the results, which say that all is there."""
        write_durably(self.path / "curves.json", json.dumps(curves).encode(), mode=0o644)

    def read_curves(self) -> dict[str, Any]:
        """Return the counts behind curves and diagrams.

        Raises:
            RunError: the run has none: it is not finished, or of an earlier version.
        """
        path = self.path / "curves.json"
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from None

    def write_results(self, results: dict[str, Any]) -> None:
        """Write the final numbers: a run that has them is finished."""
        write_durably(self.path / "results.json", (json.dumps(results, indent=1) + "\n").encode(), mode=0o644)

    def read_results(self) -> dict[str, Any] | None:
        """Return the final numbers, or None while the run is not finished."""
        path = self.path / "results.json"
        try:
            found = json.loads(path.read_text()) if path.exists() else None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
        if found is not None and not (isinstance(found, dict) and found):
            raise RunError(f"{path}: wanted the numbers of a finished run, found {found!r:.40}")
        return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
