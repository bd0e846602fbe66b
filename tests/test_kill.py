"""A run is killed at random moments, again and again, and must end as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from fedperl.config import dump
from tests.conftest import small_config, small_store
from tests.test_training import artefacts

KILLS = 30


def start(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "fedperl", "train", "--quiet", *arguments])


def readable(folder: Path) -> None:
    """Every model file that is not a leftover can be opened and is whole."""
    for path in folder.rglob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dictionary)
                file.get_tensor(name)


@pytest.mark.slow
def test_thirty_kills_leave_no_trace(tmp_path: Path) -> None:
    small_store().save(tmp_path / "store")
    config = tmp_path / "run.toml"
    settings = small_config(
        data={"source": str(tmp_path / "store")},
        objective={"label_source": "ema", "tau": 0.34},
        federation={"rounds": 600, "steps": 2, "batch": 4},
    )
    config.write_text(dump(settings))
    whole = start(str(config), "--out", str(tmp_path / "whole"))
    assert whole.wait(timeout=300) == 0

    out = tmp_path / "killed"
    generator, kills, rounds_seen = random.Random(1), 0, set()
    process = start(str(config), "--out", str(out))
    while kills < KILLS:
        # Any moment counts, the first seconds of a start and the middle of a round alike.
        time.sleep(generator.uniform(1.0, 4.0))
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        metrics = out / "metrics.jsonl"
        rounds_seen.add(metrics.read_bytes().count(b"\n") if metrics.exists() else 0)
        readable(out)
        process = (
            start("--resume", "--out", str(out))
            if (out / "config.toml").exists()
            else start(str(config), "--out", str(out))
        )
    assert process.wait(timeout=300) == 0
    assert kills == KILLS
    assert len(rounds_seen) >= KILLS // 2  # the kills hit a run on its way
    assert artefacts(out) == artefacts(tmp_path / "whole")
