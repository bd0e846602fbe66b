"""Independent runs side by side, a process each. A run survives any kill, so processes are simply ended on Ctrl-C."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from fedperl.errors import BusyError, FedPerlError, RunError
from fedperl.settings import Config

if TYPE_CHECKING:
    from fedperl.federation.rounds import Watcher  # brings torch, which the parent may do without

PATIENCE = 15  # seconds


@dataclass(frozen=True)
class Job:
    """One run to be trained, or gone on with, in its folder."""

    name: str
    config: Config
    out: Path
    store: Path | None = None
    """A folder with its images, drawn once for several runs; None lets the run draw or open its own."""
    watch: "Callable[[Job], Watcher] | None" = None
    """Makes, in the run's own process, what is called after every round; a function that processes can import."""


@dataclass
class _Worker:
    job: Job
    process: BaseProcess
    answer: Connection
    gpu: str | None


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int,
    tick: Callable[[list[Job]], None],
    gpus: Sequence[str] = (),
    in_time: Callable[[], bool] = lambda: True,
) -> dict[str, str]:
    """Train every job, at most `workers` at a time, and return why those failed that did, by name.

    A run that fails leaves the others alone; `tick` is told several times a second which are being trained.

    Args:
        gpus: names of GPUs as CUDA_VISIBLE_DEVICES has them; each run sees one alone, that no other has meanwhile.
        in_time: whether another run may still be started; those that are being trained go on.
    """
    failed: dict[str, str] = {}
    # Forked from a process that has imported torch and done nothing else: a run starts in no time.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedperl.training"])
    waiting, running = list(jobs), list[_Worker]()
    workers = min(workers, len(gpus)) if gpus else workers
    try:
        while waiting or running:
            if not in_time():
                waiting.clear()
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                gpu = next((gpu for gpu in gpus if all(worker.gpu != gpu for worker in running)), None)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(job, theirs, gpu), daemon=True)
                process.start()
                theirs.close()
                running.append(_Worker(job, process, ours, gpu))
            time.sleep(0.2)
            tick([worker.job for worker in running])
            for worker in [w for w in running if not w.process.is_alive()]:
                reason = _reason(worker)
                if reason:
                    failed[worker.job.name] = reason
                running.remove(worker)
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.join()
    return failed


def _reason(worker: _Worker) -> str:
    """Return why a run failed; nothing if it did not."""
    try:
        return str(worker.answer.recv())
    except EOFError:  # it said nothing
        code = worker.process.exitcode or 0
    if code < 0:
        return f"its process was killed by signal {-code}; the same command goes on with it"
    return f"its process ended with code {code}" if code else ""


def _work(job: Job, answer: Connection, gpu: str | None) -> None:
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before anything asks for a GPU
    from fedperl.data.store import Store
    from fedperl.federation.rounds import Progress
    from fedperl.training import train

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    parent = multiprocessing.parent_process()

    def stop_with_parent(_: Progress) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)

    try:
        images = None if job.store is None else Store.open(job.store)
        watchers = [stop_with_parent, *([job.watch(job)] if job.watch else [])]
        for wait in range(PATIENCE, -1, -1):
            try:
                train(job.config, job.out, resume=True, store=images, watchers=watchers)
                break
            except BusyError:  # the worker of a killed parent stops after the round it is in
                if not wait:
                    raise RunError(
                        f"{job.out}: another process is working here; if it is left over from a command that was "
                        "killed, it stops after the round it is in: try again then"
                    ) from None
                time.sleep(1.0)
    except (FedPerlError, OSError) as error:
        answer.send(str(error))
        raise SystemExit(1) from None
