"""TensorBoard and MLflow: what was written is read back; a resumed run writes no round twice."""

import json
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedperl import train
from fedperl.cli import main
from fedperl.config import dump
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.federation.rounds import Progress
from fedperl.federation.run_folder import RunFolder
from fedperl.settings import Config
from fedperl.trackers import Tracker, final_values, round_values
from tests.conftest import small_config

WHY = "an extra, not part of dev: pip install '.[{}]'"


class Stop(Exception):
    pass


def stop(progress: Progress) -> None:
    if progress.round == 2:
        raise Stop


def tracked(kind: str, config: Config, folder: Path, store: Store) -> dict[str, Any]:
    """Train with a tracker, stop after the second round, and resume twice."""
    with pytest.raises(Stop), Tracker(kind, folder) as tracker:
        train(config, folder, store=store, watchers=[tracker, stop])
    for _ in range(2):  # the second finds a finished run
        with Tracker(kind, folder) as tracker:
            results = train(config, folder, store=store, resume=True, watchers=[tracker])
            tracker.finish(results)
    return results


def wanted(folder: Path, results: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return what has to be there: series -> round -> value."""
    found: dict[str, dict[int, float]] = {}
    for line in RunFolder(folder).read_metrics():
        for name, value in round_values(line).items():
            found.setdefault(name, {})[line["round"]] = value
    for name, value in final_values(results).items():
        found[name] = {results["rounds"]: value}
    return found


def test_names_and_values_of_a_round_and_of_the_end(tmp_path: Path, store: Store) -> None:
    results = train(small_config(), tmp_path, store=store)
    lines = RunFolder(tmp_path).read_metrics()
    for line in lines:
        found = round_values(line)
        accuracies = [numbers["accuracy"] for numbers in line["validation"].values()]
        assert found["validation/accuracy"] == pytest.approx(sum(accuracies) / 5)
        assert found["validation/accuracy/client_3"] == line["validation"]["3"]["accuracy"]
        losses = [numbers["loss"] for numbers in line["numbers"].values()]
        assert found["training/loss"] == pytest.approx(sum(losses) / 3)
        assert {f"training/loss/client_{k}" for k in line["cohort"]} <= set(found)
        assert found["cohort/size"] == found["cohort/accepted"] == 3.0
        assert found["cohort/with_peer"] == sum(bool(c) for c in line["committees"].values())
        assert found["seconds/training"] == line["seconds"]["training"]
        assert all(isinstance(value, float) for value in found.values())
    final = final_values(results)
    assert final["test/last/weighted_f1"] == results["over_clients"]["last"]["weighted_f1"]["mean"]
    assert final["test/global_best/ece/client_2"] == results["test"]["global_best"]["2"]["ece"]


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_missing_package_is_an_error_that_names_the_extra_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    (tmp_path / "tiny.toml").write_text(dump(small_config()))
    arguments = ["fedperl", "train", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run"), "--tracker", kind]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith(f"fedperl: --tracker {kind}: not installed")
    assert f"pip install '.[{kind}]'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tracker 'wandb'; wanted tensorboard or mlflow"):
        Tracker("wandb", tmp_path)


class Written:
    """Stands for TensorBoard where it is not installed: a file of lines, one a number."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        self.file = (Path(folder) / f"events.out.tfevents.{len(list(Path(folder).iterdir()))}").open("a")

    def add_text(self, *_: object) -> None: ...

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.file.write(json.dumps([name, step, value]) + "\n")

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize("late", [False, True])
def test_every_round_is_written_once_also_those_before_the_tracker_came(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr("fedperl.trackers._tensorboard", lambda: SimpleNamespace(SummaryWriter=Written))
    if late:
        with pytest.raises(Stop):
            train(small_config(), tmp_path, store=store, watchers=[stop])
        with Tracker("tensorboard", tmp_path) as tracker:
            results = train(small_config(), tmp_path, store=store, resume=True, watchers=[tracker])
            tracker.finish(results)
    else:
        results = tracked("tensorboard", small_config(), tmp_path, store)
    (file,) = (tmp_path / "tracking" / "tensorboard").iterdir()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    expected = [
        [name, step, value] for name, steps in wanted(tmp_path, results).items() for step, value in steps.items()
    ]
    assert sorted(found) == sorted(expected)
    assert [step for name, step, _ in found if name == "validation/accuracy"] == [1, 2, 3, 4]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-not-found,unused-ignore]
        EventAccumulator,
    )

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_holds_every_round_once(tmp_path: Path, store: Store) -> None:
    pytest.importorskip("tensorboard", reason=WHY.format("tensorboard"))
    results = tracked("tensorboard", small_config(), tmp_path / "run", store)
    found = events(tmp_path / "run" / "tracking" / "tensorboard")
    expected = wanted(tmp_path / "run", results)
    assert set(found) == set(expected)
    for tag, values in found.items():
        assert [step for step, _ in values] == sorted(expected[tag])
        assert [value for _, value in values] == pytest.approx([expected[tag][step] for step, _ in values], rel=1e-6)


def test_tensorboard_of_clients_alone(tmp_path: Path, store: Store) -> None:
    pytest.importorskip("tensorboard", reason=WHY.format("tensorboard"))
    tracked("tensorboard", small_config(method="local_lower"), tmp_path / "run", store)
    found = events(tmp_path / "run" / "tracking" / "tensorboard")
    for client in range(5):
        lines = RunFolder(tmp_path / "run" / "clients" / str(client)).read_metrics()
        accuracy = {line["round"]: line["validation"][str(client)]["accuracy"] for line in lines}
        values = found[f"validation/accuracy/client_{client}"]
        assert len(values) == len(lines) == 3
        assert dict(values) == pytest.approx(accuracy)
    assert "validation/accuracy" not in found
    assert "test/per_client_best/weighted_f1" in found


def test_mlflow_holds_every_round_once_in_a_file_of_the_run(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason=WHY.format("mlflow"))
    pytest.importorskip("sqlalchemy", reason=WHY.format("mlflow"))
    from mlflow.tracking import MlflowClient  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.chdir(tmp_path)
    results = tracked("mlflow", small_config(name="mine"), tmp_path / "run", store)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}  # no mlruns beside it
    database = tmp_path / "run" / "tracking" / "mlflow.db"
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedperl").experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["peers.T"] == "2"
    expected = wanted(tmp_path / "run", results)
    assert {name for name in run.data.metrics if not name.startswith("written")} == set(expected)
    for name in expected:
        history = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert len(history) == len(expected[name])
        assert dict(history) == pytest.approx(expected[name])
    with sqlite3.connect(database) as connection:
        doubled = "SELECT count(*) FROM (SELECT 1 FROM metrics GROUP BY key, step HAVING count(*) > 1)"
        assert connection.execute(doubled).fetchone() == (0,)


def test_a_database_that_is_none_and_a_folder_with_odd_letters(tmp_path: Path, store: Store) -> None:
    pytest.importorskip("mlflow", reason=WHY.format("mlflow"))
    pytest.importorskip("sqlalchemy", reason=WHY.format("mlflow"))
    odd = tmp_path / "50%25 of 1"  # an address would make another folder of it
    results = train(small_config(federation={"rounds": 1}), odd, store=store)
    with Tracker("mlflow", odd) as tracker:
        tracker.finish(results)
    assert {path.name for path in tmp_path.iterdir()} == {odd.name}
    assert (odd / "tracking" / "mlflow.db").is_file()
    (odd / "tracking" / "mlflow.db").write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=r"mlflow\.db: cannot be used by MLflow: .*not a database$"):
        Tracker("mlflow", odd).finish(results)


def test_train_with_a_tracker_from_the_command_line(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason=WHY.format("tensorboard"))
    store.save(tmp_path / "store")
    (tmp_path / "tiny.toml").write_text(dump(small_config(data={"source": str(tmp_path / "store")})))
    run = tmp_path / "run"
    arguments = ["fedperl", "train", str(tmp_path / "tiny.toml"), "--out", str(run), "--tracker", "tensorboard"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    results = json.loads(capsys.readouterr().out)
    found = events(run / "tracking" / "tensorboard")
    assert [step for step, _ in found["validation/accuracy"]] == [1, 2, 3, 4]
    wanted_f1 = results["over_clients"]["last"]["weighted_f1"]["mean"]
    assert dict(found["test/last/weighted_f1"]) == pytest.approx({4: wanted_f1})
