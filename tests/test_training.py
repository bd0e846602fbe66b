"""Whole runs of seconds: repeated, interrupted, resumed, compared."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedperl import load_config, train
from fedperl.data.partition import Partition
from fedperl.data.store import Store
from fedperl.data.views import WEAK_RECIPES
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.evaluate import BinnedSums
from fedperl.federation.client import Client, Workspace
from fedperl.federation.ledger import Ledger
from fedperl.federation.own_images import OwnImages
from fedperl.federation.rounds import Progress
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.leakage.releases import next_releases
from fedperl.learn.predict import predict
from fedperl.learn.state import State, load_into, state_of
from fedperl.predicting import open_predictor
from fedperl.settings import Config
from tests.conftest import artefacts, small_config, small_store


class Stop(Exception):
    pass


def stop_at(round: int) -> Any:
    def watcher(progress: Progress) -> None:
        if progress.round == round:
            raise Stop

    return watcher


def test_a_run_repeats_and_resumes_bit_for_bit(tmp_path: Path, store: Store) -> None:
    config = small_config(method="fedperl")
    results = train(config, tmp_path / "whole", store=store)
    with pytest.raises(Stop):
        train(config, tmp_path / "cut", store=store, watchers=[stop_at(2)])
    train(config, tmp_path / "cut", store=store, resume=True)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    assert results["totals"]["client_rounds"] == 12
    assert results["totals"]["with_peer"] > 0
    assert set(results["over_clients"]) == {"last", "global_best", "per_client_best"}
    names = {p.stem for p in (tmp_path / "whole" / "models").glob("*.safetensors")}
    assert names == {"last", "global_best", *(f"client_{k}_best" for k in range(5))}


def open_numbers(**federation: Any) -> Config:
    """A run whose cohort and quorum are left to it."""
    return small_config(federation={"cohort": "auto"} | federation)


def test_a_run_says_its_cohort_and_quorum_and_goes_on_with_them(tmp_path: Path, store: Store) -> None:
    said: list[str] = []
    train(open_numbers(), tmp_path / "whole", store=store, say=said.append)
    assert not said
    with pytest.raises(Stop):
        train(open_numbers(), tmp_path / "cut", store=store, watchers=[stop_at(2)])
    train(open_numbers(), tmp_path / "cut", store=store, resume=True)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    written = RunFolder(tmp_path / "whole").read_config().federation
    assert (written.cohort, written.quorum) == (4, 3)
    assert {len(line["cohort"]) for line in RunFolder(tmp_path / "whole").read_metrics()} == {4}
    assert "cohorts of 4" in (tmp_path / "whole" / "models" / "MODEL_CARD.md").read_text()
    with pytest.raises(RunError, match=r"federation\.cohort = 4, now 3"):
        train(open_numbers(cohort=3), tmp_path / "whole", store=store, resume=True)


def test_a_run_with_other_numbers_goes_on_with_its_own(tmp_path: Path, store: Store) -> None:
    written = open_numbers(cohort=3, quorum=3)
    said: list[str] = []
    with pytest.raises(Stop):
        train(written, tmp_path / "cut", store=store, watchers=[stop_at(2)], say=said.append)
    assert len(said) == 1
    train(open_numbers(), tmp_path / "cut", store=store, resume=True)
    train(written, tmp_path / "whole", store=store)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")


def test_one_lost_answer_of_the_defaults_voids_no_round(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, lost = Client.train, set[int]()

    def fail_once_a_round(self: Client, task: Any, states: Any) -> Any:
        if task.round not in lost:
            lost.add(task.round)
            raise OSError
        return honest(self, task, states)

    monkeypatch.setattr(Client, "train", fail_once_a_round)
    results = train(open_numbers(), tmp_path / "lost", store=store)
    assert (results["totals"]["rejected"], results["totals"]["void"]) == (4, 0)


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
    again = client.evaluate(EvaluateTask("", 0, 2, model, "test", full=True)).numbers
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
    with pytest.raises(RunError, match="other settings: federation"):
        train(small_config(federation={"rounds": 9}), tmp_path, store=store, resume=True)
    assert train(config, tmp_path, store=store, resume=True)["rounds"] == 4
    assert artefacts(tmp_path) == before


def test_errors_before_anything_is_written(tmp_path: Path, store: Store) -> None:
    with pytest.raises(DataError, match="not a store"):
        train(small_config(data={"source": str(tmp_path / "none")}), tmp_path / "a")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="0 usable CUDA devices"):
            train(small_config(device="cuda"), tmp_path / "b", store=store)
    with pytest.raises(RunError, match="holds no run"):
        RunFolder(tmp_path / "c").read_config()


@pytest.mark.parametrize("device", ["gpu", "CPU", "", " cpu", "meta", "cuda:x"])
def test_other_devices_are_refused(tmp_path: Path, store: Store, device: str) -> None:
    with pytest.raises(ConfigError, match="wanted 'cpu', 'cuda' or 'cuda:N'"):
        train(small_config(device=device), tmp_path / "run", store=store)


def test_a_refused_run_leaves_the_folder_free(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ConfigError, match="cohort = 20"):
        train(small_config(federation={"cohort": 20}), tmp_path, store=store)
    train(small_config(federation={"rounds": 1}), tmp_path, store=store)


def test_a_changed_configuration_or_store_is_not_resumed(tmp_path: Path, store: Store) -> None:
    with pytest.raises(Stop):
        train(small_config(), tmp_path, store=store, watchers=[stop_at(2)])
    path = tmp_path / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("lr = 0.001", "lr = 0.5"))
    with pytest.raises(RunError, match="its configuration is another"):
        train(load_config(path), tmp_path, store=store, resume=True)
    path.write_text(text)
    images = store.images.copy()
    images[0] = 0
    other = Store(images, store.manifest, store.partition, store.made)
    with pytest.raises(RunError, match="its images, labels, partition, starting weights or"):
        train(load_config(path), tmp_path, store=other, resume=True)
    train(load_config(path), tmp_path, store=store, resume=True)


def test_files_that_were_cut_or_changed_are_named(tmp_path: Path, store: Store) -> None:
    with pytest.raises(Stop):
        train(small_config(), tmp_path, store=store, watchers=[stop_at(2)])
    metrics, ledger = tmp_path / "metrics.jsonl", tmp_path / "state" / "ledger.jsonl"
    for path, changed, message in (
        (metrics, metrics.read_bytes()[:-9], "the checkpoint knows of"),
        (ledger, ledger.read_bytes().replace(b'"void": false', b'"void": true '), "the ledger was changed"),
    ):
        before = path.read_bytes()
        path.write_bytes(changed)
        with pytest.raises(RunError, match=message):
            train(small_config(), tmp_path, store=store, resume=True)
        path.write_bytes(before)
    train(small_config(), tmp_path, store=store, resume=True)


def with_labels(store: Store, rows: Any, value: int) -> Store:
    label = store.manifest.label.copy()
    label[rows] = value
    return Store(store.images, dataclasses.replace(store.manifest, label=label), store.partition, store.made)


def without(store: Store, client: int, *parts: str) -> Store:
    empty = store.partition.clients[client].test[:0]
    nothing: dict[str, Any] = dict.fromkeys(parts, empty)
    changed = dataclasses.replace(store.partition.clients[client], **nothing)
    clients = tuple(changed if k == client else c for k, c in enumerate(store.partition.clients))
    return Store(store.images, store.manifest, Partition(clients, store.partition.server), store.made)


def test_images_that_could_not_be_used_are_refused_before_training(tmp_path: Path, store: Store) -> None:
    one = store.partition.clients[1]
    cases = [
        ("fedperl", with_labels(store, one.test[:1], -1), "client 1, test: image 'image_42' has no label"),
        ("fedperl", with_labels(store, one.validation[:1], -1), "client 1, validation: image"),
        ("fedperl", with_labels(store, one.labelled[:1], -1), "client 1, labelled: image"),
        ("upper", with_labels(store, one.unlabelled[:1], -1), "client 1, unlabelled: image"),
        ("fedperl", without(store, 1, "test"), "client 1 has no test images"),
        ("fedperl", without(store, 1, "validation"), "client 1 has no validation images"),
        ("lower", without(store, 1, "labelled"), "client 1 has no training images for method 'lower'"),
        ("fedperl", without(store, 1, "labelled", "unlabelled"), "client 1 has no training images"),
    ]
    for number, (method, bad, message) in enumerate(cases):
        with pytest.raises(DataError, match=message):
            train(small_config(method=method), tmp_path / str(number), store=bad)
    train(small_config(federation={"rounds": 1}), tmp_path / "a", store=with_labels(store, one.unlabelled, -1))
    hardly = store
    for client in range(1, 5):  # with nothing labelled and nothing accepted there is no gradient
        hardly = without(hardly, client, "labelled")
    train(small_config(preset="authors_code", objective={"tau": 1.5}), tmp_path / "b", store=hardly)


def test_a_client_that_fails_does_not_end_the_run(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Client.train

    def failing(self: Client, *arguments: Any) -> Any:
        if self.number == 2:
            raise RuntimeError("cannot read /data/Doe_John.jpg")
        return whole(self, *arguments)

    monkeypatch.setattr(Client, "train", failing)
    config = small_config(federation={"cohort": 5, "quorum": 3, "rounds": 3})
    results = train(config, tmp_path, store=store)
    assert results["totals"]["rejected"] == 3
    assert results["totals"]["void"] == 0
    lines = (tmp_path / "metrics.jsonl").read_text()
    assert "it failed with RuntimeError" in lines
    assert "Doe_John" in caplog.text
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"Doe_John" in p.read_bytes()]
    void = train(small_config(federation={"cohort": 5, "quorum": 5, "rounds": 2}), tmp_path / "void", store=store)
    assert void["totals"]["void"] == 2
    assert all(n["round"] == 0 for n in void["test"]["last"].values())


def test_totals_are_the_sums_of_the_rounds(tmp_path: Path, store: Store) -> None:
    results = train(small_config(), tmp_path, store=store)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for name in ("bytes_down", "bytes_up"):
        assert results["totals"][name] == sum(line[name] for line in lines) > 0


def test_the_configured_number_of_threads_is_used(tmp_path: Path, store: Store) -> None:
    seen = []
    config = small_config(threads=2, federation={"rounds": 1})
    train(config, tmp_path, store=store, watchers=[lambda _: seen.append(torch.get_num_threads())])
    assert seen == [2]
    assert torch.get_num_threads() == 1


def test_the_default_folder_is_named_after_the_run(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(small_config(name="mine", federation={"rounds": 1}), store=store)
    assert (tmp_path / "runs" / "mine" / "results.json").exists()


def test_server_score_against_naive(store: Store) -> None:
    config = small_config(preset="authors_code")
    work = Workspace(config, 3)
    state = state_of(work.net)
    accuracy, loss = OwnImages(config, store, work).score(state)
    rows = store.partition.server.rows()
    work.net.eval()
    with torch.no_grad():
        logits = work.net(torch.from_numpy(store.images[rows]).float() / 255)
    truth = store.manifest.label[rows].tolist()
    right = [int(row.argmax()) == y for row, y in zip(logits, truth, strict=True)]
    logs = [float(torch.log_softmax(row, 0)[y]) for row, y in zip(logits, truth, strict=True)]
    assert accuracy == pytest.approx(sum(right) / len(right))
    assert loss == pytest.approx(-sum(logs) / len(logs), rel=1e-4)


def test_a_store_of_another_size_is_refused(tmp_path: Path, store: Store) -> None:
    store.save(tmp_path / "s")
    config: Config = small_config(data={"source": str(tmp_path / "s"), "size": 32})
    with pytest.raises(DataError, match="images of 16 px"):
        train(config, tmp_path / "run")


def test_counts_behind_the_curves_are_those_of_the_reported_models(tmp_path: Path, store: Store) -> None:
    for method in ("fedperl", "local_lower"):
        folder = tmp_path / method
        results = train(small_config(method=method), folder, store=store)
        curves = RunFolder(folder).read_curves()
        assert curves["chosen"].keys() == results["test"].keys()
        for choice, chosen in curves["chosen"].items():
            assert chosen.keys() == results["test"][choice].keys()
            for client, key in chosen.items():
                numbers = results["test"][choice][client]
                assert key == f"{client}@{numbers['round']}"
                sums = BinnedSums.from_dict(curves["sums"][key]["test"])
                assert sums.classification().weighted_f1 == pytest.approx(numbers["weighted_f1"])
                part = store.partition.clients[int(client)]
                assert BinnedSums.from_dict(curves["sums"][key]["validation"]).images == len(part.validation)


@pytest.mark.parametrize("method", ["fedperl_raw", "fedmatch", "fedirm_fedperl"])
def test_fewer_checkpoints_change_nothing_but_where_a_run_goes_on(tmp_path: Path, store: Store, method: str) -> None:
    own = {"method": method, "privacy": "research", "objective": {"start": 1} if "fedirm" in method else {}}
    train(small_config(**own), tmp_path / "whole", store=store)
    for every, before in ((2, 2), (3, 0)):
        config = small_config(**own, checkpoint_every=every)
        folder = tmp_path / f"cut {every}"
        with pytest.raises(Stop):
            train(config, folder, store=store, watchers=[stop_at(before + 1)])
        assert json.loads((folder / "state" / "checkpoint.json").read_text())["content"]["round"] == before
        train(config, folder, store=store, resume=True)
        assert artefacts(folder) == artefacts(tmp_path / "whole")
    config = small_config(**own, checkpoint_every=5)  # of four rounds
    with pytest.raises(Stop):
        train(config, tmp_path / "none", store=store, watchers=[stop_at(3)])
    train(config, tmp_path / "none", store=store, resume=True)
    assert last_model(tmp_path / "none") == last_model(tmp_path / "whole")
    assert not list((tmp_path / "none" / "state" / "bank").iterdir())
    if method == "fedperl_raw":
        written = (tmp_path / "none" / "metrics.jsonl").read_bytes()
        with pytest.raises(RunError, match="checkpoint_every = 5, so that no client's model was kept"):
            next_releases(config, tmp_path / "none", store, Workspace(config, 3))
        assert (tmp_path / "none" / "metrics.jsonl").read_bytes() == written


def test_a_model_that_is_not_validated_is_the_same_and_nobody_is_sent_it(tmp_path: Path, store: Store) -> None:
    always = train(small_config(), tmp_path / "always", store=store)
    rarely = train(small_config(federation={"validate_every": 3}), tmp_path / "rarely", store=store)
    assert last_model(tmp_path / "rarely") == last_model(tmp_path / "always")
    assert rarely["test"]["last"] == always["test"]["last"]
    lines = RunFolder(tmp_path / "rarely").read_metrics()
    assert [line["round"] for line in lines if line["validation"]] == [3, 4]
    assert {numbers["round"] for numbers in rarely["test"]["per_client_best"].values()} <= {3, 4}
    ledger = Ledger(tmp_path / "rarely" / "state" / "ledger.jsonl")
    sent = {entry["round"]: entry["validated"]["by"] for entry in ledger.entries() if entry["kind"] == "receive"}
    assert sent == {1: [], 2: [], 3: "every client", 4: "every client"}
    assert rarely["totals"]["bytes_evaluation"] * 2 == always["totals"]["bytes_evaluation"]
    told: list[float | None] = []
    config = small_config(federation={"validate_every": 3})
    train(config, tmp_path / "told", store=store, watchers=[lambda p: told.append(p.accuracy)])
    assert told[:2] == [None, None]
    assert all(isinstance(accuracy, float) for accuracy in told[2:])


def test_a_running_mean_is_reported_and_a_run_goes_on_from_where_it_was(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[dict[int, State]] = []
    renew = Server._renew

    def noted(server: Server, round: int, state: State) -> None:
        models[-1][round] = state
        renew(server, round, state)

    monkeypatch.setattr(Server, "_renew", noted)
    config = small_config(federation={"running_average": 0.6})
    for name, one in (("plain", small_config()), ("whole", config)):
        models.append({})
        train(one, tmp_path / name, store=store)
    for round, state in models[0].items():
        assert all(torch.equal(tensor, models[1][round][name]) for name, tensor in state.items())
    models.append({})
    reported = load_file(tmp_path / "whole" / "models" / "last.safetensors")
    for name, tensor in reported.items():
        mean = torch.zeros_like(tensor, dtype=torch.float64)
        for round, share in ((1, 1), (2, 1 / 2), (3, 0.4), (4, 0.4)):
            mean += share * (models[0][round][name].double() - mean)
        if tensor.is_floating_point():
            assert torch.allclose(tensor.double(), mean, atol=1e-6), name
    for cut in (1, 3):
        folder = tmp_path / f"cut {cut}"
        with pytest.raises(Stop):
            train(config, folder, store=store, watchers=[stop_at(cut)])
        train(config, folder, store=store, resume=True)
        assert artefacts(folder) == artefacts(tmp_path / "whole")
    released = next_releases(config, tmp_path / "whole", store, Workspace(config, 3))
    assert all(torch.equal(tensor, models[0][4][name]) for name, tensor in released.model.items())


def test_a_client_uses_the_global_model_and_a_share_of_its_own(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is of the running mean of what it trained up to then; what is sent and averaged stays as it was."""
    trained: dict[int, dict[int, State]] = {}
    models: list[dict[int, State]] = []
    renew, as_ever = Server._renew, Client.train_steps

    def noted(server: Server, round: int, state: State) -> None:
        models[-1][round] = state
        renew(server, round, state)

    def keeping(self: Client, task: Any, *args: Any) -> Any:
        update, kept = yield from as_ever(self, task, *args)
        trained.setdefault(self.number, {})[task.round] = update.state
        return update, kept

    monkeypatch.setattr(Server, "_renew", noted)
    config = small_config(federation={"own_share": 0.25, "rounds": 6})
    models.append({})
    train(small_config(federation={"rounds": 6}), tmp_path / "plain", store=store)
    models.append({})
    with monkeypatch.context() as patch:
        patch.setattr(Client, "train_steps", keeping)
        results = train(config, tmp_path / "whole", store=store)
    for round, state in models[0].items():
        assert all(torch.equal(tensor, models[1][round][name]) for name, tensor in state.items())
    mixed = 0
    for client, numbers in results["test"]["per_client_best"].items():
        round = int(numbers["round"])
        own = [state for made, state in sorted(trained.get(int(client), {}).items()) if made <= round]
        file = load_file(tmp_path / "whole" / "models" / f"client_{client}_best.safetensors")
        for name, tensor in file.items():
            if not tensor.is_floating_point():
                continue
            expected = models[0][round][name].double()
            if own:  # fewer than ten: the plain mean
                mixed += 1
                expected = 0.75 * expected + 0.25 * torch.stack([state[name].double() for state in own]).mean(0)
            assert torch.allclose(tensor.double(), expected, atol=1e-6), name
        net = Workspace(config, 3).net
        load_into(net, file)
        part = store.partition.clients[int(client)].test
        said = predict(net, torch.from_numpy(store.pixels(part))).argmax(1).numpy()
        assert (said == store.manifest.label[part]).mean() == pytest.approx(numbers["accuracy"])
    assert mixed > 20
    plain = load_file(tmp_path / "plain" / "models" / "last.safetensors")
    assert all(torch.equal(t, plain[n]) for n, t in load_file(tmp_path / "whole/models/last.safetensors").items())
    models.append({})
    for cut in (1, 4):
        with pytest.raises(Stop):
            train(config, tmp_path / f"cut {cut}", store=store, watchers=[stop_at(cut)])
        train(config, tmp_path / f"cut {cut}", store=store, resume=True)
        assert artefacts(tmp_path / f"cut {cut}") == artefacts(tmp_path / "whole")


def test_a_model_that_diverged_once_does_not_stay_in_a_clients_own(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses it, and the run goes on."""
    as_ever, spoilt = Client.train_steps, list[int]()

    def keeping(self: Client, task: Any, *args: Any) -> Any:
        if task.round == 3 and not spoilt:
            spoilt.append(self.number)
            monkeypatch.setattr("fedperl.federation.client.state_of", lambda net: spoil(state_of(net)))
        result = yield from as_ever(self, task, *args)
        monkeypatch.setattr("fedperl.federation.client.state_of", state_of)
        return result

    def spoil(state: State) -> State:
        return {name: torch.full_like(t, torch.nan) if t.is_floating_point() else t for name, t in state.items()}

    monkeypatch.setattr(Client, "train_steps", keeping)
    config = small_config(federation={"own_share": 0.5, "rounds": 6, "quorum": 1}, privacy="research")
    results = train(config, tmp_path / "run", store=store)
    assert len(spoilt) == results["totals"]["rejected"] == 1
    for file in (tmp_path / "run" / "models").glob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(file).values())


def test_a_share_of_its_own_is_for_clients_that_test(tmp_path: Path, store: Store) -> None:
    every, nobody = store.partition, np.array([], dtype=np.int64)
    rows = {part: np.concatenate([getattr(one, part) for one in every.clients]) for part in ("validation", "test")}
    clients = tuple(dataclasses.replace(one, validation=nobody, test=nobody) for one in every.clients)
    server = dataclasses.replace(every.server, **rows)
    dealt = store.dealt(dataclasses.replace(every, clients=clients, server=server))
    with pytest.raises(ConfigError, match="own_share = 0.5 is for models that clients test; here the server alone"):
        train(small_config(federation={"own_share": 0.5}), tmp_path / "run", store=dealt)
    assert not (tmp_path / "run").exists()
    tested = tuple(dataclasses.replace(one, validation=nobody) for one in every.clients)
    server = dataclasses.replace(every.server, validation=rows["validation"])
    dealt = store.dealt(dataclasses.replace(every, clients=tested, server=server))
    with pytest.raises(ConfigError, match="own_share = 'validation' is for models that clients validate; here the"):
        train(small_config(federation={"own_share": "validation"}), tmp_path / "run", store=dealt)
    assert train(small_config(federation={"own_share": 0.5}), tmp_path / "run", store=dealt)["test"]


@pytest.mark.parametrize("weak", ["fedperl", "geometric", "none"])
def test_orientations_can_be_those_of_weak_views(tmp_path: Path, store: Store, weak: str) -> None:
    """Where weak views flip, both ways, a model is asked in all four of these; the file has the number."""
    wanted = 4 if WEAK_RECIPES[weak].flips else 1
    config = small_config(model={"orientations": "views"}, views={"weak": weak}, federation={"rounds": 1})
    assert config.orientations == wanted
    results = train(config, tmp_path / "views", store=store)
    plain = config.model_copy(update={"model": config.model.model_copy(update={"orientations": wanted})})
    assert train(plain, tmp_path / "number", store=store)["test"] == results["test"]
    files = [tmp_path / name / "models" / "last.safetensors" for name in ("views", "number")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert open_predictor(files[0]).orientations == wanted


def test_a_model_is_asked_in_as_many_orientations_everywhere(tmp_path: Path, store: Store) -> None:
    """By clients and from its file; training, labels and models stay as they were."""
    plain = train(small_config(), tmp_path / "plain", store=store)
    results = train(small_config(model={"orientations": 8}), tmp_path / "eight", store=store)
    models = [tmp_path / name / "models" / "last.safetensors" for name in ("plain", "eight")]
    before, after = map(load_file, models)
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    asked = [open_predictor(path) for path in models]
    assert [one.orientations for one in asked] == [1, 8]
    for client, numbers in results["test"]["last"].items():
        rows = store.partition.clients[int(client)].test
        images, truth = torch.from_numpy(store.pixels(rows)), torch.from_numpy(store.manifest.label[rows])
        one, eight = (predictor.ask(images) for predictor in asked)
        turned = [torch.rot90(way, turns, (2, 3)) for way in (images, images.flip(3)) for turns in range(4)]
        mean = torch.stack([predict(asked[0].net, view.contiguous()) for view in turned]).mean(0)
        assert torch.allclose(eight, mean, atol=1e-6)
        for said, told in ((eight, numbers), (one, plain["test"]["last"][client])):
            nll = torch.nn.functional.nll_loss(said.clamp_min(1e-12).log(), truth)
            assert told["nll"] == pytest.approx(float(nll), rel=1e-4)


def test_a_model_that_stays_through_void_rounds_keeps_its_validation(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_as_ever = Client.train

    def fail_late(self: Client, task: Any, state: Any) -> Any:
        if task.round > 2:
            raise RuntimeError("down")
        return train_as_ever(self, task, state)

    monkeypatch.setattr(Client, "train", fail_late)
    results = train(small_config(federation={"validate_every": 3}), tmp_path / "run", store=store)
    assert results["totals"]["void"] == 2
    assert set(results["validation"]) == {"last", "global_best", "per_client_best"}
    wanted = RunFolder(tmp_path / "run").read_metrics()[3]["validation"]
    mean = sum(numbers["accuracy"] for numbers in wanted.values()) / len(wanted)
    assert results["validation"]["last"]["accuracy"] == pytest.approx(mean)


def test_a_run_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    config = small_config(federation={"cohort": 50, "quorum": 3})
    for there in ("new", "empty", "used"):
        folder = tmp_path / there
        if there != "new":
            folder.mkdir()
        if there == "used":
            (folder / "note.txt").write_text("mine")
        with pytest.raises(ConfigError, match="cohort = 50"):
            train(config, folder, store=small_store())
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["empty", "used", "used/note.txt"]
