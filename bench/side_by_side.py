"""Many runs side by side on one machine, each a line of a file when it is finished.

A line has the run's name, date, device, settings and results; its folder is deleted, so that a disk holds only what is
going on. What has a line is not trained again: the same command goes on where it stopped, and the files of several
machines are merged by putting their lines together. Where NVIDIA's MPS server runs, processes share a card without
taking turns.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedperl.files import append_durably
from fedperl.parallel import Job, run_jobs

Line = dict[str, Any]


def read(path: Path) -> dict[str, Line]:
    """Return the lines of a file by the names of their runs; none where there is no file."""
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # no torn one
    return {line["run"]: line for line in map(json.loads, lines)}


def append(path: Path, line: Line) -> None:
    """Add a line to a file, in the place of a torn one that a killed process left."""
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    append_durably(path, (json.dumps(line) + "\n").encode())
    path.chmod(0o644)


def train(
    jobs: Iterable[tuple[Path, str, Job]],
    make: Callable[[Path], Line],
    headline: Callable[[Line], str],
    *,
    workers: int,
    device: str,
) -> None:
    """Train runs that have no line yet, in this order.

    Args:
        jobs: the file of each run's line, its name there, and the run.
        make: what a line has besides, from the folder of a finished run.
        headline: what is printed of a line.
    Raises:
        SystemExit: some failed; the others have their lines.
    """
    waiting = {job.name: (path, run, job) for path, run, job in jobs}
    began, running, called = time.perf_counter(), set[str](), device_name(device)

    def tick(now: list[Job]) -> None:
        names = {job.name for job in now}
        for name in running - names:
            finish(name)
        running.clear()
        running.update(names)

    def finish(name: str) -> None:
        path, run, job = waiting[name]
        said = "failed"
        if (job.out / "results.json").exists():
            line = {
                "run": run,
                "date": datetime.now(UTC).date().isoformat(),
                "device": called,
                "side_by_side": workers,
                "settings": job.config.model_dump(mode="json", exclude_defaults=True),
                **make(job.out),
                "results": shortened(json.loads((job.out / "results.json").read_text())),
            }
            append(path, line)
            shutil.rmtree(job.out)
            said = headline(line)
        print(f"{time.perf_counter() - began:7.1f} s  {name}: {said}", flush=True)

    failed = run_jobs([job for _, _, job in waiting.values()], workers=workers, tick=tick)
    for name in running:
        finish(name)
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    if failed:
        raise SystemExit(1)


def shortened(found: Any) -> Any:
    """Return what results.json holds with six digits, less `over_clients`, which can be made of the rest."""
    if isinstance(found, float):
        return round(found, 6)
    if isinstance(found, dict):
        return {key: shortened(value) for key, value in found.items() if key != "over_clients"}
    return [shortened(value) for value in found] if isinstance(found, list) else found


def metrics(folder: Path) -> list[Line]:
    """Return the rounds of a finished run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def device_name(device: str) -> str:
    """Return what the device is called."""
    if device == "cpu":
        return "CPU"
    import torch

    return torch.cuda.get_device_name(device)
