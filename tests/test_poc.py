"""The proof of concept's runs and its page: the committed page is what the committed results give."""

import importlib
import json
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from fedperl.config import config_hash
from fedperl.data.manifest import Manifest
from fedperl.data.partition import Partition
from fedperl.data.store import Store
from fedperl.errors import ConfigError, DataError
from fedperl.parallel import Job
from fedperl.settings import Config
from fedperl.training import train
from tests.conftest import small_config, small_store

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(name="poc")
def _poc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The runner, with lines and stores of its own."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("side_by_side", "poc", "poc_cells", "poc_findings", "poc_page"):
        sys.modules.pop(name, None)
    module = importlib.import_module("poc")
    monkeypatch.setattr(module, "LINES", tmp_path / "lines")
    monkeypatch.chdir(tmp_path)
    return module


@pytest.fixture(name="page")
def _page(poc: ModuleType) -> ModuleType:
    return importlib.import_module("poc_page")


@pytest.fixture(name="cells")
def _cells(poc: ModuleType) -> ModuleType:
    return importlib.import_module("poc_cells")


@pytest.fixture(name="findings")
def _findings(poc: ModuleType) -> ModuleType:
    return importlib.import_module("poc_findings")


def test_the_page_is_what_the_results_give() -> None:
    command = [sys.executable, str(BENCH / "poc_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def line(run: str, accuracy: float, local: float | None = None, **more: Any) -> dict[str, Any]:
    results = {"test": {"last": {"server": {"accuracy": accuracy}}}, "seconds_this_start": 60.0}
    if local is not None:
        results["local"] = {"accuracy": local}
    return {"run": run, "results": results, "date": "2026-01-01", "device": "GPU", "side_by_side": 2, **more}


def test_cells_are_means_over_seeds_and_differences_are_paired(cells: ModuleType) -> None:
    a, b = (0.50, 0.53, 0.55), (0.49, 0.50, 0.51)
    found = {}
    for row, values in (("FedPerl raw", a), ("FedAvg-FixMatch", b)):
        for seed, value in enumerate(values, start=1):
            found[f"cifar10_iid: {row}, seed {seed}"] = line("", value)
    one, other = (cells.cell(found, "cifar10_iid", row) for row in ("FedPerl raw", "FedAvg-FixMatch"))
    assert str(one) == f"{100 * np.mean(a):.2f} ± {100 * np.std(a, ddof=1):.2f}"
    apart = 100 * (np.array(a) - np.array(b))
    half = 4.302653 * apart.std(ddof=1) / 3**0.5
    assert str(cells.difference(one, other)) == f"{apart.mean():+.2f} ± {half:.2f}{'*' if apart.mean() > half else ''}"
    del found["cifar10_iid: FedPerl raw, seed 3"], found["cifar10_iid: FedPerl raw, seed 2"]
    assert str(cells.cell(found, "cifar10_iid", "FedPerl raw")) == "50.00 (1 seed)"
    assert str(cells.difference(cells.cell(found, "cifar10_iid", "FedPerl raw"), other)) == "+1.00"
    assert str(cells.difference(cells.cell({}, "cifar10_iid", "FedPerl raw"), other)) == "·"


def test_where_images_stream_in_the_clients_own_models_count(cells: ModuleType) -> None:
    found = {"fmnist_noniid: FedPerl, seed 1": line("", 0.82, 0.76)}
    assert str(cells.cell(found, "fmnist_noniid", "FedPerl")) == "76.00 (1 seed)"
    assert str(cells.cell(found, "fmnist_noniid", "FedPerl", of_global=True)) == "82.00 (1 seed)"


def test_a_cell_far_from_the_papers_wants_a_sentence(findings: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    near = {"cifar10_iid: FedMatch, seed 1": line("", 0.5312 - 0.0299)}
    assert findings.reasons(near, {}) == []
    far = {"cifar10_iid: FedMatch, seed 1": line("", 0.5312 - 0.0301)}
    assert [text.endswith("FedMatch, CIFAR-10 IID (-3.01).") for text in findings.reasons(far, {})] == [True]
    (text,) = findings.reasons(far, {"cifar10_iid: FedMatch, seed 1": line("", 0.5)})
    assert text.endswith("FedMatch, CIFAR-10 IID (-3.01; -3.12).")
    monkeypatch.setattr(findings, "WHY", ())
    with pytest.raises(ConfigError, match="cifar10_iid: FedMatch: -3.0 points off the paper's, and WHY does not"):
        findings.reasons(far, {})


def test_lines_of_other_settings_are_refused(
    poc: ModuleType, page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "cifar10_iid: FedPerl, seed 1"
    config = poc.jobs("published", Path(), "cuda", [1], ["cifar10_iid"], ["FedPerl"])[name].config

    def trained(run: str, with_config: Config, **more: Any) -> None:
        one = line(run, 0.5, **more)
        one["results"]["config"] = config_hash(with_config)
        poc.LINES.mkdir(exist_ok=True)
        (poc.LINES / "published.jsonl").write_text(json.dumps(one) + "\n")

    trained(name, config.model_copy(update={"name": "another"}))
    page.check_settings()
    trained(name, config.model_copy(update={"seed": 2}))
    with pytest.raises(ConfigError, match="FedPerl, seed 1: was trained with other settings"):
        page.check_settings()
    trained(name, config.model_copy(update={"seed": 2}), config=config_hash(config))
    page.check_settings()
    trained("cifar10_iid: FedPrl, seed 1", config)
    with pytest.raises(ConfigError, match="no such run is planned"):
        page.check_settings()
    # A default that is another now.
    trained(name, config)
    monkeypatch.setitem(poc.SETS, "published", replace(poc.SETS["published"], settings=("peers.warmup=11",)))
    with pytest.raises(ConfigError, match="FedPerl, seed 1: was trained with other settings"):
        page.check_settings()


def test_the_best_of_the_grid_is_that_on_validation_images(poc: ModuleType) -> None:
    grid, runs = poc.SETS["steady"].grid, list(poc.jobs("steady", Path(), "cuda", [], [], []))
    poc.LINES.mkdir()
    with pytest.raises(ConfigError, match="not trained; wanted all of set 'steady' first"):
        poc.jobs("trained", Path(), "cuda", [], [], [])
    # The last point is best over seeds, the first with one of them; its tests are worst.
    values = dict.fromkeys(runs, 0.5)
    for point, value in ((grid[-1], 0.6), (grid[0], 0.4)):
        values |= {run: value for run in runs if ", ".join(point) in run}
    values[next(run for run in runs if ", ".join(grid[0]) in run)] = 0.7
    lines = [line(run, 1 - value, validation=[0.9, value]) for run, value in values.items()]
    (poc.LINES / "steady.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert poc.best_point("steady") == grid[-1]
    # What diverged with one seed is not chosen, and not trained again.
    best = [one for one in lines if ", ".join(grid[-1]) in one["run"]]
    lines = [one for one in lines if one not in best[:1]] + [{"run": best[0]["run"], "failed": "round 9: nothing"}]
    (poc.LINES / "steady.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert poc.best_point("steady") != grid[-1]
    assert poc.validation("steady")[grid[-1]] == {1: None, 2: 0.6, 3: 0.6}
    assert best[0]["run"] not in poc.read("steady")
    (poc.LINES / "steady.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*lines[:-1], *best]))
    planned = poc.jobs("trained", Path(), "cuda", [], [], [])
    assert len(planned) == 15
    assert {(job.config.optimizer.kind, job.config.federation.steps) for job in planned.values()} == {("adam", 20)}


def ten_classes(folder: Path) -> None:
    """A store with a few images of each of ten classes."""
    generator, n = np.random.default_rng(0), 400
    labels, names = np.arange(n) % 10, np.array([f"image_{i}" for i in range(n)])
    manifest = Manifest(tuple("abcdefghij"), names, labels.astype(np.int64), names, np.array(["test"] * n))
    pixels = generator.integers(0, 256, size=(n, 3, 32, 32), dtype=np.uint8)
    Store(pixels, manifest, Partition(()), {"source": "test"}).save(folder)


@pytest.mark.slow
def test_each_finished_run_is_a_line_and_is_not_trained_again(
    poc: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ten_classes(tmp_path / "stores" / "cifar32")
    shutil.copytree(tmp_path / "stores" / "cifar32", tmp_path / "stores" / "fmnist32")
    shape = ("federation.cohort=3", "federation.rounds=10", "federation.batch=2", "federation.unlabelled_batch=2")
    small = ("partition.clients=4", "partition.labels_per_class=1", *shape, "federation.steps=1")
    tasks = ("cifar10_iid", "fmnist_noniid")
    monkeypatch.setitem(poc.SETS, "small", poc.Set("small", small, ("FedAvg-FixMatch",), tasks, (1,)))
    asked = Namespace(sets=["small"], workers=2, device="cpu", seeds=[], tasks=[], rows=[], out=tmp_path / "runs")
    asked.minutes = None
    poc.train(asked)
    lines = poc.read("small")
    assert sorted(lines) == [f"{task}: FedAvg-FixMatch, seed 1" for task in tasks]
    for name, one in lines.items():
        assert len(one["validation"]) == len(one["accepted"]) == 1
        assert one["norm"] == pytest.approx(1.2 * 2250**0.5, rel=0.01)  # 2,250 outputs of variance 1 / fan-in each
        assert bool(one["results"]["local"]) == name.startswith("fmnist")
        assert one["settings"]["federation"]["rounds"] == 10
    assert not list((tmp_path / "runs" / "poc" / "small").iterdir())
    capsys.readouterr()
    poc.train(asked)
    assert "0 of 2 runs to train" in capsys.readouterr().out
    assert len((poc.LINES / "small.jsonl").read_text().splitlines()) == 2


def test_a_run_that_diverged_has_a_line_that_says_so(
    poc: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_store().save(tmp_path / "store")
    config = small_config(optimizer={"lr": 1e30}, federation={"rounds": 40})
    given = [(tmp_path / "lines.jsonl", "run", Job("run", config, tmp_path / "run", tmp_path / "store"))]
    with pytest.raises(SystemExit):
        poc.side_by_side.train(given, lambda _: {}, str, workers=1, device="cpu")
    one = poc.side_by_side.read(tmp_path / "lines.jsonl")["run"]
    assert poc.side_by_side.DIVERGED in one["failed"]
    assert "results" not in one
    poc.side_by_side.check_lines("set", {"run": one}, {"run": given[0][2]})
    assert poc.side_by_side.DIVERGED in capsys.readouterr().err


def test_a_run_that_crashed_has_no_line(poc: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_store().save(tmp_path / "store")
    own = tmp_path / "own.py"
    own.write_text(
        "from fedperl.learn.objectives.supervised import Supervised\n"
        "class Own(Supervised):\n"
        "    def begin(self, net):\n"
        "        raise RuntimeError('a fault of ours')\n"
    )
    config = small_config(method="lower", objective={"kind": f"{own}:Own"})
    given = [(tmp_path / "lines.jsonl", "run", Job("run", config, tmp_path / "run", tmp_path / "store"))]
    with pytest.raises(SystemExit):
        poc.side_by_side.train(given, lambda _: {}, str, workers=1, device="cpu")
    assert "it failed with RuntimeError" in capsys.readouterr().err
    assert not (tmp_path / "lines.jsonl").exists()


@pytest.mark.slow
def test_no_run_is_started_when_time_is_up(poc: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still until the first run ends."""
    small_store().save(tmp_path / "store")
    config = small_config(federation={"rounds": 1})
    given = [(tmp_path / "lines.jsonl", name, Job(name, config, tmp_path / name, tmp_path / "store")) for name in "abc"]
    ended = [tmp_path / "a" / "results.json", tmp_path / "lines.jsonl"]
    clock = lambda: 100.0 if any(path.exists() for path in ended) else 0.0  # noqa: E731
    monkeypatch.setattr(poc.side_by_side.time, "perf_counter", clock)
    poc.side_by_side.train(given, lambda _: {}, lambda _: "", workers=1, device="cpu", minutes=1)
    assert list(poc.side_by_side.read(tmp_path / "lines.jsonl")) == ["a"]
    poc.side_by_side.train(given[1:], lambda _: {}, str, workers=2, device="cpu", minutes=0)
    assert list(poc.side_by_side.read(tmp_path / "lines.jsonl")) == ["a"]


def test_weights_that_are_no_numbers_have_no_size(poc: ModuleType, tmp_path: Path) -> None:
    train(small_config(), tmp_path / "run", store=small_store())
    assert poc.noted(tmp_path / "run")["norm"] > 0
    last = tmp_path / "run" / "models" / "last.safetensors"
    save_file({name: value * float("inf") for name, value in load_file(last).items()}, last)
    assert poc.noted(tmp_path / "run")["norm"] is None


@pytest.mark.slow
def test_a_run_whose_line_cannot_be_made_fails_alone(
    poc: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side_by_side = poc.side_by_side
    small_store().save(tmp_path / "store")
    jobs = {name: Job(name, small_config(), tmp_path / name, tmp_path / "store") for name in ("good", "bad")}
    given = [(tmp_path / "lines.jsonl", name, job) for name, job in jobs.items()]

    def make(folder: Path) -> dict[str, Any]:
        if folder.name == "bad":
            raise DataError("nothing of it is unseen")
        return {"more": 1}

    with pytest.raises(SystemExit):
        side_by_side.train(given, make, lambda one: str(one["more"]), workers=2, device="cpu")
    assert list(side_by_side.read(tmp_path / "lines.jsonl")) == ["good"]
    assert "bad: nothing of it is unseen" in capsys.readouterr().err
    assert (tmp_path / "bad" / "results.json").exists()


def test_a_torn_line_is_left_out_and_replaced(poc: ModuleType) -> None:
    poc.LINES.mkdir()
    path = poc.LINES / "published.jsonl"
    path.write_text(json.dumps(line("whole", 0.5)) + "\n" + json.dumps(line("torn", 0.5))[:40])
    assert list(poc.read("published")) == ["whole"]
    poc.side_by_side.append(path, line("next", 0.6))
    assert list(poc.read("published")) == ["whole", "next"]
    assert path.read_text().endswith("}\n")


def test_a_device_that_is_not_there_is_refused(poc: ModuleType) -> None:
    asked = Namespace(sets=["again"], workers=1, device="cuda:99", seeds=[], tasks=[], rows=[], out=Path("runs"))
    with pytest.raises(SystemExit, match="device = 'cuda:99': this machine has"):
        poc.train(asked)


def test_what_is_not_of_a_set_is_refused(poc: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="4: not of set 'published', which has 1, 2, 3"):
        poc.jobs("published", Path(), "cpu", [4], [], [])
    with pytest.raises(ConfigError, match="FedMatch: not of set 'again', which has FedPerl"):
        poc.jobs("again", Path(), "cpu", [], [], ["FedMatch"])
    every, some = (poc.jobs("published", Path(), "cpu", [], [], rows) for rows in ([], ["FedMatch"]))
    assert all(some[run].out == every[run].out for run in some)
    assert len({job.out for job in every.values()}) == len(every)


def test_chance_is_that_of_three_seeds(cells: ModuleType) -> None:
    generator = np.random.default_rng(5)
    drawn = generator.normal(size=(100_000, 3))
    t_of = np.abs(drawn.mean(1)) / (drawn.std(1, ddof=1) / 3**0.5)
    for values in ((1.0, 2.0, 1.5), (0.1, -0.2, 0.4), (1.0, 1.01, 1.02)):
        found = cells.Difference(values)
        t = abs(np.mean(values)) / (np.std(values, ddof=1) / 3**0.5)
        assert found.p == pytest.approx((t_of >= t).mean(), abs=0.005)
        assert found.excludes_zero == (found.p < 0.05)
    assert cells.Difference((1.0, 1.0, 1.0)).p == 0.0


def test_a_sentence_that_the_numbers_do_not_bear_is_refused(
    poc: ModuleType, findings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poc, "LINES", BENCH.parent / "docs" / "results" / "poc")
    sets = {name: poc.read(name) for name in poc.SETS}
    assert any("Does semi-supervision help?" in text for text in findings.findings(sets))
    assert any("Does semi-supervision help?" in text for text in findings.trained_findings(sets))
    for group, row, more, refused in (
        ("published", "FedAvg-FixMatch", 0.02, "semi-supervision and peers: not seen"),
        ("published", "FedPerl", 0.02, "anonymization costs FedPerl nothing"),
        ("published", "FedMatch PA", 0.02, "anonymization costs FedMatch perhaps a point"),
        ("published", "FedMatch", 0.02, "own models are as good as the global one"),
        ("published", "FedProx-UDA", 0.01, "UDA on Fashion-MNIST stays within half a point"),
        ("all_labels_count", "FedAvg-UDA", -0.02, "UDA without annealing gains about two points"),
        ("unscaled", "FedAvg, labelled images", 0.04, "from 1 to 1.2 times plain weights gain"),
        ("unscaled", "FedMatch", -0.08, "weights of one length do differently"),
        ("all_labels_count", "FedProx-UDA", 0.005, "FedProx-UDA without annealing is still more than 3 off"),
        ("published", "FedProx-SL", -0.06, "SL's global model is above the paper's value"),
        ("heavy", "FedAvg-SL", -0.1, "SL's other readings"),
        ("more_seeds", "FedMatch", -0.03, "with nine seeds sigma . psi gains"),
        ("trained", "FedAvg, labelled images", 0.04, "labelled images alone exceed 60 % on validation images"),
        ("trained", "FedAvg-FixMatch", -0.04, "FixMatch seems to help"),
        ("trained_every_label", "FedAvg-SL", -0.12, "more steps with every label gain more"),
        ("trained", "FedPerl raw", 0.03, "peers: not seen"),
        ("trained", "FedPerl", 0.02, "anonymization costs nothing"),
        ("trained_fedmatch", "FedMatch", 0.04, "FedMatch falls behind"),
    ):
        lines = dict(sets[group])
        for name in (name for name in lines if f": {row}, seed" in name):
            lines[name] = json.loads(json.dumps(lines[name]))
            results = lines[name]["results"]
            of_global = None if "global model is" in refused else results.get("local")
            (of_global or results["test"]["last"]["server"])["accuracy"] += more
        changed = {**sets, group: lines}
        say = findings.trained_findings if group.startswith("trained") else findings.findings
        with pytest.raises(ConfigError, match=f"the page says .{refused}.*the numbers do not any more"):
            say(changed)
    larger = {run: line | {"norm": 2 * line["norm"]} for run, line in sets["more_seeds"].items() if "FedMatch" in run}
    with pytest.raises(ConfigError, match="the page says 'psi is drawn to sigma'"):
        findings.findings({**sets, "more_seeds": sets["more_seeds"] | larger})
    there = [text for text in findings.findings(sets) if "FedMatch's released code?" in text]
    assert len(there) == 1
    assert there[0] not in findings.findings({**sets, "released": {}})
    assert findings.findings({**sets, "control": {}})[0].startswith("Not all runs of the first table")


def test_sets_that_are_not_trained_are_named(poc: ModuleType, page: ModuleType) -> None:
    later = {"trained": 15, "trained_every_label": 3, "trained_fedmatch": 3}
    planned = {name: later.get(name) or len(poc.jobs(name, Path(), "cpu", [], [], [])) for name in poc.SETS}
    del planned["published"]
    assert [text.split("`")[1] for text in page.unfinished()] == list(planned)
    for text, count in zip(page.unfinished(), planned.values(), strict=True):
        assert text.endswith(f": {count} runs of {count}")
    for seed in (1, 2, 3):
        poc.side_by_side.append(poc.LINES / "again.jsonl", line(f"cifar10_iid: FedPerl, seed {seed}", 0.5))
    assert not any("`again`" in text for text in page.unfinished())
