"""A plain PyTorch loop on the same images, in a process of its own: what a measured run is shown beside."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedperl
from fedperl.data.store import Store
from fedperl.errors import RunError
from fedperl.machine import cores
from fedperl.settings import Config

PROGRESS = re.compile(r"(\d+)/(\d+) steps")


def why_not(config: Config, script: Path) -> str:
    """Return why there is nothing to show beside a run, in one line; nothing where there is."""
    if not script.is_file():
        return (
            f"{script}: no such file, so no plain loop beside; it comes with the repository, or name it with --beside"
        )
    if config.objective.kind not in ("supervised", "fixmatch"):
        return f"the plain loop does not know objective.kind = {config.objective.kind!r}: nothing is shown beside"
    if config.scenario.labels != "clients":
        return f"the plain loop does not know scenario.labels = {config.scenario.labels!r}: nothing is shown beside"
    return ""


def run_beside(
    config: Config, script: Path, images: Path, store: Store, folder: Path, tick: Callable[[int, int], None]
) -> dict[str, Any]:
    """Return what the script prints for the same images, network, batches and passes as the run's.

    Args:
        images: the store's folder.
        store: the same store, dealt as the run has it.
        folder: where the partition is written.
    Raises:
        RunError: the script failed; with its last line.
    """
    partition = folder / "partition.csv"
    store.partition.write(partition, store.manifest)
    command = [sys.executable, str(script), str(images), "--partition", str(partition), *_arguments(config)]
    paths = [str(Path(fedperl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            if found := PROGRESS.search(line):
                tick(int(found[1]), int(found[2]))
            else:
                said = line.strip() or said
        printed = process.stdout.read()
    if process.returncode:
        raise RunError(f"{script}: ended with {process.returncode}: {said}")
    return dict(json.loads(printed.splitlines()[-1]))


def _arguments(config: Config) -> list[str]:
    federation, objective = config.federation, config.objective
    values = {
        "device": config.device,
        "threads": cores() if config.threads == "auto" else config.threads,
        "net": config.model.net,
        "size": config.data.size,
        "steps": federation.steps,
        "batch": federation.batch,
        "unlabelled-batch": federation.unlabelled_batch or federation.batch,
        "cohort": config.cohort,
        "T": config.peers.T if config.peer_learning else 0,
        "weak": config.views.weak,
        "strong": config.views.strong,
        "consistency": objective.consistency,
        "lr": config.optimizer.lr,
    }
    flags = {
        "--raw": config.raw_peers,
        "--supervised": objective.kind == "supervised",
    }
    found = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    return found + [flag for flag, wanted in flags.items() if wanted]
