"""Many runs, one table: a suite's runs are trained for several seeds and each is compared with a baseline."""

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedperl import __version__
from fedperl.errors import ConfigError, RunError
from fedperl.evaluate import paired_interval, spread
from fedperl.federation.run_folder import RunFolder
from fedperl.files import lock, write_durably
from fedperl.machine import cores
from fedperl.opening import check_device, check_resumable, open_store
from fedperl.parallel import Job, run_jobs
from fedperl.report.tables import comparison_markdown
from fedperl.settings import research_note
from fedperl.suite import Plan, Point, Suite, SuiteRun
from fedperl.training import check_finished

Comparison = dict[str, Any]
Floats = npt.NDArray[np.float64]

# No run's folder begins with an underscore or has a dot.
LOCK, FOUND, PRINTED = "_lock", "comparison.json", "comparison.md"


def compare(
    plan: Plan,
    *,
    workers: int | None = None,
    tick: Callable[[list[Job]], None] = lambda _: None,
    gpus: Sequence[str] = (),
) -> Comparison:
    """Train what is not there yet and return the comparison, also written into comparison.json and comparison.md.

    Args:
        workers: runs side by side; by default as many as their threads leave cores for.
        tick: told several times a second which runs are being trained.
        gpus: names of GPUs, a run on each at a time.
    Raises:
        FedPerlError: a folder holds a run with other settings, or a run failed; what is finished stays.
    """
    with train_plan(plan, workers=workers, tick=tick, gpus=gpus) as failed:
        needed = [name for name in failed if not _spare(name, plan, failed)]
        if needed:
            raise RunError("; ".join(f"{name}: {failed[name]}" for name in needed))
        found = _comparison(plan)
        write_durably(plan.out / FOUND, (json.dumps(found, indent=1) + "\n").encode(), mode=0o644)
        write_durably(plan.out / PRINTED, comparison_markdown(found).encode(), mode=0o644)
    return found


@contextmanager
def train_plan(
    plan: Plan,
    *,
    workers: int | None = None,
    tick: Callable[[list[Job]], None] = lambda _: None,
    gpus: Sequence[str] = (),
) -> Iterator[dict[str, str]]:
    """Train what is not there yet, and give why runs failed that did, by name; the folder is locked meanwhile.

    Raises:
        FedPerlError: a folder holds a run with other settings, or another process works there.
    """
    if (plan.out / "config.toml").exists():
        raise RunError(f"{plan.out}: holds a single run; choose another folder for the suite with --out")
    for device in sorted({job.config.device for job in plan.jobs}):
        if gpus and device != "cuda":
            raise ConfigError(f"device = {device!r} with --gpus, which gives each run its own; wanted device = 'cuda'")
        check_device(device)
    plan.out.mkdir(parents=True, exist_ok=True)
    with lock(plan.out / LOCK):
        waiting = [job for job in plan.jobs if not is_finished(job)]
        for job in waiting:
            if job.store is not None and not (job.store / "store.json").exists():
                open_store(job.config).save(job.store)
        # The longest first, so that no core waits at the end.
        waiting.sort(key=lambda job: (job.config.objective.kind == "supervised", -job.config.federation.rounds))
        side_by_side = workers or (len(gpus) if gpus else default_workers(plan))
        yield run_jobs(waiting, workers=side_by_side, tick=tick, gpus=gpus)


def default_workers(plan: Plan) -> int:
    """Return how many runs to train side by side: what the cores allow, each run having its threads."""
    return max(1, min(len(plan.jobs), cores() // max(int(job.config.threads) for job in plan.jobs)))


def gpu_names(wanted: str) -> list[str]:
    """Return the names of the GPUs that are asked for: `all`, or numbers such as "0,1,3" among those to be seen here.

    Raises:
        ConfigError: no numbers, one twice, or a GPU that the machine does not have.
    """
    there = torch.cuda.device_count()
    if wanted == "all":
        found = list(range(there))
    else:
        try:
            found = [int(number) for number in wanted.split(",")]
        except ValueError:
            raise ConfigError(f"--gpus {wanted}: wanted all, or numbers such as 0,1,3") from None
    strange = [number for number in found if not 0 <= number < there]
    if strange or not found:
        raise ConfigError(f"--gpus {wanted}: this machine has {there} usable CUDA devices, numbered from 0")
    if len(set(found)) < len(found):
        raise ConfigError(f"--gpus {wanted}: wanted each GPU once")
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [seen.split(",")[number].strip() if seen else str(number) for number in found]


def rounds_done(job: Job) -> int:
    """Return how many rounds of a run are behind it."""
    if (job.out / "results.json").exists():
        return job.config.federation.rounds
    files = [job.out / "metrics.jsonl", *job.out.glob("clients/*/metrics.jsonl")]
    lines = sum(file.read_bytes().count(b"\n") for file in files if file.exists())
    if not (lines and job.config.federation.alone):
        return lines
    # Of clients that train alone, as many as a cohort has make a round; the folder knows how many those are.
    config = job.config if job.config.federation.cohort != "auto" else RunFolder(job.out).read_config()
    return lines // config.cohort


def _spare(name: str, plan: Plan, failed: Mapping[str, str]) -> bool:
    """Return whether a failed run is one point of a grid that has another whose runs are all there."""
    run = next(point.run for point in plan.points if any(job.name == name for job in point.jobs.values()))
    points = [point for point in plan.points if point.run is run]
    return any(all(job.name not in failed for job in point.jobs.values()) for point in points)


def is_finished(job: Job) -> bool:
    """Return whether a run is finished.

    Raises:
        RunError: its folder holds a run with other settings.
    """
    folder = RunFolder(job.out)
    if (job.out / "config.toml").exists():
        check_resumable(folder, job.config, resume=True)
    if folder.read_results() is None:
        return False
    check_finished(folder, job.config)
    return True


def _comparison(plan: Plan) -> Comparison:
    """Return all numbers of finished runs, and the intervals of their differences to the baseline."""
    suite = plan.suite
    rows = {run.name: _row(run, [point for point in plan.points if point.run is run], suite) for run in suite.runs}
    baseline = rows[suite.baseline]
    for name, row in rows.items():
        row["difference"] = None if name == suite.baseline else _difference(row, baseline, suite)
    return {
        "suite": suite.name,
        "by": f"fedperl {__version__}",
        "metric": suite.metric,
        "choice": suite.choice,
        "baseline": suite.baseline,
        "seeds": list(suite.seeds),
        "runs": list(rows.values()),
    }


def _row(run: SuiteRun, points: list[Point], suite: Suite) -> Comparison:
    """Return one run's numbers: those of its grid's best point on validation images, where it has a grid."""
    grid = None
    point = points[0]
    if run.grid is not None:
        whole = [point for point in points if all(RunFolder(job.out).read_results() for job in point.jobs.values())]
        failed = [_values_text(point.values) for point in points if point not in whole]
        points = whole
        scores = [{seed: _validation(job, suite.choice) for seed, job in point.jobs.items()} for point in points]
        means = [statistics.fmean(by_seed.values()) for by_seed in scores]
        point = points[means.index(max(means))]
        grid = {
            "chosen": point.values,
            "validation_accuracy": max(means),
            "failed": failed,
            "points": [
                {"values": one.values, "validation_accuracy": mean, "by_seed": {str(k): v for k, v in by_seed.items()}}
                for one, mean, by_seed in zip(points, means, scores, strict=True)
            ],
        }
    results = {seed: _results(job) for seed, job in point.jobs.items()}
    tested = {str(seed): _tested(found, run, suite) for seed, found in results.items()}
    clients = [client for client in next(iter(tested.values())) if all(client in of for of in tested.values())]
    values = _values(tested, clients, suite.metric)
    totals = [found["totals"] for found in results.values()]
    peers: dict[str, int] = {}
    for total in totals:
        for size, count in total.get("peers", {}).items():
            peers[size] = peers.get(size, 0) + count
    by_seed = [float(mean) for mean in values.mean(axis=1)]
    return {
        "name": run.name,
        "method": run.method,
        "folders": {str(seed): str(job.out) for seed, job in point.jobs.items()},
        "clients": clients,
        "test": tested,
        "over_clients": asdict(spread(values.mean(axis=0).tolist())),
        "over_seeds": {
            "mean": statistics.fmean(by_seed),
            "std": statistics.stdev(by_seed) if len(by_seed) > 1 else None,
            "by_seed": dict(zip(tested, by_seed, strict=True)),
        },
        "grid": grid,
        "peers": {size: peers[size] for size in sorted(peers, key=int)},
        "partitions": sorted({str(found["partition"]) for found in results.values()}),
        "rejected": sum(total["rejected"] for total in totals),
        "void": sum(total["void"] for total in totals),
        "research": research_note(next(iter(point.jobs.values())).config),
        "bytes_down": statistics.fmean(total.get("bytes_down", 0) for total in totals),
        "seconds": statistics.fmean(sum(found["seconds"].values()) for found in results.values()),
    }


def _difference(row: Comparison, baseline: Comparison, suite: Suite) -> Comparison | None:
    """Return a run's mean difference to the baseline on the clients that both have, with its interval."""
    both = [client for client in row["clients"] if client in baseline["clients"]]
    if not both or row["partitions"] != baseline["partitions"]:
        return None
    ours, theirs = (_values(of["test"], both, suite.metric) for of in (row, baseline))
    found = paired_interval(ours - theirs)
    return asdict(found) | {"excludes_zero": found.excludes_zero, "paired_on": both}


def _values_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _results(job: Job) -> Comparison:
    found = RunFolder(job.out).read_results()
    if found is None:
        raise RunError(f"{job.out}: has no results.json; the run was not finished")
    return found


def _tested(results: Comparison, run: SuiteRun, suite: Suite) -> dict[str, dict[str, float]]:
    """Return the test numbers by client; by the server alone where no client has test images."""
    every = results["test"]
    if suite.choice not in every:
        raise RunError(
            f"run {run.name!r}: its results have no choice = {suite.choice!r}; wanted one of {', '.join(sorted(every))}"
        )
    found: dict[str, dict[str, float]] = every[suite.choice]
    lacking = [client for client, numbers in found.items() if suite.metric not in numbers]
    if lacking:
        raise RunError(f"run {run.name!r}: its results of client {lacking[0]} have no {suite.metric!r}")
    clients = {client: numbers for client, numbers in found.items() if client != "server"}
    return clients or found


def _values(tested: Mapping[str, Mapping[str, Mapping[str, float]]], clients: list[str], metric: str) -> Floats:
    """Return the metric as an array, (seeds, clients)."""
    return np.array([[by_client[client][metric] for client in clients] for by_client in tested.values()])


def _validation(job: Job, choice: str) -> float:
    """Return how a run's models of this choice did on validation images."""
    try:
        return float(_results(job)["validation"][choice]["accuracy"])
    except KeyError:
        raise RunError(
            f"{job.out}: results.json has no validation accuracy of choice = {choice!r}, by which a grid is chosen"
        ) from None
