"""Suites: what is refused before anything is trained, the numbers of the table, runs that are stopped and go on."""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from rich.console import Console

from fedperl.cli import main
from fedperl.compare import compare, gpu_names, rounds_done
from fedperl.config import config_hash, dump, flat, load_config
from fedperl.demo import METHODS, demo_config
from fedperl.errors import ConfigError, FedPerlError, RunError
from fedperl.evaluate import paired_interval
from fedperl.files import lock
from fedperl.parallel import Job, run_jobs
from fedperl.plugins import digest_of
from fedperl.report.tables import comparison_markdown, comparison_notes, comparison_table
from fedperl.suite import Plan, plan_suite
from fedperl.training import train
from tests.test_cli import FEDPERL, wait_for_round

SMALL: dict[str, Any] = {
    "threads": 1,
    "data": {"size": 16, "scale": 0.02},
    "model": {"net": "small_cnn"},
    "peers": {"warmup": 1},
    "federation": {"rounds": 2, "steps": 1},
}


SSFL = {"name": "SSFL", "method": "ssfl"}
FEDPERL_ROW = {"name": "FedPerl [static]", "method": "fedperl"}


def suite(tmp_path: Path, **keys: Any) -> Path:
    """Write a suite of two runs and two seeds, or what the keywords say; one that is None is left out."""
    table = {"name": "small", "baseline": "SSFL", "seeds": [1, 2], "settings": SMALL, "runs": [SSFL, FEDPERL_ROW]}
    path = tmp_path / "suite.toml"
    path.write_text(tomli_w.dumps({key: value for key, value in (table | keys).items() if value is not None}))
    return path


# What would be trained


def test_settings_are_laid_over_each_other(tmp_path: Path) -> None:
    runs = [
        {"name": "SSFL", "method": "ssfl", "settings": {"objective": {"tau": 0.7}}},
        {"name": "FedPerl, T", "method": "fedperl", "grid": {"peers.T": [2, 3], "objective": {"tau": [0.5, 0.9]}}},
    ]
    plan = plan_suite(suite(tmp_path, runs=runs), tmp_path / "out", overrides=["objective.beta=0.25"])
    first, *points = plan.points
    assert first.values == {}
    assert [point.values for point in points] == [
        {"peers.T": T, "objective.tau": tau} for T in (2, 3) for tau in (0.5, 0.9)
    ]
    for point in plan.points:
        for seed, job in point.jobs.items():
            config = job.config
            assert (config.seed, config.method, config.threads) == (seed, point.run.method, 1)
            assert (config.objective.beta, config.federation.rounds) == (0.25, 2)
            assert config.objective.tau == point.values.get("objective.tau", 0.7)
            assert point.values.get("peers.T", 2) == config.peers.T
    assert [str(job.out.relative_to(tmp_path)) for job in plan.jobs[:4]] == [
        "out/ssfl/seed-1",
        "out/ssfl/seed-2",
        "out/fedperl-t/peers.T=2_objective.tau=0.5/seed-1",
        "out/fedperl-t/peers.T=2_objective.tau=0.5/seed-2",
    ]
    assert len({job.out for job in plan.jobs}) == len(plan.jobs) == 10
    assert len({job.store for job in plan.jobs}) == 1  # drawn once


def test_images_are_shared_only_by_runs_that_draw_the_same(tmp_path: Path) -> None:
    runs = [
        {"name": "SSFL", "method": "ssfl"},
        {"name": "other images", "method": "ssfl", "settings": {"data": {"seed": 5}}},
        {"name": "dealt anew", "method": "ssfl", "settings": {"partition": {"kind": "iid"}}},
        {"name": "a store", "method": "ssfl", "settings": {"data": {"source": "stores/skin"}}},
        {"name": "a file", "method": "ssfl", "settings": {"partition": {"file": "mine.csv"}}},
    ]
    plan = plan_suite(suite(tmp_path, runs=runs, seeds=[1]), tmp_path)
    shared = [job.store for job in plan.jobs]
    assert len(set(shared[:3])) == 3
    assert shared[3:] == [None, None]


@pytest.mark.parametrize(("wanted", "seeds"), [(None, [4, 9]), (1, [4]), (2, [4, 9]), (4, [4, 9, 10, 11])])
def test_seeds_are_the_first_and_then_counted_on(tmp_path: Path, wanted: int | None, seeds: list[int]) -> None:
    plan = plan_suite(suite(tmp_path, seeds=[4, 9]), tmp_path, seeds=wanted)
    assert [list(point.jobs) for point in plan.points] == [seeds, seeds]


def test_the_suites_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dermsim = plan_suite("dermsim")
    assert dermsim.out == Path("runs/dermsim")
    assert len(dermsim.jobs) == 8 * 3
    ours = {config_hash(job.config) for job in dermsim.jobs}
    assert {config_hash(demo_config(method, seed)) for method in METHODS.values() for seed in (1, 2, 3)} <= ours
    grid = plan_suite("paper_grid", seeds=1)
    assert len(grid.jobs) == 1 + 3 * 6 + 4 * 3 + 4 + 3
    published = grid.jobs[0].config
    tuned = {point.run.name for point in grid.points[1:]}
    found_best = {
        point.run.name
        for point in grid.points[1:]
        if point.jobs[1].config.model_copy(update={"name": published.name}) == published
    }
    assert tuned - found_best == {"FedPerl, gated similarity, rho"}  # the paper's best is among what each row tries


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"basline": "SSFL"}, "unknown key 'basline'; did you mean 'baseline'?"),
        ({"data": {"size": 16}}, "unknown key 'data'; wanted in a table of settings"),
        ({"baseline": None}, "baseline is missing"),
        ({"baseline": "SSFl"}, "baseline = 'SSFl' is none of the runs; did you mean 'SSFL'?"),
        ({"seeds": []}, "seeds = []"),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: one of them is there twice"),
        ({"seeds": [-1]}, "seeds.0 = -1"),
        ({"metric": "weighted_F1"}, "metric = 'weighted_F1'; did you mean 'weighted_f1'?"),
        ({"choice": "best"}, "choice = 'best'"),
        ({"runs": []}, "runs = []"),
        ({"runs": ["SSFL"]}, "wanted tables, [[runs]]"),
        ({"runs": [SSFL, SSFL]}, "runs 'SSFL' and 'SSFL' would share a folder"),
        ({"runs": [SSFL, {"name": "ssfl!", "method": "ssfl"}]}, "runs 'SSFL' and 'ssfl!' would share a folder"),
        ({"runs": [SSFL, {"name": "π", "method": "ssfl"}]}, "wanted one with a letter"),
        ({"runs": [{"name": "SSFL"}]}, "runs[0].method is missing"),
        ({"runs": [SSFL | {"settngs": {}}]}, "unknown key 'runs[0].settngs'; did you mean 'settings'?"),
        ({"runs": [SSFL | {"method": "sslf"}]}, "method = 'sslf' is unknown; did you mean 'ssfl'?"),
        ({"settings": {"objective": {"tauu": 1}}}, "'settings.objective.tauu'; did you mean 'settings.objective.tau'?"),
        ({"settings": {"seed": 3}}, "settings: seed = 3 is no setting here"),
        ({"runs": [SSFL | {"settings": {"method": "upper"}}]}, "run 'SSFL': method = 'upper' is no setting here"),
        ({"runs": [SSFL | {"settings": {"objective": {"tau": "high"}}}]}, "run 'SSFL': objective.tau = 'high'"),
        ({"runs": [SSFL | {"grid": {}}]}, "run 'SSFL': the grid is empty"),
        ({"runs": [SSFL | {"grid": {"objective.tau": []}}]}, "grid: objective.tau = []; wanted a list of values"),
        ({"runs": [SSFL | {"grid": {"objective.tau": 0.6}}]}, "grid: objective.tau = 0.6; wanted a list of values"),
        ({"runs": [SSFL | {"grid": {"objective.tao": [0.6]}}]}, "unknown key 'objective.tao'; did you mean"),
        ({"runs": [SSFL | {"grid": {"objective.tau": [0.6, -1.0]}}]}, "(objective.tau = -1.0): objective.tau = -1.0"),
        ({"runs": [SSFL | {"grid": {"objective.tau": [0.6, 0.6]}}]}, "are one point; is a value there twice"),
        (
            {"runs": [SSFL, {"name": "one", "method": "fedperl", "settings": {"peers": {"T": 1}}}]},
            "run 'one': peers.T = 1",
        ),
        (
            {"choice": "global_best", "runs": [SSFL, {"name": "alone", "method": "local_lower"}]},
            "run 'alone': choice = 'global_best' is of a global model",
        ),
    ],
)
def test_what_is_wrong_in_a_suite_is_one_sentence(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_suite(suite(tmp_path, **keys), tmp_path / "out")
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "suite.toml"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("what", "overrides", "message"),
    [
        ("dermsin", [], "suite = 'dermsin' is unknown; did you mean 'dermsim'?; known: dermsim, paper_grid"),
        ("nowhere.toml", [], "nowhere.toml: no such file"),
        ("dermsim", ["seed=7"], "--set seed=7: the suite gives every run its seed"),
        ("dermsim", ["method=upper"], "--set method=upper: the suite gives every run its method"),
        ("dermsim", ["peers.Tt=3"], "did you mean 'peers.T'"),
        ("paper_grid", ["objective.tau=0.7"], "are one point; is a value there twice, or --set?"),
    ],
)
def test_what_is_wrong_on_the_command_line(what: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_suite(what, overrides=overrides)
    assert message in str(error.value)


# The numbers, of results made up


class Trainer:
    """Stands for `run_jobs`: writes results as a run would, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: list[str] = []
        self.failing: set[str] = set()
        self.results: dict[str, dict[str, Any]] = {}
        monkeypatch.setattr("fedperl.compare.run_jobs", self)
        monkeypatch.setattr("fedperl.compare.open_store", lambda config: pytest.fail("draws images"))

    def __call__(self, jobs: list[Job], *, workers: int, tick: Any, gpus: Sequence[str] = ()) -> dict[str, str]:
        for job in [job for job in jobs if job.name not in self.failing]:
            job.out.mkdir(parents=True)
            (job.out / "config.toml").write_text(dump(job.config))
            (job.out / "results.json").write_text(json.dumps(self.results[job.name]))
            self.trained.append(job.name)
        return {job.name: "it diverged" for job in jobs if job.name in self.failing}


def made_up(
    values: dict[str, float],
    *,
    validation: float = 0.5,
    peers: dict[str, int] | None = None,
    down: float = 1e6,
    choice: str = "per_client_best",
) -> dict[str, Any]:
    return {
        "test": {choice: {client: {"round": 1, "images": 9, "weighted_f1": v} for client, v in values.items()}},
        "validation": {choice: {"accuracy": validation}},
        "totals": {"bytes_down": down, "rejected": 0, "void": 0} | ({} if peers is None else {"peers": peers}),
        "partition": "as all",
        "seconds": {"training": 2.0, "server": 1.0},
    }


def numbers(values: list[float], *, without: tuple[int, ...] = ()) -> dict[str, float]:
    return {str(client): value for client, value in enumerate(values) if client not in without}


@pytest.fixture(name="trainer")
def _trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    return Trainer(monkeypatch)


def plan_of(tmp_path: Path, **keys: Any) -> Plan:
    keys = {"settings": SMALL | {"data": {"source": "elsewhere"}}} | keys
    return plan_suite(suite(tmp_path, **keys), tmp_path / "out")


def shown(found: dict[str, Any]) -> str:
    console = Console(width=130, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(comparison_table(found))
    return console.export_text() + "\n".join(comparison_notes(found))


def test_numbers_of_the_table(tmp_path: Path, trainer: Trainer) -> None:
    ours = {1: [0.8, 0.6, 0.7], 2: [0.7, 0.9, 0.5]}
    theirs = {1: [0.5, 0.5, 0.7], 2: [0.6, 0.6, 0.3]}
    for seed in (1, 2):
        peers = {"0": 1, "2": 3} if seed == 1 else {"0": 3, "2": 1}
        trainer.results[f"SSFL, seed {seed}"] = made_up(numbers(theirs[seed]), peers={}, down=2e6)
        trainer.results[f"FedPerl [static], seed {seed}"] = made_up(numbers(ours[seed]), peers=peers, down=seed * 2e6)
    found = compare(plan_of(tmp_path))
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == found
    assert (tmp_path / "out" / "comparison.md").read_text() == comparison_markdown(found)
    baseline, run = found["runs"]
    assert baseline["difference"] is None
    by_client = [statistics.fmean(pair) for pair in zip(ours[1], ours[2], strict=True)]
    assert run["over_clients"] == pytest.approx(
        {"mean": np.mean(by_client), "median": np.median(by_client), "std": np.std(by_client)}
    )
    by_seed = [statistics.fmean(ours[1]), statistics.fmean(ours[2])]
    assert run["over_seeds"]["mean"] == pytest.approx(statistics.fmean(by_seed))
    assert run["over_seeds"]["std"] == pytest.approx(statistics.stdev(by_seed))
    expected = paired_interval([np.subtract(ours[s], theirs[s]) for s in (1, 2)])
    difference = run["difference"]
    assert (difference["mean"], difference["low"], difference["high"]) == (expected.mean, expected.low, expected.high)
    assert (difference["seeds"], difference["clients"], difference["level"]) == (2, 3, 0.95)
    assert run["peers"] == {"0": 4, "2": 4}
    assert (run["bytes_down"], run["seconds"]) == (3e6, 3.0)
    text = shown(found)
    for part in ("FedPerl [static]", "0.700 (0.750) ± 0.071", "0.700 ± 0.000", "+0.167 [", "50/0/50", "3.0"):
        assert part in text
    assert "2 seeds (1, 2), 3 clients; model: for each client the round" in text
    assert "resamples seeds and clients as clusters, each row for itself" in text


def test_brackets_in_names_are_no_markup(tmp_path: Path, trainer: Trainer) -> None:
    trainer.results["FedPerl [static], seed 1"] = made_up(numbers([0.5, 0.6, 0.7]))
    found = compare(plan_of(tmp_path, seeds=[1], runs=[FEDPERL_ROW], baseline=FEDPERL_ROW["name"]))
    assert shown(found).count("FedPerl [static]") == 2  # the row and the header


def test_differences_that_exclude_zero_are_marked(tmp_path: Path, trainer: Trainer) -> None:
    for seed in (1, 2):
        trainer.results[f"SSFL, seed {seed}"] = made_up(numbers([0.5, 0.6, 0.7]))
        trainer.results[f"FedPerl [static], seed {seed}"] = made_up(numbers([0.6, 0.7, 0.8]))
    found = compare(plan_of(tmp_path))
    assert found["runs"][1]["difference"]["excludes_zero"]
    assert "+0.100 [+0.100, +0.100] *" in shown(found)
    assert "| +0.100 [+0.100, +0.100] \\* | 1.0 |" in comparison_markdown(found)
    assert "peers" not in shown(found)  # results that do not say


def test_a_grid_is_chosen_on_validation_images(tmp_path: Path, trainer: Trainer) -> None:
    runs = [SSFL, {"name": "tuned", "method": "ssfl", "grid": {"objective.tau": [0.5, 0.6, 0.7]}}]
    scores = {0.5: (0.4, 0.9), 0.6: (0.7, 0.7), 0.7: (0.6, 0.6)}  # by seed; the middle one has the best mean
    for seed in (1, 2):
        trainer.results[f"SSFL, seed {seed}"] = made_up(numbers([0.5, 0.5]))
        for tau, validation in scores.items():
            tested = numbers([0.3 if tau == 0.6 else 0.9] * 2)
            name = f"tuned (objective.tau = {tau}), seed {seed}"
            trainer.results[name] = made_up(tested, validation=validation[seed - 1])
    found = compare(plan_of(tmp_path, runs=runs))
    row = found["runs"][1]
    assert row["grid"]["chosen"] == {"objective.tau": 0.6}
    assert row["over_clients"]["mean"] == pytest.approx(0.3)
    assert [point["by_seed"] for point in row["grid"]["points"]] == [{"1": a, "2": b} for a, b in scores.values()]
    assert "tuned: objective.tau = 0.6, chosen on validation images out of 3 points (accuracy 0.700)" in shown(found)
    assert found["runs"][0]["grid"] is None


def test_a_missing_client_is_left_out_of_the_pairs(tmp_path: Path, trainer: Trainer) -> None:
    for seed in (1, 2):
        trainer.results[f"SSFL, seed {seed}"] = made_up(numbers([0.5, 0.6, 0.7]))
        trainer.results[f"FedPerl [static], seed {seed}"] = made_up(numbers([0.6, 0.9, 0.8], without=(1,)))
    found = compare(plan_of(tmp_path))
    assert found["runs"][1]["difference"]["paired_on"] == ["0", "2"]
    assert found["runs"][1]["difference"]["mean"] == pytest.approx(0.1)
    assert "FedPerl [static]: the difference is over the 2 clients that both have." in shown(found)


def test_the_server_alone_was_tested(tmp_path: Path, trainer: Trainer) -> None:
    for seed in (1, 2):
        trainer.results[f"SSFL, seed {seed}"] = made_up({"server": 0.5}, choice="last")
        trainer.results[f"FedPerl [static], seed {seed}"] = made_up({"server": 0.5 + seed / 10}, choice="last")
    found = compare(plan_of(tmp_path, choice="last"))
    difference = found["runs"][1]["difference"]
    assert (difference["seeds"], difference["clients"]) == (2, 1)
    assert difference["low"] < 0.15 < difference["high"]
    assert "2 seeds (1, 2), the server's test images; model: the last round." in shown(found)
    assert "resamples seeds as clusters alone" in shown(found)


def test_one_seed_has_no_deviation_and_one_pair_no_interval(tmp_path: Path, trainer: Trainer) -> None:
    trainer.results["SSFL, seed 1"] = made_up({"0": 0.5, "1": 0.6, "server": 0.1})
    trainer.results["FedPerl [static], seed 1"] = made_up({"0": 0.6, "1": 0.65, "server": 0.9})
    found = compare(plan_of(tmp_path, seeds=[1]))
    assert found["runs"][0]["over_seeds"]["std"] is None
    assert found["runs"][1]["clients"] == ["0", "1"]
    for part in ("0.550 (n = 1)", "+0.075 [", "1 seed (1), 2 clients", "resamples clients as clusters alone"):
        assert part in shown(found)
    for client in ("0", "1"):
        del trainer.results["SSFL, seed 1"]["test"]["per_client_best"][client]
        del trainer.results["FedPerl [static], seed 1"]["test"]["per_client_best"][client]
    single = compare(plan_suite(tmp_path / "suite.toml", tmp_path / "single"))
    assert single["runs"][1]["difference"]["low"] is None
    assert "+0.800" in shown(single)
    assert "without an interval" in shown(single)
    trainer.results["SSFL, seed 1"] = made_up({"0": 0.5})
    other = compare(plan_suite(tmp_path / "suite.toml", tmp_path / "other"))
    assert other["runs"][1]["difference"] is None
    assert "FedPerl [static]: no difference" in shown(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": {"last": {}}}, "run 'tuned': its results have no choice = 'per_client_best'; wanted one of last"),
        ({"test": {"per_client_best": {"3": {"accuracy": 1.0}}}}, "run 'tuned': its results of client 3 have no"),
        ({"validation": {}}, "tuned/objective.tau=0.5/seed-1: results.json has no validation accuracy of choice"),
    ],
)
def test_results_that_lack_something(tmp_path: Path, trainer: Trainer, change: dict[str, Any], message: str) -> None:
    trainer.results["SSFL, seed 1"] = made_up(numbers([0.5, 0.5]))
    trainer.results["tuned (objective.tau = 0.5), seed 1"] = made_up(numbers([0.5, 0.5])) | change
    runs = [SSFL, {"name": "tuned", "method": "ssfl", "grid": {"objective.tau": [0.5]}}]
    with pytest.raises(RunError) as error:
        compare(plan_of(tmp_path, runs=runs, seeds=[1]))
    assert message in str(error.value)


# Folders


def test_finished_runs_are_not_trained_again_and_others_are_refused(tmp_path: Path, trainer: Trainer) -> None:
    every = ["SSFL, seed 1", "SSFL, seed 2", "FedPerl [static], seed 1", "FedPerl [static], seed 2"]
    trainer.results = {
        name: made_up(numbers([0.5, 0.6])) for name in [*every, "SSFL, seed 3", "FedPerl [static], seed 3"]
    }
    plan = plan_of(tmp_path)
    first = compare(plan)
    assert trainer.trained == every
    assert sum(rounds_done(job) for job in plan.jobs) == 8
    assert compare(plan) == first
    assert trainer.trained == every
    compare(plan_suite(tmp_path / "suite.toml", tmp_path / "out", seeds=3))
    assert trainer.trained[4:] == ["SSFL, seed 3", "FedPerl [static], seed 3"]
    other = plan_suite(tmp_path / "suite.toml", tmp_path / "out", seeds=4, overrides=["federation.rounds=5"])
    with pytest.raises(RunError, match=r"out/ssfl/seed-1: its run was started with other settings: federation"):
        compare(other)
    assert len(trainer.trained) == 6
    with lock(tmp_path / "out" / "_lock"), pytest.raises(FedPerlError, match="another process is working here"):
        compare(plan)
    with pytest.raises(RunError, match="holds a single run"):
        compare(plan_suite(tmp_path / "suite.toml", tmp_path / "out" / "ssfl" / "seed-1"))


def test_rounds_of_clients_that_train_alone(tmp_path: Path) -> None:
    runs = [SSFL, {"name": "alone", "method": "local_lower", "settings": {"federation": {"rounds": 10}}}]
    ssfl, alone = plan_of(tmp_path, runs=runs, seeds=[1]).jobs
    for job, name, lines in ((ssfl, ".", 1), (alone, "clients/0", 5), (alone, "clients/4", 4)):
        (job.out / name).mkdir(parents=True)
        (job.out / name / "metrics.jsonl").write_text("{}\n" * lines)
    for clients, done in ((3, 3), (10, 2)):  # a cohort has three, or four
        (alone.out / "config.toml").write_text(dump(alone.config.counted(clients)))
        assert (rounds_done(ssfl), rounds_done(alone)) == (1, done)


# The whole, in processes of its own; what needs none to be killed is called here, as torch takes seconds to import


@pytest.fixture(name="call")
def _call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["fedperl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        found = capsys.readouterr()
        assert stopped.value.code in (0, 2)
        return found.err if stopped.value.code else found.out

    return call


@pytest.mark.slow
def test_a_suite_is_stopped_killed_and_goes_on(tmp_path: Path, call: Callable[..., str]) -> None:
    """Ctrl-C, then kill -9, then to the end; images drawn once give the model that a run by itself gives."""
    longer = SMALL | {"federation": {"rounds": 30, "steps": 1}}
    runs = [SSFL, {"name": "Lower", "method": "lower"}]
    path, out = suite(tmp_path, runs=runs, seeds=[1], settings=longer), tmp_path / "out"
    arguments = ["compare", str(path), "--out", str(out)]

    def start() -> "subprocess.Popen[str]":
        command = [*FEDPERL, *arguments, "--workers", "1"]
        return subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    process = start()
    wait_for_round(out / "ssfl" / "seed-1", 2, process)
    process.send_signal(signal.SIGINT)
    assert "the same command goes on" in process.communicate(timeout=300)[1]
    assert process.returncode == 130
    done = len((out / "ssfl" / "seed-1" / "metrics.jsonl").read_text().splitlines())
    assert done < 30
    process = start()
    wait_for_round(out / "ssfl" / "seed-1", done + 2, process)
    os.kill(process.pid, signal.SIGKILL)  # its worker notices and stops by itself
    process.communicate()
    table = call(*arguments)
    for part in ("2 runs, ", "Lower", "difference", "60/60 rounds", "small: weighted F1 on test images"):
        assert part in table
    assert json.loads(call(*arguments, "--json")) == json.loads((out / "comparison.json").read_text())
    assert call(*arguments, "--markdown") == (out / "comparison.md").read_text()
    assert call(*arguments, "--quiet") == ""
    job = plan_suite(path, tmp_path / "alone").jobs[0]
    train(job.config, job.out)
    ours, alone = (folder / "models" / "last.safetensors" for folder in (out / "ssfl" / "seed-1", job.out))
    assert ours.read_bytes() == alone.read_bytes()


def test_a_run_that_fails_is_named_and_the_finished_ones_stay(tmp_path: Path, call: Callable[..., str]) -> None:
    runs = [SSFL, {"name": "Broken", "method": "lower", "settings": {"federation": {"exclude": [77]}}}]
    path, out = suite(tmp_path, runs=runs, seeds=[1]), tmp_path / "out"
    error = call("compare", path, "--out", out, "--workers", "1", "--quiet")
    assert error.startswith("fedperl: Broken, seed 1: federation.exclude names client 77")
    assert error.count("\n") == 1
    assert (out / "ssfl" / "seed-1" / "results.json").exists()
    assert not (out / "comparison.json").exists()


def test_a_point_that_fails_is_left_out_of_the_choice_and_a_run_that_fails_is_named(
    tmp_path: Path, trainer: Trainer
) -> None:
    runs = [
        {"name": "SSFL", "method": "ssfl"},
        {"name": "tuned", "method": "ssfl", "grid": {"optimizer.lr": [1e-3, 1e6]}},
    ]
    plan = plan_of(tmp_path, baseline="SSFL", runs=runs, seeds=[1])
    for job in plan.jobs:
        trainer.results[job.name] = made_up(numbers([0.5, 0.6]))
    trainer.failing = {plan.jobs[2].name}
    found = compare(plan)
    assert found["runs"][1]["grid"]["chosen"] == {"optimizer.lr": 1e-3}
    assert "optimizer.lr = 1000000.0 failed and was not chosen from" in shown(found)
    trainer.failing = {plan.jobs[0].name}
    (plan.jobs[0].out / "results.json").unlink()
    with pytest.raises(RunError, match="SSFL, seed 1: it diverged"):
        compare(plan)


def test_other_images_give_no_difference(tmp_path: Path, trainer: Trainer) -> None:
    runs = [
        {"name": "SSFL", "method": "ssfl"},
        {"name": "dealt anew", "method": "ssfl", "settings": {"data": {"seed": 5}}},
    ]
    plan = plan_of(tmp_path, baseline="SSFL", runs=runs, seeds=[1, 2])
    for job in plan.jobs:
        trainer.results[job.name] = made_up(numbers([0.5, 0.6])) | {"partition": job.name.partition(",")[0]}
    found = compare(plan)
    assert found["runs"][1]["difference"] is None
    assert "dealt anew: no difference, since it and the baseline were tested on other clients or images" in shown(found)


@pytest.mark.parametrize("key", ["seed", "data.seed", "federation.exclude", "scenario.labels", "partition.kind"])
def test_a_grid_may_not_choose_what_is_compared(tmp_path: Path, key: str) -> None:
    runs = [{"name": "SSFL", "method": "ssfl", "grid": {key: [1, 2]}}]
    with pytest.raises(ConfigError, match=f"grid: {key} decides what is compared"):
        plan_of(tmp_path, baseline="SSFL", runs=runs)


def test_a_changed_objective_is_not_mixed_in(tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("first = 1\n")
    settings = {"objective": {"kind": "own.py:Own"}}
    runs = [{"name": "own", "method": "ssfl", "settings": settings}]
    plan = plan_of(tmp_path, baseline="own", runs=runs, seeds=[1])
    trainer.results[plan.jobs[0].name] = made_up(numbers([0.5])) | {"objective_file": digest_of("own.py:Own")}
    compare(plan)
    compare(plan)
    Path("own.py").write_text("second = 2\n")
    with pytest.raises(RunError, match=r"was trained with another content of own\.py"):
        compare(plan)
    assert len(trainer.trained) == 1


def test_threads_of_a_run_that_is_there_are_kept(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {key: value for key, value in SMALL.items() if key != "threads"} | {"data": {"source": "elsewhere"}}
    runs = [{"name": "SSFL", "method": "ssfl"}]
    monkeypatch.setattr("fedperl.suite.cores", lambda: 3)
    plan = plan_of(tmp_path, baseline="SSFL", runs=runs, seeds=[1], settings=settings)
    trainer.results[plan.jobs[0].name] = made_up(numbers([0.5]))
    compare(plan)
    monkeypatch.setattr("fedperl.suite.cores", lambda: 1)
    again = plan_of(tmp_path, baseline="SSFL", runs=runs, seeds=[1, 2], settings=settings)
    assert [job.config.threads for job in again.jobs] == [3, 1]


# GPUs


def test_each_run_sees_one_gpu_that_no_other_has(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from fedperl.learn.objectives.supervised import Supervised\n"
        f"SEEN = Path({str(tmp_path)!r})\n"
        "class Own(Supervised):\n"
        "    def begin(self, net):\n"
        "        card = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "        busy = SEEN / f'{card}.busy'\n"
        "        if not busy.exists(): (SEEN / f'{card}.seen').open('a').write('.')\n"
        "        elif busy.read_text() != str(os.getpid()): (SEEN / 'clash').touch()\n"
        "        busy.write_text(str(os.getpid())); time.sleep(0.1); busy.unlink()\n"
    )
    base = load_config(
        None, [f"{k}={v}" for k, v in flat(SMALL).items()] + ["method=lower", f"objective.kind={own}:Own"]
    )
    jobs = [Job(f"run{k}", base.model_copy(update={"seed": k}), tmp_path / f"run{k}") for k in range(3)]
    assert run_jobs(jobs, workers=9, tick=lambda running: None, gpus=["0", "GPU-3"]) == {}
    assert sorted(path.stem for path in tmp_path.glob("*.seen")) == ["0", "GPU-3"]
    assert not (tmp_path / "clash").exists()


@pytest.mark.parametrize("wanted", ["all", "0,1", "one", "-1"])
def test_gpus_that_are_not_there(wanted: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=f"--gpus {wanted}: (this machine has 0 usable|wanted all, or numbers)"):
        gpu_names(wanted)


def test_gpus_are_counted_among_those_that_a_scheduler_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7a,5")
    assert gpu_names("all") == ["4", "GPU-7a", "5"]
    assert gpu_names("2,0") == ["5", "4"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_names("2,0") == ["2", "0"]
    with pytest.raises(ConfigError, match="--gpus 3: this machine has 3 usable"):
        gpu_names("3")
    with pytest.raises(ConfigError, match="--gpus 1,1: wanted each GPU once"):
        gpu_names("1,1")


def test_gpus_leave_no_other_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device = 'cpu' with --gpus, which gives each run its own"):
        compare(plan_suite(str(suite(tmp_path)), tmp_path / "out", seeds=1, overrides=[]), gpus=["0"])
