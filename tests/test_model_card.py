"""The card beside a run's models: every number is the run's, and the same run writes the same bytes."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedperl import train
from fedperl.data.store import Store
from fedperl.evaluate import BinnedSums, binned_sums
from fedperl.federation.rounds import Progress
from fedperl.federation.run_folder import RunFolder
from fedperl.report.card_numbers import served_worst
from fedperl.report.model_card import model_card
from fedperl.settings import Config
from tests.conftest import small_config


class Stop(Exception):
    pass


def stop(progress: Progress) -> None:
    if progress.round == 2:
        raise Stop


def card(folder: Path) -> str:
    return (folder / "models" / "MODEL_CARD.md").read_text()


def cells(text: str, section: str) -> dict[str, list[str]]:
    """Return the rows of a section's last table by their first cell."""
    part = text.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config, dict[str, Any]]:
    from tests.conftest import small_store

    folder = tmp_path_factory.mktemp("card") / "run"
    config = small_config(optimizer={"lr": 5e-3})
    return folder, config, train(config, folder, store=small_store())


def test_numbers_by_client_and_class_are_the_runs(run: tuple[Path, Config, dict[str, Any]]) -> None:
    folder, _, results = run
    text, curves = card(folder), RunFolder(folder).read_curves()
    rows = cells(text, "Test images, by client")
    for client in map(str, range(5)):
        numbers = results["test"]["last"][client]
        wanted = [numbers[name] for name in ("accuracy", "balanced_accuracy", "weighted_f1")]
        assert rows[f"client {client}"][:4] == [str(numbers["images"]), *(f"{value:.3f}" for value in wanted)]
        assert rows[f"client {client}"][5:] == [f"{numbers['ece']:.3f}", f"{numbers['aurc']:.3f}"]
    confusion = np.sum([curves["sums"][k]["test"]["confusion"] for k in curves["chosen"]["last"].values()], axis=0)
    rows = cells(text, "Test images, by class")
    for label, name in enumerate("ABC"):
        right, images, predicted = confusion[label, label], confusion[label].sum(), confusion[:, label].sum()
        f1 = 2 * right / (images + predicted)
        assert rows[name][:2] == [str(images), str(predicted)]
        assert rows[name][3:5] == [f"{right / images:.3f}", f"{f1:.3f}"]
    worst = min(range(5), key=lambda k: results["test"]["last"][str(k)]["weighted_f1"])
    assert f"Worst served client: client {worst}, weighted F1" in text
    recalls = {name: confusion[label, label] / confusion[label].sum() for label, name in enumerate("ABC")}
    assert f"Worst served class: {min(recalls, key=lambda name: recalls[name])}, " in text
    for file in (folder / "models").glob("*.safetensors"):
        assert file.name in text.replace(
            "client_K", f"client_{file.stem.split('_')[1]}" if "client" in file.stem else "K"
        )


def test_calibration_and_thresholds_are_those_of_all_clients(run: tuple[Path, Config, dict[str, Any]]) -> None:
    folder, _, results = run
    text, curves = card(folder), RunFolder(folder).read_curves()
    test, validation = (
        sum((BinnedSums.from_dict(curves["sums"][f"{k}@4"][part]) for k in range(1, 5)), start=first)
        for part in ("test", "validation")
        for first in [BinnedSums.from_dict(curves["sums"]["0@4"][part])]
    )
    assert f"equal-width bins: {test.ece():.3f}" in text
    bins = text.split("## Calibration")[1].split("## ")[0]
    counted = [int(line.split(" | ")[0].strip("| ")) for line in bins.splitlines() if line[2:3].isdigit()]
    assert sum(counted) == test.images == 30
    rows = cells(text, "Abstaining")
    for risk in (0.05, 0.1, 0.2):
        mean = results["over_clients"]["last"][f"coverage_at_{round(100 * risk)}"]["mean"]
        row = rows[f"{100 * risk:.0f} %"]
        assert row[0] == f"{mean:.3f}"
        threshold = validation.threshold_at_risk(risk)
        assert row[1] == ("none" if threshold is None else f"{threshold:g}")


def test_data_method_limits_and_privacy_are_said(run: tuple[Path, Config, dict[str, Any]]) -> None:
    folder, config, results = run
    text = card(folder)
    assert results["partition"] in text
    assert results["config"] in text
    for words in (
        "Not a medical device",
        "seed 1, 4 rounds",
        "T = 2, anonymized, by profile, policy all, after round 1",
        "at least two other clients' models",
        "promise nothing for one patient",
        "every client had labels for a part",
        "One run with one seed",
    ):
        assert words in text
    assert "research" not in text.split("## Privacy")[1]
    bare = model_card(config, results, RunFolder(folder).read_curves())
    assert "how many each client trained on is not known here" in bare
    assert bare.split("## Method")[1] == text.split("## Method")[1]


def test_the_method_is_told_by_the_settings_that_it_uses(run: tuple[Path, Config, dict[str, Any]]) -> None:
    folder, _, results = run
    curves = RunFolder(folder).read_curves()
    for method, wanted in {
        "fedperl": "fixmatch, tau = 0.6, beta = 0.5, gamma = 0.01",
        "fedirm": "fedirm",
        "cbafed": "cbafed, tau = 0.6, beta = 0.5",
        "fedmatch": "fedmatch, tau = 0.6",
        "lower": "supervised, on the labelled training images",
    }.items():
        settings = {"tau": 0.6, "beta": 0.5, "start": 0}
        config = small_config(method=method, privacy="research", objective=settings)
        rows = cells(model_card(config, results, curves), "Method")
        assert rows["objective"] == [wanted]
    text = model_card(small_config(method="fedperl_spectral", peers={"every": 5}), results, curves)
    assert "T = at most " in text
    assert "after round 1, every 5 rounds" in text
    text = model_card(small_config(federation={"running_average": 0.9}), results, curves)
    assert cells(text, "Method")["handed out"] == ["running mean of the rounds' models, decay 0.9"]
    assert "A round's model is the running mean of those up to it" in text
    text = model_card(small_config(method="fedperl_local_norm"), results, curves)
    assert "knows thresholds of `client_K_best` models alone" in text
    text = model_card(small_config(model={"orientations": 4}), results, curves)
    assert cells(text, "Method")["network"][0].endswith(", asked in 4 orientations")
    text = model_card(small_config(federation={"own_share": 0.5}), results, curves)
    assert "each with 50 % of its own models' running mean; `fedperl predict --risk` knows" in text
    assert "Each client is tested with 50 % of its own models' running mean, as in `client_K_best`" in text
    text = model_card(small_config(), results, curves | {"groups": {"0@4": {"sex": {}, "body_site": {}}}})
    assert "by class and prediction, by body site, sex." in text


def test_texts_from_outside_are_texts_and_what_is_missing_is_said(run: tuple[Path, Config, dict[str, Any]]) -> None:
    folder, config, results = run
    classes = ["<script>x</script>", "a|b `c`", "d\n\n# e"]
    text = model_card(config, results | {"classes": classes}, RunFolder(folder).read_curves())
    assert not re.search(r"(?<!\\\\)<script>", text)
    assert "\n# e" not in text
    rows = [line for line in text.split("by class\n")[1].splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in rows[2:5]] == [
        "| \\<script\\>x\\</script\\>",
        "| a\\|b \\`c\\`",
        "| d # e",
    ]
    bare = model_card(config, results, {})
    assert bare.count("Not known for this run.") == 3
    assert cells(bare, "Test images, by client") == cells(card(folder), "Test images, by client")


def test_classes_that_are_served_equally_badly_are_all_named() -> None:
    truth = np.array([0, 0, 1, 2, 2, 2])
    sums = binned_sums(truth, np.eye(4)[[0, 0, 0, 0, 0, 0]])
    found = served_worst({"test": {"last": {}}, "classes": list("ABCD")}, "last", sums)
    assert found == [
        "- Worst served class: B, C, 0.0 % of their 4 test images are recognised.",
        "- Never tested, for want of an image: D.",
    ]


def test_counts_are_those_of_who_took_part(tmp_path: Path, store: Store) -> None:
    train(small_config(federation={"exclude": [2], "rounds": 2}, peers={"warmup": 2}), tmp_path, store=store)
    rows = cells(card(tmp_path), "Data")
    assert "client 2" not in rows
    assert rows["client 1"] == ["test", "6", "6", "6", "6"]
    assert rows["server"] == ["·", "·", "·", "8", "·"]
    labels = store.manifest.label
    for label, name in enumerate(store.classes):
        parts = [
            sum((labels[getattr(store.partition.clients[k], part)] == label).sum() for k in (0, 1, 3, 4))
            for part in ("labelled", "unlabelled", "validation", "test")
        ]
        parts[2] += (labels[store.partition.server.validation] == label).sum()
        assert rows[name] == [str(n) for n in parts]
    assert "left out | clients 2" in card(tmp_path)
    assert "after round 2: no client was sent any" in card(tmp_path)
    assert "anonymized peers" not in card(tmp_path)


def test_a_resumed_run_writes_the_same_card(tmp_path: Path, store: Store) -> None:
    for name, settings in (("peers", {}), ("alone", {"method": "local_fixmatch", "federation": {"rounds": 3}})):
        config = small_config(**settings)
        train(config, tmp_path / name, store=store)
        with pytest.raises(Stop):
            train(config, tmp_path / f"{name}2", store=store, watchers=[stop])
        train(config, tmp_path / f"{name}2", store=store, resume=True)
        assert card(tmp_path / name) == card(tmp_path / f"{name}2")


def test_clients_alone_research_and_scenarios(tmp_path: Path, store: Store) -> None:
    results = train(small_config(method="local_lower"), tmp_path / "alone", store=store)
    text = card(tmp_path / "alone")
    assert "Nothing was exchanged: each client trained by itself." in text
    assert "`client_K_best.safetensors` | trained by client K alone" in text
    assert "seed 1, 3 rounds by each client" in text  # 4 rounds x cohorts of 3 / 5 clients
    assert "takes those of the client whose model it is given" in text
    assert "research" not in card(tmp_path / "alone" / "clients" / "0").split("## Privacy")[1]
    assert "last.safetensors" not in text
    f1 = results["test"]["per_client_best"]["3"]["weighted_f1"]
    assert cells(text, "Test images, by client")["client 3"][3] == f"{f1:.3f}"
    raw = small_config(method="fedperl_raw", privacy="research", federation={"rounds": 2})
    train(raw, tmp_path / "raw", store=store)
    assert "not for real patients; clients are sent other clients' models as they are" in card(tmp_path / "raw")
    few = small_config(scenario={"labels": "few_clients", "labelled_clients": [0, 3]}, federation={"rounds": 2})
    train(few, tmp_path / "few", store=store)
    text = card(tmp_path / "few")
    assert "clients 0, 3 had labels for all their training images" in text
    assert cells(text, "Data")["client 0"][1:3] == ["12", "·"]
    assert cells(text, "Data")["client 1"][1:3] == ["·", "12"]


def test_where_only_the_server_tests(tmp_path: Path, store: Store) -> None:
    parts = tuple(
        dataclasses.replace(part, validation=part.validation[:0], test=part.test[:0])
        for part in store.partition.clients
    )
    rows = store.partition.server.validation
    server = dataclasses.replace(store.partition.server, validation=rows[:4], test=rows[4:])
    store = store.dealt(dataclasses.replace(store.partition, clients=parts, server=server))
    train(small_config(federation={"rounds": 2}), tmp_path, store=store)
    text = card(tmp_path)
    assert list(cells(text, "Test images, by client"))[2:] == ["server"]  # below the header
    assert "Worst served client" not in text
    assert "Worst served class" in text
    assert "On the server's test images; models" in text
    assert "The threshold is from the server's validation images, as `fedperl predict --risk` takes it." in text
    assert json.loads((tmp_path / "results.json").read_text())["test"]["last"]["server"]["images"] == 4
