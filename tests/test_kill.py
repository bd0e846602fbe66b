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
from tests.conftest import artefacts, small_config, small_store

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
    assert whole.wait(timeout=1200) == 0

    out = tmp_path / "killed"
    generator, rounds_seen = random.Random(1), set()
    process = start(str(config), "--out", str(out))
    for kill in range(KILLS):
        if kill % 3 == 0:  # any moment of a start
            time.sleep(generator.uniform(0.0, 3.0))
        else:  # any moment of a few rounds
            wait_for_progress(out / "state" / "ledger.jsonl", process)
            time.sleep(generator.uniform(0.0, 0.5))
        assert process.poll() is None, "the run ended before it was killed often enough"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        metrics = out / "metrics.jsonl"
        rounds_seen.add(metrics.read_bytes().count(b"\n") if metrics.exists() else 0)
        readable(out)
        begun = (out / "config.toml").exists()
        process = start("--resume", "--out", str(out)) if begun else start(str(config), "--out", str(out))
    assert process.wait(timeout=1200) == 0
    assert len(rounds_seen) >= KILLS // 3  # the kills hit a run on its way, on a busy machine too
    assert artefacts(out) == artefacts(tmp_path / "whole")


def wait_for_progress(ledger: Path, process: "subprocess.Popen[bytes]") -> None:
    size = ledger.stat().st_size if ledger.exists() else 0
    deadline = time.monotonic() + 300
    while (ledger.stat().st_size if ledger.exists() else 0) == size:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
