"""A run folder that the first edition wrote (tests/fixtures/README.md): its readers, and the refusal to train it on."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from fedperl import settings
from fedperl.compare import is_finished
from fedperl.config import dump, load_config, resolve
from fedperl.errors import ConfigError, RunError
from fedperl.evaluating import evaluate
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.weights import read_metadata, write_weights
from fedperl.opening import check_resumable
from fedperl.parallel import Job
from fedperl.predicting import open_predictor
from fedperl.settings import Config
from fedperl.training import train
from tests.conftest import small_config, small_store

FIXTURE = Path(__file__).parent / "fixtures" / "first_edition_run"
ALMOST: dict[str, Any] = {"abs": 1e-3}
ODD = {
    'method = "fedperl"': 'method = "no_more"',
    'preset = "recommended"': 'preset = "no_more"',
    'aggregator = "fedavg"': 'aggregator = "no_more"',
    "quorum = 3": "quorum = 30",
    "[peers]": "[peers]\nno_more = 3",
    "[views]": "[no_more]\nlines = [1, 2]\n[views]",
}
"""Lines of the fixture's configuration, and others that only an earlier version would accept."""
ODD_KEYS = {"preset", "federation.aggregator", "peers.no_more", "no_more.lines"}


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURE, tmp_path / "run")


@pytest.fixture(name="odd")
def _odd(run: Path) -> Path:
    for old, new in ODD.items():
        change(run, old, new)
    return run


def change(run: Path, old: str, new: str) -> None:
    path = run / "config.toml"
    text = path.read_text()
    assert text.count(old + "\n") == 1
    path.write_text(text.replace(old + "\n", new + "\n"))


def set_to(run: Path, key: str, value: str) -> None:
    """Give an option of the run another value, as if it had been trained with that."""
    section, _, name = key.partition(".")
    path = run / "config.toml"
    text, found = re.subn(
        rf"(?ms)(^\[{section}\]$.*?^{name} = )[^\n]*", lambda m: m[1] + value, path.read_text(), count=1
    )
    assert found == 1
    path.write_text(text)


def fedperl(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedperl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def image(folder: Path) -> Path:
    """Draw a brown disc."""
    row, column = np.mgrid[:40, :40]
    disc = ((row - 20) ** 2 + (column - 18) ** 2 < 120)[..., None]
    Image.fromarray(np.where(disc, [90, 50, 40], [225, 185, 160]).astype(np.uint8)).save(folder / "disc.png")
    return folder / "disc.png"


def remove_option(monkeypatch: pytest.MonkeyPatch, key: str) -> bool:
    """Take an option out of the settings; return whether it was there."""
    section, _, name = key.partition(".")
    fields = Config.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    there = name in fields
    monkeypatch.delitem(fields, name, raising=False)
    return there


# The four commands, and what commit 5f24ca7 made of the same folder


@pytest.mark.parametrize("which", ["run", "odd"])
def test_report_has_the_runs_own_numbers(which: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(which)
    fedperl("report", run)
    page = (run / "report.html").read_text()
    rows = [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)]
    results = json.loads((FIXTURE / "results.json").read_text())
    mean = results["over_clients"]["last"]["weighted_f1"]["mean"]
    assert any("first_edition_run" in row and f"{mean:.3f}" in row for row in rows)
    for client, numbers in results["test"]["last"].items():
        assert any(f"client {client} " in row and f"{numbers['weighted_f1']:.3f}" in row for row in rows), client
    gone = {key: [row for row in rows if key in row and "no_more" in row] for key in ODD_KEYS}
    assert all(bool(found) == (which == "odd") for found in gone.values()), (
        gone
    )  # the page says what it was trained with


def test_evaluate_gives_the_same_numbers(run: Path) -> None:
    found = json.loads(fedperl("evaluate", run, "--data", "dermsim", "--json").stdout)
    assert (found["images"], found["malignancy"]["malignant"], found["round"]) == (2000, 35, "9")
    assert found["malignancy"]["auroc"] == pytest.approx(0.6883605961468557, **ALMOST)
    assert found["malignancy"]["auprc"] == pytest.approx(0.029771201464056932, **ALMOST)
    assert found["malignancy"]["sum_then_threshold"]["weighted_f1"] == pytest.approx(0.9735771947527749, **ALMOST)
    calibration = {"ece": 0.021821964620060072, "brier": 0.04223011951952576, "nll": 0.09971229267807358}
    assert {name: found["calibration"]["malignancy"][name] for name in calibration} == pytest.approx(
        calibration, **ALMOST
    )


def test_predict_gives_the_same_probabilities(run: Path, tmp_path: Path) -> None:
    found = json.loads(fedperl("predict", run, image(tmp_path), "--risk", "0.5", "--json").stdout)
    assert found["abstention"]["threshold"] == pytest.approx(0.305)
    assert found["abstention"]["validation_images"] == 63
    expected = {"MEL": 0.04166592285037041, "NV": 0.8293306231498718, "BKL": 0.12900330126285553}
    expected |= dict.fromkeys(("BCC", "AK", "DF", "VASC", "SCC"), 0.0)
    assert found["predictions"][0]["probabilities"] == pytest.approx(expected, **ALMOST)


@pytest.mark.parametrize(
    ("coalition", "solvable", "of"),
    [
        (1, {"uploads": 0, "changes": 0, "distant": 0}, {"uploads": 95, "changes": 65, "distant": 61}),
        (2, {"uploads": 81, "changes": 29, "distant": 25}, {"uploads": 238, "changes": 178, "distant": 223}),
    ],
)
def test_privacy_comes_to_the_same_verdict(
    run: Path, coalition: int, solvable: dict[str, int], of: dict[str, int]
) -> None:
    code = 1 if any(solvable.values()) else 0
    found = json.loads(fedperl("privacy", run, "--coalition", str(coalition), "--json", code=code).stdout)
    assert found["releases"] == {"models": 9, "peers": 21}
    assert (found["audited"], found["left_out"], found["unverified"]) == (1, 0, 0)
    assert {kind: total["solvable"] for kind, total in found["totals"].items()} == solvable
    assert {kind: total["of"] for kind, total in found["totals"].items()} == of


# Settings that are gone


def test_every_command_reads_it_and_says_in_one_line_what_it_ignores(odd: Path, tmp_path: Path) -> None:
    picture = image(tmp_path)
    commands: tuple[list[str | Path], ...] = (
        ["report", odd],
        ["evaluate", odd, "--data", "dermsim", "--quiet"],
        ["predict", odd, picture],
        ["predict", odd / "models" / "last.safetensors", picture, "--risk", "0.5"],
        ["privacy", odd],
    )
    for command in commands:
        (line,) = fedperl(*command).stderr.splitlines()
        assert all(key in line for key in ODD_KEYS), line
        assert "fedperl 0.1.0" in line
        assert "quorum" not in line


def test_what_is_known_is_read_as_it_was_and_what_is_not_has_its_default(odd: Path) -> None:
    config = RunFolder(odd).read_config()
    assert config.method == "no_more"
    assert config.federation.quorum == 30
    assert config.federation.aggregator == Config.model_fields["federation"].default.aggregator
    assert config.federation.exclude == (2, 5, 6, 8)
    assert config.optimizer.lr == 3e-3
    assert RunFolder(odd).read_gone().keys() >= ODD_KEYS


def test_a_table_that_became_a_value_and_the_other_way_round(run: Path) -> None:
    change(run, "seed = 1", "seed = 1\naudit = 3")
    change(run, "[audit]", "[audit_before]")
    change(run, 'engine = "local"', "")
    change(run, "[views]", '[engine]\nname = "local"\n[views]')
    config = RunFolder(run).read_config()
    assert config.engine == "local"
    assert config.coalition == 1
    assert RunFolder(run).read_gone().keys() >= {"audit", "engine", "audit_before.keep_uploads"}


@pytest.mark.parametrize("by", ["", "fedperl 0.3.0", "by hand"])
def test_a_file_of_ones_own_and_one_of_a_later_edition_are_still_refused(odd: Path, by: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'peers\.no_more'"):
        load_config(odd / "config.toml")
    change(odd, 'written_by = "fedperl 0.1.0"', f'written_by = "{by}"')
    with pytest.raises(RunError, match=r"unknown key 'peers\.no_more'"):
        RunFolder(odd).read_config()


def test_a_run_of_this_edition_with_a_setting_that_went_since_is_read_and_not_trained_on(odd: Path) -> None:
    change(odd, 'written_by = "fedperl 0.1.0"', 'written_by = "fedperl 0.2.0"')
    assert RunFolder(odd).read_gone().keys() >= ODD_KEYS
    (odd / "results.json").unlink()
    assert "peers.no_more" in fedperl("train", "--resume", "--out", odd, code=2).stderr.splitlines()[-1]


def test_a_damaged_value_of_this_edition_is_refused(run: Path) -> None:
    change(run, 'written_by = "fedperl 0.1.0"', 'written_by = "fedperl 0.2.0"')
    change(run, "quorum = 3", 'quorum = "x"')
    with pytest.raises(RunError, match=r"federation\.quorum"):
        RunFolder(run).read_config()


def test_a_value_of_another_type_is_not_made_to_fit(run: Path) -> None:
    change(run, "quorum = 3", 'quorum = "3"')
    assert RunFolder(run).read_gone()["federation.quorum"] == "3"


def test_a_run_of_this_edition_whose_settings_contradict_each_other_is_refused(run: Path) -> None:
    change(run, 'written_by = "fedperl 0.1.0"', 'written_by = "fedperl 0.2.0"')
    change(run, "quorum = 3", "quorum = 30")
    with pytest.raises(RunError, match=r"federation\.quorum = 30"):
        RunFolder(run).read_config()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.orientations", "4"),
        ("model.orientations", '"views"'),
        ("federation.own_share", "0.5"),
        ("federation.own_share", '"validation"'),
        ("federation.batch_norm", '"local"'),
        ("federation.running_average", "0.9"),
    ],
)
def test_a_model_whose_answers_depended_on_an_option_that_is_gone_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    changed = shutil.copytree(run, run.parent / "changed")
    set_to(changed, key, value)
    here = key.partition(".")[2] in getattr(settings, key.partition(".")[0].capitalize()).model_fields
    if here:
        open_predictor(changed)
    remove_option(monkeypatch, key)
    assert open_predictor(run).round == 9
    with pytest.raises(RunError, match=key):
        open_predictor(changed / "models" / "last.safetensors")
    with pytest.raises(RunError, match=key):
        evaluate(changed, small_store())


def test_a_value_that_is_gone_refuses_answers_and_nothing_else(run: Path, tmp_path: Path) -> None:
    set_to(run, "federation.batch_norm", '"elsewhere"')
    commands: list[list[str | Path]] = [["predict", run, image(tmp_path)], ["evaluate", run, "--data", "dermsim"]]
    for command in commands:
        assert "federation.batch_norm = 'elsewhere'" in fedperl(*command, code=2).stderr.splitlines()[-1]
    fedperl("report", run)
    fedperl("privacy", run)


def test_a_models_file_that_asks_for_what_is_gone_is_refused_anywhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, alone = run / "models" / "last.safetensors", tmp_path / "alone.safetensors"
    remove_option(monkeypatch, "model.orientations")
    about = read_metadata(last)
    write_weights(alone, load_file(last), about)
    assert open_predictor(alone).run is None
    write_weights(alone, load_file(last), about | {"orientations": "4"})
    with pytest.raises(RunError, match=r"alone\.safetensors.*model\.orientations = 4"):
        open_predictor(alone)


# Training on


def test_a_finished_run_gives_its_results_and_no_other_configuration_goes_on_with_it(odd: Path) -> None:
    results = json.loads((FIXTURE / "results.json").read_text())
    assert json.loads(fedperl("train", "--resume", "--out", odd, "--json").stdout) == results
    refused = fedperl("train", "--resume", "--out", odd, "--set", "optimizer.lr=0.003", code=2)
    assert "was begun with fedperl 0.1.0" in refused.stderr.splitlines()[-1]
    own = resolve({"method": "fedperl"})
    with pytest.raises(RunError, match=r"was begun with fedperl 0\.1\.0; go on with that version"):
        train(own, odd, resume=True)
    with pytest.raises(RunError, match=r"was begun with fedperl 0\.1\.0"):
        is_finished(Job("it", own, odd))


def test_a_run_that_is_not_finished_is_refused(run: Path) -> None:
    (run / "results.json").unlink()
    before = sorted(run.rglob("*"))
    refused = fedperl("train", "--resume", "--out", run, code=2).stderr
    assert "was begun with fedperl 0.1.0; go on with that version, or start anew in another folder" in refused
    with pytest.raises(RunError, match="was begun with"):
        train(RunFolder(run).read_config(), run, resume=True)
    assert sorted(run.rglob("*")) == before


def test_flowers_server_refuses_it_too(run: Path) -> None:
    server_app = pytest.importorskip("fedperl.engines.flower.server_app")

    class Nobody:
        def let_go(self) -> None:
            pass

    config = RunFolder(run).read_config()
    (run / "results.json").unlink()
    with pytest.raises(RunError, match=r"was begun with fedperl 0\.1\.0"):
        server_app.serve(None, config, run, Nobody(), server_app.Waiting(1, 0), resume=True)


@pytest.mark.parametrize(
    ("by", "goes_on"), [("fedperl 0.2.0", True), ("fedperl 0.2.17", True), ("", True), ("fedperl 0.3.0", False)]
)
def test_versions_of_one_edition_go_on(tmp_path: Path, by: str, goes_on: bool) -> None:
    config = small_config()
    text = dump(config)
    assert 'written_by = "fedperl 0.2.' in text
    (tmp_path / "config.toml").write_text(re.sub(r'written_by = ".*"', f'written_by = "{by}"', text))
    if goes_on:
        check_resumable(RunFolder(tmp_path), config, resume=True)
        return
    with pytest.raises(RunError, match=f"was begun with {by}"):
        check_resumable(RunFolder(tmp_path), config, resume=True)
