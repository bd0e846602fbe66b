"""Local models: each client by itself, in folders of its own, put together as one run."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from fedperl.config import load_config
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.report.tables import runs_table
from fedperl.training import train
from tests.conftest import small_config, small_store


def test_a_client_alone_is_a_federation_of_one(tmp_path: Path, store: Store) -> None:
    """The same rounds, steps and seeds by hand: client 3 in a federation that excludes all others."""
    config = small_config(method="local_fixmatch", objective={"tau": 0.34})
    results = train(config, tmp_path / "all", store=store)
    rounds = -(-4 * 3 // 5)  # as many as a client has on average in the federation: 4 rounds x 3 of 5 clients
    by_hand = small_config(
        method="ssfl",
        privacy="research",
        objective={"tau": 0.34},
        optimizer={"carry": True},
        federation={"rounds": rounds, "cohort": 1, "quorum": 1, "exclude": [0, 1, 2, 4]},
    )
    one = train(by_hand, tmp_path / "one", store=store)
    for choice in ("last", "per_client_best"):
        assert results["test"][choice]["3"] == one["test"][choice]["3"]
    ours, theirs = (load_file(tmp_path / run / "models" / "client_3_best.safetensors") for run in ("all", "one"))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_results_are_shaped_like_any_runs_and_nothing_was_sent(tmp_path: Path, store: Store) -> None:
    results = train(small_config(method="local_lower"), tmp_path / "run", store=store)
    assert (
        set(results["test"])
        == set(results["over_clients"])
        == set(results["validation"])
        == {
            "last",
            "per_client_best",
        }
    )
    f1 = [results["test"]["per_client_best"][str(k)]["weighted_f1"] for k in range(5)]
    assert results["over_clients"]["per_client_best"]["weighted_f1"]["mean"] == pytest.approx(sum(f1) / 5)
    assert results["totals"]["bytes_down"] == results["totals"]["bytes_up"] == 0
    assert results["totals"]["client_rounds"] == 5 * 3
    assert results["method"] == "local_lower"
    assert {p.stem for p in (tmp_path / "run" / "models").glob("*.safetensors")} == {
        f"client_{k}_best" for k in range(5)
    }
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(runs_table({"local": results}))
    assert f"{results['over_clients']['per_client_best']['weighted_f1']['mean']:.3f}" in console.export_text()
    assert train(small_config(method="local_lower"), tmp_path / "run", store=store, resume=True) == results
    with pytest.raises(RunError, match="other settings: seed = 1, now 2"):
        train(small_config(method="local_lower", seed=2), tmp_path / "run", store=store, resume=True)


def test_as_many_steps_as_in_the_federation(tmp_path: Path) -> None:
    """A large client beside a small one: alone too, its rounds have the small one's steps."""
    store = small_store(clients=4)
    parts = list(store.partition.clients)
    parts[3] = dataclasses.replace(parts[3], unlabelled=parts[3].unlabelled[:2])
    store = dataclasses.replace(store, partition=dataclasses.replace(store.partition, clients=tuple(parts)))
    config = small_config(method="local_fixmatch", federation={"steps": "auto_min", "rounds": 2, "batch": 2})
    train(config, tmp_path, store=store)
    for client in range(4):
        assert load_config(tmp_path / "clients" / str(client) / "config.toml").federation.steps == 1


def test_rounds_alone_that_are_all_before_the_start_are_refused(tmp_path: Path, store: Store) -> None:
    config = small_config(method="local_fixmatch", objective={"start": 3})  # 4 rounds x cohorts of 3 / 5 clients: 3
    with pytest.raises(ConfigError, match=r"start = 3 leaves none of the 3 rounds"):
        train(config, tmp_path / "run", store=store)
    assert not (tmp_path / "run").exists()


def test_a_bad_plugin_leaves_no_folder_that_refuses_the_next_start(tmp_path: Path, store: Store) -> None:
    config = small_config(method="local_fixmatch", objective={"kind": "missing.py:Own", "tau": 0.9})
    with pytest.raises(ConfigError, match=r"missing\.py cannot be read"):
        train(config, tmp_path / "run", store=store)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_where_only_the_server_tests(tmp_path: Path, store: Store) -> None:
    parts = tuple(
        dataclasses.replace(part, validation=part.validation[:0], test=part.test[:0])
        for part in store.partition.clients
    )
    rows = store.partition.server.validation
    server = dataclasses.replace(store.partition.server, validation=rows[:4], test=rows[4:])
    partition = dataclasses.replace(store.partition, clients=parts, server=server)
    results = train(small_config(method="local_lower"), tmp_path, store=dataclasses.replace(store, partition=partition))
    assert set(results["test"]["last"]) == {str(k) for k in range(5)}
    assert {p.stem for p in (tmp_path / "models").glob("*.safetensors")} == {f"client_{k}_last" for k in range(5)}


def test_the_authors_slip_freezes_batch_norm_after_the_first_round(tmp_path: Path, store: Store) -> None:
    statistics = {}
    for slip in (False, True):
        config = small_config(method="local_lower", federation={"eval_slip": slip, "rounds": 5})
        train(config, tmp_path / str(slip), store=store)
        folder = tmp_path / str(slip) / "clients" / "0"
        last = load_file(folder / "models" / "last.safetensors")
        statistics[slip] = int(last["features.1.num_batches_tracked"])
    assert statistics[False] == 3 * 2  # three rounds of two steps
    assert statistics[True] == 1 * 2  # the first round's alone
    federated = small_config(method="lower", federation={"eval_slip": True})
    train(federated, tmp_path / "federated", store=store)
    train(small_config(method="lower"), tmp_path / "plain", store=store)
    slipped, plain = (tmp_path / run / "models" / "last.safetensors" for run in ("federated", "plain"))
    assert slipped.read_bytes() == plain.read_bytes()  # it is a slip of the local script


def test_what_makes_no_sense_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no peers"):
        small_config(method="fedperl", federation={"alone": True})
    with pytest.raises(ConfigError, match="cannot learn by itself"):
        small_config(method="local_lower", scenario={"labels": "few_clients"})
