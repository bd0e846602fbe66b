"""The runs on real lesions: every row resolves, the rate is chosen on validation images, lines say who helped."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.errors import ConfigError
from fedperl.learn.predict import predict
from fedperl.predicting import open_predictor
from fedperl.pretraining import Pretraining, pretrain
from fedperl.training import train
from tests.conftest import small_config, small_store

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(name="skin")
def _skin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("side_by_side", "skin", "skin_split"):
        sys.modules.pop(name, None)
    module = importlib.import_module("skin")
    monkeypatch.setattr(module, "LINES", tmp_path / "lines")
    return module


def tried(skin: ModuleType, *accuracies: float) -> None:
    for run, accuracy in zip(skin.jobs("rates", Path(), "cpu", [], []), accuracies, strict=True):
        results = {"validation": {"per_client_best": {"accuracy": accuracy}}}
        matrices = {"0": [[1000, 0], [0, 500]], "1": [[1000, 0], [0, 0]]}
        line = {"run": run, "results": results, "validation_confusion": matrices}
        skin.side_by_side.append(skin.LINES / "rates.jsonl", line)


def test_every_row_resolves_with_the_rate_that_was_chosen(skin: ModuleType) -> None:
    with pytest.raises(ConfigError, match="Lower, lr 0.0001, seed 1: not trained; wanted all of group 'rates' first"):
        skin.jobs("core", Path(), "cpu", [], [])
    tried(skin, 0.70, 0.60, 0.65, 0.40, 0.40, 0.60, 0.64, 0.40)  # lr 1e-4, 2e-4, 5e-4, 1e-3 of Lower, then of SSFL
    folders = set()
    for name in (name for name in skin.GROUPS if name != "rates"):
        for job in skin.jobs(name, Path(), "cpu", [], []).values():
            assert job.config.optimizer.lr == 5e-4
            assert (job.config.federation.rounds, job.config.data.size) == (300, 112)
            assert job.out not in folders
            folders.add(job.out)
    assert len(skin.jobs("core", Path(), "cpu", [], [])) == 28  # two were trained to choose the rate
    assert sorted(skin.read("core")) == ["Lower, seed 1", "SSFL, seed 1"]
    with pytest.raises(ConfigError, match="4: not of set 'core', which has 1, 2, 3"):
        skin.jobs("core", Path(), "cpu", [4], [])


def test_a_larger_rate_must_be_better_by_a_standard_error(skin: ModuleType) -> None:
    error = (0.7 * 0.3 / 2500) ** 0.5  # 0.0092
    rates = skin.GROUPS["rates"].rates
    for lead, chosen in ((0.9 * error, rates[-2]), (1.1 * error, rates[-1])):
        (skin.LINES / "rates.jsonl").unlink(missing_ok=True)
        each = [*(0.5 for _ in rates[:-2]), 0.7 - lead, 0.7]
        tried(skin, *each, *each)
        assert skin.chosen_rate() == chosen


def test_who_holds_what_is_counted_by_pixels(skin: ModuleType) -> None:
    """An image that ISIC 2019 and HAM10000 both list is of HAM10000, whoever holds it."""
    split_of = importlib.import_module("skin_split").split_of
    small = small_store(clients=3, images=24)
    generator = np.random.default_rng(1)
    source = generator.choice(["ISIC19", "HAM10000", "PAD-UFES"], len(small.manifest))
    pixels = np.arange(len(small.manifest))
    shared = [int(row) for row in np.flatnonzero(source == "ISIC19")[::3]]
    pixels[shared] = np.flatnonzero(source == "HAM10000")[: len(shared)]
    made = {"sets": [{"source": "HAM10000", "read": 5, "listed": 9}]}
    store = replace(small, manifest=replace(small.manifest, source=source, pixels=pixels), made=made)
    found = split_of(store)
    for part, one in zip(store.partition.clients, found["clients"], strict=True):
        rows = [int(row) for name in one["parts"] for row in getattr(part, name)]
        assert one["parts"] == {name: len(getattr(part, name)) for name in one["parts"]}
        assert one["sources"] == {
            "HAM10000": sum(source[row] == "HAM10000" or row in shared for row in rows),
            "the rest of ISIC 2019": sum(source[row] == "ISIC19" and row not in shared for row in rows),
            "PAD-UFES-20": sum(source[row] == "PAD-UFES" for row in rows),
        }
    assert found["at_hand"] == {"HAM10000": [5, 9]}


def naive_ece(folder: Path, client: str) -> float:
    """Of a client's validation images, from the finest bins: 15 bins of equal width."""
    curves = json.loads((folder / "curves.json").read_text())
    sums = curves["sums"][curves["chosen"]["per_client_best"][client]]["validation"]
    gaps, images = [0.0] * 15, 0
    for bin_, ((wrong, right), total) in enumerate(zip(sums["confidence"], sums["total_confidence"], strict=True)):
        gaps[bin_ * 15 // len(sums["confidence"])] += total - right
        images += wrong + right
    return sum(map(abs, gaps)) / images


def test_a_line_says_who_helped_and_what_was_confused(skin: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = small_config(method="fedperl", federation={"rounds": 25, "steps": 1})
    results = train(config, folder, store=small_store())
    found = skin.noted(folder, device="cpu")
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    helped = np.zeros((5, 5), dtype=int)
    for line in rounds:
        for client, members in line["committees"].items():
            for member in members:
                helped[member, int(client)] += 1
    assert found["helped"] == {f"{a} {b}": int(n) for (a, b), n in np.ndenumerate(helped) if n}
    similar = sorted(one for line in rounds for candidates in line["similarity"].values() for one in candidates)
    assert len(similar) == helped.sum() > 20  # T candidates each, and all of them helped
    assert (found["similarity"][0], found["similarity"][-1]) == pytest.approx((similar[0], similar[-1]), abs=1e-3)
    assert found["similarity"][3] == pytest.approx(np.median(similar), abs=1e-3)
    for client, numbers in results["test"]["per_client_best"].items():
        matrix = np.array(found["confusion"][client])
        assert np.trace(matrix) / matrix.sum() == pytest.approx(numbers["accuracy"])
        assert np.sum(found["validation_confusion"][client]) == len(
            small_store().partition.clients[int(client)].validation
        )
        last_one = np.array(found["last_validation_confusion"][client])
        told = rounds[-1]["validation"][client]["accuracy"]
        assert np.trace(last_one) / last_one.sum() == pytest.approx(told)
        assert found["validation_ece"][client] == pytest.approx(naive_ece(folder, client), abs=1e-4)
    last = rounds[-1]
    assert found["accepted"] == {
        25: pytest.approx(np.mean([one["accepted"] for one in last["numbers"].values()]), abs=1e-4)
    }
    f1 = [one["macro_f1"] for one in last["validation"].values()]
    assert found["macro_f1"] == {25: pytest.approx(np.mean(f1), abs=1e-4)}
    assert "unseen" not in found


def test_a_line_says_what_pseudo_labels_are_worth(skin: ModuleType, tmp_path: Path) -> None:
    store = small_store(images=40)
    store.save(tmp_path / "store")
    own = {"data": {"source": str(tmp_path / "store"), "size": store.size}, "objective": {"tau": 0.4}}
    config = small_config(method="ssfl", federation={"rounds": 3}, **own)
    train(config, tmp_path / "run")
    found = skin.noted(tmp_path / "run", device="cpu")["pseudo"]
    rows = [int(row) for part in store.partition.clients for row in part.unlabelled]
    predictor = open_predictor(tmp_path / "run", "last")
    wanted = {name: [0] * 3 for name in ("images", "above", "right", "said")}
    for row in rows:
        (shares,) = predict(predictor.net, torch.from_numpy(store.pixels(np.array([row])))).tolist()
        truth, said = int(store.manifest.label[row]), int(np.argmax(shares))
        wanted["images"][truth] += 1
        if max(shares) >= 0.4:
            wanted["above"][truth] += 1
            wanted["said"][said] += 1
            wanted["right"][truth] += said == truth
    assert found == wanted
    assert 0 < sum(found["above"]) < len(rows)


@pytest.mark.slow
def test_a_line_says_what_the_network_started_from(skin: ModuleType, tmp_path: Path) -> None:
    weights = tmp_path / "backbone.safetensors"
    drawn = ten_hospitals(size=16, scale=0.02, seed=0)
    about = pretrain(drawn, weights, Pretraining(net="small_cnn", epochs=1))
    train(small_config(method="ssfl", model={"weights": str(weights)}), tmp_path / "run", store=small_store())
    found = skin.noted(tmp_path / "run", device="cpu")["backbone"]
    assert found == {key: about[key] for key in ("from", "size", "accuracy", "validation_images")}


def test_a_client_that_was_kept_out_is_asked_about(skin: ModuleType, tmp_path: Path) -> None:
    small = small_store(clients=5, images=48, classes=8)
    classes = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    source = small.manifest.source.copy().astype("<U16")
    kept_out = small.partition.clients[4]
    for rows in (kept_out.labelled, kept_out.unlabelled, kept_out.validation, kept_out.test):
        source[rows] = skin.UNSEEN
    manifest = replace(small.manifest, classes=classes, source=source)
    replace(small, manifest=manifest).save(tmp_path / "store")
    config = small_config(method="ssfl", data={"source": str(tmp_path / "store")}, federation={"exclude": [4]})
    train(config, tmp_path / "run")
    found = skin.noted(tmp_path / "run", device="cpu")
    labels = manifest.label[source == skin.UNSEEN]
    assert found["unseen"]["images"] == 48
    assert found["unseen"]["malignancy"]["malignant"] == sum(classes[k] in ("MEL", "BCC", "AK", "SCC") for k in labels)
    assert set(found["confusion"]) == {"0", "1", "2", "3"}
