"""Archives to a trained and evaluated model, as a person types it."""

import io
import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedperl.data.dermsim.draw import draw
from fedperl.data.readers.base import SKIN
from fedperl.data.store import Store
from tests.test_cli import FEDPERL, fedperl


def write_archive(folder: Path, images: int = 160, size: int = 40, style: int = 0) -> Path:
    """A folder per class of drawn lesions."""
    labels = np.arange(images) % 8
    pixels = draw(labels, np.arange(images), np.arange(images), np.full(images, style), size=size)
    for i in range(images):
        path = folder / SKIN[labels[i]] / f"{style}_{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i].transpose(1, 2, 0)).save(path)
    return folder


SMALL = [
    *("--set", "model.net=small_cnn"),
    *("--set", "data.size=32"),
    *("--set", "federation.steps=2"),
    *("--set", "federation.rounds=2"),
    *("--set", "partition.kind=iid"),
    *("--set", "partition.clients=4"),
]


def test_from_an_archive_to_an_unseen_client(tmp_path: Path) -> None:
    archive, store = write_archive(tmp_path / "clinic"), tmp_path / "store"
    shown = fedperl("data", "prepare", archive, "--out", store, "--size", "32").stdout
    assert "160 images stored for 160 rows" in shown
    assert "is there already" in fedperl("data", "prepare", archive, "--out", store, ok=False).stderr
    (archive / "MEL" / "0_0.png").unlink()

    deals = ["--set", "partition.kind=iid", "--set", "partition.clients=4"]
    found = json.loads(fedperl("data", "audit", store, *deals, "--picture", tmp_path / "c.svg", "--json").stdout)
    assert found["leaks"] == 0
    assert (tmp_path / "c.svg").read_text().count("<title>client") == 32
    assert "Nothing is on both sides" in fedperl("data", "audit", store, *deals).stdout

    fedperl("data", "partition", store, *deals, "--out", tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert len(lines) == 160 + 2
    assert "is there already" in plain(fedperl("data", "partition", store, "--out", tmp_path / "p.csv", ok=False))
    assert (tmp_path / "p.csv").read_text().splitlines() == lines
    manifest = (store / "manifest.csv").read_text()
    (store / "manifest.csv").write_text("".join(manifest.splitlines(keepends=True)[:100]))
    cut = plain(fedperl("data", "audit", store, ok=False))
    assert "manifest.csv: 99 rows; store.json says that 160 were written" in cut
    (store / "manifest.csv").write_text(manifest)
    arguments = ["--set", f"data.source='{store}'", *SMALL]
    fedperl("train", *arguments, "--out", tmp_path / "a", "--quiet")
    fedperl("train", *arguments, "--set", f"partition.file='{tmp_path / 'p.csv'}'", "--out", tmp_path / "b", "--quiet")
    first, second = (json.loads((tmp_path / run / "results.json").read_text()) for run in "ab")
    assert first["partition"] == second["partition"]
    assert first["test"] == second["test"]
    assert (tmp_path / "a" / "partition.csv").read_text().splitlines() == lines

    seen = fedperl("evaluate", tmp_path / "a", "--data", store, ok=False)
    assert "wanted a client it never saw" in seen.stderr
    wrong = fedperl("evaluate", tmp_path / "a", "--data", tmp_path / "no archive", "--model", "best", ok=False)
    assert "no such model; choose with --model: client_0_best" in plain(wrong)
    other = write_archive(tmp_path / "other", style=3)
    evaluated = json.loads(fedperl("evaluate", tmp_path / "a", "--data", other, "--json").stdout)
    assert evaluated["images"] == 160
    assert evaluated["malignancy"]["malignant"] == 80
    assert "AUROC" in fedperl("evaluate", tmp_path / "a", "--data", "dermsim").stdout
    assert len(list((tmp_path / "a" / "evaluations").glob("dermsim-*-last.json"))) == 1


def plain(done: "subprocess.CompletedProcess[str]") -> str:
    """What it said of an error, without the frame around it."""
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("data", "show", "--sheet", "sheet.html"), "sheet.html; wanted a name that ends in .png"),
        (("data", "show", "--sheet", "nowhere/sheet.png"), "there is no folder nowhere"),
        (("data", "audit", "--picture", "nowhere/counts.svg"), "there is no folder nowhere"),
        (("data", "partition", "nowhere", "--out", "p.csv"), "nowhere: no such file; wanted a store's folder, or a"),
        (("data", "partition", "nowhere", "--out", "nowhere/p.csv"), "there is no folder nowhere"),
        (("train",), "wanted a configuration (examples/fedperl.toml is one), --set, or --resume"),
        (
            ("train", "--set", "model.weights=b0.safetensors", "--set", "data.scale=0.01", "--out", "run"),
            "model.weights: b0.safetensors is not there; wanted a file of `fedperl pretrain`",
        ),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in plain(fedperl(*arguments, ok=False))
    assert not list(tmp_path.glob("*.*"))


def test_the_audit_fails_where_something_leaks(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "clinic", 80)
    out = io.BytesIO()
    Image.open(archive / "MEL" / "0_0.png").save(out, "JPEG", quality=70)
    (archive / "NV" / "copy.jpg").write_bytes(out.getvalue())
    fedperl("data", "prepare", archive, "--out", tmp_path / "store", "--size", "32", "--no-twins", "--quiet")
    names = Store.open(tmp_path / "store").manifest.image.tolist()
    partition = ['# {"made": {}, "straddles": false, "clients": ["a", "b"]}', "holder,part,step,source,image"]
    partition += [
        f"{i % 2},test,,clinic,{name}" for i, name in enumerate(sorted(names, key=lambda n: n != "MEL/0_0.png"))
    ]
    partition = [line.replace("0,test", "1,test") if line.endswith("copy.jpg") else line for line in partition]
    (tmp_path / "p.csv").write_text("\n".join(partition) + "\n")
    failed = fedperl("data", "audit", tmp_path / "store", "--set", f"partition.file='{tmp_path / 'p.csv'}'", ok=False)
    assert failed.returncode == 1
    assert "1 pairs and groups are on both sides of a split" in failed.stdout
    assert "clinic MEL/0_0.png (client 0, test) and clinic NV/copy.jpg (client 1, test)" in " ".join(
        failed.stdout.split()
    )


def test_pretrain_then_train_from_it(tmp_path: Path) -> None:
    store, weights = tmp_path / "store", tmp_path / "b.safetensors"
    fedperl("data", "prepare", write_archive(tmp_path / "clinic"), "--out", store, "--size", "32", "--quiet")
    other = tmp_path / "other_store"
    fedperl("data", "prepare", write_archive(tmp_path / "other"), "--out", other, "--size", "32", "--quiet")
    assert "not dealt" in fedperl("data", "show", store).stdout
    assert "The store is not dealt to clients" in fedperl("data", "audit", store).stdout
    arguments: list[str | Path] = [
        "pretrain",
        other,
        "--out",
        weights,
        "--net",
        "small_cnn",
        "--epochs",
        "3",
        "--batch",
        "16",
    ]
    about = json.loads(fedperl(*arguments, "--json").stdout)
    assert about["net"] == "small_cnn"
    assert "is there already" in fedperl(*arguments, ok=False).stderr
    train = ["train", "--set", f"data.source='{store}'", *SMALL, "--set", f"model.weights='{weights}'"]
    fedperl(*train, "--out", tmp_path / "run", "--quiet")
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    (tmp_path / "run" / "results.json").unlink()
    changed = fedperl("train", "--resume", "--out", tmp_path / "run", ok=False)
    assert "starting weights or" in changed.stderr


@pytest.mark.slow
def test_killed_and_stopped_pretraining_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fedperl("data", "prepare", write_archive(tmp_path / "clinic"), "--out", store, "--size", "32", "--quiet")
    arguments: list[str | Path] = [
        "pretrain",
        store,
        "--net",
        "small_cnn",
        "--epochs",
        "30",
        "--batch",
        "16",
        "--quiet",
    ]
    fedperl(*arguments, "--out", tmp_path / "whole")
    command = [*FEDPERL, *map(str, arguments), "--out", str(tmp_path / "cut")]
    partial = tmp_path / "cut.partial"
    for how in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE)
        before, deadline = partial.stat().st_mtime_ns if partial.exists() else 0, time.monotonic() + 300
        while not partial.exists() or partial.stat().st_mtime_ns == before:  # until an epoch more is done
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(how)
        _, error = process.communicate(timeout=300)
        assert not (tmp_path / "cut").exists()
    assert process.returncode == 130
    assert "the same command goes on" in error
    assert "other settings" in fedperl(*arguments, "--lr", "0.1", "--out", tmp_path / "cut", ok=False).stderr
    fedperl(*arguments, "--out", tmp_path / "cut")
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not partial.exists()


def test_ctrl_c_while_preparing(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "clinic", 1600, size=64)
    command = [*FEDPERL, "data", "prepare", str(archive), "--out", str(tmp_path / "cut"), "--size", "224"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    journal = tmp_path / "cut.partial" / "journal.jsonl"
    while not journal.exists() or not journal.stat().st_size:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command goes on" in error
    done = len(journal.read_text().splitlines())
    assert 0 < done < 1600
    fedperl("data", "prepare", archive, "--out", tmp_path / "cut", "--size", "224", "--no-twins", "--quiet")
    assert len(Store.open(tmp_path / "cut").manifest) == 1600
