"""A process of its own that dies while it writes: killed at the n-th moment of touching the disk, or by a clock.

The signal is SIGKILL: nothing is tidied up, as after a power cut. Processes are forked from one that has imported what
they need and done nothing else, so that each starts in milliseconds.
"""

import json
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PRELOADED = ("flwr.serverapp.strategy", "flwr.app")
"""Left out where they are not installed."""
PATIENCE = 120.0
"""Seconds that a process may take."""


@dataclass
class Moments:
    """Counts the moments at which a process touches the disk, and ends it at one of them."""

    die_at: int | None = None
    full_at: int | None = None
    passed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_by(self, name: str) -> None:
        """Go on, or die here, or find the disk full from here on."""
        with self.lock:
            self.passed.append(name)
            if len(self.passed) == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if len(self.passed) == self.full_at:
                set_space(0)

    def watch(self) -> None:
        """Have every write, flush, rename and removal of this process counted, from now on."""
        for name in ("fsync", "replace", "unlink"):
            setattr(os, name, self._around(name, getattr(os, name)))
        opened = os.fdopen
        os.fdopen = lambda *given, **named: _Halved(opened(*given, **named), self)  # type: ignore[assignment]

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.pass_by(name)
            return real(*given, **named)

        return call


moments = Moments()
"""Of this process."""


def set_space(most: int) -> None:
    """Let no file of this process grow beyond so many bytes; Python itself ignores the signal, and raises."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class _Halved:
    """A file whose writes are in two halves, so that a process can die between them."""

    def __init__(self, file: Any, moments: Moments) -> None:
        self.file, self.moments = file, moments

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self.file.write(content[:half])
        self.file.flush()
        self.moments.pass_by("half of a write")
        self.file.write(content[half:])
        return len(content)

    def __enter__(self) -> "_Halved":
        self.file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@dataclass(frozen=True)
class Fate:
    """What happens to a process."""

    die_at: int | None = None
    """The number of the moment at which it is killed."""
    seconds: float | None = None
    """After which it is killed."""
    full_at: int | None = None
    """The number of the moment from which on it can write nothing more: the disk is full."""


@dataclass(frozen=True)
class End:
    """How a process ended."""

    code: int
    """0, or minus the number of the signal that killed it."""
    passed: tuple[str, ...]
    """The moments of touching the disk, where it lived to tell."""
    error: str
    """The kind and the text of what it raised, where it raised something."""

    @property
    def killed(self) -> bool:
        """Whether it was killed."""
        return self.code == -signal.SIGKILL


UNDISTURBED = Fate()


def run_apart(work: Callable[..., None], *given: Any, fate: Fate = UNDISTURBED, report: Path) -> End:
    """Do some work in a process of its own, of which this is the fate, and return how it ended.

    Args:
        work: a function of a module, so that another process can find it.
        report: a file that the process may write what it has to say into.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedperl.training", "fedperl.benchmarking.reliability.columns", *PRELOADED])
    report.unlink(missing_ok=True)
    process = context.Process(target=_work, args=(work, given, fate, report), daemon=True)
    process.start()
    if fate.seconds is not None:
        process.join(fate.seconds)
        process.kill()
    return _end_of(process, report)


def _end_of(process: BaseProcess, report: Path) -> End:
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"a process was not done after {PATIENCE:.0f} s")
    said: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"passed": [], "error": ""}
    return End(process.exitcode or 0, tuple(said["passed"]), said["error"])


def _work(work: Callable[..., None], given: tuple[Any, ...], fate: Fate, report: Path) -> None:
    import torch

    torch.set_num_threads(1)
    moments.die_at, moments.full_at = fate.die_at, fate.full_at
    moments.watch()
    error = ""
    try:
        work(*given)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    set_space(resource.RLIM_INFINITY)
    report.write_text(json.dumps({"passed": moments.passed, "error": error}))
