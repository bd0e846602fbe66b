"""The command line as a person uses it; in its own process where signals and exit codes are real."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from fedperl.cli import main
from fedperl.config import load_config, methods
from fedperl.files import lock
from tests.conftest import small_config, small_store

TINY = ["--set", "data.scale=0.01", "--set", "data.size=16"]
FEDPERL = [sys.executable, "-m", "fedperl"]


def fedperl(*arguments: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """In this process: a new one spends two seconds on importing torch."""
    command, out, error = ["fedperl", *map(str, arguments)], io.StringIO(), io.StringIO()
    told = redirect_stdout(out), redirect_stderr(error)
    with patch.object(sys, "argv", command), told[0], told[1], pytest.raises(SystemExit) as stopped:
        main()
    done = subprocess.CompletedProcess(command, int(stopped.value.code or 0), out.getvalue(), error.getvalue())
    assert (done.returncode == 0) == ok, done.stderr
    return done


def fedperl_apart(*arguments: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    done = subprocess.run([*FEDPERL, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert (done.returncode == 0) == ok, done.stderr
    return done


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> Path:
    from fedperl.config import dump

    small_store().save(tmp_path / "store")
    path = tmp_path / "tiny.toml"
    path.write_text(dump(small_config(data={"source": str(tmp_path / "store")})))
    return path


def test_train_prints_a_table_and_json(tmp_path: Path, config: Path) -> None:
    shown = fedperl_apart("train", config, "--out", tmp_path / "a")
    assert "weighted F1" in shown.stdout
    assert "Results in" in shown.stdout
    silent = fedperl("train", config, "--out", tmp_path / "b", "--quiet")
    assert silent.stdout == ""
    as_json = fedperl("train", config, "--out", tmp_path / "c", "--json", "--set", "seed=5")
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "c" / "results.json").read_text())
    assert json.loads(as_json.stdout)["seed"] == 5


def test_train_says_that_a_model_names_one_class(tmp_path: Path, config: Path) -> None:
    told = "It tells nothing apart: its numbers are no result."
    shown = fedperl("train", config, "--out", tmp_path / "a", "--set", "optimizer.lr=0.01")
    assert told not in " ".join(shown.stdout.split())
    store = small_store()
    for part in store.partition.clients:
        store.manifest.label[part.labelled] = 0  # all that it could learn
    store.save(tmp_path / "one")
    shown = fedperl("train", config, "--out", tmp_path / "b", "--set", f"data.source='{tmp_path / 'one'}'")
    assert told in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "no_such.toml"], "no_such.toml: no such file"),
        (["train", "--set", "peers.Tt=3"], "did you mean 'peers.T'"),
        (["train", "--set", "peers.T=1"], "mean of one model"),
        (["train", "--resume", "--out", "nowhere"], "holds no run"),
        (["train", "--set", "data.source=nowhere", "--out", "x"], "not a store"),
        (["data", "show", "."], "not a store"),
        (["data", "prepare", "nowhere", "--out", "x"], "nowhere: no such folder"),
        (["data", "prepare", ".", "--out", "x"], "no data set that is known"),
        (["data", "prepare", "isic2021=.", "--out", "x"], "kind 'isic2021' is not known"),
        (["data", "audit", "nowhere.toml"], "no such file"),
        (["weights", "import", "nowhere.pth"], "nowhere.pth: cannot be read"),
        (["pretrain", "nowhere", "--out", "x.safetensors"], "not a store"),
        (["evaluate", "nowhere", "--data", "dermsim"], "holds no run"),
        (["train", *TINY, "--set", "model.weights=nowhere", "--out", "x"], "model.weights: nowhere is not there"),
        (["train", *TINY, "--set", "model.weights=imagenet", "--out", "x"], "`fedperl weights import` makes it"),
    ],
)
def test_errors_are_one_sentence_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPERL_HOME", str(tmp_path))
    failed = fedperl(*arguments, ok=False)
    assert failed.returncode == 2
    assert message in failed.stderr
    assert failed.stderr.startswith("fedperl: ")
    assert failed.stderr.count("\n") == 1


def test_an_error_ends_the_process_with_2(tmp_path: Path) -> None:
    failed = fedperl_apart("train", tmp_path / "no_such.toml", ok=False)
    assert failed.returncode == 2
    assert failed.stderr == f"fedperl: {tmp_path / 'no_such.toml'}: no such file; wanted a TOML configuration\n"


def test_a_file_whose_name_no_run_can_have_is_refused_before_training(tmp_path: Path, config: Path) -> None:
    odd = tmp_path / "exp[1].toml"
    odd.write_text(config.read_text().replace('name = "run"\n', ""))
    command: list[str | Path] = ["train", odd, "--out", tmp_path / "a", "--quiet"]
    said = fedperl(*command, ok=False).stderr
    assert "'exp[1]'" in said
    assert "--set name=" in said
    assert not (tmp_path / "a").exists()
    fedperl(*command, "--set", "name=exp1")
    assert load_config(tmp_path / "a" / "config.toml").name == "exp1"


def test_what_a_run_cannot_lose_and_what_privacy_changes_is_said_before_it_starts(tmp_path: Path, config: Path) -> None:
    quick = ["--quiet", "--set", "federation.rounds=1"]
    told = fedperl("train", config, *quick, "--out", tmp_path / "a").stderr  # 3 of 3
    assert told.count("\n") == 2
    assert "14% of rounds" in told
    own = tmp_path / "own.toml"
    open_numbers = config.read_text().replace("cohort = 3\n", "").replace('quorum = "auto"\n', "")
    own.write_text(open_numbers)
    assert "lost answer" not in fedperl("train", own, *quick, "--out", tmp_path / "b").stderr
    written = load_config(tmp_path / "b" / "config.toml").federation
    assert (written.cohort, written.quorum) == (4, 3)
    short = tmp_path / "hospital.toml"
    store = load_config(own).data.source
    short.write_text(f"""
        privacy = "hospital"
        threads = 1
        data = {{ size = 16, source = "{store}" }}
        model = {{ net = "small_cnn" }}
        federation = {{ steps = 1, batch = 4 }}
    """)
    told = fedperl("train", short, *quick, "--out", tmp_path / "c").stderr
    assert "peers.T = 3" in told
    assert "lost answer" not in told


def test_a_second_start_in_a_used_folder_is_refused(tmp_path: Path, config: Path) -> None:
    fedperl("train", config, "--out", tmp_path / "a", "--quiet")
    assert "--resume" in fedperl("train", config, "--out", tmp_path / "a", ok=False).stderr
    assert fedperl("train", "--resume", "--out", tmp_path / "a", "--json").stdout
    assert "holds no run" in fedperl("train", config, "--resume", "--out", tmp_path / "b", ok=False).stderr


WAITING = """
import time
from pathlib import Path
from fedperl.learn.objectives.fixmatch import FixMatch
HERE = Path(__file__).parent
class Waiting(FixMatch):
    def begin(self, net):
        rounds = HERE / "cut" / "metrics.jsonl"
        while rounds.exists() and rounds.read_text().count("\\n") >= 3 and not (HERE / "go").exists():
            time.sleep(0.01)
        super().begin(net)
"""


def waiting(folder: Path) -> str:
    """The objective of a run, FOLDER/cut, that stops after round 3 until there is a file FOLDER/go."""
    (folder / "waiting.py").write_text(WAITING)
    return f"objective.kind='{folder / 'waiting.py'}:Waiting'"


def wait_for_round(folder: Path, rounds: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 300
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < rounds:
        assert time.monotonic() < deadline
        assert process.poll() is None, "the run ended before it could be interrupted"
        time.sleep(0.01)


def test_ctrl_c_leaves_a_run_that_resumes(tmp_path: Path, config: Path) -> None:
    more = ["--set", "federation.rounds=6", "--set", waiting(tmp_path)]
    fedperl("train", config, *more, "--out", tmp_path / "whole", "--quiet")
    process = subprocess.Popen(
        [*FEDPERL, "train", str(config), *more, "--out", str(tmp_path / "cut")],
        text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_round(tmp_path / "cut", 3, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "go on with: fedperl train --resume" in error
    (tmp_path / "go").touch()
    fedperl("train", "--resume", "--out", tmp_path / "cut", "--quiet")
    for name in ("models/last.safetensors", "state/ledger.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_data_show_and_methods(tmp_path: Path, config: Path) -> None:
    assert "MEL" in fedperl("data", "show").stdout
    assert "128 images of 16 px" in fedperl("data", "show", tmp_path / "store").stdout
    shown = json.loads(fedperl("data", "show", config, "--json").stdout)
    assert list(shown["counts"]) == ["0", "1", "2", "3", "4", "server"]
    assert sum(shown["counts"]["0"]["labelled"].values()) == 6
    fedperl("data", "show", "--sheet", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    listed = fedperl("methods").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(methods())
    assert any("FedIRM" in line and line.endswith("[Figure 8, FedIRM]") for line in listed)
    assert fedperl("--version").stdout.startswith("fedperl 0")


def test_demo_trains_four_methods_is_killed_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    arguments = ["demo", "--out", str(out), "--rounds", "2"]
    process = subprocess.Popen(
        [*FEDPERL, *arguments, "--quiet"], text=True, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for_round(out / "ssfl", 1, process)
    os.kill(process.pid, signal.SIGKILL)  # its workers notice and stop by themselves
    process.wait()
    shown = fedperl(*arguments).stdout
    for name in ("Lower FedAvg", "SSFL", "FedPerl (T = 2, PA)", "Upper FedAvg", "Weighted F1 by client"):
        assert name in shown
    results = json.loads(fedperl(*arguments, "--json").stdout)
    assert {r["rounds"] for r in results.values()} == {2}
    assert (
        "other settings: federation.rounds = 2, now 3"
        in fedperl("demo", "--out", out, "--rounds", "3", ok=False).stderr
    )
    for foreign in (out / "mine.txt", out / "data" / "patients.csv", out / "ssfl" / "notes.txt"):
        foreign.write_text("keep")
        assert "which no demo made" in fedperl("demo", "--out", out, "--fresh", ok=False).stderr
        assert foreign.read_text() == "keep"
        foreign.unlink()
    assert len(list(out.iterdir())) == 7
    with lock(out / "lock"):
        assert "another process is working here" in fedperl(*arguments, ok=False).stderr
