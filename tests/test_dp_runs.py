"""Whole runs with differential privacy: what they tell, what they count, what is refused."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fedperl import train
from fedperl.config import config_hash, dump, resolve
from fedperl.data.store import Store
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.federation.client import Client, Workspace, client_of_store
from fedperl.federation.messages import GlobalModel, TrainTask, Update
from fedperl.federation.rounds import Progress
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.accounting import Spent, count_of, epsilon
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.state import State, state_of
from fedperl.opening import open_store
from fedperl.predicting.model import open_predictor
from fedperl.report.page import write_report
from fedperl.report.tables import runs_table
from fedperl.settings import Config
from tests.conftest import artefacts, small_config, small_store

pytest.importorskip("dp_accounting", reason="epsilon needs the extra: pip install '.[dp]'")

STEPS, BATCH, IMAGES = 2, 4, 12  # of each client of the small store


def private_config(unit: str = "record", **sections: Any) -> Config:
    sections["dp"] = {"unit": unit} | sections.get("dp", {})
    sections["model"] = {"norm": "group"} | sections.get("model", {})
    sections["objective"] = {"class_weights": "none", "tau": 0.3} | sections.get("objective", {})
    return small_config(**sections)


def steps_in(folder: Path) -> dict[str, int]:
    return {path.stem: sum(one["steps"] for one in json.loads(path.read_text())["spent"]) for path in counts(folder)}


def counts(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "private_steps").glob("*.json"))


@pytest.fixture(name="updates")
def _updates(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Every update that leaves a client."""
    left: list[Update] = []
    plain = Client.train

    def recorded(self: Client, task: TrainTask, state: State) -> tuple[Update, State]:
        update, kept = plain(self, task, state)
        left.append(update)
        return update, kept

    monkeypatch.setattr(Client, "train", recorded)
    return left


def test_a_run_says_what_it_spent(tmp_path: Path, store: Store, updates: list[Update]) -> None:
    results = train(private_config(), tmp_path / "run", store=store)
    told = results["dp"]
    rounds = {str(k): sum(update.client == k for update in updates) for k in range(5)}
    for client, of in told["clients"].items():
        assert of["steps"] == STEPS * rounds[client]
        assert of["rate"] == BATCH / IMAGES
        assert of["epsilon"] == epsilon([Spent(BATCH / IMAGES, 1.0, of["steps"])], 1e-5)
    assert told["epsilon"] == max(of["epsilon"] for of in told["clients"].values()) > 0
    text = f"epsilon {math.ceil(told['epsilon'] * 100) / 100:.2f} (delta 1e-05, per record, add or remove one, RDP)"
    assert told["text"] == text
    assert json.loads((tmp_path / "run" / "results.json").read_text())["dp"] == told
    card = (tmp_path / "run" / "models" / "MODEL_CARD.md").read_text()
    assert "of which class there were is not told" in card
    assert "| class |" not in card.partition("## Data")[2].partition("\n## ")[0]
    assert f"**{text}**" in card
    assert "No differential privacy" not in card
    assert "mean losses" not in card
    assert f"| client 3 | {math.ceil(told['clients']['3']['epsilon'] * 100) / 100:.2f} | " in card
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert text in (tmp_path / "page.html").read_text()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(runs_table({"ours": results}))
    assert f"ours: {text}" in captured.get()
    for update in updates:  # nothing of the training but the model
        assert update.numbers == {}
        assert update.relation is None
    assert results["totals"]["with_peer"] > 0


def test_an_ordinary_run_says_nothing_of_it(tmp_path: Path, store: Store) -> None:
    results = train(small_config(), tmp_path / "run", store=store)
    assert "dp" not in results
    assert "No differential privacy was used" in (tmp_path / "run" / "models" / "MODEL_CARD.md").read_text()
    assert not (tmp_path / "run" / "state" / "private_steps").exists()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(runs_table({"ours": results}))
    assert "epsilon" not in captured.get()


def test_the_same_seed_gives_another_model(tmp_path: Path, store: Store) -> None:
    for name in ("first", "second"):
        train(private_config(), tmp_path / name, store=store)
    first, second = artefacts(tmp_path / "first"), artefacts(tmp_path / "second")
    assert first["models/last.safetensors"] != second["models/last.safetensors"]
    assert first["state/ledger.jsonl"] != b""
    for name in ("plain", "again"):
        train(small_config(model={"norm": "group"}), tmp_path / name, store=store)
    assert artefacts(tmp_path / "plain") == artefacts(tmp_path / "again")  # group norm alone is as repeatable as ever


def test_what_is_repeated_after_a_crash_is_noised_and_counted_anew(
    tmp_path: Path, store: Store, updates: list[Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RunFolder.commit

    def crash(self: RunFolder, content: dict[str, Any]) -> None:
        if content["round"] == 2:
            raise OSError("the power is gone")
        plain(self, content)

    monkeypatch.setattr(RunFolder, "commit", crash)
    with pytest.raises(OSError, match="the power is gone"):
        train(private_config(), tmp_path / "run", store=store)
    monkeypatch.setattr(RunFolder, "commit", plain)
    lost = [update for update in updates if update.round == 2]
    assert len(lost) == 3
    assert sum(steps_in(tmp_path / "run").values()) == STEPS * 6  # durable, though no checkpoint knows of it
    results = train(private_config(), tmp_path / "run", store=store, resume=True)
    for before in lost:
        (after,) = (u for u in updates[6:] if (u.round, u.client) == (2, before.client))
        assert all(not torch.equal(before.state[name], after.state[name]) for name in before.state)
    told = {client: of["steps"] for client, of in results["dp"]["clients"].items()}
    assert told == {str(k): STEPS * sum(update.client == k for update in updates) for k in range(5)}
    assert sum(told.values()) == STEPS * (results["totals"]["accepted"] + 3)


def test_a_run_goes_on_where_it_was(tmp_path: Path, store: Store) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise Stop

    with pytest.raises(Stop):
        train(private_config(), tmp_path / "run", store=store, watchers=[stop])
    results = train(private_config(), tmp_path / "run", store=store, resume=True)
    assert sum(of["steps"] for of in results["dp"]["clients"].values()) == STEPS * results["totals"]["accepted"] == 24
    with pytest.raises(RunError, match=r"other settings: dp.noise = 1.0, now 0.5"):
        train(private_config(dp={"noise": 0.5}), tmp_path / "run", store=store, resume=True)


def test_a_lost_count_stops_a_client(tmp_path: Path, store: Store) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.round == 3:
            raise Stop

    with pytest.raises(Stop):
        train(private_config(), tmp_path / "run", store=store, watchers=[stop])
    for path in counts(tmp_path / "run"):
        path.unlink()
    with pytest.raises(RunError, match="some are lost"):
        train(private_config(), tmp_path / "run", store=store, resume=True)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == 4
    assert set(last["rejected"].values()) == {"it failed with RunError"}


def test_a_spent_budget_declines_and_is_never_exceeded(tmp_path: Path, store: Store) -> None:
    once = epsilon([Spent(BATCH / IMAGES, 1.0, STEPS)], 1e-5)
    twice = epsilon([Spent(BATCH / IMAGES, 1.0, 2 * STEPS)], 1e-5)
    config = private_config(dp={"epsilon_max": (once + twice) / 2}, federation={"rounds": 4})
    results = train(config, tmp_path / "run", store=store)
    assert results["dp"]["epsilon"] == once
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reasons = {reason for line in lines for reason in line["rejected"].values()}
    assert reasons == {"it failed with PrivacyBudgetSpent"}
    assert sum(len(line["accepted"]) for line in lines) == 5  # each client once


def test_patients_and_tiny_hospitals(tmp_path: Path) -> None:
    """Drawn lesions, several images of some: one patient is one unit, and small hospitals are refused by name."""
    table = {"data": {"size": 32, "scale": 0.02, "source": "dermsim"}, "federation": {"rounds": 2, "batch": 5}}
    config = private_config("patient", **table, dp={"delta": 0.03, "noise": 2.0})
    store = open_store(config)
    part = store.partition.clients[0]
    training = np.concatenate([part.labelled, part.unlabelled])
    patients = len(np.unique(store.manifest.group[training]))
    assert patients < 33 < len(training)
    results = train(config, tmp_path / "run", store=store)
    assert "(delta 0.03, per patient, add or remove one, RDP)" in results["dp"]["text"]
    for client, of in results["dp"]["clients"].items():
        held = store.partition.clients[int(client)]
        images = len(held.labelled) + len(held.unlabelled)
        assert of["rate"] in (0.0, 5 / images)
        assert of["epsilon"] == epsilon([Spent(5 / images, 2.0, of["steps"])], 0.03)
    with pytest.raises(ConfigError, match=r"client 0: dp.delta = 0.03 lets one of its 39 units \(records\) be given"):
        train(private_config("record", **table, dp={"delta": 0.03}), tmp_path / "other", store=store)
    large = private_config("record", **(table | {"federation": {"rounds": 2, "batch": 10}}))
    with pytest.raises(ConfigError, match="client 9: 10 training images and federation.batch = 10"):
        train(large, tmp_path / "other", store=store)
    assert not (tmp_path / "other" / "config.toml").exists()
    split = store.dealt(replace(store.partition, straddles=True))
    with pytest.raises(ConfigError, match="dp.unit = 'patient': the partition splits groups"):
        train(config, tmp_path / "other", store=split)


def units_of(unit: str, store: Store) -> list[int]:
    config = private_config(unit)
    client = client_of_store(1, store, config, Workspace(config, 3))
    assert client.private is not None
    return client.private.units.tolist()


def test_units_are_images_or_groups() -> None:
    store = small_store()
    group = store.manifest.group.copy().astype("<U20")
    group[24:30] = ["a", "b", "a", "c", "b", "a"]  # the labelled images of client 1
    store = replace(store, manifest=replace(store.manifest, group=group))
    assert units_of("record", store) == list(range(24))
    units = units_of("patient", store)
    assert units[0] == units[2] == units[5] != units[1] == units[4] != units[3]
    assert len(set(units)) == 3 + 18


def test_a_client_whose_steps_nobody_counts_trains_nothing(tmp_path: Path, store: Store) -> None:
    config = private_config()
    work = Workspace(config, 3)
    settings = LocalSettings(config.objective, config.optimizer, config.views, STEPS, BATCH, report="training")
    task = TrainTask("run", 1, 1, GlobalModel(0, state_of(work.net)), None, settings, 7)
    with pytest.raises(RunError, match="client 1: dp.unit = 'record' where nobody counts the steps"):
        client_of_store(1, store, config, work).train(task, {})
    counted = client_of_store(1, store, config, work, counts=tmp_path)
    update, kept = counted.train(task, {})
    assert update.numbers == {}  # though the task asks for an accuracy
    assert int(kept["memory.private.steps"]) == STEPS
    assert count_of(tmp_path, 1).read() == [Spent(BATCH / IMAGES, 1.0, STEPS)]
    weighted = replace(settings, objective=small_config().objective)
    with pytest.raises(ConfigError, match="objective.class_weights = 'median_frequency'"):  # whatever a server sends
        counted.train(replace(task, settings=weighted), kept)


def test_a_private_model_is_used_as_any_other(tmp_path: Path, store: Store) -> None:
    train(private_config(), tmp_path / "run", store=store)
    predictor = open_predictor(tmp_path / "run")
    assert any(isinstance(layer, torch.nn.GroupNorm) for layer in predictor.net.modules())
    assert predictor.net(torch.rand(2, 3, 16, 16)).shape == (2, 3)


def test_starting_weights_are_of_the_same_kind_of_network(tmp_path: Path, store: Store) -> None:
    train(private_config(), tmp_path / "run", store=store)
    train(small_config(), tmp_path / "plain", store=store)
    private, plain = (str(tmp_path / name / "models" / "last.safetensors") for name in ("run", "plain"))
    with pytest.raises(Exception, match="its tensors are not those of small_cnn: missing: .*running_mean"):
        train(small_config(model={"weights": private}), tmp_path / "a", store=store)
    with pytest.raises(Exception, match="its tensors are not those of small_cnn: unknown: .*num_batches_tracked"):
        train(private_config(model={"weights": plain}), tmp_path / "b", store=store)
    with pytest.raises(DataError, match="last.safetensors: does not say which images it was trained on; with dp.unit"):
        train(private_config(model={"weights": private}), tmp_path / "c", store=store)


def test_an_image_at_two_clients_is_refused(tmp_path: Path, store: Store) -> None:
    """Two published sets have the same photograph, under one name."""
    manifest, (one, other) = store.manifest, (store.partition.clients[k].labelled[0] for k in (1, 3))
    image, source = manifest.image.copy(), manifest.source.astype("U20")
    image[other], source[one], source[other] = image[one], "HAM10000", "ISIC19"
    twice = replace(store, manifest=replace(manifest, image=image, source=source))
    with pytest.raises(DataError, match="image 'ISIC archive .*' is at clients 1 and 3: with differential privacy"):
        train(private_config(), tmp_path / "run", store=twice)


def test_one_lost_count_is_noticed_at_the_end(tmp_path: Path, store: Store) -> None:
    """After the last round nobody trains any more: the results themselves look at each client's count."""
    config = private_config()

    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.round == config.federation.rounds:
            raise Stop

    with pytest.raises(Stop):
        train(config, tmp_path / "run", store=store, watchers=[stop])
    counts(tmp_path / "run")[0].unlink()
    with pytest.raises(RunError, match=r"client-0000\d.json: 0 private steps; the client has taken \d+: some are lost"):
        train(config, tmp_path / "run", store=store, resume=True)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"model": {"norm": "batch"}}, "model.norm = 'batch': small_cnn takes statistics over all images of a batch"),
        (
            {"objective": {"class_weights": "median_frequency"}},
            "objective.class_weights = 'median_frequency': the loss",
        ),
        ({"objective": {"labelled_loss": "logit_adjusted"}}, "objective.labelled_loss = 'logit_adjusted': the loss"),
        ({"objective": {"thresholds": "class_aware"}}, "objective.thresholds = 'class_aware': the loss"),
        ({"objective": {"mixup": 0.5}}, "objective.mixup = 0.5: the loss"),
        (
            {"objective": {"class_weights": "root_median_frequency"}},
            "objective.class_weights = 'root_median_frequency'",
        ),
        ({"objective": {"prior_correction": 0.5}}, "objective.prior_correction = 0.5: the loss"),
        ({"objective": {"unlabelled_mean": "accepted"}}, "objective.unlabelled_mean = 'accepted': the loss"),
        ({"objective": {"strong_pass": "accepted"}}, "objective.strong_pass = 'accepted': the loss"),
        ({"objective": {"kind": "mine.py:Mine"}}, "objective.kind = 'mine.py:Mine': the loss"),
        ({"method": "fedirm", "objective": {"start": 0}}, "objective.kind = 'fedirm': the loss"),
        ({"method": "cbafed", "objective": {"start": 0}}, "objective.kind = 'cbafed': the loss"),
        ({"method": "fedmatch_pa"}, "objective.kind = 'fedmatch': the loss"),
        ({"federation": {"batch_norm": "local"}}, "federation.batch_norm = 'local': there is no batch norm"),
        ({"federation": {"unlabelled_batch": 4}}, "federation.unlabelled_batch: a step draws from all"),
        ({"method": "local_lower"}, "federation.alone = true: nothing leaves a client"),
        (
            {"peers": {"policy": "gated_validation"}, "gate": {"metric": "own_val_acc"}},
            "gate.metric = 'own_val_acc': clients would tell an accuracy without noise; wanted 'server_acc'",
        ),
        (
            {"peers": {"policy": "validation"}, "gate": {"metric": "train_acc"}},
            "gate.metric = 'train_acc': clients would tell",
        ),
        ({"engine": "flower-simulation"}, "engine = 'flower-simulation' keeps no count of private steps"),
        ({"device": "cuda"}, "gpu = 'fast' records steps"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_would_make_epsilon_wrong_is_refused(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        private_config(**sections)
    assert f"with dp.unit = 'record': {reason}" in str(error.value)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"method": "ssfl"},
        {"method": "lower"},
        {"method": "upper"},
        {"method": "uda"},
        {"method": "rscfed"},
        {"method": "fedprox_ssfl"},
        {"method": "fedperl_ema"},
        {"method": "fedperl_agreement"},
        {"method": "fedperl_gated_validation"},
        {"peers": {"policy": "all"}, "gate": {"metric": "own_val_acc"}},
        {"model": {"net": "resnet9", "norm": "batch"}},
        {"device": "cuda", "gpu": "reference"},
        {"optimizer": {"carry": True}},
        {"federation": {"sparse": 1e-5}},
    ],
    ids=str,
)
def test_what_leaves_epsilon_right_is_not(sections: dict[str, Any]) -> None:
    assert private_config(**sections).dp.unit == "record"


def test_settings_that_do_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="dp.noise = 2.0 has no effect with dp.unit = 'none'"):
        resolve({"dp": {"noise": 2.0}})
    with pytest.raises(ConfigError, match="dp.epsilon_max = 3.0 has no effect"):
        resolve({"dp": {"epsilon_max": 3.0}})
    with pytest.raises(ConfigError, match="model.norm = 'group' has no effect on resnet9"):
        resolve({"model": {"net": "resnet9", "norm": "group"}})
    with pytest.raises(ConfigError, match="weights = 'imagenet'; wanted norm = 'batch'"):
        resolve({"model": {"weights": "imagenet", "norm": "group"}})
    for key, value in (("noise", 0.0), ("clip", 0.0), ("delta", 0.0), ("delta", 1.0), ("epsilon_max", 0.0)):
        with pytest.raises(ConfigError, match=rf"dp.{key} = {value}"):
            resolve({"dp": {"unit": "record", key: value}})


def test_hashes_of_earlier_runs_stay() -> None:
    written = {"cohort": 3, "quorum": 3}
    assert config_hash(resolve({"method": "ssfl", "federation": written})).startswith("4db8311a38d3")  # as it was
    assert config_hash(private_config()) != config_hash(private_config(dp={"noise": 2.0}))
    assert config_hash(small_config(model={"norm": "group"})) != config_hash(small_config())
    private = private_config("patient", dp={"epsilon_max": 3.0})
    assert resolve(tomllib.loads(dump(private))).dp == private.dp
