"""The four scenarios, end to end on drawn hospitals, and each rule of who has labels."""

import dataclasses
import io
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from fedperl import train
from fedperl.cli import main
from fedperl.data.dermsim.hospitals import ten_hospitals, unseen_hospital
from fedperl.data.journal import Recipe
from fedperl.data.manifest import Manifest
from fedperl.data.partition import Partition, ServerPart
from fedperl.data.partitions import deal
from fedperl.data.prepare import prepare
from fedperl.data.readers import read
from fedperl.data.readers.base import SKIN
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.engines.cuda.captured import Recorder
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.evaluate import BinnedSums, calibration
from fedperl.evaluate.malignancy import malignancy
from fedperl.evaluating import evaluate, open_unseen
from fedperl.federation.client import Workspace, client_of_store
from fedperl.federation.own_images import OwnImages
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict
from fedperl.learn.state import State, load_into, state_of
from fedperl.learn.weights import load_model, read_metadata, write_weights
from fedperl.predicting import open_predictor
from fedperl.pretraining import Pretraining, pretrain
from fedperl.report.tables import evaluation_tables
from fedperl.settings import Partitioning, Scenario
from tests.conftest import small_config, small_store
from tests.data.readers import trees
from tests.engines.recording import recorded


@pytest.fixture(scope="module", name="hospitals")
def _hospitals() -> Store:
    return ten_hospitals(size=16, scale=0.02, seed=0)


def printed(found: dict[str, Any]) -> str:
    """What the terminal shows of an evaluation."""
    console = Console(file=io.StringIO(), width=200)
    for shown in evaluation_tables(found):
        console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def rounds(folder: Path) -> list[dict[str, Any]]:
    return RunFolder(folder).read_metrics()


# Who has labels


def test_labels_at_the_server_take_them_from_the_clients_and_split_the_servers_images() -> None:
    store = small_store()
    seen = seen_by(Scenario(labels="server"), store.partition, store.manifest, seed=1)
    for before, after in zip(store.partition.clients, seen.clients, strict=True):
        assert not len(after.labelled)
        assert set(after.unlabelled) == set(before.labelled) | set(before.unlabelled)
        assert (after.test == before.test).all()
    assert set(seen.server.labelled) | set(seen.server.validation) == set(store.partition.server.rows())
    assert (len(seen.server.labelled), len(seen.server.validation)) == (6, 2)
    given = dataclasses.replace(store.partition, server=ServerPart(*np.array_split(store.partition.server.rows(), 3)))
    kept = seen_by(Scenario(labels="server"), given, store.manifest, seed=1)
    assert (kept.server.labelled == given.server.labelled).all()
    with pytest.raises(DataError, match="the server has 0 images"):
        seen_by(Scenario(labels="server"), Partition(store.partition.clients), store.manifest, seed=1)


def test_few_labelled_clients_have_all_labels_and_the_others_none() -> None:
    store = small_store()
    seen = seen_by(Scenario(labels="few_clients", labelled_clients=(1, 3)), store.partition, store.manifest, seed=1)
    for number, (before, after) in enumerate(zip(store.partition.clients, seen.clients, strict=True)):
        every = set(before.labelled) | set(before.unlabelled)
        assert set(after.labelled) == (every if number in (1, 3) else set())
        assert set(after.unlabelled) == (set() if number in (1, 3) else every)
    with pytest.raises(ConfigError, match=r"labelled_clients = \[1, 9\]; there are clients 0 to 4"):
        seen_by(Scenario(labels="few_clients"), store.partition, store.manifest, seed=1)


def test_a_client_without_labels_never_sees_one(store: Store) -> None:
    """Scrambling the labels that a scenario hides changes nothing about what such a client sends."""
    config = small_config(scenario={"labels": "few_clients", "labelled_clients": [0]})
    seen = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=0))
    hidden = seen.partition.clients[2].unlabelled
    label = seen.manifest.label.copy()
    label[hidden] = (label[hidden] + 1) % 3
    scrambled = Store(seen.images, dataclasses.replace(seen.manifest, label=label), seen.partition)
    work = Workspace(config, 3)
    start = state_of(work.net)
    settings = LocalSettings(config.objective, config.optimizer, config.views, steps=3, batch=4)
    sent = []
    for held in (seen, scrambled):
        client = client_of_store(2, held, config, work)
        assert client.class_weights is None
        load_into(work.net, start)
        numbers = local_round(work.net, client.training, settings, seed=1).numbers
        sent.append((numbers, state_of(work.net)))
    assert sent[0][0] == sent[1][0]
    assert all(torch.equal(sent[0][1][name], sent[1][1][name]) for name in start)


# End to end


def test_labels_at_the_server_only(tmp_path: Path, hospitals: Store) -> None:
    config = small_config(method="fedperl", scenario={"labels": "server", "server_steps": 3})
    results = train(config, tmp_path / "run", store=hospitals)
    assert results["scenario"] == "server"
    assert set(results["over_clients"]) == {"last", "global_best", "server_best", "per_client_best"}
    lines = rounds(tmp_path / "run")
    assert all("loss_labelled" not in numbers for line in lines for numbers in line["numbers"].values())
    assert [line["server"]["images"] for line in lines] == [4] * 4
    assert results["totals"]["with_peer"] > 0
    best = max(range(4), key=lambda r: (lines[r]["server"]["accuracy"], r)) + 1
    assert results["test"]["server_best"]["0"]["round"] == best


def test_the_server_trains_the_first_and_every_averaged_model(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught, teach = list[int](), OwnImages.teach

    def watched(self: OwnImages, state: State, round: int) -> State:
        taught.append(round)
        return teach(self, state, round)

    monkeypatch.setattr(OwnImages, "teach", watched)
    train(small_config(scenario={"labels": "server"}), tmp_path / "run", store=store)
    assert taught == [0, 1, 2, 3, 4]


def test_the_server_learns_from_its_own_images(store: Store) -> None:
    config = small_config(scenario={"labels": "server", "server_steps": 40}, optimizer={"lr": 5e-3})
    seen = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=0))
    own = OwnImages(config, seen, Workspace(config, 3))
    start = state_of(build_net("small_cnn", 3, seed=5))
    taught = own.teach(start, 2)
    assert any(not torch.equal(taught[name], start[name]) for name in start)
    again = own.teach(start, 2)
    assert all(torch.equal(again[name], taught[name]) for name in taught)
    assert own.score(taught)[1] < own.score(start)[1]
    assert own.evaluate(taught, "validation")["images"] == 2


def test_the_server_trains_by_recorded_steps_where_clients_do(store: Store) -> None:
    """On a GPU its steps are recorded once and played, on a network of their own: the same model, round after round."""
    config = small_config(scenario={"labels": "server", "server_steps": 5}, optimizer={"lr": 5e-3})
    seen = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=0))
    place, recorder, work = Workspace(config, 3), Recorder(record=recorded), Workspace(config, 3)
    eager = OwnImages(config, seen, Workspace(config, 3))
    own = OwnImages(config, seen, work, at_work=lambda: nullcontext((place.net, recorder)))
    untouched, state = state_of(work.net), state_of(build_net("small_cnn", 3, seed=5))
    for round in (1, 2):
        wanted, found = eager.teach(state, round), own.teach(state, round)
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], atol=1e-6, rtol=1e-5)
        state = wanted
    assert len(recorder.graphs) == 1
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in work.net.state_dict().items())


def test_few_labelled_clients(tmp_path: Path, hospitals: Store) -> None:
    for cohort in (3, 10):  # participation 30 % and 100 %
        settings = {"labels": "few_clients"}
        config = small_config(method="ssfl", scenario=settings, federation={"rounds": 2, "cohort": cohort})
        train(config, tmp_path / str(cohort), store=hospitals)
    last = rounds(tmp_path / "10")[-1]["numbers"]
    assert {client for client, numbers in last.items() if "loss_labelled" in numbers} == {"1", "9"}
    assert {client for client, numbers in last.items() if "accepted" not in numbers} == {"1", "9"}


def test_a_supervised_method_trains_the_labelled_clients_alone(tmp_path: Path, hospitals: Store) -> None:
    few = {"labels": "few_clients"}
    with pytest.raises(ConfigError, match=r"cohort = 3; there are 2 clients with something to train on, of 10"):
        train(small_config(method="lower", scenario=few), tmp_path / "a", store=hospitals)
    two = {"federation": {"rounds": 2, "cohort": 2, "quorum": 2}, "audit": {"coalition": 0}}
    config = small_config(method="lower", scenario=few, **two)
    train(config, tmp_path / "b", store=hospitals)
    assert {client for line in rounds(tmp_path / "b") for client in line["cohort"]} == {1, 9}
    with pytest.raises(ConfigError, match="leaves the clients no labels"):
        small_config(method="lower", scenario={"labels": "server"})


def test_without_a_client(tmp_path: Path, hospitals: Store) -> None:
    config = small_config(federation={"exclude": [8], "cohort": 9, "rounds": 2})
    results = train(config, tmp_path / "run", store=hospitals)
    assert sorted(results["test"]["last"]) == ["0", "1", "2", "3", "4", "5", "6", "7", "9"]
    for line in rounds(tmp_path / "run"):
        assert 8 not in line["cohort"]
        assert "8" not in line["validation"]
        assert all(8 not in members for members in line["committees"].values())
    with pytest.raises(ConfigError, match="exclude names client 12; there are clients 0 to 9"):
        train(small_config(federation={"exclude": [12]}), tmp_path / "other", store=hospitals)


def test_an_unseen_clients_images_are_shown_in_the_models_orientations(tmp_path: Path, hospitals: Store) -> None:
    train(small_config(model={"orientations": 4}), tmp_path / "run", store=hospitals)
    unseen = unseen_hospital(size=16, images=60)
    found = evaluate(tmp_path / "run", unseen)
    net = open_predictor(tmp_path / "run").net
    images = torch.from_numpy(unseen.images)
    turned = [images, images.flip(2), images.flip(3), images.flip(2, 3)]
    mean = torch.stack([predict(net, view.contiguous()) for view in turned]).mean(0).numpy()
    sick = np.array([name in ("MEL", "BCC", "AK", "SCC") for name in hospitals.classes])
    for probabilities, same in ((mean, True), (predict(net, images).numpy(), False)):
        score = probabilities[:, sick].sum(axis=1, dtype=np.float64)
        nll = -np.mean(np.log(np.where(unseen.manifest.label == 1, score, 1 - score)))
        assert (found["calibration"]["malignancy"]["nll"] == pytest.approx(nll, rel=1e-5)) == same


def test_the_unseen_client(tmp_path: Path, hospitals: Store) -> None:
    train(small_config(), tmp_path / "run", store=hospitals)
    unseen = unseen_hospital(size=16, images=300)
    found = evaluate(tmp_path / "run", unseen)
    (file,) = (tmp_path / "run" / "evaluations").glob("unseen-*-last.json")
    assert json.loads(file.read_text()) == found
    net = build_net("small_cnn", 8, seed=0)
    load_model(net, tmp_path / "run" / "models" / "last.safetensors", "small_cnn")
    net.eval()
    with torch.no_grad():
        probabilities = torch.softmax(net(torch.from_numpy(unseen.images).float() / 255), 1).numpy()
    sick = np.array([name in ("MEL", "BCC", "AK", "SCC") for name in hospitals.classes])
    wanted = malignancy(unseen.manifest.label == 1, probabilities, sick).to_dict()
    assert found["malignancy"]["argmax_then_group"] == wanted["argmax_then_group"]
    assert found["malignancy"]["auroc"] == pytest.approx(wanted["auroc"], abs=1e-3)
    assert found["malignancy"]["malignant"] == 5
    assert "classes" not in found
    # Calibration and counts of malignant against benign, by hand.
    score = probabilities[:, sick].sum(axis=1, dtype=np.float64)
    two, truth = np.stack([1 - score, score], axis=1), unseen.manifest.label
    squares = [(p - y) ** 2 + (1 - p - (1 - y)) ** 2 for p, y in zip(score, truth, strict=True)]
    losses = [-np.log(p if y else 1 - p) for p, y in zip(score, truth, strict=True)]
    exact = calibration(truth, two)
    wanted = {"ece": exact.ece, "mce": exact.mce, "brier": np.mean(squares), "nll": np.mean(losses)}
    assert found["calibration"].keys() == found["sums"].keys() == {"malignancy"}
    assert found["calibration"]["malignancy"] == pytest.approx(wanted, abs=1e-3)
    sums = BinnedSums.from_dict(found["sums"]["malignancy"])
    assert (sums.images, sums.confusion.shape, sums.confusion[1].sum()) == (300, (2, 2), 5)
    assert sums.auroc(1) == pytest.approx(found["malignancy"]["auroc"], abs=0.02)
    assert "malignant against benign" in printed(found)


def test_isic2020_as_published_is_an_unseen_client(tmp_path: Path, hospitals: Store) -> None:
    """Its archive and its store give the same numbers; Derm7pt's archive, of the eight classes, all of them."""
    train(small_config(federation={"rounds": 1}), tmp_path / "run", store=hospitals)
    archive = trees.write(tmp_path / "isic2020", trees.isic2020())
    found = evaluate(tmp_path / "run", open_unseen(tmp_path / "run", str(archive)), name="archive")
    assert (found["images"], found["sets"]) == (5, {"ISIC20": 5})  # two of the six files are the same photograph
    assert found["malignancy"]["malignant"] == 1
    assert 0 <= found["malignancy"]["auroc"] <= 1
    prepare([read(archive)], tmp_path / "store", Recipe(16))
    again = evaluate(tmp_path / "run", open_unseen(tmp_path / "run", str(tmp_path / "store")), name="archive")
    assert again == found
    derm7pt = trees.write(tmp_path / "derm", trees.derm7pt())
    other = open_unseen(tmp_path / "run", f"derm7pt={derm7pt}", allow_missing=True)
    both = evaluate(tmp_path / "run", other)
    assert {"classes", "malignancy"} <= set(both)
    assert both["calibration"].keys() == both["sums"].keys() == {"classes", "malignancy"}
    assert 0 <= both["calibration"]["classes"]["ece"] <= both["calibration"]["classes"]["mce"] <= 1
    assert BinnedSums.from_dict(both["sums"]["classes"]).classification().weighted_f1 == pytest.approx(
        both["classes"]["weighted_f1"]
    )
    assert f"{both['calibration']['classes']['mce']:.3f}" in printed(both)
    with pytest.raises(DataError, match="the classes of the images are airplane"):
        open_unseen(tmp_path / "run", str(trees.write(tmp_path / "cifar", trees.cifar10())))


def test_a_client_that_was_seen_is_refused(tmp_path: Path, hospitals: Store) -> None:
    train(small_config(federation={"exclude": [8], "rounds": 1}), tmp_path / "run", store=hospitals)
    with pytest.raises(DataError, match=r"all \d+ images, or others of the same lesion or patient, were held by"):
        evaluate(tmp_path / "run", hospitals, source="HAM10000")
    left_out = evaluate(tmp_path / "run", hospitals, source="PAD-UFES", name="pad")
    assert left_out["images"] == (hospitals.manifest.source == "PAD-UFES").sum()
    assert left_out["left_out_as_seen"] == 0
    everything = evaluate(tmp_path / "run", hospitals)
    assert everything["images"] == left_out["images"]
    assert everything["left_out_as_seen"] == len(hospitals.manifest) - left_out["images"]
    assert (tmp_path / "run" / "evaluations" / "pad-PAD-UFES-last.json").exists()
    assert 0 <= left_out["classes"]["weighted_f1"] <= 1
    assert "auroc" in left_out["malignancy"]
    with pytest.raises(DataError, match="no labelled image of 'nothing'"):
        evaluate(tmp_path / "run", hospitals, source="nothing")
    with pytest.raises(DataError, match=r"holds images of 24 px; .* was trained on 16 px"):
        evaluate(tmp_path / "run", unseen_hospital(size=24, images=60))
    with pytest.raises(RunError, match="no such model; choose with --model: client_0_best"):
        evaluate(tmp_path / "run", unseen_hospital(size=16, images=60), model="best")
    with pytest.raises(DataError, match="the classes of the images are A, B, C"):
        evaluate(tmp_path / "run", small_store())


def evaluated(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    """Call `fedperl evaluate` here and return its exit code."""
    monkeypatch.setattr("sys.argv", ["fedperl", "evaluate", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


def test_evaluations_on_other_images_never_replace_each_other(
    tmp_path: Path, hospitals: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small_config(federation={"rounds": 1}), tmp_path / "run", store=hospitals)
    for folder, images in (("a", 60), ("b", 70)):
        unseen_hospital(size=16, images=images).save(tmp_path / folder / "store")
        for _ in range(2):  # again on the same images: in the same file
            assert not evaluated(monkeypatch, tmp_path / "run", "--data", tmp_path / folder / "store", "-q")
    files = list((tmp_path / "run" / "evaluations").glob("store-*-last.json"))
    assert {json.loads(file.read_text())["images"] for file in files} == {60, 70}
    assert len(files) == 2
    for images in (60, 70):  # without a name too
        evaluate(tmp_path / "run", unseen_hospital(size=16, images=images))
    assert len(list((tmp_path / "run" / "evaluations").iterdir())) == 4


def wide_archive(folder: Path) -> Path:
    """Photographs in a folder a class, three times as wide as high: only their middle is bright."""
    wide = np.zeros((30, 90, 3), np.uint8)
    wide[:, 30:60] = 200
    for number, label in enumerate(SKIN):
        (folder / label).mkdir(parents=True)
        Image.fromarray(wide + np.uint8(number)).save(folder / label / f"{number}.png")
    return folder


def test_an_archive_is_made_square_as_the_runs_own_images(
    tmp_path: Path, hospitals: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, run, archive = tmp_path / "own", tmp_path / "run", wide_archive(tmp_path / "wide")
    dataclasses.replace(hospitals, made={"source": "test", "fit": "squash"}).save(own)
    train(small_config(data={"source": str(own)}, federation={"rounds": 1}), run)
    assert open_unseen(run, str(archive)).images.mean() < 100  # the dark sides are there
    assert open_unseen(run, str(archive)).made["fit"] == "squash"
    with pytest.raises(ConfigError, match="were made with 'squash'; wanted --fit squash"):
        open_unseen(run, str(archive), fit="crop")
    with pytest.raises(ConfigError, match="--fit 'squash': .* prepared already"):
        open_unseen(run, "dermsim", fit="squash")
    assert not evaluated(monkeypatch, run, "--data", archive)
    assert "Images made square by squash; the run's own by squash" in capsys.readouterr().out
    own.rename(tmp_path / "moved")
    assert open_unseen(run, str(archive)).images.mean() > 180
    assert not evaluated(monkeypatch, run, "--data", archive)
    assert "Images made square by crop; the run's own not known" in capsys.readouterr().out
    assert not evaluated(monkeypatch, run, "--data", archive, "--fit", "squash", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["fit"], found["fit_of_run"]) == ("squash", None)
    with pytest.raises(ConfigError, match="--fit 'bend'; wanted crop or squash"):
        open_unseen(run, str(archive), fit="bend")


def test_a_run_that_lists_its_images_is_not_to_be_told_what_it_saw(tmp_path: Path, hospitals: Store) -> None:
    train(small_config(federation={"exclude": [8], "rounds": 1}), tmp_path / "run", store=hospitals)
    with pytest.raises(ConfigError, match="--trust-unseen: .* lists who held which image"):
        evaluate(tmp_path / "run", hospitals, trust_unseen=True)
    path = tmp_path / "run" / "partition.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))  # cut: nothing of it is known any more
    with pytest.raises(RunError, match="--trust-unseen"):
        evaluate(tmp_path / "run", hospitals)


def listed_twice() -> Store:
    """HAM10000's images also in ISIC 2019, dealt to the paper's clients from one of the two."""
    hospitals = ten_hospitals(size=16, scale=0.02, seed=0)
    ham = np.flatnonzero(hospitals.manifest.source == "HAM10000")
    m = hospitals.manifest
    rows = np.concatenate([np.arange(len(m)), ham])
    source = m.source[rows].copy()
    source[len(m) :] = "ISIC19"
    manifest = Manifest(m.classes, m.image[rows], m.label[rows], m.group[rows], source, m.pixels[rows])
    return Store(hospitals.images, manifest)


def test_an_image_the_run_held_under_another_set_is_seen(tmp_path: Path) -> None:
    store = listed_twice()
    store = store.dealt(deal(store.manifest, Partitioning(kind="paper"), seed=0))
    config = small_config(federation={"exclude": [5, 6, 7], "rounds": 1})
    train(config, tmp_path / "run", store=store)
    held = np.concatenate([c.rows() for n, c in enumerate(store.partition.clients) if n not in (5, 6, 7)])
    held = np.concatenate([held, store.partition.server.rows()])
    groups = set(store.manifest.group[held])
    ham = np.flatnonzero(store.manifest.source == "HAM10000")
    fresh = [row for row in ham if store.manifest.group[row] not in groups]
    found = evaluate(tmp_path / "run", store, source="HAM10000")
    assert (found["images"], found["left_out_as_seen"]) == (len(fresh), len(ham) - len(fresh))
    assert found["left_out_as_seen"] > 0
    # Another store with HAM10000 alone, other rows and no common pixels: by the archive's names.
    alone = Manifest(SKIN, *(getattr(store.manifest, name)[ham] for name in ("image", "label", "group", "source")))
    again = evaluate(tmp_path / "run", Store(store.pixels(ham), alone))
    assert again["images"] == len(fresh)


def test_a_model_that_gives_no_probabilities_is_refused(tmp_path: Path, hospitals: Store) -> None:
    train(small_config(federation={"rounds": 1}), tmp_path / "run", store=hospitals)
    path = tmp_path / "run" / "models" / "last.safetensors"
    about, net = read_metadata(path), build_net("small_cnn", 8, seed=0)
    huge = {
        name: torch.full_like(tensor, 3e38) for name, tensor in net.state_dict().items() if tensor.is_floating_point()
    }
    write_weights(path, {**net.state_dict(), **huge}, about)
    unseen = unseen_hospital(size=16, images=60)
    with pytest.raises(RunError, match="probabilities that are not finite"):
        evaluate(tmp_path / "run", unseen)
    write_weights(path, net.state_dict(), {"net": "small_cnn"})
    with pytest.raises(RunError, match="does not say its net, classes"):
        evaluate(tmp_path / "run", unseen)


def test_weights_that_saw_the_runs_images_are_refused(tmp_path: Path, hospitals: Store) -> None:
    settings = Pretraining(net="small_cnn", epochs=1, batch=16)
    pretrain(hospitals, tmp_path / "seen.safetensors", settings)
    config = small_config(model={"weights": str(tmp_path / "seen.safetensors")}, federation={"rounds": 1})
    with pytest.raises(DataError, match="was trained on images, lesions or patients that this run's clients hold"):
        train(config, tmp_path / "a", store=hospitals)
    pretrain(small_store(), tmp_path / "other.safetensors", settings)
    config = small_config(model={"weights": str(tmp_path / "other.safetensors")}, federation={"rounds": 1})
    train(config, tmp_path / "b", store=hospitals)


def test_pretraining_that_diverges_says_so(tmp_path: Path, store: Store) -> None:
    with pytest.raises(RunError, match="no longer finite; wanted a lower rate"):
        pretrain(store, tmp_path / "w", Pretraining(net="small_cnn", epochs=3, lr=1e30))
    with pytest.raises(RunError, match="wanted a finite number"):
        pretrain(store, tmp_path / "w", Pretraining(net="small_cnn", lr=float("nan")))
    assert not (tmp_path / "w").exists()


def test_pretraining_can_enlarge_the_images(tmp_path: Path, store: Store) -> None:
    about = pretrain(store, tmp_path / "w", Pretraining(net="small_cnn", epochs=1, size=24, batch=100_000))
    assert about["size"] == "24"


def test_somebody_must_have_labels(tmp_path: Path, hospitals: Store) -> None:
    config = small_config(scenario={"labels": "few_clients"}, federation={"exclude": [9]})
    with pytest.raises(ConfigError, match="names client 9, which federation.exclude leaves out"):
        train(config, tmp_path / "a", store=hospitals)
    partition = hospitals.partition
    bare = [dataclasses.replace(c, labelled=c.labelled[:0]) for c in partition.clients]
    nobody = hospitals.dealt(dataclasses.replace(partition, clients=tuple(bare)))
    with pytest.raises(DataError, match="nobody has a label to train on"):
        train(small_config(), tmp_path / "b", store=nobody)


def test_blank_labels_stay_blank_at_a_labelled_client() -> None:
    store = small_store()
    label = store.manifest.label.copy()
    blank = store.partition.clients[1].unlabelled[:2]
    label[blank] = -1
    manifest = dataclasses.replace(store.manifest, label=label)
    seen = seen_by(Scenario(labels="few_clients", labelled_clients=(1,)), store.partition, manifest, seed=1)
    assert seen.clients[1].unlabelled.tolist() == blank.tolist()
    assert (label[seen.clients[1].labelled] >= 0).all()


def test_the_servers_test_images_never_score_a_profile(store: Store) -> None:
    rows = store.partition.server.rows()
    server = ServerPart(validation=rows[:4], test=rows[4:])
    config = small_config(preset="authors_code")
    scores = []
    for change in (0, 1):
        label = store.manifest.label.copy()
        label[rows[4:]] = (label[rows[4:]] + change) % 3
        dealt = dataclasses.replace(store.partition, server=server)
        changed = Store(store.images, dataclasses.replace(store.manifest, label=label), dealt)
        work = Workspace(config, 3)
        scores.append(OwnImages(config, changed, work).score(state_of(work.net)))
    assert scores[0] == scores[1]


def test_a_refused_resume_leaves_the_record_alone(tmp_path: Path, store: Store) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        train(small_config(), tmp_path / "run", store=store, watchers=[stop])
    before = (tmp_path / "run" / "partition.csv").read_bytes()
    clients = store.partition.clients
    other = store.dealt(dataclasses.replace(store.partition, clients=(clients[1], clients[0], *clients[2:])))
    with pytest.raises(RunError, match="partition, starting weights or"):
        train(small_config(), tmp_path / "run", store=other, resume=True)
    assert (tmp_path / "run" / "partition.csv").read_bytes() == before


def ten_class_store() -> Store:
    generator = np.random.default_rng(0)
    store = small_store(clients=5, images=160, classes=8)
    label = np.arange(len(store.manifest)) % 10
    images = generator.integers(0, 100, size=(len(label), 3, 16, 16), dtype=np.uint8)
    images[np.arange(len(label)), :, label] = 250
    manifest = dataclasses.replace(store.manifest, classes=tuple("abcdefghij"), label=label)
    return Store(images, manifest)


def test_streaming_changes_the_unlabelled_images_and_measures_local_models(tmp_path: Path) -> None:
    store = ten_class_store()
    settings = Partitioning(kind="fedmatch_streaming", clients=4, labels_per_class=2)
    store = store.dealt(deal(store.manifest, settings, seed=1))
    federation = {"rounds": 6, "cohort": 4, "rounds_per_step": 2, "steps": 4}
    config = small_config(method="ssfl", federation=federation, optimizer={"lr": 5e-3})
    results = train(config, tmp_path / "run", store=store)
    lines = rounds(tmp_path / "run")
    assert [line["round"] for line in lines if "local" in line] == [2, 4, 6]
    assert results["local"] == lines[-1]["local"]
    assert results["local"]["clients"] == 4
    assert set(results["test"]["last"]) == {"server"}
    assert results["over_clients"]["last"]["accuracy"]["mean"] == results["test"]["last"]["server"]["accuracy"]
    assert "per_client_best" not in results["test"]
    # The local models' mean, done again from what the bank holds.
    work = Workspace(config, 10)
    own = OwnImages(config, store, work)
    folder = RunFolder(tmp_path / "run")
    folder.open()
    folder.restore()
    accuracies = []
    test = store.partition.server.test
    for number in folder.bank.records:
        load_into(work.net, {n: t for n, t in folder.bank.get(number).items() if not n.startswith("__")})
        work.net.eval()
        with torch.no_grad():
            predicted = work.net(torch.from_numpy(store.pixels(test)).float() / 255).argmax(1).numpy()
        accuracies.append((predicted == store.manifest.label[test]).mean())
    folder.close()
    assert results["local"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert own.streams
    client = client_of_store(0, store, config, work)
    for round, step in ((1, 0), (2, 0), (3, 1), (19, 9), (20, 9), (99, 9)):
        part = store.partition.clients[0]
        pixels = store.pixels(part.unlabelled[part.step == step])
        now = client._present(round)
        assert (now.images[now.unlabelled].numpy() == pixels).all()


def test_every_scenario_resumes_bit_for_bit(tmp_path: Path, hospitals: Store) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.round == 2:
            raise Stop

    for name, settings in (
        ("server", {"scenario": {"labels": "server", "server_steps": 2}}),
        ("few", {"scenario": {"labels": "few_clients"}}),
        ("without", {"federation": {"exclude": [8]}}),
    ):
        config = small_config(**settings)
        whole = train(config, tmp_path / name, store=hospitals)
        with pytest.raises(Stop):
            train(config, tmp_path / f"{name}2", store=hospitals, watchers=[stop])
        again = train(config, tmp_path / f"{name}2", resume=True, store=hospitals)
        assert again["test"] == whole["test"]
        for file in (tmp_path / name / "models").iterdir():
            assert file.read_bytes() == (tmp_path / f"{name}2" / "models" / file.name).read_bytes()
