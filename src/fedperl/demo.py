"""Ten synthetic hospitals: labelled images alone, SSFL, FedPerl, and all labels, on equal terms."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedperl.config import resolve
from fedperl.data.partitions.paper import PAPER
from fedperl.data.store import Store
from fedperl.errors import RunError
from fedperl.federation.run_folder import RunFolder
from fedperl.files import TEMPORARY, lock
from fedperl.machine import cores
from fedperl.opening import open_store
from fedperl.parallel import Job, run_jobs
from fedperl.report.page import write_report
from fedperl.settings import Config

METHODS = {
    "Lower FedAvg": "lower",
    "SSFL": "ssfl",
    "FedPerl (T = 2, PA)": "fedperl",
    "Upper FedAvg": "upper",
}

# A twenty-fifth of the paper's images, so that four runs fit two minutes on two cores. A client then has one labelled
# image of its rarest classes, and median-frequency weights would make it count up to 54 times a common one (Upper,
# client 6): the demo goes without.
SETTINGS: dict[str, Any] = {
    "threads": 1,
    "data": {"size": 32, "scale": 0.04},
    "model": {"net": "small_cnn"},
    "objective": {"class_weights": "none"},
    "federation": {"rounds": 72, "cohort": 3, "quorum": 3, "steps": 16},
    "optimizer": {"lr": 2e-3, "schedule": "cosine"},
}

LOCK, PAGE = "lock", "report.html"
STORE_FILES = {"images.npy", "manifest.csv", "partition.csv", "store.json"}
RUN_FILES = {
    "config.toml",
    "partition.csv",
    "metrics.jsonl",
    "state",
    "models",
    "curves.json",
    "results.json",
    "report.html",
}

SOURCES = [hospital.source for hospital in PAPER]


def demo_config(method: str, seed: int, rounds: int | None = None) -> Config:
    """Return the demo's configuration of one method."""
    table = SETTINGS | {"name": f"demo {method}", "method": method, "seed": seed}
    if rounds is not None:
        table["federation"] = SETTINGS["federation"] | {"rounds": rounds}
    return resolve(table, source="the demo")


def run_demo(
    out: Path, *, seed: int = 1, rounds: int | None = None, fresh: bool = False, tick: Callable[[list[Job]], None]
) -> dict[str, Any]:
    """Train the four methods side by side and return their results by name; runs that are there are gone on with.

    Raises:
        RunError: a folder holds a run with other settings, or another demo is running there.
    """
    out.mkdir(parents=True, exist_ok=True)
    with lock(out / LOCK):
        if fresh:
            _remove(out)
        return _run_demo(out, seed, rounds, tick)


def _run_demo(out: Path, seed: int, rounds: int | None, tick: Callable[[list[Job]], None]) -> dict[str, Any]:
    configs = {name: demo_config(method, seed, rounds) for name, method in METHODS.items()}
    store = _store(out / "data", next(iter(configs.values())))
    jobs = [Job(name, configs[name], out / method, store) for name, method in METHODS.items()]
    # The longest first, so that no core waits at the end.
    order = sorted(jobs, key=lambda job: job.config.objective.kind == "supervised")
    failed = run_jobs(order, workers=min(cores(), len(jobs)), tick=lambda _: tick(jobs))
    if failed:
        raise RunError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    write_report([job.out for job in jobs], out / PAGE, "Ten drawn hospitals, four methods")
    return {job.name: json.loads((job.out / "results.json").read_text()) for job in jobs}


def _store(folder: Path, config: Config) -> Path:
    """Draw the images once for all four runs."""
    made = {"source": "dermsim", "size": config.data.size, "scale": config.data.scale, "seed": config.data.seed}
    _check_ours(folder, STORE_FILES)
    if not (folder / "store.json").exists() or Store.open(folder).made != made:
        (folder / "store.json").unlink(missing_ok=True)
        open_store(config).save(folder)
    return folder


def _remove(out: Path) -> None:
    """Delete what a demo made, and nothing else: not a file of another kind, not a run that is being trained."""
    _check_ours(out, {LOCK, PAGE, "data", *METHODS.values()})
    _check_ours(out / "data", STORE_FILES)
    runs = [out / method for method in METHODS.values() if (out / method).exists()]
    for run in runs:
        _check_ours(run, RUN_FILES)
        folder = RunFolder(run)
        folder.open()  # refuses while another process trains there
        folder.close()
    for path in [out / "data", *runs]:
        if path.exists():
            shutil.rmtree(path)


def _check_ours(folder: Path, known: set[str]) -> None:
    names = sorted(path.name.removesuffix(TEMPORARY) for path in folder.iterdir()) if folder.exists() else []
    other = [name for name in names if name not in known]
    store = folder / "store.json"
    foreign = store.exists() and Store.open(folder).made.get("source") != "dermsim"
    if other or foreign:
        what = other[0] if other else "store.json"
        raise RunError(f"{folder}: holds {what!r}, which no demo made; choose another folder with --out")
