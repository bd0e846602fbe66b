"""The search for FedPerl+: every option differs from FedPerl, and is trained as the benchmark is."""

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedperl.config import config_hash, flat, load_config
from fedperl.errors import ConfigError
from fedperl.federation.rounds import Progress
from fedperl.paper.runs import find_scale
from fedperl.parallel import Job
from fedperl.suite import plan_suite
from fedperl.training import train

BENCH = Path(__file__).parents[1] / "bench"
ASIDE = {"name", "method", "seed"}
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@pytest.fixture(name="plus")
def _plus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("side_by_side", "variants", "skin", "plus"):
        sys.modules.pop(name, None)
    return importlib.import_module("plus")


@pytest.mark.parametrize("name", ["alone", "falling", "small", "small_variants"])
def test_every_option_differs_from_fedperl_and_from_the_others(plus: ModuleType, name: str) -> None:
    suite, benchmark = plan_suite(plus.SUITES[name]).suite, find_scale(str(BENCH / "skin.toml")).settings
    if not name.startswith("small"):
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
        several = run.startswith(("together", "mean, own share", "relations", "Upper"))
        assert len(changed) <= (5 if several else 2), (run, changed)
        assert bool(changed) == (run != "FedPerl, seed 11"), run


def test_models_of_the_search_are_followed_where_they_can_be_handed_out_otherwise(plus: ModuleType) -> None:
    every = plus.jobs("alone", Path(), "cpu", [11], [])
    assert [run for run, job in every.items() if job.watch is None] == ["local batch norm, seed 11"]
    assert all(job.watch is None for job in plus.jobs("small", Path(), "cpu", [11], []).values())


SMALL = ["threads=1", "data.size=32", "data.scale=0.03", "model.net=small_cnn", "peers.warmup=1", "privacy=research"]
SMALL += ["federation.rounds=7", "federation.steps=3", "federation.validate_every=3", "optimizer.lr=3e-3"]


def test_a_variant_is_what_the_settings_give(plus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plain run tells of all of them; each setting is then trained with, and validates its last model."""
    variants = plus.variants
    monkeypatch.setattr(variants, "EVERY", 3)
    job = Job("plain", load_config(None, SMALL), tmp_path / "plain", watch=variants.Variants)
    watcher = variants.Variants(job)
    train(job.config, job.out, watchers=[watcher])
    found = json.loads((job.out / variants.FILE).read_text())
    assert len(found["last"]) == 27
    assert list(found["macro_f1"]) == ["3", "6", "7"]
    for decay, share, count in ((0.0, 0.0, 1), (0.9, 0.5, 8), (0.97, 0.25, 4), (0.9, 0.0, 1), (0.0, 0.5, 1)):
        settings = [f"federation.running_average={decay}", f"federation.own_share={share}"]
        out = tmp_path / variants.named((decay, share, count))
        train(load_config(None, [*SMALL, *settings, f"model.orientations={count}"]), out)
        validated = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["validation"]
        told = found["last"][variants.named((decay, share, count))]
        for metric in ("macro_f1", "weighted_f1"):
            wanted = {client: numbers[metric] for client, numbers in validated.items()}
            assert told[metric] == pytest.approx(wanted, abs=1e-4)
        assert found["macro_f1"]["7"][variants.named((decay, share, count))] == pytest.approx(
            np.mean(list(told["macro_f1"].values())), abs=1e-3
        )
        images = sum(numbers["images"] for numbers in validated.values())
        assert np.sum(told["confusion"]) == images
    different = {json.dumps(one["ece"]) for one in found["last"].values()}
    assert len(different) == 2 * 9  # after few rounds both means are the plain one


def test_a_run_that_is_resumed_is_not_followed(plus: ModuleType, tmp_path: Path) -> None:
    job = Job("cut", load_config(None, SMALL), tmp_path / "cut")

    def stop(progress: Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job.config, job.out, watchers=[stop])
    train(job.config, job.out, resume=True, watchers=[plus.variants.Variants(job)])
    assert (job.out / "results.json").exists()
    assert not (job.out / plus.variants.FILE).exists()


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


def test_how_far_a_falling_rate_falls_is_beside_fedperl_with_the_same_seeds(page: ModuleType) -> None:
    def course(*values: float) -> dict[str, Any]:
        return {"macro_f1": {str(25 * k): value for k, value in enumerate(values, start=1)}}

    rows = {
        "FedPerl": {11: course(0.3, 0.4, 0.5), 12: course(0.1, 0.1, 0.1)},
        "falling rate": {11: course(0.3, 0.6, 0.4)},
    }
    assert page.falling_note(rows, ["FedPerl", "falling rate"]) == [
        "- falling rate (seed 11): highest after round 50, 0.600, and 0.400 after round 75; FedPerl: highest after "
        "round 75, 0.500, and 0.500 after round 75.",
        "",
    ]
    assert page.course_table(rows, ["FedPerl"])[-1] == "| FedPerl | 0.250 |"  # every other look


def test_variants_are_beside_the_model_as_it_is(plus: ModuleType, page: ModuleType) -> None:
    variants = plus.variants
    assert page.variant_tables({"FedPerl": {11: {}}}) == []
    rows: dict[str, dict[int, Any]] = {"FedPerl": {}}
    for seed, base in ((11, 0.4), (12, 0.5)):
        last = {}
        for decay, share, count in itertools.product(variants.DECAYS, variants.SHARES, variants.ORIENTATIONS):
            f1 = base + 0.1 * decay + 0.02 * share + 0.001 * count
            last[variants.named((decay, share, count))] = {
                "macro_f1": {"0": f1, "8": f1 - 0.2},
                "ece": {"0": f1, "8": f1},
            }
        rows["FedPerl"][seed] = {"variants": {"last": last}}
    text = "\n".join(page.variant_tables(rows))
    assert "FedPerl (2 seeds):" in text
    assert "| none | none | 0.351, ECE 0.451 | 0.354 +0.003 [+0.003, +0.003]*, ECE 0.454 |" in text
    assert "| 0.9 | 0.5 | 0.451 +0.100 [+0.100, +0.100]*, ECE 0.551 |" in text


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
    assert "class-aware thresholds (seeds 11, 12); " in text.split("Not trained yet:")[1]
    rare = np.sum([np.array(one) for one in made["FedPerl, seed 11"]["validation_confusion"].values()], axis=0)
    f1 = naive_f1(rare.tolist())
    wanted = np.mean([f1[CLASSES.index(name)] for name in ("AK", "DF", "VASC", "SCC")])
    assert float(found["FedPerl"][5]) == pytest.approx(wanted, abs=5e-4)
    made["FedPerl, seed 11"]["config"] = "another"
    (page.LINES / "alone.jsonl").write_text(json.dumps(made["FedPerl, seed 11"]) + "\n")
    with pytest.raises(ConfigError, match="alone: FedPerl, seed 11: was trained with other settings"):
        page.pages()
