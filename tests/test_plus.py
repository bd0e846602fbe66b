"""The search for FedPerl+: every option differs from FedPerl, and is trained as the benchmark is."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedperl.config import config_hash, flat
from fedperl.errors import ConfigError
from fedperl.paper.runs import find_scale
from fedperl.suite import plan_suite

BENCH = Path(__file__).parents[1] / "bench"
ASIDE = {"name", "method", "seed"}
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@pytest.fixture(name="plus")
def _plus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("side_by_side", "skin", "plus"):
        sys.modules.pop(name, None)
    return importlib.import_module("plus")


@pytest.mark.parametrize("name", ["alone", "small"])
def test_every_option_differs_from_fedperl_and_from_the_others(plus: ModuleType, name: str) -> None:
    suite, benchmark = plan_suite(plus.SUITES[name]).suite, find_scale(str(BENCH / "skin.toml")).settings
    if name == "alone":
        assert suite.settings == benchmark
    for same in ("partition", "scenario", "privacy"):
        assert suite.settings[same] == benchmark[same]
    assert not set(suite.seeds) & {1, 2, 3}
    every = plus.jobs(name, Path(), "cpu", [11], [])
    assert len(every) == len(suite.runs)
    assert len({config_hash(job.config.model_copy(update={"method": "any"})) for job in every.values()}) == len(every)
    base = flat(every["FedPerl, seed 11"].config.model_dump())
    for run, job in every.items():
        other = flat(job.config.model_dump())
        changed = {key for key in base.keys() | other.keys() if base.get(key) != other.get(key)} - ASIDE
        several = run.startswith(("together", "relations", "Upper"))
        assert len(changed) <= (5 if several else 2), (run, changed)
        assert bool(changed) == (run != "FedPerl, seed 11"), run


def test_some_runs_of_the_search_can_be_asked_for(plus: ModuleType) -> None:
    assert list(plus.jobs("alone", Path(), "cpu", [12], ["agreement"])) == ["agreement, seed 12"]
    with pytest.raises(ConfigError, match="agrement: not of set 'alone', which has FedPerl, SSFL"):
        plus.jobs("alone", Path(), "cpu", [], ["agrement"])


@pytest.fixture(name="page")
def _page(plus: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    for name in ("skin_page", "plus_page"):
        sys.modules.pop(name, None)
    module = importlib.import_module("plus_page")
    for one in (plus, module):
        monkeypatch.setattr(one, "LINES", tmp_path / "lines")
    return module


def test_the_page_is_what_the_lines_give() -> None:
    command = [sys.executable, str(BENCH / "plus_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def line(run: str, config: str, right: dict[str, int]) -> dict[str, Any]:
    """A line whose clients have ten images of each of eight classes, so many of them right, the rest taken as NV."""
    matrices = {}
    for client, count in right.items():
        matrix = np.eye(8, dtype=int) * count
        matrix[:, 1] += 10 - count
        matrices[client] = matrix.tolist()
    return {
        "run": run,
        "date": "2026-01-01",
        "device": "GPU",
        "side_by_side": 2,
        "config": config,
        "results": {"classes": list(CLASSES), "seconds_this_start": 60.0},
        "validation_confusion": matrices,
        "last_validation_confusion": dict.fromkeys(right, matrices["0"]),
        "pseudo": {"images": [10] * 8, "above": [5] * 8, "right": [4, 5, 4, 1, 4, 1, 1, 1], "said": [5] * 3 + [2] * 5},
        "validation_ece": dict.fromkeys(right, 0.1),
        "accepted": {25: 0.5, 50: 0.7},
    }


def naive_f1(matrix: list[list[int]]) -> list[float]:
    """F1 by class."""
    found = []
    for k in range(8):
        right, said = matrix[k][k], sum(row[k] for row in matrix)
        precision, recall = right / max(1, said), right / sum(matrix[k])
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return found


def test_what_is_printed_of_a_run_is_of_validation_images(plus: ModuleType) -> None:
    one = line("FedPerl, seed 11", "", {"0": 5, "8": 3})
    wanted = np.mean([np.mean(naive_f1(matrix)) for matrix in one["last_validation_confusion"].values()])
    assert plus.validated(one) == f"validation macro F1 {wanted:.3f}"


def test_options_are_ranked_by_macro_f1_on_validation_images(plus: ModuleType, page: ModuleType) -> None:
    assert page.pages() == {}
    right = {"FedPerl": (5, 5), "SSFL": (4, 6), "agreement": (7, 3), "tau 0.8": (2, 2)}
    made = {}
    for run, job in plus.jobs("alone", Path(), "cuda", [], list(right)).items():
        counts = right[run.rpartition(", seed ")[0]]
        made[run] = line(run, config_hash(job.config), {"0": counts[0], "8": counts[1]})
        plus.side_by_side.append(page.LINES / "alone.jsonl", made[run])
    (text,) = page.pages().values()
    ranked, labels = text.split("What the last model's labels")
    rows = [row.strip("| ").split(" | ") for row in ranked.splitlines() if row.startswith("| ")][1:]
    assert "| agreement | 0.500 | 0.525 | 0.500 | 0.200 | 0.500 |" in labels
    values = {row[0]: float(row[1]) for row in rows}
    assert list(values) == sorted(values, key=lambda name: -values[name])
    for name, value in values.items():
        matrices = made[f"{name}, seed 11"]["validation_confusion"].values()
        assert value == pytest.approx(np.mean([np.mean(naive_f1(matrix)) for matrix in matrices]), abs=5e-4)
    found = {row[0]: row for row in rows}
    assert found["agreement"][6].endswith("(client 8)")
    assert (found["agreement"][7:], found["FedPerl"][2]) == (["0.100", "0.600"], "")
    last = np.mean(naive_f1(made["agreement, seed 11"]["validation_confusion"]["0"]))
    assert float(found["agreement"][3]) == pytest.approx(last, abs=5e-4)
    assert "class-aware thresholds, seed 12" in text.split("Not trained yet:")[1]
    rare = np.sum([np.array(one) for one in made["FedPerl, seed 11"]["validation_confusion"].values()], axis=0)
    f1 = naive_f1(rare.tolist())
    wanted = np.mean([f1[CLASSES.index(name)] for name in ("AK", "DF", "VASC", "SCC")])
    assert float(found["FedPerl"][5]) == pytest.approx(wanted, abs=5e-4)
    made["FedPerl, seed 11"]["config"] = "another"
    (page.LINES / "alone.jsonl").write_text(json.dumps(made["FedPerl, seed 11"]) + "\n")
    with pytest.raises(ConfigError, match="alone: FedPerl, seed 11: was trained with other settings"):
        page.pages()
