"""Whole runs of seconds: repeated, interrupted, resumed, compared."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedperl import load_config, train
from fedperl.config import methods
from fedperl.data.store import Store
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.federation.rounds import Progress
from fedperl.federation.run_folder import RunFolder
from fedperl.settings import Config
from tests.conftest import small_config, small_store


def artefacts(folder: Path) -> dict[str, bytes]:
    """All that must not depend on interruptions: everything but timings."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}
    found["ledger"] = (folder / "state" / "ledger.jsonl").read_bytes()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = json.dumps([{k: v for k, v in line.items() if k != "seconds"} for line in lines]).encode()
    results = json.loads((folder / "results.json").read_text())
    found["results"] = json.dumps({k: v for k, v in results.items() if not k.startswith("seconds")}).encode()
    return found


class Stop(Exception):
    pass


def stop_at(round: int) -> Any:
    def watcher(progress: Progress) -> None:
        if progress.round == round:
            raise Stop

    return watcher


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_trains_repeats_and_resumes_bit_for_bit(tmp_path: Path, store: Store, method: str) -> None:
    config = small_config(method=method)
    results = train(config, tmp_path / "whole", store=store)
    with pytest.raises(Stop):
        train(config, tmp_path / "cut", store=store, watchers=[stop_at(2)])
    train(config, tmp_path / "cut", store=store, resume=True)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    assert results["totals"]["client_rounds"] == 12
    assert (results["totals"]["with_peer"] > 0) == (method == "fedperl")
    assert set(results["over_clients"]) == {"last", "global_best", "per_client_best"}
    names = {p.stem for p in (tmp_path / "whole" / "models").iterdir()}
    assert names == {"last", "global_best", *(f"client_{k}_best" for k in range(5))}


@pytest.mark.parametrize("preset", ["paper", "authors_code"])
def test_presets_train_and_resume(tmp_path: Path, store: Store, preset: str) -> None:
    config = small_config(preset=preset, privacy="research")
    train(config, tmp_path / "whole", store=store)
    with pytest.raises(Stop):
        train(config, tmp_path / "cut", store=store, watchers=[stop_at(3)])
    train(config, tmp_path / "cut", store=store, resume=True)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")


def test_client_state_is_kept_and_resumed(tmp_path: Path, store: Store) -> None:
    config = small_config(objective={"label_source": "ema", "tau": 0.34})
    train(config, tmp_path / "whole", store=store)
    with pytest.raises(Stop):
        train(config, tmp_path / "cut", store=store, watchers=[stop_at(2)])
    assert list((tmp_path / "cut" / "state" / "clients").iterdir())
    train(config, tmp_path / "cut", store=store, resume=True)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    current = small_config(objective={"label_source": "current", "tau": 0.34})
    train(current, tmp_path / "other", store=store)
    assert (
        artefacts(tmp_path / "other")["models/last.safetensors"]
        != artefacts(tmp_path / "whole")["models/last.safetensors"]
    )


def last_model(folder: Path) -> bytes:
    return (folder / "models" / "last.safetensors").read_bytes()


def test_no_peers_is_ssfl_exactly(tmp_path: Path, store: Store) -> None:
    train(small_config(method="ssfl"), tmp_path / "ssfl", store=store)
    train(small_config(method="fedperl", peers={"T": 0}), tmp_path / "t0", store=store)
    train(small_config(method="fedperl", peers={"warmup": 99}), tmp_path / "late", store=store)
    train(small_config(method="fedperl"), tmp_path / "fedperl", store=store)
    assert last_model(tmp_path / "t0") == last_model(tmp_path / "ssfl") == last_model(tmp_path / "late")
    assert last_model(tmp_path / "fedperl") != last_model(tmp_path / "ssfl")


def test_another_seed_is_another_run(tmp_path: Path, store: Store) -> None:
    for seed in (1, 2):
        train(small_config(seed=seed, federation={"rounds": 1}), tmp_path / str(seed), store=store)
    assert last_model(tmp_path / "1") != last_model(tmp_path / "2")


def test_it_learns(tmp_path: Path) -> None:
    config = small_config(method="upper", federation={"rounds": 12, "steps": 12}, optimizer={"lr": 3e-3})
    results = train(config, tmp_path, store=small_store(images=48))
    assert results["over_clients"]["last"]["accuracy"]["mean"] > 0.7  # chance 0.33


def test_reported_models_are_those_of_their_rounds(tmp_path: Path, store: Store) -> None:
    results = train(small_config(federation={"rounds": 6}), tmp_path, store=store)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    accuracy = {line["round"]: {c: n["accuracy"] for c, n in line["validation"].items()} for line in lines}
    for client, numbers in results["test"]["per_client_best"].items():
        best = max(accuracy[r][client] for r in accuracy)
        assert numbers["round"] == max(r for r in accuracy if accuracy[r][client] == best)
    means = {r: sum(values.values()) / len(values) for r, values in accuracy.items()}
    chosen = results["test"]["global_best"]["0"]["round"]
    assert means[chosen] == pytest.approx(max(means.values()))
    assert all(n["round"] == 6 for n in results["test"]["last"].values())
    from safetensors.torch import load_file

    from fedperl.federation.client import Workspace, client_of_store
    from fedperl.federation.messages import EvaluateTask, GlobalModel

    config = load_config(tmp_path / "config.toml")
    client = client_of_store(2, store, config, Workspace(config, 3))
    model = GlobalModel(0, load_file(tmp_path / "models" / "client_2_best.safetensors"))
    again = client.evaluate(EvaluateTask("", 0, 2, model, "test")).numbers
    assert again == {k: v for k, v in results["test"]["per_client_best"]["2"].items() if k != "round"}


def test_resolved_configuration_repeats_the_run(tmp_path: Path, store: Store) -> None:
    train(small_config(), tmp_path / "first", store=store)
    train(load_config(tmp_path / "first" / "config.toml"), tmp_path / "second", store=store)
    assert artefacts(tmp_path / "first") == artefacts(tmp_path / "second")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path, store: Store) -> None:
    config = small_config()
    train(config, tmp_path, store=store)
    before = artefacts(tmp_path)
    with pytest.raises(RunError, match="holds a run already; go on with --resume"):
        train(config, tmp_path, store=store)
    with pytest.raises(RunError, match="other settings in federation"):
        train(small_config(federation={"rounds": 9}), tmp_path, store=store, resume=True)
    assert train(config, tmp_path, store=store, resume=True)["rounds"] == 4
    assert artefacts(tmp_path) == before


def test_errors_before_anything_is_written(tmp_path: Path, store: Store) -> None:
    with pytest.raises(DataError, match="not a store"):
        train(small_config(data={"source": str(tmp_path / "none")}), tmp_path / "a")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no usable CUDA device"):
            train(small_config(device="cuda"), tmp_path / "b", store=store)
    with pytest.raises(RunError, match="holds no run"):
        RunFolder(tmp_path / "c").read_config()


def test_a_store_of_another_size_is_refused(tmp_path: Path, store: Store) -> None:
    store.save(tmp_path / "s")
    config: Config = small_config(data={"source": str(tmp_path / "s"), "size": 32})
    with pytest.raises(DataError, match="images of 16 px"):
        train(config, tmp_path / "run")
