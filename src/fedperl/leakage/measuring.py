"""Leakage measured: could a client that is sent a model tell which images another client trained it on?

The attacked models are those that finished runs would send next (`fedperl.leakage.releases`): a client's model as it
is, the anonymized peer of 2 to 8 clients with that one among them, and what differencing makes of two such peers;
beside them the global model, which everyone has. The attacker has an image, its class and images of its own.

A third of every client's training images is new: no run has them, only the last round that the releases are made of.
What such an image changes is all in the difference of two releases; what a client has trained on for long is in both.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedperl import __version__
from fedperl.compare import rounds_done
from fedperl.config import merged, read_toml, resolve
from fedperl.data.manifest import Indices
from fedperl.errors import ConfigError, RunError
from fedperl.files import digest, lock, write_durably
from fedperl.leakage.attacking import attacked
from fedperl.leakage.bench import Bench
from fedperl.leakage.files import Arrays, keep, kept
from fedperl.leakage.numbers import Asked, Leakage, of_class, of_release
from fedperl.leakage.references import asked_classes, reference
from fedperl.leakage.releases import next_releases
from fedperl.machine import cores
from fedperl.opening import on, settled
from fedperl.paper.figures.leakage import leakage_figure
from fedperl.paper.writing import drawn
from fedperl.parallel import Job, run_jobs
from fedperl.report.leakage_table import leakage_markdown
from fedperl.settings import Config

SETTINGS: dict[str, Any] = {
    "name": "leakage",
    "threads": 1,
    "data": {"size": 32, "scale": 0.15},
    "model": {"net": "small_cnn"},
    "objective": {"class_weights": "none"},
    "peers": {"warmup": 4},
    "federation": {"rounds": 24, "steps": 48},
    "optimizer": {"lr": 1e-3},
}
"""Without a configuration: the demo's network and images, each labelled image seen about as often as in the paper."""
QUICK: dict[str, Any] = {
    "data": {"scale": 0.03},
    "peers": {"warmup": 2},
    "federation": {"rounds": 6, "steps": 4},
}
"""A run of seconds, to see the machinery work: its numbers say nothing."""
FOUND, PRINTED, PICTURE = "leakage.json", "leakage.md", "leakage"

Tick = Callable[[str, int, int], None]
Value = TypeVar("Value")


def leakage_config(path: Path | None = None, overrides: Sequence[str] = (), *, quick: bool = False) -> Config:
    """Return the configuration of the runs: that of a file, or the documented one; `quick` makes either short.

    Raises:
        ConfigError: as `load_config`.
    """
    table = SETTINGS if path is None else read_toml(path)
    return resolve(merged(table, QUICK if quick else {}), overrides, source=str(path or "the command line"))


def measure_leakage(
    config: Config,
    out: Path,
    *,
    repeats: int = 5,
    references: int = 16,
    resamples: int = 400,
    tick: Tick = lambda stage, done, total: None,
) -> Leakage:
    """Train what is not there yet, attack it, and return all numbers, also written into leakage.json and leakage.md.

    Args:
        repeats: runs, with the configuration's seed and those after it; the images are the same.
        references: models that the attacker trains, an even number: every image is in one of each two.
        tick: told what is being done, how much of it is behind and how much there is.
    Raises:
        FedPerlError: a setting or the data cannot be used, the folder holds another measurement, or a run failed; what
            is finished stays, and the same call goes on.
    """
    if references < 4 or references % 2:
        raise ConfigError(f"references = {references}; wanted an even number, at least 4")
    config = settled(config)
    (out / "references").mkdir(parents=True, exist_ok=True)
    with lock(out / "lock"):
        bench = Bench(config)
        config, run = bench.config, bench.for_runs(out / "partition.csv")
        runs = {seed: run.changed(seed=seed) for seed in range(config.seed, config.seed + repeats)}
        _train([Job(f"seed {seed}", one, out / f"seed-{seed}") for seed, one in runs.items()], tick)
        threads = torch.get_num_threads()
        torch.set_num_threads(int(config.threads))
        try:
            with on(config.device):
                trained = [
                    reference(bench, out / "references", number)
                    for number in _ticked(range(references), "references", tick)
                ]
                known = {name: np.stack([arrays[name] for arrays in trained]) for name in trained[0]}
                labels = asked_classes(bench, known["probabilities"])
                said = {seed: _said(bench, runs[seed], out, labels) for seed in _ticked(list(runs), "attacks", tick)}
        finally:
            torch.set_num_threads(threads)
        asked = Asked(bench, known, labels, list(said.values()), resamples)
        found = {
            "by": f"fedperl {__version__}",
            "name": config.name,
            "settings": config.model_dump(mode="json", exclude={"name", "seed", "written_by"}),
            "seeds": list(said),
            "references": references,
            "resamples": resamples,
            "clients": sorted({int(client) for client in asked.client}),
            "images": asked.images(),
            "releases": [of_release(asked, name) for name in _ticked(asked.names, "numbers", tick)],
            "classes": [of_class(asked, what, among) for what, among in asked.classes(bench.classes)],
        }
        write_durably(out / FOUND, (json.dumps(found, indent=1) + "\n").encode(), mode=0o644)
        write_durably(out / PRINTED, leakage_markdown(found).encode(), mode=0o644)
    return found


def write_picture(found: Leakage, out: Path, beside: Sequence[Leakage] = ()) -> list[Path]:
    """Draw what was measured into leakage.svg and leakage.png and return where.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    content = leakage_figure(found, beside)
    written = [out / f"{PICTURE}.{kind}" for kind in ("svg", "png")]
    for path in written:
        write_durably(path, drawn(content, path.suffix[1:]), mode=0o644)
    return written


def read_leakage(folder: Path) -> Leakage:
    """Return what was measured into a folder.

    Raises:
        RunError: nothing was.
    """
    path = folder / FOUND
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path}: cannot be read: {error}; wanted the folder of a finished `fedperl leakage`") from None


def _train(jobs: list[Job], tick: Tick) -> None:
    total = sum(job.config.federation.rounds for job in jobs)
    config = jobs[0].config
    workers = max(1, cores() // int(config.threads)) if config.device == "cpu" else 1
    failed = run_jobs(jobs, workers=workers, tick=lambda _: tick("rounds", sum(map(rounds_done, jobs)), total))
    if failed:
        raise RunError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    tick("rounds", total, total)


def _said(bench: Bench, config: Config, out: Path, labels: Indices) -> Arrays:
    """Return what the releases of one run say; asks them if need be."""
    path, origin = out / f"scores-{config.seed}.safetensors", digest(bench.origin.encode() + labels.tobytes())
    arrays = kept(path, origin)
    if arrays is None:
        work = bench.workspace(config)
        releases = next_releases(config, out / f"seed-{config.seed}", bench.store, work)
        arrays = attacked(bench, releases, work, labels)
        keep(path, arrays, origin)
    return arrays


def _ticked(values: Sequence[Value], stage: str, tick: Tick) -> Iterator[Value]:
    """Yield the values, telling how many are behind."""
    for done, value in enumerate(values):
        tick(stage, done, len(values))
        yield value
    tick(stage, len(values), len(values))
