"""Many runs side by side on one machine, each a line of a file when it is finished.

A line has the run's name, date, device, settings and results; its folder is deleted, so that a disk holds only what is
going on. What has a line is not trained again: the same command goes on where it stopped, and the files of several
machines are merged by putting their lines together. How many side by side pay is in docs/performance.md.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedperl.config import config_hash
from fedperl.errors import ConfigError, FedPerlError
from fedperl.files import append_durably
from fedperl.opening import check_device
from fedperl.parallel import Job, run_jobs
from fedperl.settings import Config
from fedperl.suite import plan_suite

Line = dict[str, Any]
DIVERGED = "no client has sent an update that could be used"
"""What a run says that ended so: its line has `failed` in place of `results`, and it is not trained again."""
NO_NUMBER = "ValueError"
"""What clients fail with whose loss is no number; with anything else the program is at fault, not the run."""


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


def parser_of(doc: str, sets: Iterable[str]) -> argparse.ArgumentParser:
    """Return the command line that those who train sets of runs share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", choices=[*sets], nargs="+", metavar="SET", help=", ".join(sets))
    parser.add_argument("--workers", type=_some, default=12, help="runs side by side")
    parser.add_argument("--minutes", type=float, help="start no run after so many; those that go on are finished")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--rows", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the runs while they go on")
    return parser


def _some(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}; wanted at least 1")
    return int(text)


def suite_jobs(
    name: str, suite: Path, out: Path, device: str, seeds: Sequence[int], rows: Sequence[str]
) -> dict[str, Job]:
    """Return the runs of a suite by name, or some of them, in folders below `out`.

    Raises:
        ConfigError: seeds or rows that are not of the suite.
    """
    plan = plan_suite(suite, out, overrides=[f"device={device}"])
    for asked, there in ((seeds, plan.suite.seeds), (rows, [run.name for run in plan.suite.runs])):
        check_choice(name, asked, there)
    return {
        job.name: job
        for seed in seeds or plan.suite.seeds
        for point in plan.points
        if not rows or point.run.name in rows
        for job in (point.jobs[seed],)
    }


def check_choice(name: str, asked: Iterable[object], there: Iterable[object]) -> None:
    """Refuse what is not of a set.

    Raises:
        ConfigError: naming it, and what the set has.
    """
    if strange := [str(one) for one in asked if one not in there]:
        raise ConfigError(f"{strange[0]}: not of set {name!r}, which has {', '.join(map(str, there))}")


def train_sets(
    args: argparse.Namespace,
    folder: Path,
    jobs: Callable[[str], dict[str, Job]],
    make: Callable[[Path], Line],
    headline: Callable[[Line], str],
    cost: Callable[[Config], float],
) -> None:
    """Train what of some sets has no line yet: seed by seed, of each the longest first, so that none is waited for.

    Args:
        folder: of the files of lines, one a set.
        jobs: the runs of a set by the names of their lines.
        make: what a line has besides, from the folder of a finished run.
        headline: what is printed of a line.
        cost: how long a run takes, roughly.
    Raises:
        SystemExit: some runs failed, the others have their lines; or a setting cannot be used.
    """
    waiting = []
    try:
        check_device(args.device)
    except ConfigError as error:
        raise SystemExit(f"{Path(sys.argv[0]).stem}: {error}") from None
    for name in args.sets:
        path = folder / f"{name}.jsonl"
        try:
            every = jobs(name)
        except ConfigError as error:
            raise SystemExit(f"{Path(sys.argv[0]).stem}: {error}") from None
        there = read(path)
        missing = [(path, run, job) for run, job in every.items() if run not in there]
        waiting += sorted(missing, key=lambda one: (one[2].config.seed, -cost(one[2].config)))
        print(f"{name}: {len(missing)} of {len(every)} runs to train, {args.workers} at a time", flush=True)
    train(waiting, make, headline, workers=args.workers, device=args.device, minutes=args.minutes)


def train(
    jobs: Iterable[tuple[Path, str, Job]],
    make: Callable[[Path], Line],
    headline: Callable[[Line], str],
    *,
    workers: int,
    device: str,
    minutes: float | None = None,
) -> None:
    """Train runs in this order; each becomes a line of its file, under its name there.

    Args:
        minutes: after which no further run is started.
    Raises:
        SystemExit: some failed; the others have their lines.
    """
    waiting = {job.name: (path, run, job) for path, run, job in jobs}
    began, running, unmade, called = time.perf_counter(), set[str](), dict[str, str](), device_name(device)

    def tick(now: list[Job]) -> None:
        names = {job.name for job in now}
        for name in running - names:
            finish(name)
        running.clear()
        running.update(names)

    def about(run: str, job: Job) -> Line:
        return {
            "run": run,
            "date": datetime.now(UTC).date().isoformat(),
            "device": called,
            "side_by_side": workers,
            "settings": job.config.model_dump(mode="json", exclude_defaults=True),
        }

    def finish(name: str) -> None:
        path, run, job = waiting[name]
        said = "failed"
        if (job.out / "results.json").exists():
            try:
                more = make(job.out)
            except FedPerlError as error:
                unmade[name] = str(error)
                return
            line = about(run, job) | more | {"results": shortened(json.loads((job.out / "results.json").read_text()))}
            append(path, line)
            shutil.rmtree(job.out)
            said = headline(line)
        print(f"{time.perf_counter() - began:7.1f} s  {name}: {said}", flush=True)

    in_time = lambda: minutes is None or time.perf_counter() - began < 60 * minutes  # noqa: E731
    failed = run_jobs([job for _, _, job in waiting.values()], workers=workers, tick=tick, in_time=in_time)
    for name in running:
        finish(name)
    failed |= unmade
    for name, reason in failed.items():
        path, run, job = waiting[name]
        if DIVERGED in reason and set(re.findall(r"it failed with (\w+)", reason)) <= {NO_NUMBER}:
            append(path, about(run, job) | {"config": config_hash(job.config), "failed": reason})
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


def check_lines(name: str, lines: Mapping[str, Line], planned: Mapping[str, Job]) -> None:
    """Refuse lines that were trained with other settings than their set has now, defaults included.

    A line may have a `config` of its own, put there by hand: the hash as it is made now of settings that give the same
    numbers, where the run's is older.

    Raises:
        ConfigError: naming the first.
    """
    for run, line in lines.items():
        if run not in planned:
            raise ConfigError(f"{name}: {run}: no such run is planned")
        if (line.get("config") or line["results"]["config"]) != config_hash(planned[run].config):
            raise ConfigError(f"{name}: {run}: was trained with other settings than the set has now")


def run_page(doc: str, make: Callable[[], dict[Path, str]]) -> None:
    """Write pages, or with `--check` compare them with what is there.

    Raises:
        SystemExit: a page is another, or cannot be made.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args, command = parser.parse_args(), Path(sys.argv[0]).stem
    try:
        made = make()
    except ConfigError as error:
        raise SystemExit(f"{command}: {error}") from None
    for page, text in made.items():
        if not args.check:
            page.write_text(text)
        elif not page.exists() or page.read_text() != text:
            raise SystemExit(f"{command}: {page.name} is not what the lines give; wanted: python bench/{command}.py")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    return [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}", *(f"| {' | '.join(row)} |" for row in rows)]


def where_and_when(lines: Iterable[Line]) -> str:
    """Return device, dates and times of some runs."""
    some = list(lines)
    devices = ", ".join(sorted({line["device"] for line in some}))
    dates = ", ".join(sorted({line["date"] for line in some}))
    beside = sorted({line["side_by_side"] for line in some})
    times = [line["results"]["seconds_this_start"] for line in some if "failed" not in line] or [math.nan]
    over = sum("failed" not in line for line in some)
    of = "" if over == len(some) else f", of the {over} that ended,"
    runs = f"{len(some)} run{'s' if len(some) > 1 else ''}, each on one {devices}, {dates}"
    took = f"{statistics.median(times):.0f} s ({min(times):.0f} to {max(times):.0f})"
    return f"{runs}, up to {beside[-1]} side by side; a run{of} took {took} while others ran beside it."


def device_name(device: str) -> str:
    """Return what the device is called."""
    if device == "cpu":
        return "CPU"
    import torch

    return torch.cuda.get_device_name(device)
