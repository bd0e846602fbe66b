"""A short run through the real code, measured: what `fedperl bench` shows."""

import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fedperl.benchmarking.traffic import network_traffic, passes_of, step_bytes
from fedperl.config import load_config
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.nets import build_net
from fedperl.machine import cores
from fedperl.opening import check_device, open_store
from fedperl.settings import Config
from fedperl.training import train

Tick = Callable[[int, int], None]
"""Told what is done, of how much."""

WARM = 2
"""Rounds that are not counted: in the first nobody has a peer, in the second the steps with one are recorded."""
AFTER = 1
"""Rounds after those that count: a round's checkpoint is written down with the next."""
PARTS = ("training", "validation", "server", "checkpoint")
DEFAULTS = {
    "cpu": ("model.net=small_cnn", "data.size=32", "data.scale=0.04", "threads=1"),
    "cuda": ("model.net=efficientnet_b0", "data.size=224", "data.scale=0.02"),
}
"""What is measured where nobody says otherwise: the paper's network on a GPU; elsewhere the demo's, which is too small
for two threads and would wait for a core that others use."""
ALWAYS = ("model.weights=none", "peers.warmup=0", "peers.min_profiles=2", "peers.unprofiled=random")
"""So that clients have peers from the second round on."""
COPIED = {"cpu": 2**28, "cuda": 2**30}
"""Bytes that are copied to see how fast the memory is: more than any cache holds."""


def default_device() -> str:
    """Return the GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def bench_config(given: Mapping[str, Any], settings: Iterable[str], *, rounds: int) -> Config:
    """Return the run to measure, of `rounds` rounds that count.

    Args:
        given: settings by dotted key; those that are None are the device's own.
        settings: `key=value`, laid over everything else but the rounds.
    Raises:
        ConfigError: a setting cannot be used, the device is not there, or the run is not one that can be measured.
    """
    known = {key: value for key, value in given.items() if value is not None}
    device = str(known.setdefault("device", default_device()))
    check_device(device)
    known["federation.quorum"] = min(3, known.setdefault("federation.cohort", 3))
    own = [f"{key}={value}" for key, value in known.items()]
    last = f"federation.rounds={WARM + rounds + AFTER}"
    config = load_config(None, [*DEFAULTS[device.partition(":")[0]], *ALWAYS, *own, *settings, last])
    check_device(config.device)
    if config.federation.steps == "auto_min":
        raise ConfigError("federation.steps = 'auto_min'; wanted a number of steps to divide the time by")
    if config.federation.alone:
        raise ConfigError(f"method {config.method!r} trains each client by itself; wanted one that has rounds")
    return config


def images_of(config: Config, folder: Path) -> tuple[Store, Path]:
    """Return the images to train on and a folder that holds them for others: the one named, or drawn ones saved."""
    store = open_store(config)
    if config.data.source != "dermsim":
        return store, Path(config.data.source)
    store.save(folder)
    return Store.open(folder), folder


def measure(config: Config, store: Store, folder: Path, tick: Tick = lambda done, of: None) -> dict[str, Any]:
    """Train a run into a folder and return its speed; see docs/performance.md for each number.

    Raises:
        RunError: a client failed, so that the time would be that of fewer.
    """
    if config.device != "cpu":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there is nothing to reset before
        torch.cuda.reset_peak_memory_stats(config.device)
    ends: list[float] = []
    begun = time.perf_counter()

    def watch(round: int, of: int) -> None:
        ends.append(time.perf_counter())
        tick(round, of)

    train(config, folder, store=store, watchers=[lambda progress: watch(progress.round, progress.rounds)])
    lines = RunFolder(folder).read_metrics()
    failed = [f"client {c}: {why}" for line in lines for c, why in line["rejected"].items()]
    if failed:
        raise RunError(f"a client failed, so that its steps were not taken: {failed[0]}")
    rounds = _seconds(lines)
    counted = lines[WARM:-AFTER]
    wall = (ends[-1 - AFTER] - ends[WARM - 1]) / len(counted)
    split = {name: sum(line[name] for line in rounds[WARM:]) / len(counted) for name in PARTS}
    steps = len(counted[0]["cohort"]) * int(config.federation.steps)
    step = split["training"] / steps
    usual = sum(split.values())
    return {
        "device": device_name(config.device),
        "settings": _settings(config),
        "rounds": {"warm": WARM, "measured": len(counted)},
        "ms_per_step": 1e3 * step,
        "images_per_second": (config.federation.batch + _unlabelled(config)) / step,
        "seconds_per_round": {"wall": wall} | split | {"other": wall - usual},
        "seconds_once": {
            "start": ends[0] - begun - sum(rounds[0].values()),
            "recording": max(0.0, sum(sum(line.values()) for line in rounds[:WARM]) - WARM * usual),
        },
        "peak_bytes": _peak(config.device),
        "validation_images": sum(
            len(client.validation)
            for number, client in enumerate(store.partition.clients)
            if number not in config.federation.exclude
        ),
        "with_peer": _mean([bool(members) for line in counted for members in line["committees"].values()]),
    }


def floor(config: Config, classes: int, folder: Path, ms_per_step: float) -> dict[str, float] | None:
    """Return what a step of the measured run must move, how long that takes at least, and its share of what it took.

    None where the objective's passes are not counted.
    """
    width = 4 if config.device == "cpu" or config.gpu == "reference" else 2
    traffic = network_traffic(build_net(config.model.net, classes, seed=0), config.data.size, width)
    each = []
    for line in RunFolder(folder).read_metrics()[WARM:-AFTER]:
        for members in line["committees"].values():
            passes = passes_of(config, min(1, len(members)) if config.peers.anonymize else len(members))
            if passes is None:
                return None
            each.append(step_bytes(traffic, passes, config.optimizer))
    moved, speed = _mean(each), bandwidth(config.device)
    least = 1e3 * moved / speed
    return {
        "bytes_per_step": moved,
        "bytes_per_second": speed,
        "ms_per_step": least,
        "share": least / ms_per_step,
    }


def bandwidth(device: str) -> float:
    """Return the bytes a second that a large copy on the device reads and writes: the best of several."""
    kind = device.partition(":")[0]
    source = torch.ones(COPIED[kind], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(8):
        begun = time.perf_counter()
        target.copy_(source)
        if kind == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, 2 * len(source) / (time.perf_counter() - begun))
    return best


def _seconds(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return where each round's time went, without the last: its checkpoint is not written down."""
    return [
        {name: (after if name == "checkpoint" else line)["seconds"].get(name, 0.0) for name in PARTS}
        for line, after in pairwise(lines)
    ]


def _unlabelled(config: Config) -> int:
    """Return the unlabelled images that a step draws."""
    federation = config.federation
    return 0 if config.objective.kind == "supervised" else federation.unlabelled_batch or federation.batch


def _settings(config: Config) -> dict[str, Any]:
    federation, peers = config.federation, config.peers
    return {
        "method": config.method,
        "net": config.model.net,
        "size": config.data.size,
        "threads": config.threads,
        "steps": federation.steps,
        "batch": federation.batch,
        "unlabelled_batch": _unlabelled(config),
        "cohort": config.cohort,
        "T": peers.T if config.peer_learning else 0,
        "anonymize": peers.anonymize,
        "source": config.data.source,
        "seed": config.seed,
    }


def _peak(device: str) -> dict[str, int]:
    if device == "cpu":
        return {"resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }


def device_name(device: str) -> str:
    """Return what a person calls the device."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return f"{cores()} core{'s' if cores() > 1 else ''} of a CPU ({platform.machine()})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
