"""The two sides of a comparison: a tree, its driver, and its cases run by processes side by side."""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import queue
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any, cast

from golden.cases import Case, Table
from golden.reader import kept

HERE = Path(__file__).resolve().parents[1]
"""The working tree."""
CACHED_COMMITS = 3
"""Of so many commits, those compared with last, the files stay: a gigabyte each."""
SOURCES = ("src",)
"""Folders of a tree that Python looks for packages in."""


@dataclass(frozen=True)
class Side:
    """One tree, and the folder that its cases' files go to."""

    tree: Path
    out: Path

    @property
    def root(self) -> Path:
        """Where this side's golden code is: its own tree, or the working one for a commit that has none."""
        return self.tree if (self.tree / "golden" / "driver.py").exists() else HERE

    @property
    def driver(self) -> Path:
        """The file that knows this side's package."""
        return self.root / "golden" / ("driver.py" if self.root == self.tree else "first_edition.py")

    @cached_property
    def _code(self) -> bytes:
        """What decides the files of cases beside the package and their tables."""
        files = [self.root / "golden" / name for name in ("first_edition.py", "layouts.py", "worker.py")]
        files += [self.driver, HERE / "golden" / "reader.py"]  # which decides what is kept of a case
        return b"".join(file.read_bytes() for file in files if file.exists())

    def folder(self, case: Case) -> Path:
        """Return where a case's files lie: elsewhere once the case, or the code that runs it, is another."""
        content = json.dumps([case.name, case.table], sort_keys=True).encode() + self._code
        return self.out / hashlib.sha256(content).hexdigest()[:24]

    def environment(self) -> dict[str, str]:
        """Return what a process of this side sees: its own package, one thread."""
        paths = [str(self.root), *(str(self.tree / name) for name in SOURCES)]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def run_cases(side: Side, cases: Iterable[Case], workers: int, done: Callable[[], None]) -> None:
    """Run the cases whose files are not there yet; those of a finished case appear at once and whole.

    Raises:
        RuntimeError: a case could not be run.
    """
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        if not side.folder(case).exists():
            waiting.put(case)
    failed: list[Exception] = []

    def work(number: int) -> None:
        scratch = side.out / f"scratch_{os.getpid()}_{number}"
        try:
            with _worker(side, scratch) as ask:
                while not failed:
                    case = waiting.get_nowait()
                    folder = scratch / "case"
                    ask({"folder": str(folder)} | case.table, case)
                    _keep(folder, side.folder(case))
                    done()
        except queue.Empty:
            pass
        except Exception as error:
            failed.append(error)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(min(workers, waiting.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _worker(side: Side, scratch: Path) -> Iterator[Callable[[Table, Case], None]]:
    """Start a process that answers cases, and stop it afterwards."""
    scratch.mkdir(parents=True)
    command = [sys.executable, "-m", "golden.worker", str(side.driver), str(scratch)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        (scratch / "said.txt").open("w") as said,
        subprocess.Popen(command, stderr=said, env=side.environment(), cwd=scratch, **pipes) as process,
    ):
        to, back = cast(IO[str], process.stdin), cast(IO[str], process.stdout)

        def ask(line: Table, case: Case) -> None:
            to.write(json.dumps(line) + "\n")
            to.flush()
            answer = back.readline()
            if not answer or json.loads(answer):
                last = json.loads(answer) if answer else (scratch / "said.txt").read_text()[-2000:]
                raise RuntimeError(f"{side.driver}: fails at case {case.name!r}\n{last}")

        yield ask
        to.close()


def _keep(folder: Path, target: Path) -> None:
    """Move a case's files to where they stay, without those that nothing is read from."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not kept(path.relative_to(folder)):
            path.unlink()
    folder.replace(target)


def cache_folder() -> Path:
    """Return where commits and the files of their cases are kept."""
    return Path(os.environ.get("FEDPERL_GOLDEN_CACHE", Path.home() / ".cache" / "fedperl-golden"))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process uses the cache; what one that was killed left half-done there is removed."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in cache_folder().glob("*/*/scratch_*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def checked_out(commit: str) -> Path:
    """Return the tree of a commit; the files of its cases lie beside it, outside of the work tree."""
    cache = cache_folder()
    tree = cache / commit / "tree"
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        unpacked = tree.with_name(f"tree.{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commit))) as content:
            content.extractall(unpacked, filter="data")
        unpacked.replace(tree)
    tree.parent.touch()
    for old in sorted((path for path in cache.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)[
        :-CACHED_COMMITS
    ]:
        shutil.rmtree(old, ignore_errors=True)
    return tree


def machine() -> str:
    """Return a digest of what the same code may give other numbers on: the processor and what is installed."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = [line for line in lines if line.startswith(("flags", "model name"))][:2]
    installed = sorted(f"{one.name} {one.version}" for one in distributions() if one.name != "fedperl")
    return hashlib.sha256("".join([sys.version, *installed, *processor]).encode()).hexdigest()[:12]


def git(*words: str) -> bytes:
    """Return what git prints in the working tree.

    Raises:
        subprocess.CalledProcessError: it says no.
    """
    return subprocess.run(["git", *words], cwd=HERE, check=True, capture_output=True).stdout
