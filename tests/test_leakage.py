"""Leakage: attacks on models that were made to remember, what is attacked, files that survive, the command."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedperl.cli import main
from fedperl.data.manifest import UNLABELLED, Manifest
from fedperl.data.partition import PARTS, ClientPart, Partition, ServerPart
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.evaluate.membership import Attack, Repeats, drawn_images, mean_interval
from fedperl.federation.client import Workspace
from fedperl.leakage import FOUND, leakage_config, measure_leakage, read_leakage, write_picture
from fedperl.leakage.attacking import F1, attacked
from fedperl.leakage.bench import Bench
from fedperl.leakage.numbers import Asked
from fedperl.leakage.references import asked_classes, half
from fedperl.leakage.releases import Releases, next_releases
from fedperl.learn.state import State, is_running_statistic
from fedperl.report.leakage_table import leakage_markdown
from fedperl.settings import Config
from fedperl.training import train
from tests.conftest import small_config

CLIENTS, IMAGES = 5, 40


def test_a_class_that_is_commoner_among_members_gives_nobody_away() -> None:
    """Scores that tell the class alone, and members that are mostly of one: within client and class they are even."""
    generator, n = np.random.default_rng(0), 400
    client, member = np.arange(n) % 2, np.arange(n) < 200
    label = (generator.random(n) < np.where(member, 0.8, 0.3)).astype(np.int64)
    manifest = SimpleNamespace(label=label, group=np.arange(n).astype(str))
    bench: Any = SimpleNamespace(
        store=SimpleNamespace(manifest=manifest),
        classes=("A", "B"),
        row=np.arange(n),
        client=client,
        member=member,
        part=np.where(member, 0, 3),
        new=np.zeros(n, dtype=bool),
    )
    score = label + 0.01 * generator.random(n)
    run = {"raw": score, "global": np.zeros(n), f"{F1}raw": np.ones(1), f"{F1}global": np.ones(1)}
    known = {"probabilities": generator.dirichlet([1.0, 1.0], (4, n)), "without": np.ones((4, n), dtype=bool)}
    asked = Asked(bench, known, label, [run], resamples=20)
    found = asked.repeats("raw", "calibrated", "labelled")
    assert found is not None
    assert mean_interval(found, "auc").value == pytest.approx(0.5, abs=0.06)
    asked.stratum = client  # by client alone, as if the class did not matter
    found = asked.repeats("raw", "calibrated", "labelled")
    assert found is not None
    assert (mean_interval(found, "auc").value or 0.0) > 0.7


def noise_store(folder: Path, *, labels_hidden: bool = False) -> Path:
    """Write noise with labels that are drawn, so that memory alone can tell them; two images a lesion."""
    generator, n = np.random.default_rng(0), CLIENTS * IMAGES + 6
    labels = generator.integers(0, 3, n)
    names = np.array([f"image_{i}" for i in range(n)])
    groups = np.array([f"lesion_{i // 2}" for i in range(n)])
    parts = []
    for number in range(CLIENTS):
        rows = np.arange(number * IMAGES, (number + 1) * IMAGES)
        parts.append(ClientPart("test", *np.split(rows, [10, 20, 30])))
        if labels_hidden:
            labels[parts[-1].unlabelled] = UNLABELLED
    server = ServerPart(validation=np.arange(CLIENTS * IMAGES, n))
    pixels = generator.integers(0, 256, size=(n, 3, 16, 16), dtype=np.uint8)
    manifest = Manifest(("A", "B", "C"), names, labels, groups, np.array(["test"] * n))
    Store(pixels, manifest, Partition(tuple(parts), server), {"source": "test"}).save(folder)
    return folder


def remembering(source: Path, **sections: Any) -> Config:
    """Each client takes many plain steps on ten labelled images: it remembers them."""
    tables: dict[str, Any] = {
        "method": "lower",
        "data": {"source": str(source)},
        "views": {"weak": "none"},
        "objective": {"class_weights": "none"},
        "federation": {"rounds": 2, "cohort": 5, "quorum": 3, "steps": 60, "batch": 8},
        "optimizer": {"lr": 5e-3},
    }
    for name, value in sections.items():
        tables[name] = {**tables.get(name, {}), **value} if isinstance(value, dict) else value
    return small_config(**tables)


@pytest.fixture(scope="module", name="remembered")
def _remembered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Releases, Path]:
    folder = tmp_path_factory.mktemp("remembered")
    config = remembering(noise_store(folder / "store"))
    train(config, folder / "run")
    bench = Bench(config)
    return bench, next_releases(config, folder / "run", bench.store, bench.workspace(config)), folder / "run"


def scores(bench: Bench, releases: Releases) -> dict[str, Any]:
    labels = bench.store.manifest.label[bench.row]
    return attacked(bench, releases, bench.workspace(bench.config), labels)


def found(bench: Bench, score: np.ndarray) -> dict[str, float]:
    return {name: float(value) for name, value in Attack(bench.member, score).numbers().items()}


# What is attacked, and what comes of it


def test_a_model_that_remembers_is_found_out(remembered: tuple[Bench, Releases, Path]) -> None:
    bench, releases, _ = remembered
    said = scores(bench, releases)
    for score in (said["raw"], said["raw"] - said["global"]):
        assert found(bench, score)["auc"] > 0.95  # of rarer errors there are too few: rounding decides
    assert set(said) >= {"global", "raw", *(f"static {T}" for T in (1, 2, 3, 4)), "f1 raw", "f1 global"}
    assert "static 5" not in said  # somebody has to receive it
    assert 0.1 < said["f1 raw"] < 0.6  # on noise, three classes


def shaken(model: State, like: State, seed: int) -> State:
    """Return a model with noise four times as large as another's distance from it, tensor by tensor."""
    generator, result = torch.Generator().manual_seed(seed), dict(model)
    for name, tensor in model.items():
        if tensor.is_floating_point() and not is_running_statistic(name):
            size = (like[name] - tensor).square().mean().sqrt()
            result[name] = tensor + 4 * size * torch.randn(tensor.shape, generator=generator)
    return result


def test_larger_committees_leak_less(remembered: tuple[Bench, Releases, Path]) -> None:
    """The others have moved farther, and at random: what one client remembers drowns among them."""
    bench, releases, _ = remembered
    others = {k: shaken(releases.model, state, k) for k, state in releases.after.items()}
    said = scores(bench, replace(releases, before=others))
    aucs = [found(bench, said[f"static {T}"] - said["global"])["auc"] for T in (1, 2, 3, 4)]
    assert all(later < earlier - 0.01 for earlier, later in pairwise(aucs)), aucs


def test_differencing_undoes_a_committee(remembered: tuple[Bench, Releases, Path]) -> None:
    """The others, and the client itself before, have the global model: the difference is all that it learnt."""
    bench, releases, _ = remembered
    before = replace(releases, before=dict.fromkeys(releases.after, releases.model))
    for T in (2, 3, 4):
        undone = before.differenced(0, T)
        for name, tensor in before.without_statistics(0).items():
            torch.testing.assert_close(undone[name], tensor)
    said = scores(bench, before)
    assert found(bench, said["differenced 4"])["auc"] > 0.95


def test_a_model_that_never_saw_the_images_is_at_chance(remembered: tuple[Bench, Releases, Path]) -> None:
    bench, releases, _ = remembered
    strange = Workspace(bench.config.model_copy(update={"seed": 99}), 3).net.state_dict()
    state = {name: tensor.clone() for name, tensor in strange.items()}
    every = dict.fromkeys(releases.after, state)
    said = scores(bench, replace(releases, before=every, after=every))
    draws = drawn_images(bench.store.manifest.group[bench.row], 200)
    for name in ("raw", "static 2", "static 4"):
        interval = mean_interval(Repeats([Attack(bench.member, said[name])], draws), "auc")
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= 0.5 <= interval.high


def test_identical_members_leak_what_the_raw_model_does(remembered: tuple[Bench, Releases, Path]) -> None:
    bench, releases, _ = remembered
    client = 2
    same = replace(releases, before=dict.fromkeys(releases.after, releases.after[client]), batch_norm="mean")
    for T in (2, 3, 4):
        mean = same.anonymized(client, T)
        assert mean.keys() == releases.after[client].keys()
        for name, tensor in releases.after[client].items():
            torch.testing.assert_close(mean[name], tensor)
    said = scores(bench, same)
    here = bench.client == client
    assert said["static 3"][here] == pytest.approx(said["raw"][here], abs=1e-4)
    one = {k: [(k + 1) % CLIENTS] * 4 for k in same.others}  # whose images give the statistics matters
    without = scores(bench, replace(same, batch_norm="receiver", others=one))
    assert without["static 3"][here] == pytest.approx(without["static 1"][here], abs=1e-3)
    assert not np.allclose(without["static 1"][here], said["raw"][here], atol=0.1)  # its statistics do matter


def tiny(value: float) -> State:
    return {
        "weight": torch.full((3,), value),
        "bn.running_mean": torch.full((2,), value),
        "bn.num_batches_tracked": torch.tensor(4),
    }


def toy() -> Releases:
    before = {k: tiny(float(10**k)) for k in range(4)}
    after = {k: tiny(10.0**k + k + 1) for k in range(4)}
    return Releases(tiny(0.0), before, after, {0: [3, 1, 2], 1: [0, 2, 3], 2: [1, 0, 3], 3: [0, 1, 2]})


def test_a_committee_is_the_client_and_its_most_similar_others() -> None:
    releases = toy()
    assert releases.anonymized(0, 2)["weight"].tolist() == [(2.0 + 1000.0) / 2] * 3
    assert releases.anonymized(0, 3)["weight"].tolist() == pytest.approx([(2.0 + 1000.0 + 10.0) / 3] * 3)
    assert releases.receiver(0, 1) == 3
    assert releases.receiver(0, 3) == 2
    assert not any(map(is_running_statistic, releases.anonymized(0, 2)))
    assert "bn.running_mean" in replace(releases, batch_norm="mean").anonymized(0, 2)
    assert releases.raw(0) is releases.after[0]
    assert releases.without_statistics(0).keys() == {"weight"}


def test_differencing_has_the_clients_change_exactly() -> None:
    """Whatever T: the earlier peer, plus all of what one member changed."""
    releases = toy()
    for T in (2, 3):
        others = [1000.0, 10.0][: T - 1]
        earlier = sum([1.0, *others]) / T
        assert releases.differenced(0, T)["weight"].tolist() == pytest.approx([earlier + 1.0] * 3)
        assert releases.differenced(0, T).keys() == {"weight"}


def test_the_run_is_left_as_it_was(remembered: tuple[Bench, Releases, Path], tmp_path: Path) -> None:
    bench, releases, run = remembered
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    again = next_releases(bench.config, run, bench.store, bench.workspace(bench.config))
    assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before
    for client, state in releases.after.items():
        assert all(torch.equal(state[name], again.after[client][name]) for name in state)
        assert any(not torch.equal(state[name], releases.before[client][name]) for name in state)
    for client, others in releases.others.items():
        assert sorted([client, *others]) == list(range(CLIENTS))


def test_every_client_trains_from_the_last_global_model_as_planned(tmp_path: Path) -> None:
    """One more round of the same run, with all clients in it, ends at the mean of what was released."""
    source = noise_store(tmp_path / "store")
    config = remembering(source, method="fedperl", federation={"steps": 2}, peers={"warmup": 1, "T": 2})
    train(config, tmp_path / "run")
    longer = remembering(source, method="fedperl", federation={"steps": 2, "rounds": 3}, peers={"warmup": 1, "T": 2})
    train(longer, tmp_path / "longer")
    bench = Bench(config)
    releases = next_releases(config, tmp_path / "run", bench.store, bench.workspace(config))
    import safetensors.torch

    last = safetensors.torch.load((tmp_path / "longer" / "models" / "last.safetensors").read_bytes())
    for name, tensor in last.items():
        if tensor.is_floating_point():
            mean = torch.stack([state[name].double() for state in releases.after.values()]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)


def test_runs_that_cannot_be_attacked_are_refused(tmp_path: Path) -> None:
    source = noise_store(tmp_path / "store")
    config = remembering(source, federation={"rounds": 1, "steps": 1})
    bench = Bench(config)
    with pytest.raises(RunError, match="not finished"):
        next_releases(config, tmp_path / "none", bench.store, bench.workspace(config))
    small = remembering(source, privacy="research", federation={"rounds": 1, "steps": 1, "cohort": 2, "quorum": 2})
    train(small, tmp_path / "two")
    with pytest.raises(RunError, match="2 clients have trained; wanted at least 3"):
        next_releases(small, tmp_path / "two", bench.store, bench.workspace(small))
    alone = config.model_copy(update={"federation": config.federation.model_copy(update={"alone": True})})
    with pytest.raises(ConfigError, match="federation.alone"):
        next_releases(alone, tmp_path / "two", bench.store, bench.workspace(config))


# The images asked about, and the attacker's own models


def test_members_are_the_images_trained_on(tmp_path: Path) -> None:
    source = noise_store(tmp_path / "store")
    bench = Bench(remembering(source, method="fedperl"))
    assert len(bench.row) == CLIENTS * IMAGES
    assert bench.member.sum() == CLIENTS * 20
    for client, part in enumerate(bench.store.partition.clients):
        for number, name in enumerate(PARTS):
            here = (bench.client == client) & (bench.part == number)
            assert sorted(bench.row[here]) == sorted(getattr(part, name))
    supervised = Bench(remembering(source))  # never looks at unlabelled images: nobody's members
    assert supervised.member.sum() == CLIENTS * 10
    assert len(supervised.row) == CLIENTS * 30
    upper = Bench(remembering(source, method="upper"))
    assert (upper.part[upper.member] == 0).all()
    assert upper.member.sum() == CLIENTS * 20
    fewer = Bench(remembering(source, method="fedperl", federation={"exclude": [1], "cohort": 4}))
    assert set(fewer.client) == {0, 2, 3, 4}


@pytest.mark.parametrize("labels", ["clients", "few_clients"])
def test_a_third_of_the_training_images_is_new_to_the_release(tmp_path: Path, labels: str) -> None:
    source = noise_store(tmp_path / "store")
    bench = Bench(remembering(source, method="fedperl", scenario={"labels": labels, "labelled_clients": [1, 3]}))
    manifest = bench.store.manifest
    assert not bench.new[~bench.member].any()
    for kind in (0, 1):
        of = bench.member & (bench.part == kind)
        assert bench.new[of].mean() == pytest.approx(1 / 3, abs=0.1)
    old = bench.row[bench.member & ~bench.new]
    assert not set(manifest.group[bench.row[bench.new]]) & set(manifest.group[old])
    run = bench.for_runs(tmp_path / "partition.csv")
    trained = Bench(run)
    assert sorted(trained.row) == sorted(bench.row[~bench.new])
    assert sorted(trained.row[trained.member]) == sorted(old)
    for number, part in enumerate(trained.store.partition.clients):
        whole = bench.store.partition.clients[number]
        assert set(part.labelled) <= set(whole.labelled)
        assert set(part.unlabelled) <= set(whole.unlabelled)
    assert (Bench(bench.config).new == bench.new).all()


@pytest.mark.parametrize("hidden", [False, True])
def test_references_take_halves_of_every_client_by_lesion(tmp_path: Path, hidden: bool) -> None:
    bench = Bench(remembering(noise_store(tmp_path / "store", labels_hidden=hidden), method="fedperl"))
    manifest = bench.store.manifest
    first, second = ([np.concatenate(half(bench, pair, side)) for side in (0, 1)] for pair in (0, 1))
    for one, other in (first, second):
        assert sorted([*one, *other]) == sorted(bench.row)  # each image is left out by one of two
        assert not set(manifest.group[one]) & set(manifest.group[other])
        for client in range(CLIENTS):
            assert np.isin(one, bench.row[bench.client == client]).sum() == IMAGES // 2
    assert sorted(first[0]) != sorted(second[0])
    labelled, unlabelled = half(bench, 0, 0)
    assert (manifest.label[labelled] != UNLABELLED).all()
    assert len(labelled) == pytest.approx(len(unlabelled), abs=2 * CLIENTS)  # as at the clients


def test_a_class_that_nobody_knows_is_what_the_references_say(tmp_path: Path) -> None:
    bench = Bench(remembering(noise_store(tmp_path / "store", labels_hidden=True), method="fedperl"))
    said = np.tile([0.2, 0.1, 0.7], (4, len(bench.row), 1))
    truth = bench.store.manifest.label[bench.row]
    labels = asked_classes(bench, said)
    assert (labels[truth == UNLABELLED] == 2).all()
    assert (labels[truth != UNLABELLED] == truth[truth != UNLABELLED]).all()
    assert (truth == UNLABELLED).any()


# The whole measurement


class Stop(Exception):
    pass


def stop_at(stage: str, done: int) -> Any:
    def tick(now: str, behind: int, total: int) -> None:
        if (now, behind) == (stage, done):
            raise Stop

    return tick


def measure(config: Config, out: Path, tick: Any = lambda stage, done, total: None) -> dict[str, Any]:
    return measure_leakage(config, out, repeats=2, references=4, resamples=20, tick=tick)


@pytest.fixture(scope="module", name="measured")
def _measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("measured")
    steps = {"rounds": 2, "steps": 12, "cohort": 5}
    config = remembering(noise_store(folder / "store"), method="fedperl", federation=steps, peers={"warmup": 1})
    with pytest.raises(Stop):
        measure(config, folder / "out", tick=stop_at("references", 3))
    with pytest.raises(Stop):
        measure(config, folder / "out", tick=stop_at("attacks", 1))
    return config, folder, measure(config, folder / "out")


@pytest.mark.slow
def test_a_stopped_measurement_goes_on_to_the_same_numbers(measured: tuple[Config, Path, dict[str, Any]]) -> None:
    config, folder, result = measured
    out = folder / "out"
    made = {path: path.stat().st_mtime_ns for path in [*out.glob("references/*"), *out.glob("scores-*")]}
    assert len(made) == 4 + 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in made)
    again = measure(config, out)
    assert again == result == read_leakage(out)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    (out / "references" / "2.safetensors").unlink()
    (out / "scores-2.safetensors").unlink()
    assert measure(config, out) == result


@pytest.mark.slow
def test_what_was_measured(measured: tuple[Config, Path, dict[str, Any]]) -> None:
    _, _, result = measured
    by_name = {release["name"]: release for release in result["releases"]}
    assert list(by_name) == [
        *("raw", "static 1", "static 2", "static 3", "static 4"),
        *("differenced 2", "differenced 3", "differenced 4", "global"),
    ]
    assert result["seeds"] == [1, 2]
    images = result["images"]
    assert (images["together"], images["others"]) == (100, 100)
    assert images["labelled"] + images["new labelled"] == images["unlabelled"] + images["new unlabelled"] == 50
    assert 10 <= images["new labelled"] <= 20
    assert result["settings"]["federation"]["steps"] == 12
    assert result["settings"]["partition"]["file"] == ""
    for release in result["releases"]:
        assert set(release["attacks"]) == {"lira", "calibrated"}
        for kinds in release["attacks"].values():
            assert list(kinds) == ["labelled", "unlabelled", "new labelled", "new unlabelled", "together"]
            for numbers in kinds.values():
                assert 0 <= numbers["auc"]["low"] <= numbers["auc"]["high"] <= 1
    raw = by_name["raw"]["attacks"]["lira"]
    assert raw["labelled"]["auc"]["value"] > 0.8
    assert raw["new labelled"]["auc"]["value"] > 0.8
    assert raw["labelled"]["auc"]["value"] > raw["unlabelled"]["auc"]["value"]
    assert raw["labelled"]["ratio"]["value"] == 1
    assert raw["unlabelled"]["auc"]["low"] <= 0.5 <= raw["unlabelled"]["auc"]["high"]
    assert by_name["global"]["attacks"]["calibrated"]["labelled"]["auc"]["value"] > 0.5  # its own confidence
    names = [one["name"] for one in result["classes"]]
    assert names == ["A", "B", "C"]  # none of three is rare
    assert list(result["classes"][0]["members"]) == ["labelled", "new labelled", "together"]
    assert sum(one["members"]["together"] for one in result["classes"]) == 100
    assert sum(one["others"] for one in result["classes"]) == 100
    assert result["classes"][0]["auc"]["raw"]["labelled"]["value"] > 0.6


@pytest.mark.slow
def test_other_settings_are_refused_in_the_same_folder(measured: tuple[Config, Path, dict[str, Any]]) -> None:
    config, folder, _ = measured
    other = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"lr": 1e-3})})
    with pytest.raises(RunError, match="optimizer.lr"):
        measure(other, folder / "out")
    for references in (2, 5):
        with pytest.raises(ConfigError, match=f"references = {references}; wanted an even number"):
            measure_leakage(config, folder / "out", repeats=1, references=references)
    path = folder / "out" / "scores-1.safetensors"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:100])
        with pytest.raises(RunError, match="scores-1.safetensors: cannot be read"):
            measure(config, folder / "out")
        path.write_bytes((folder / "out" / "references" / "0.safetensors").read_bytes())
        with pytest.raises(RunError, match="scores-1.safetensors: was made with other settings"):
            measure(config, folder / "out")
    finally:
        path.write_bytes(content)


@pytest.mark.slow
def test_the_table_says_what_the_numbers_are(measured: tuple[Config, Path, dict[str, Any]]) -> None:
    _, folder, result = measured
    text = (folder / "out" / "leakage.md").read_text()
    assert text == leakage_markdown(result)
    raw = result["releases"][0]["attacks"]["lira"]["labelled"]
    rows = [line for line in text.splitlines() if line.startswith("| raw peer |")]
    assert rows[0].startswith(f"| raw peer | {100 * raw['tpr_1']['value']:.1f} [")
    assert rows[1].startswith("| raw peer | 1.00 [1.00, 1.00] |")
    assert rows[2].startswith(f"| raw peer | {raw['auc']['value']:.3f} [")
    assert rows[3].startswith(f"| raw peer | {100 * raw['tpr_01']['value']:.1f} [")
    assert f"{result['releases'][0]['f1']['mean']:.3f} [" in rows[1]
    assert "| anonymized peer, T = 4 |" in text
    assert "| two peers, differenced, T = 2 |" in text
    for claim in ("private", "anonymous", "safe", "secure"):
        assert claim not in text.lower()


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_numbers(measured: tuple[Config, Path, dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, _, result = measured
    other = json.loads(json.dumps(result)) | {"name": "noisy steps"}
    written = write_picture(result, tmp_path, [other])
    assert [path.name for path in written] == ["leakage.svg", "leakage.png"]
    svg = written[0].read_text()
    for text in (
        "labelled images, trained on from the start",
        "labelled images, new in the last round",
        "global model",
        "chance",
        "noisy steps",
        "weighted F1",
    ):
        assert text in svg
    before = written[0].read_bytes()
    for release in result["releases"]:
        if release["name"] == "static 3":
            other = json.loads(json.dumps(result))
            next(one for one in other["releases"] if one["name"] == "static 3")["attacks"]["lira"]["labelled"]["tpr_1"][
                "value"
            ] = 0.9
    assert write_picture(other, tmp_path)[0].read_bytes() != before
    without = json.loads(json.dumps(result))
    for release in without["releases"]:
        for kinds in release["attacks"].values():
            kinds.pop("labelled")
            kinds.pop("new labelled")
    assert "unlabelled images, new in the last round" in write_picture(without, tmp_path)[0].read_text()


# The command


def test_the_documented_setting_and_a_file_of_ones_own(tmp_path: Path) -> None:
    config = leakage_config()
    assert (config.federation.rounds, config.federation.steps, config.data.scale) == (24, 48, 0.15)
    assert leakage_config(quick=True).federation.rounds < 10
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[federation]\nrounds = 30\n')
    assert leakage_config(path).federation.rounds == 30
    assert leakage_config(path, ["federation.rounds=7"]).federation.rounds == 7
    assert leakage_config(path, quick=True).federation.rounds < 10
    with pytest.raises(ConfigError, match="federation.round"):
        leakage_config(path, ["federation.round=7"])


@pytest.mark.slow
def test_command(
    measured: tuple[Config, Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The small measurement again, by its command: nothing is trained anew."""
    config, folder, _ = measured
    from fedperl.config import dump

    (tmp_path / "mine.toml").write_text(dump(config))
    out = str(folder / "out")

    def run(*more: str) -> str:
        arguments = [
            "fedperl",
            "leakage",
            str(tmp_path / "mine.toml"),
            "--out",
            out,
            "--repeats",
            "2",
            "--references",
            "4",
        ]
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code in (0, None)
        return capsys.readouterr().out

    assert json.loads(run("--json", "--beside", out))["seeds"] == [1, 2]
    assert "raw peer" in run()
    assert run("--quiet") == ""
    assert (folder / "out" / FOUND).exists()
    monkeypatch.setattr(sys, "argv", ["fedperl", "leakage", "--beside", str(tmp_path), "--out", out])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "leakage.json: cannot be read" in capsys.readouterr().err
