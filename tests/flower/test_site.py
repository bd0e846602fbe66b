"""A hospital's side: what it keeps, what it tells, what it refuses to run, its folder and its keys."""

import json
import re
import ssl
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto
from safetensors.torch import load_file

from fedperl import __version__
from fedperl.config import dump, load_config, methods
from fedperl.data.partition import PARTS, ClientPart, Partition, no_rows
from fedperl.data.store import Store
from fedperl.engines.flower.about import read_about
from fedperl.engines.flower.exchange import AFTER, ATTEMPT, CLIENT, HASH, NEEDED, NONCE, RUN
from fedperl.engines.flower.keys import make_authority, make_site_keys
from fedperl.engines.flower.records import ERROR, parcel_of, record_of
from fedperl.engines.flower.rules import config_of
from fedperl.engines.flower.site import KEPT, Asking, KeptStates, Site, answer, as_client, asking_of
from fedperl.engines.flower.site_folder import SiteFolder, SiteSettings, findings, leaves
from fedperl.errors import BusyError, ConfigError, DataError, RunError
from fedperl.evaluate import SCALED_NUMBERS
from fedperl.federation.client import Workspace, client_of_store
from fedperl.federation.members import Member, member_of, told_part
from fedperl.federation.messages import EvaluateTask, GlobalModel, TrainTask
from fedperl.federation.personal import BATCH_NORM, OWN, OWN_COUNT
from fedperl.federation.wire import (
    Parcel,
    WireError,
    evaluate_parcel,
    model_hash,
    read_evaluation,
    read_update,
    train_parcel,
    update_parcel,
)
from fedperl.files import lock
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.state import State, state_of
from fedperl.learn.weights import write_weights
from fedperl.predicting import open_predictor
from fedperl.settings import OBJECTIVES
from tests.conftest import small_config, small_store

SECRET = "mueller_hans_1953"
MODEL = "run_abc123.safetensors"

# What a site keeps between rounds


def state_after(round: int) -> State:
    return {"memory.x": torch.full((3,), float(round)), "teacher.count": torch.tensor(round)}


def held(kept: KeptStates, rounds: range) -> list[int]:
    """Return the rounds after which there is a state, each as it was put."""
    found = []
    for round in rounds:
        try:
            state = kept.after(round)
        except RunError:
            continue
        if state:
            assert {name: tensor.tolist() for name, tensor in state.items()} == {
                name: tensor.tolist() for name, tensor in state_after(round).items()
            }
            assert {name: tensor.dtype for name, tensor in state.items()} == {
                "memory.x": torch.float32,
                "teacher.count": torch.int64,
            }
            found.append(round)
    return found


def test_kept_states_are_those_of_the_last_four_rounds(tmp_path: Path) -> None:
    kept = KeptStates(tmp_path / "run")
    assert held(kept, range(20)) == []
    for place, round in enumerate((2, 3, 5, 8, 9, 13)):
        kept.put(round, state_after(round), round - 1)
        last = [2, 3, 5, 8, 9, 13][: place + 1][-KEPT:]
        assert held(kept, range(20)) == last
        assert len(list((tmp_path / "run").glob("round-*"))) == len(last)
        assert held(KeptStates(tmp_path / "run"), range(20)) == last  # opened again
    assert held(KeptStates(tmp_path / "another"), range(20)) == []


def test_a_round_may_be_repeated_and_a_client_without_state_keeps_nothing(tmp_path: Path) -> None:
    kept = KeptStates(tmp_path / "run")
    kept.put(1, {}, 0)
    assert not list((tmp_path / "run").rglob("round-*"))
    kept.put(3, {"memory.x": torch.zeros(1)}, 2)
    KeptStates(tmp_path / "run").put(3, state_after(3), 2)
    assert held(KeptStates(tmp_path / "run"), range(20)) == [3]


def test_a_crash_before_the_index_leaves_the_states_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptStates(tmp_path / "run")
    kept.put(1, state_after(1), 0)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("fedperl.engines.flower.site.write_durably", full)
        with pytest.raises(OSError, match="no space"):
            kept.put(2, state_after(2), 1)
    again = KeptStates(tmp_path / "run")
    assert held(again, range(20)) == [1]
    with again.alone():
        assert len(list((tmp_path / "run").glob("round-*"))) == 1  # what the crash left is swept
        again.put(2, state_after(2), 1)
    assert held(KeptStates(tmp_path / "run"), range(20)) == [1, 2]


def test_who_only_looks_deletes_nothing_that_another_is_writing(tmp_path: Path) -> None:
    """An evaluation may come while a late training is at its end: its state is there, and not yet in the index."""
    kept = KeptStates(tmp_path / "run")
    kept.put(1, state_after(1), 0)
    written = tmp_path / "run" / "round-00002-000002.safetensors"
    written.write_bytes(b"being written")
    assert held(KeptStates(tmp_path / "run"), range(20)) == [1]
    assert written.exists()


def test_the_lock_and_the_hash_of_the_images_stay_beside_states(tmp_path: Path) -> None:
    kept = KeptStates(tmp_path / "run")
    kept.images_are("these")
    with kept.alone():
        kept.put(1, state_after(1), 0)
    for _ in range(2):
        with KeptStates(tmp_path / "run").alone(), pytest.raises(BusyError):
            lock(tmp_path / "run" / "lock")
        with pytest.raises(DataError, match="are others than when the run began"):
            KeptStates(tmp_path / "run").images_are("others")
        KeptStates(tmp_path / "run").images_are("these")


def test_a_run_that_starts_anew_keeps_its_first_rounds(tmp_path: Path) -> None:
    """The same configuration has the same name at a site: another run of it begins at round 1 again."""
    kept = KeptStates(tmp_path / "run")
    for round in (95, 97, 98, 100):
        kept.put(round, state_after(round), round - 1)
    kept.put(1, state_after(1), 0)
    assert held(kept, range(101)) == [1]


def layers_after(round: int) -> State:
    return {f"{BATCH_NORM}mean": torch.full((2,), float(round))}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_still_needed_for_evaluations_stays_and_no_more(seed: int, tmp_path: Path) -> None:
    """Beside a site that forgets nothing: rounds that were not accepted, models that are replaced by better ones."""
    generator = np.random.default_rng(seed)
    accepted, best, every = [0], 0, dict[int, State]()
    for round in (one for one in range(1, 30) if generator.random() < 0.7):  # not in every cohort
        needed = {max(made for made in accepted if made <= model) for model in (best, round - 1)} - {0}
        every[round] = state_after(round) | {f"{OWN}x": torch.full((2,), float(round)), OWN_COUNT: torch.tensor(round)}
        kept = KeptStates(tmp_path / "run")
        kept.put(round, every[round], accepted[-1], frozenset(needed) or None)
        assert set(kept.past.records) == {*needed, *accepted[1:][-KEPT + 1 :], round}
        assert len(list((tmp_path / "run" / "past").iterdir())) == len(kept.past.records)
        accepted += [round] if generator.random() < 0.8 else []
        best = round if generator.random() < 0.3 else best
        for model in (best, round):
            after = max(made for made in accepted if made <= model)
            found = KeptStates(tmp_path / "run").for_model(after)
            assert after == 0 or torch.equal(found[f"{OWN}x"], every[after][f"{OWN}x"])
            assert {name for name in kept.past.get(round)} == {f"{OWN}x"}


def test_of_evaluations_nothing_is_forgotten_unasked(tmp_path: Path) -> None:
    kept = KeptStates(tmp_path / "run")
    for round in range(1, 9):
        kept.put(round, layers_after(round), round - 1, None)
    assert sorted(kept.past.records) == list(range(1, 9))
    kept.put(9, layers_after(9), 8, frozenset({2, 11}))
    assert sorted(kept.past.records) == [2, 6, 7, 8, 9]
    assert kept.for_model(5) == kept.for_model(0) == {}


def test_batch_norm_layers_of_every_round_stay(tmp_path: Path) -> None:
    kept = KeptStates(tmp_path / "run")
    for round in (*range(1, 8), 9):
        kept.put(round, state_after(round) | layers_after(round), round - 1)
    assert json.loads(kept.index.read_text()).keys() == {"last", "past"}
    for found in (kept, KeptStates(tmp_path / "run")):
        assert sorted(found.files.records) == [5, 6, 7, 9]
        assert sorted(found.past.records) == [*range(1, 8), 9]
        for round in (1, 4):
            with pytest.raises(RunError, match=f"after round {round} is no longer kept"):
                found.after(round)
            assert {name: x.tolist() for name, x in found.for_model(round).items()} == {
                name: x.tolist() for name, x in layers_after(round).items()
            }
        for round in (5, 9):
            assert found.for_model(round).keys() == (state_after(round) | layers_after(round)).keys()
        assert found.for_model(8) == {}
    kept.put(3, state_after(3) | layers_after(-3), 2)  # another life, from round 2 on
    again = KeptStates(tmp_path / "run")
    assert (sorted(again.files.records), sorted(again.past.records)) == ([3], [1, 2, 3])
    assert again.for_model(3)[f"{BATCH_NORM}mean"].tolist() == [-3, -3]
    assert len(list((tmp_path / "run" / "past").iterdir())) == 3


# What a site tells


def test_images_of_small_classes_are_neither_counted_nor_evaluated() -> None:
    labels = np.repeat([0, 1, 2, 3], [100, 60, 1, 9])
    rows = np.arange(len(labels))
    part = ClientPart("x", rows[:30], rows[30:50], rows[60:], rows[150:])
    found = told_part(part, labels)
    assert (found.validation.tolist(), found.test.tolist()) == (list(range(60, 160)), list(range(150, 160)))
    assert member_of(found, small_config()) == Member(30, 20, 20, 100, 10)
    assert told_part(replace(part, test=rows[151:]), labels).test.tolist() == []


HERE = Asking(2, 0, "abc123")


def site_of(folder: Path, number: int = 2, store: Store | None = None, **sections: Any) -> Site:
    whole = small_store(images=160) if store is None else store
    store = as_client(whole.of_client(number), number)
    return Site(number, store, small_config(**sections), folder, folder / "models" / MODEL)


def initial(site: Site) -> State:
    return state_of(Workspace(site.config, len(site.store.classes)).net)


def asked(site: Site, round: int, **changes: Any) -> TrainTask:
    config = site.config
    settings = LocalSettings(
        config.objective,
        config.optimizer,
        config.views,
        2,
        4,
        round=round,
        rounds=9,
        own_batch_norm=config.federation.batch_norm == "local",
    )
    model = GlobalModel(round - 1, initial(site))
    return replace(TrainTask("abc123", round, site.number, model, None, settings, round), **changes)


def test_what_a_site_says_of_itself(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    said = read_about(site.about(Parcel("{}"), HERE))
    assert said == asdict(member_of(site.store.partition.clients[2], site.config)) | {
        "classes": ["A", "B", "C"],
        "size": 16,
        "digest": site.store.digest(),
        "version": __version__,
    }
    assert (said["labelled"], said["unlabelled"], said["validation"], said["test"]) == (40, 40, 40, 40)
    small = json.loads(site_of(tmp_path / "small", store=small_store(images=24)).about(Parcel("{}"), HERE).text)
    assert (small["labelled"], small["validation"], small["test"]) == (6, 0, 0)
    unsaid = json.dumps({name: value for name, value in said.items() if name != "version"})
    for text in ("[" * 9, "[]", "{}", json.dumps(said | {"image": "x"}), json.dumps(said | {"test": True}), unsaid):
        with pytest.raises(WireError, match="what a site says of itself"):
            read_about(Parcel(text))


@pytest.mark.parametrize("method", ["fedperl", "fedirm"])
def test_a_site_trains_as_the_client_of_the_whole_store(method: str, tmp_path: Path) -> None:
    objective = {"start": 0, "tau": 0.3}
    site = site_of(tmp_path, method=method, objective=objective)
    client = client_of_store(2, small_store(images=160), site.config, Workspace(site.config, 3))
    state: State = {}
    for round, after in ((1, 0), (2, 1), (4, 2)):
        update, state = client.train(asked(site, round), state)
        found = site_of(tmp_path, method=method, objective=objective).train(
            train_parcel(asked(site, round)), replace(HERE, after=after)
        )
        assert found == update_parcel(update)
    assert bool(state) == (method == "fedirm")
    again = site.train(
        train_parcel(asked(site, 4)), replace(HERE, after=2)
    )  # the server goes back, with its checkpoint
    assert again == found
    if state:
        assert site.train(train_parcel(asked(site, 4)), replace(HERE, after=1)) != found


def evaluation_of(site: Site, after: int = 0, **changes: Any) -> Parcel:
    task = EvaluateTask("abc123", 0, site.number, GlobalModel(0, initial(site)), "test")
    return site.evaluate(evaluate_parcel(replace(task, **changes)), replace(HERE, after=after))


CLASSES = {"validation": [30, 21, 0, 9], "test": [40, 25, 1, 9]}
"""Images of each class: of two there are too few."""


def uneven_store(seed: int, classes: Mapping[str, list[int]] = CLASSES) -> Store:
    """Return five clients' images, the third with those classes; the images of its small ones are drawn by a seed."""
    store = small_store(images=320, classes=4)
    label, images, parts = store.manifest.label.copy(), store.images.copy(), list(store.partition.clients)
    generator = np.random.default_rng(seed)
    for name, counts in classes.items():
        rows = getattr(parts[2], name)[: sum(counts)]
        label[rows] = np.repeat(range(4), counts)
        small = rows[np.array(counts)[label[rows]] < 10]
        images[small] = generator.integers(0, 256, size=(len(small), *images.shape[1:]))
        parts[2] = replace(parts[2], **{name: rows})
    about = {"sex": np.resize(np.array(["female", "male"]), len(label))}
    manifest = replace(store.manifest, label=label, about=about)
    return replace(store, images=images, manifest=manifest).dealt(replace(store.partition, clients=tuple(parts)))


OTHER_SIZES = {"validation": [30, 21, 5, 2], "test": [40, 25, 9, 0]}


def all_that_is_told(folder: Path, store: Store) -> dict[str, str]:
    """Return everything that leaves a site with numbers of the images that it evaluates models on."""
    site = site_of(folder, store=store, federation={"own_share": "validation"}, objective={"tau": 0.3})
    said = json.loads(site.about(Parcel("{}"), HERE).text)
    said.pop("digest")
    task = asked(site, 1)
    trained = site.train(train_parcel(replace(task, settings=replace(task.settings, report="validation"))), HERE)
    found = {"about": json.dumps(said), "training": trained.text}
    for part in ("validation", "test"):
        for full in (False, True):
            found[f"{part}, {full}"] = evaluation_of(site, after=1, part=part, full=full).text
    return found


def test_nothing_that_leaves_a_site_depends_on_images_of_small_classes(tmp_path: Path) -> None:
    """Neither what a model says of them, nor how many there are of each class, or in all."""
    stores = [uneven_store(1), uneven_store(2), uneven_store(1, OTHER_SIZES)]
    first, second, third = (all_that_is_told(tmp_path / str(place), store) for place, store in enumerate(stores))
    assert first == second
    assert first == third


def test_numbers_are_those_of_the_counts_that_are_told(tmp_path: Path) -> None:
    """Total right less the right ones of each class that is told leaves nothing; so does balanced accuracy."""
    site = site_of(tmp_path, store=uneven_store(1))
    for part, counts in CLASSES.items():
        found = read_evaluation(evaluation_of(site, part=part, full=True))
        assert found.sums is not None
        rows = [count if count >= 10 else 0 for count in counts]
        assert found.sums.confusion.sum(axis=1).tolist() == rows
        right = found.sums.confusion.diagonal()
        assert found.numbers["images"] == found.sums.images == sum(rows)
        assert found.numbers["accuracy"] == right.sum() / sum(rows)
        recalls = [hits / count for hits, count in zip(right.tolist(), rows, strict=True) if count]
        assert found.numbers["balanced_accuracy"] == pytest.approx(sum(recalls) / len(recalls))
        plain = read_evaluation(evaluation_of(site, part=part))
        assert plain.sums is None
        assert plain.numbers.items() <= found.numbers.items()
        for bins in (found.sums.confidence.sum(axis=1), found.sums.scores.sum(axis=2)):
            assert not ((bins > 0) & (bins < 10)).any()
    groups = found.groups["sex"].groups
    assert sum(counts.sum() for counts in groups.values()) == sum(rows)


def test_a_site_evaluates_nothing_where_no_class_has_ten_images(tmp_path: Path) -> None:
    site = site_of(tmp_path, store=uneven_store(1, {"validation": [9, 9, 9, 9], "test": [9, 10, 0, 3]}))
    assert read_evaluation(evaluation_of(site)).numbers["images"] == 10
    with pytest.raises(DataError, match="no class has 10 validation images: nothing is told of them"):
        evaluation_of(site, part="validation")
    said = read_about(site.about(Parcel("{}"), HERE))
    assert (said["validation"], said["test"]) == (0, 10)


def test_nothing_is_told_of_fewer_than_ten_validation_images(tmp_path: Path) -> None:
    """`findings` says that no number of them is sent."""
    store = small_store(images=160)
    texts = set()
    for few in (slice(0, 3), slice(3, 6), slice(0, 0)):
        parts = [replace(part, validation=part.validation[few]) for part in store.partition.clients]
        folder = tmp_path / f"{few.start} {few.stop}"
        site = site_of(folder, store=store.dealt(replace(store.partition, clients=tuple(parts))))
        texts.add(evaluation_of(site, full=True).text)
    assert len(texts) == 1
    assert not SCALED_NUMBERS & json.loads(texts.pop())["numbers"].keys()
    assert json.loads(evaluation_of(site_of(tmp_path), full=True).text)["numbers"].keys() > SCALED_NUMBERS


def test_a_site_refuses_tasks_of_others(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    with pytest.raises(RunError, match="a task for client 1 came to client 2"):
        site.train(train_parcel(asked(site, 1, client=1)), HERE)
    with pytest.raises(RunError, match="a task for client 1 came to client 2"):
        evaluation_of(site, client=1)
    for run in ("../../site", "a/b", "", "..", "ä"):
        with pytest.raises(RunError, match="name is none"):
            site.train(train_parcel(asked(site, 1)), replace(HERE, run=run))
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="dealt to 5 clients; wanted one hospital's"):
        as_client(small_store(), 2)


@pytest.mark.parametrize(
    ("sections", "prefix"),
    [({"method": "fedperl_local_norm"}, BATCH_NORM), ({"federation": {"own_share": 0.5}}, OWN)],
    ids=["batch norm", "own share"],
)
def test_a_reported_model_is_tested_with_what_was_kept_at_its_time(
    sections: dict[str, Any], prefix: str, tmp_path: Path
) -> None:
    site = site_of(tmp_path, **sections)
    site.train(train_parcel(asked(site, 1)), HERE)
    then = evaluation_of(site, after=1)
    assert then != evaluation_of(site, after=0)
    assert any(name.startswith(prefix) for name in KeptStates(tmp_path / "abc123").after(1))
    for round in range(2, 7):
        asking = replace(HERE, after=round - 1, needed=None if round < 5 else frozenset({1, round - 1}))
        site.train(train_parcel(asked(site, round)), asking)
    assert evaluation_of(site, after=1) == then
    assert sorted(KeptStates(tmp_path / "abc123").past.records) == [1, 3, 4, 5, 6]


# The model that it uses


def test_a_site_writes_the_model_that_it_is_to_use_as_it_uses_it(tmp_path: Path) -> None:
    site = site_of(tmp_path, federation={"own_share": 0.25})
    trained = read_update(site.train(train_parcel(asked(site, 1)), HERE)).state
    for part in ("validation", "test"):
        evaluation_of(site, after=1, part=part, full=True)
    assert not site.model.exists()
    told = evaluation_of(site, after=1, full=True, to_use=True)
    assert told == evaluation_of(site, after=1, full=True)  # nothing more leaves
    model, found = state_of(Workspace(site.config, 3).net), load_file(site.model)
    for name, tensor in found.items():
        if tensor.is_floating_point():
            expected = 0.75 * model[name].double() + 0.25 * trained[name].double()
            assert torch.allclose(tensor.double(), expected, atol=1e-6)
            assert torch.equal(tensor, model[name]) == torch.equal(trained[name], model[name])
    predictor = open_predictor(site.model)
    assert (predictor.classes, predictor.size, predictor.round, predictor.run) == (("A", "B", "C"), 16, 0, None)
    test = site.store.pixels(site.store.partition.clients[2].test)
    right = predictor.ask(torch.from_numpy(test)).argmax(1).numpy()
    labels = site.store.manifest.label[site.store.partition.clients[2].test]
    assert (right == labels).mean() == pytest.approx(read_evaluation(told).numbers["accuracy"])
    assert site.model.stat().st_mode & 0o777 == 0o600


def other(site: Site) -> GlobalModel:
    return GlobalModel(5, {name: tensor + 1 for name, tensor in state_of(Workspace(site.config, 3).net).items()})


def test_a_model_to_use_is_whole_or_not_there_and_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = site_of(tmp_path)
    evaluation_of(site, full=True, to_use=True)
    first, second = site.model, site.model.with_name(f"{site.model.stem}_2.safetensors")
    before = first.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedperl.files.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluation_of(site, model=other(site), full=True, to_use=True)
    assert not second.exists()
    for _ in range(2):  # the server does not know that it was written, and asks again
        evaluation_of(site, model=other(site), full=True, to_use=True)
        assert open_predictor(second).round == 5
        evaluation_of(site, full=True, to_use=True)
        assert first.read_bytes() == before
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, second.name])
    assert "is another model of this run" in caplog.text


def test_a_model_to_use_is_written_by_one_at_a_time_and_waits_for_no_training(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    kept = KeptStates(tmp_path / "abc123")
    with kept.handing_out():
        late = threading.Thread(target=lambda: evaluation_of(site, full=True, to_use=True))
        late.start()
        late.join(1.0)
        assert late.is_alive()
        assert not site.model.exists()
    late.join(30)
    assert site.model.exists()
    with kept.alone():
        training = threading.Thread(target=lambda: evaluation_of(site, full=True, to_use=True))
        training.start()
        training.join(30)
        assert not training.is_alive()


def test_a_model_to_use_is_of_the_runs_network(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    right = state_of(Workspace(site.config, 3).net)
    name = next(name for name, tensor in right.items() if tensor.ndim > 1)
    for wrong in (
        {key: tensor for key, tensor in right.items() if key != name},
        right | {name: right[name][:1]},
        right | {name: right[name].double()},
    ):
        with pytest.raises(RunError, match=f"of another form than the network: {re.escape(name)}"):
            evaluation_of(site, model=GlobalModel(5, wrong), full=True, to_use=True)
    assert not site.model.exists()


@pytest.mark.parametrize("own_share", [0.0, 0.5])
def test_a_model_that_cannot_be_written_holds_nobody_up_where_the_server_has_it(
    own_share: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = site_of(tmp_path, federation={"own_share": own_share})
    wanted = evaluation_of(site, full=True)
    site.model = tmp_path / "file" / "model.safetensors"
    (tmp_path / "file").touch()
    if own_share:
        with pytest.raises(DataError, match="file"):
            evaluation_of(site, full=True, to_use=True)
    else:
        assert evaluation_of(site, full=True, to_use=True) == wanted
        assert "is not written here, but the server has it" in caplog.text


def test_what_a_site_has_lost_it_does_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = site_of(tmp_path, federation={"own_share": 0.5})
    evaluation_of(site, after=3, full=True, to_use=True)
    plain = state_of(Workspace(site.config, 3).net)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in load_file(site.model).items())
    assert "nothing is left of round 3: the global model is tested and used as it is" in caplog.text


@pytest.mark.parametrize(
    ("name", "plain"),
    [("skin", "skin"), ("a" * 100, "a" * 50), ("größe und mehr", "gr__e_und_mehr"), ("𝒳" * 100, "_" * 50)],
)
def test_a_sites_models_are_named_by_run(name: str, plain: str, tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path / "site")
    path = folder.model_of(name, "0123456789abcdef")
    assert path.parent == folder.path / "models"
    assert path.name == f"{plain}_0123456789abcdef.safetensors"
    write_weights(path, {"x": torch.zeros(1)}, {})
    assert path != folder.model_of(name, "1123456789abcdef")


def test_a_site_refuses_an_objective_that_is_not_the_runs(tmp_path: Path) -> None:
    site, trace = site_of(tmp_path / "state"), tmp_path / "trace"
    steal = tmp_path / "steal.py"
    steal.write_text(f"open({str(trace)!r}, 'w').close()\nclass Own: ...\n")
    settings = asked(site, 1).settings
    own = site.config.objective
    for other in (own.model_copy(update={"kind": f"{steal}:Own"}), own.model_copy(update={"tau": own.tau / 2})):
        task = asked(site, 1, settings=replace(settings, objective=other))
        with pytest.raises(RunError, match="another objective than the run's"):
            site.train(train_parcel(task), HERE)
        assert not trace.exists()
        assert not (tmp_path / "state").exists()
    site.train(train_parcel(asked(site, 1)), HERE)


def test_a_site_of_any_number_takes_part(tmp_path: Path) -> None:
    """A store has the client at its own place, whatever others there are."""
    for number in (0, 4):
        site = site_of(tmp_path / str(number), number=number)
        assert len(site.store.partition.clients) == number + 1
        assert read_about(site.about(Parcel("{}"), HERE))["labelled"] == 40


@pytest.mark.parametrize(
    ("scenario", "counts"),
    [
        ({"labels": "clients"}, (40, 40)),
        ({"labels": "few_clients", "labelled_clients": [1]}, (0, 80)),
        ({"labels": "few_clients", "labelled_clients": [2]}, (80, 0)),
        ({"labels": "few_clients", "labelled_clients": [2, 4]}, (80, 0)),
        ({"labels": "server"}, (0, 80)),
    ],
)
def test_a_site_sees_its_labels_as_the_scenario_says(
    scenario: dict[str, Any], counts: tuple[int, int], tmp_path: Path
) -> None:
    said = read_about(site_of(tmp_path, scenario=scenario).about(Parcel("{}"), HERE))
    assert (said["labelled"], said["unlabelled"]) == counts


# Answers


def question(parcel: Parcel, **envelope: str) -> RecordDict:
    return record_of(parcel, {ATTEMPT: "a", NONCE: "n", CLIENT: "2", AFTER: "7", RUN: "abc123"} | envelope)


def bytes_of(content: RecordDict) -> bytes:
    found: bytes = recorddict_to_proto(content).SerializeToString()
    return found


def test_an_answer_brings_back_what_it_is_known_by() -> None:
    seen = []

    def do(parcel: Parcel, found: Asking) -> Parcel:
        seen.append((parcel.text, found))
        return Parcel('{"b": 1}', {"model": b"new"})

    given = Parcel('{"a": 1}', {"model": b"old", "peer": b"more"})
    parcel, envelope = parcel_of(answer(question(given), do))
    assert seen == [('{"a": 1}', Asking(2, 7, "abc123"))]
    assert (parcel.text, dict(parcel.pieces)) == ('{"b": 1}', {"model": b"new"})
    assert envelope == {ATTEMPT: "a", NONCE: "n", HASH: model_hash(given)}
    assert parcel_of(answer(question(Parcel("{}")), do))[1] == {ATTEMPT: "a", NONCE: "n", HASH: ""}


@pytest.mark.parametrize(
    ("said", "needed"),
    [
        ("3", {3}),
        ("12,3,3", {3, 12}),
        *((said, None) for said in ("", ",", "3,", "-3", "3 ", "3,x", "٣", "3\n", "1e3", "[3]", "9" * 5000)),
    ],
)
def test_rounds_that_cannot_be_read_stand_for_all(said: str, needed: set[int] | None) -> None:
    envelope = {CLIENT: "2", AFTER: "7", RUN: "abc123"}
    assert asking_of(envelope | {NEEDED: said}) == Asking(2, 7, "abc123", None if needed is None else frozenset(needed))
    assert asking_of(envelope).needed is None


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", f"/data/{SECRET}.jpg"),
        DataError(f"image {SECRET} has no label"),
        KeyError(SECRET),
        MemoryError(SECRET),
    ],
)
def test_of_an_error_only_its_kind_leaves_the_site(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def do(*_: object) -> Parcel:
        try:
            raise ValueError(f"the cause, {SECRET}")
        except ValueError as cause:
            raise error from cause

    found = answer(question(Parcel("{}", {"model": b"old"})), do)
    parcel, envelope = parcel_of(found)
    assert parcel == Parcel("{}")
    assert envelope == {ATTEMPT: "a", NONCE: "n", HASH: model_hash(Parcel("", {"model": b"old"}))} | {
        ERROR: type(error).__name__
    }
    assert SECRET.encode() not in bytes_of(found)
    assert type(error).__name__.encode() in bytes_of(found)
    assert SECRET in caplog.text  # the site's own log has all of it


def test_what_is_no_question_is_answered_with_an_error() -> None:
    def do(*_: object) -> Parcel:
        raise AssertionError("nothing is done")

    for content, kind in (
        (RecordDict(), "WireError"),
        (record_of(Parcel("{}"), {}), "KeyError"),
        (question(Parcel("{}"), **{CLIENT: "two"}), "ValueError"),
        (question(Parcel("{}", {"peer": b"no model"})), "KeyError"),
    ):
        assert parcel_of(answer(content, do))[1][ERROR] == kind


def test_a_site_answers_a_question_from_beginning_to_end(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    given = train_parcel(asked(site, 1))
    found, envelope = parcel_of(answer(question(given, **{AFTER: "0"}), site.train))
    assert found == site.train(given, HERE)
    assert envelope[HASH] == model_hash(given)
    failed = answer(question(replace(given, text="{}")), site.train)
    assert parcel_of(failed)[1][ERROR] == "WireError"


# What may run across sites

RAW, ALONE = "peers.anonymize = false: raw peers never leave", "federation.alone = true: clients that train by"
REFUSED = {
    **dict.fromkeys(("fedmatch", "fedmatch_fedperl_raw", "fedmatch_lite", "fedmatch_server", "fedperl_raw"), RAW),
    **dict.fromkeys((f"fedperl_{name}_raw" for name in ("gated_similarity", "gated_validation", "validation")), RAW),
    **dict.fromkeys(("local_fixmatch", "local_lower", "local_upper"), ALONE),
}


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_runs_across_sites_or_is_refused_by_name(method: str) -> None:
    config = load_config(None, [f"method={method}"])
    for text in (f'method = "{method}"', dump(config)):
        if method in REFUSED:
            with pytest.raises(ConfigError, match=f"method '{method}' cannot run across sites: {REFUSED[method]}"):
                config_of(text)
        else:
            found = config_of(text)
            assert found.model_dump() == config.model_dump() | {"written_by": found.written_by}
            assert found.peers.anonymize or not found.peer_learning
            assert not found.federation.alone
            assert found.objective.kind in OBJECTIVES
            assert found.privacy == "recommended"
    with pytest.raises(ConfigError, match=f"method '{method}' cannot run across sites: "):
        config_of(f'method = "{method}"\nprivacy = "research"')


def test_all_that_is_refused_is_still_there() -> None:
    assert REFUSED.keys() < methods().keys()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'privacy = "research"\n[peers]\nanonymize = false',
            "peers.anonymize = false: raw peers never leave the local",
        ),
        ("[peers]\nanonymize = false", "peers.anonymize = false sends one client's model to another"),
        ('device = "cuda"', "device = 'cuda': the server only averages; wanted 'cpu'"),
        ('privacy = "research"', "privacy = 'research': not for real patients"),
        ("[peers]\nsnapshot = false", "peers.snapshot = false: a client could be sent a peer of models"),
        (
            'privacy = "research"\n[peers]\nsnapshot = false',
            "peers.snapshot = false: clients of a round would have to wait",
        ),
        (
            '[dp]\nunit = "record"\n[model]\nnorm = "group"\n[objective]\nclass_weights = "none"',
            "dp.unit = 'record': sites keep no durable count of private steps yet",
        ),
        ('method = "lower"\n[federation]\nalone = true', "federation.alone = true: clients that train by themselves"),
        (
            '[objective]\nkind = "steal.py:Own"',
            "objective.kind = 'steal.py:Own': sites run no code that is sent to them",
        ),
        ("method = ", "the run's configuration is no TOML"),
        ("[federation]\nrounds = 0", "the run's configuration: federation.rounds = 0"),
        ("[peers]\nTt = 2", "the run's configuration: unknown key 'peers.Tt'"),
        ('method = "theirs"', "method = 'theirs' is unknown"),
        ('method = "../../etc/theirs"', "is unknown"),
    ],
)
def test_what_may_not_run_across_sites_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(".", r"\.")):
        config_of(text)


# The folder of a site


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> SiteFolder:
    found = SiteFolder(tmp_path / "site")
    found.create("fed.example.org:8443", tmp_path / "store")
    return found


def test_a_new_folder_has_a_key_and_settings_that_are_read_back(site: SiteFolder, tmp_path: Path) -> None:
    found = site.settings()
    assert found == SiteSettings(server="fed.example.org:8443", data="../store")
    assert (site.path / found.data).resolve() == (tmp_path / "store").resolve()
    lines = site.file.read_text().splitlines()
    keys = [line.partition(" = ")[0] for line in lines if line and not line.startswith("#")]
    assert keys == list(SiteSettings.model_fields)  # each one, with a remark above
    assert all(
        lines[lines.index(line) - 1].startswith("#") for line in lines if line.startswith(("server", "ca", "data"))
    )
    assert {path.name for path in site.path.iterdir()} == {"site.toml", "site.key", "site.pub"}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in site.path.iterdir()} == {
        "site.key": "0o600",
        "site.pub": "0o644",
        "site.toml": "0o644",
    }
    assert oct(site.path.stat().st_mode & 0o777) == "0o700"
    assert site.own_settings(small_config(device="cuda:3", threads=7)).device == "cpu"


def test_a_second_site_in_the_folder_does_not_replace_the_key(site: SiteFolder, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in site.path.iterdir()}
    with pytest.raises(ConfigError, match="holds a site already; its key is not replaced"):
        SiteFolder(site.path).create("other:1", tmp_path)
    site.file.unlink()
    with pytest.raises(ConfigError, match="holds a site already"):
        site.create("other:1", tmp_path)
    before.pop(site.file)
    assert {path: path.read_bytes() for path in site.path.iterdir()} == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sever = 1", r"unknown key 'sever'; did you mean 'server'\?"),
        ("server = 8443", "server = 8443: Input should be a valid string"),
        ('server = "fed.example.org"', "server = 'fed.example.org': String should match"),
        ('server = "https://fed.example.org:8443"', "server = 'https://fed"),
        ('server = "a b:1"', "server = 'a b:1'"),
        ("data = 3", "data = 3: Input should be a valid string"),
        ("ca = true", "ca = True: Input should be"),
        ("shares = [1, 2, 3, 4]", "shares.1 = 2: "),
        ("shares = [1.0]", "shares"),
        ('shares = "half"', "shares = 'half'"),
        ("threads = 0", "threads"),
        ('threads = "many"', "threads"),
        ("device = 1", "device = 1"),
        ("threads = ", "cannot be read as TOML"),
    ],
)
def test_wrong_settings_are_refused_with_file_and_key(line: str, message: str, site: SiteFolder) -> None:
    key = line.partition(" ")[0]
    text = "\n".join(one for one in site.file.read_text().splitlines() if not one.startswith(key + " "))
    site.file.write_text(text + f"\n{line}\n")
    with pytest.raises(ConfigError, match=message) as raised:
        site.settings()
    assert str(raised.value).startswith(f"{site.file}: ")


def test_a_missing_setting_is_named(site: SiteFolder) -> None:
    site.file.write_text('ca = "ca.crt"\n')
    with pytest.raises(ConfigError, match=r"site\.toml: .*server"):
        site.settings()


def test_missing_files_are_named(site: SiteFolder) -> None:
    with pytest.raises(ConfigError, match="ca.crt: no such file; wanted the federation's ca.crt"):
        site.certificate()
    site.file.unlink()
    with pytest.raises(ConfigError, match=r"site\.toml: no such file; wanted `fedperl site init` first"):
        site.settings()


@pytest.mark.parametrize("name", ["store", "größe", 'a "b" \\c', "# no", "𝒳"])
def test_a_folder_of_any_name_is_found(name: str, tmp_path: Path) -> None:
    site = SiteFolder(tmp_path / name / "site")
    site.path.parent.mkdir()
    site.create("localhost:1", tmp_path / name / "the images" / name)
    assert (site.path / site.settings().data).resolve() == (tmp_path / name / "the images" / name).resolve()


def test_leaving_and_coming_back(site: SiteFolder) -> None:
    KeptStates(site.state / "run").put(1, state_after(1), 0)
    write_weights(site.model_of("skin", "0" * 16), {"x": torch.zeros(1)}, {})
    assert not site.leaving()
    site.leave()
    assert site.leaving()
    assert not site.told()
    assert not site.state.exists()
    assert [path.name for path in site.models.iterdir()] == ["skin_0000000000000000.safetensors"]  # its own to use
    site.has_told()
    assert SiteFolder(site.path).told()
    site.leave()
    assert not site.told()
    site.has_told()
    site.come_back()
    assert not site.leaving()
    assert not site.told()


# Its images


def as_is(store: Store, label: int | None = None) -> Store:
    """Return a hospital's store that is dealt to nobody; some images without labels."""
    labels = store.manifest.label.copy()
    if label is not None:
        labels[:label] = -1
    return replace(store, manifest=replace(store.manifest, label=labels), partition=Partition())


def test_images_that_are_dealt_to_one_are_used_as_they_are(site: SiteFolder, tmp_path: Path) -> None:
    own = small_store().of_client(3)
    own.save(tmp_path / "store")
    assert site.open_store().digest() == own.digest()


def test_images_that_are_dealt_to_several_are_refused(site: SiteFolder, tmp_path: Path) -> None:
    small_store().save(tmp_path / "store")
    with pytest.raises(DataError, match="is dealt to 5 clients; wanted one hospital's images"):
        site.open_store()


def test_images_that_are_dealt_to_nobody_are_dealt_by_shares(site: SiteFolder, tmp_path: Path) -> None:
    store = as_is(small_store(images=40), label=48)
    group = np.array([f"lesion_{k // 2}" for k in range(len(store.manifest))])
    store = replace(store, manifest=replace(store.manifest, group=group))
    store.save(tmp_path / "store")
    known = len(store.manifest) - 48
    for shares in ((0.5, 0.0, 0.2, 0.3), (0.25, 0.25, 0.25, 0.25), (0.0, 1.0, 0.0, 1.0)):
        text = site.file.read_text().partition("shares = ")
        site.file.write_text(f"{text[0]}shares = {list(shares)}\n{text[2].partition(chr(10))[2]}")
        found = site.open_store()
        (part,) = found.partition.clients
        assert sorted(part.rows().tolist()) == list(range(len(store.manifest)))  # each once
        assert len(found.partition.server) == 0
        assert set(range(48)) <= set(part.unlabelled.tolist())
        if not shares[1]:
            sizes = [len(getattr(part, name)) for name in PARTS if name != "unlabelled"]
            wanted = [
                known * share / sum(shares) for name, share in zip(PARTS, shares, strict=True) if name != "unlabelled"
            ]
            assert sizes == pytest.approx(wanted, abs=2)
            assert len(part.unlabelled) == 48
        groups = [set(group[getattr(part, name)].tolist()) for name in PARTS]
        assert sum(len(names) for names in groups) == len(set(group.tolist()))
        assert site.open_store().digest() == found.digest()  # the same each time


def test_shares_of_nothing_are_refused(site: SiteFolder, tmp_path: Path) -> None:
    as_is(small_store()).save(tmp_path / "store")
    site.file.write_text(site.file.read_text().replace("[0.5, 0.0, 0.2, 0.3]", "[0.0, 0.0, 0.0, 0.0]"))
    with pytest.raises(ConfigError, match="shares"):
        site.open_store()


def test_findings_of_images_in_order() -> None:
    store = small_store(images=160)
    about = {"sex": np.resize(np.array(["male"]), len(store.manifest)), "institution": store.manifest.source}
    store = replace(store, manifest=replace(store.manifest, about=about)).of_client(1)
    found = findings(store)
    part = store.partition.clients[0]
    assert found["counts"] == dict.fromkeys(PARTS, 40)
    for name in PARTS:
        labels = store.manifest.label[getattr(part, name)].tolist()
        assert found["by_class"][name] == {letter: labels.count(place) for place, letter in enumerate("ABC")}
    assert (found["images"], found["size"], found["groups"], found["classes"]) == (160, 16, 160, ["A", "B", "C"])
    assert found["known_of_patients"] == ["sex"]
    assert found["warnings"] == []
    assert found["leaves"] == leaves(found["counts"], ["sex"])
    assert "labelled (40), unlabelled (40)" in found["leaves"][1]
    assert "validation (40) and test (40)" in found["leaves"][1]
    assert any("groups of ten or more by sex" in line for line in found["leaves"])
    assert not any("groups of ten" in line for line in leaves(found["counts"]))
    json.dumps(found)


def test_findings_warn() -> None:
    store = small_store(images=160)
    part = store.partition.clients[0]
    label, images = store.manifest.label.copy(), store.images.copy()
    label[part.test[:2]] = -1
    label[part.labelled] = 0
    images[part.labelled[:3]] = 0
    nothing = replace(part, labelled=no_rows(), unlabelled=no_rows())
    odd = replace(store, images=images, manifest=replace(store.manifest, label=label))
    few = replace(part, validation=part.validation[:25])
    label[part.validation[:25]] = np.repeat([0, 1, 2], [8, 9, 8])
    assert findings(odd.dealt(Partition((few,))))["warnings"] == [
        "validation images of A (8), B (9), C (8): fewer than 10, no number is computed on them",
        "no class has 10 validation images: no number of them is sent",
        "2 test images have no label; wanted one each",
        "no labelled training image of: B, C",
        "3 images are entirely black",
    ]
    assert findings(store.dealt(Partition((nothing,))))["warnings"] == [
        "no images to train on: the site cannot take part"
    ]


# Keys


def shakes_hands(folder: Path, authority: Path, name: str) -> bool:
    """Return whether a client that trusts the authority accepts the server's certificate for a name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    done = [False, False]
    for _ in range(9):
        for place, end in enumerate(ends):
            try:
                end.do_handshake()
                done[place] = True
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return all(done)


def test_the_servers_certificate_is_for_its_names_alone(tmp_path: Path) -> None:
    make_authority(tmp_path / "keys", ["fed.example.org", "localhost", "127.0.0.1"])
    make_authority(tmp_path / "other", ["fed.example.org", "localhost", "127.0.0.1"])
    ours = tmp_path / "keys" / "ca.crt"
    for name in ("fed.example.org", "localhost", "127.0.0.1"):
        assert shakes_hands(tmp_path / "keys", ours, name)
        assert not shakes_hands(tmp_path / "keys", tmp_path / "other" / "ca.crt", name)
    for name in ("example.org", "www.fed.example.org", "127.0.0.2", "ca"):
        assert not shakes_hands(tmp_path / "keys", ours, name)
    assert not shakes_hands(tmp_path / "keys", tmp_path / "keys" / "server.crt", "localhost")  # it is no authority
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "keys").iterdir()}
    assert modes == {"ca.crt": "0o644", "ca.key": "0o600", "server.crt": "0o644", "server.key": "0o600"}
    assert oct((tmp_path / "keys").stat().st_mode & 0o777) == "0o700"


def test_a_sites_keys_are_a_pair_for_openssh(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_site_keys(tmp_path / name)
    public = (tmp_path / "a" / "site.pub").read_bytes()
    assert public.startswith(b"ecdsa-sha2-nistp384 ")
    assert public.endswith(b"\n")
    found = serialization.load_ssh_public_key(public)
    assert isinstance(found, ec.EllipticCurvePublicKey)
    assert isinstance(found.curve, ec.SECP384R1)
    private = serialization.load_ssh_private_key((tmp_path / "a" / "site.key").read_bytes(), password=None)
    assert private.public_key().public_numbers() == found.public_numbers()
    assert (tmp_path / "b" / "site.pub").read_bytes() != public
    assert oct((tmp_path / "a" / "site.key").stat().st_mode & 0o777) == "0o600"
