"""Images that nobody labelled: what a model says of them, when it abstains, and what becomes of files that are none."""

import csv
import dataclasses
import json
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file

from fedperl import train
from fedperl.cli import main
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict
from fedperl.learn.weights import load_model, read_metadata
from fedperl.predicting import (
    Prediction,
    Predictor,
    abstention,
    check_fit,
    list_images,
    open_predictor,
    predict_images,
    read_image,
    write_csv,
)
from tests.conftest import small_config, small_store

CLASSES = ("MEL", "NV", "BCC")

Command = Callable[..., tuple[int, str, str]]


def skin_store() -> Store:
    """The small store under the paper's names, a tenth of its labels wrong: risks between 0 and 1 are there."""
    store = small_store(images=48)
    labels = store.manifest.label.copy()
    labels[::10] = (labels[::10] + 1) % 3
    return dataclasses.replace(store, manifest=dataclasses.replace(store.manifest, classes=CLASSES, label=labels))


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    config = small_config(
        method="ssfl",
        objective={"tau": 0.34},
        federation={"rounds": 8, "steps": 3, "batch": 8},
        optimizer={"lr": 2e-3},
    )
    train(config, folder, store=skin_store())
    return folder


@pytest.fixture(name="command")
def _command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedperl", "predict", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return int(stopped.value.code or 0), said.out, said.err

    return run


def by_hand(run: Path, pixels: npt.NDArray[np.uint8], name: str = "last") -> npt.NDArray[np.float32]:
    net = build_net("small_cnn", 3, seed=9)
    load_model(net, run / "models" / f"{name}.safetensors", "small_cnn")
    found: npt.NDArray[np.float32] = predict(net, torch.from_numpy(pixels)).numpy()
    return found


def photographs(folder: Path, rows: int = 6) -> npt.NDArray[np.uint8]:
    """Write the first test images of client 0 as PNG files and return their pixels."""
    store = skin_store()
    pixels = store.pixels(store.partition.clients[0].test[:rows])
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(pixels):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number}.png")
    return pixels


def deep_png(grey: bool) -> bytes:
    """A PNG of 16 bits a channel, grey or RGB; Pillow writes only the first."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    channels = 1 if grey else 3
    lines = b"".join(b"\0" + bytes(range(16 * 2 * channels)) for _ in range(16))
    header = struct.pack(">IIBBBBB", 16, 16, 16, 0 if grey else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


# What it says


def test_predictions_are_the_networks_on_the_same_pixels(run: Path, tmp_path: Path, command: Command) -> None:
    expected = by_hand(run, photographs(tmp_path / "photos"))
    code, out, _ = command(run, tmp_path / "photos", "--json", "--batch", 4)
    found = json.loads(out)
    assert code == 0
    assert [Path(one["image"]).name for one in found["predictions"]] == [f"{n}.png" for n in range(6)]
    for one, row in zip(found["predictions"], expected, strict=True):
        assert list(one["probabilities"]) == list(CLASSES)
        assert list(one["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-6)
        assert one["class"] == CLASSES[row.argmax()]
        assert one["confidence"] == pytest.approx(row.max(), abs=1e-6)
        assert one["malignant_probability"] == pytest.approx(row[0] + row[2], abs=1e-6)
        assert one["malignancy"] == ("malignant" if row[0] + row[2] >= 0.5 else "benign")
        assert one["decision"] is None
        assert one["error"] is None
    assert (found["images"], found["failed"], found["abstention"]) == (6, 0, None)


def test_photographs_are_turned_cut_and_resized_as_for_a_store(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    picture = Image.fromarray(generator.integers(0, 256, (30, 44, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    with Image.open(tmp_path / "turned.jpg") as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    assert upright.size == (30, 44)
    cut = upright.resize((16, 16), Image.Resampling.BICUBIC, box=(0, 7, 30, 37), reducing_gap=3.0)
    whole = upright.resize((16, 16), Image.Resampling.BICUBIC, reducing_gap=3.0)
    for fit, wanted in (("crop", cut), ("squash", whole)):
        found = read_image(tmp_path / "turned.jpg", 16, fit)  # type: ignore[arg-type]
        assert (found == np.asarray(wanted).transpose(2, 0, 1)).all()
    assert (read_image(tmp_path / "turned.jpg", 16, "crop") != read_image(tmp_path / "turned.jpg", 16, "squash")).any()


def test_a_table_a_csv_in_and_a_csv_out(run: Path, tmp_path: Path, command: Command) -> None:
    photographs(tmp_path / "photos")
    listed = tmp_path / "cases.csv"
    listed.write_text(
        "\ufeffcase,image\na,photos/3.png\nb,\nc,photos/none.png\nd," + str(tmp_path / "photos" / "1.png")
    )
    code, out, _ = command(run / "models" / "global_best.safetensors", listed, "--csv", tmp_path / "out.csv")
    assert code == 1
    assert "Not a medical device" in out
    assert "No such file" in out
    assert "2 of 4 could not be predicted" in out
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["image"]).name for row in rows] == ["3.png", "cases.csv, row 2", "none.png", "1.png"]
    assert [row["error"] for row in rows] == ["", "no image", "No such file or directory", ""]
    expected = by_hand(run, photographs(tmp_path / "photos")[[3, 1]], "global_best")
    for row, numbers in zip((rows[0], rows[3]), expected, strict=True):
        assert [float(row[f"p_{name}"]) for name in CLASSES] == pytest.approx(numbers.tolist(), abs=1e-6)
        assert row["class"] == CLASSES[numbers.argmax()]
        assert row["class"] in out
    assert rows[1]["p_MEL"] == rows[1]["class"] == ""
    for _ in range(2):  # the second finds its own answers in the folder, and passes them over
        assert command(run, tmp_path / "photos", "--csv", tmp_path / "photos" / "out.csv", "--quiet") == (0, "", "")
    assert command(run, listed, "--csv", listed)[0] == 2  # what is read is not written over
    assert listed.read_text().startswith("\ufeffcase")


def test_nothing_but_earlier_answers_is_written_over(run: Path, tmp_path: Path, command: Command) -> None:
    photographs(tmp_path / "photos")
    (tmp_path / "cases.csv").write_text("image\nphotos/1.png\n")
    (tmp_path / "notes.txt").write_text("a mole on the left arm")
    (tmp_path / "device").symlink_to(os.devnull)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for given, out in (
        ("photos", "photos/0.png"),
        ("cases.csv", "photos/1.png"),
        ("photos/2.png", "notes.txt"),
        ("photos/2.png", "cases.csv"),
        ("photos/2.png", "device"),
    ):
        code, _, error = command(run, tmp_path / given, "--csv", tmp_path / out)
        assert code == 2
        assert "is there already and holds no answers" in error
    assert {path: path.read_bytes() for path in before} == before
    assert (tmp_path / "device").is_symlink()
    (tmp_path / "empty").touch()  # as mktemp makes it
    assert command(run, tmp_path / "photos", "--csv", tmp_path / "empty", "--quiet") == (0, "", "")


def test_a_csv_that_cannot_be_written_does_not_lose_the_answers(run: Path, tmp_path: Path, command: Command) -> None:
    photographs(tmp_path / "photos", rows=2)
    out = tmp_path / ("x" * 248 + ".csv")  # too long with the ending of a file that is being written
    code, said, error = command(run, tmp_path / "photos", "--csv", out, "--json")
    assert (code, error.count("\n")) == (2, 1)
    assert "cannot be written: File name too long" in error
    assert [one["error"] for one in json.loads(said)["predictions"]] == [None, None]
    assert "All probabilities" not in command(run, tmp_path / "photos", "--csv", out)[1]


def test_names_stay_readable_and_no_cell_is_a_formula(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    photographs(tmp_path, rows=1)
    names = [
        "=1+1.png",
        "@sum.png",
        "+y.png",
        "Größe\u3000日本.png",
        "at 9\u202fPM.png",
        "a\n\x1b[1mb\u202e.png",
        "c,d.png",
    ]
    shown = ["./=1+1.png", "./@sum.png", "./+y.png", *names[3:5], "a\\n\\x1b[1mb\\u202e.png", "c,d.png"]
    for name in names:
        shutil.copy(tmp_path / "0.png", tmp_path / name)
    shutil.copy(tmp_path / "0.png", tmp_path / os.fsdecode(b"\xff.png"))
    monkeypatch.chdir(tmp_path)
    _, out, _ = command(run, *names, os.fsdecode(b"\xff.png"), "--json", "--csv", "out.csv")
    found = [one["image"] for one in json.loads(out)["predictions"]]
    assert found == [*shown, "\\udcff.png"]
    with open("out.csv", newline="", encoding="utf-8") as file:
        assert [row["image"] for row in csv.DictReader(file)] == found
    cells = predictions_csv(open_predictor(run), Prediction("a", "=cmd|x", error="-1"))
    assert "'=cmd|x" in cells
    assert "'-1" in cells


def predictions_csv(predictor: Predictor, one: Prediction) -> list[str]:
    write_csv(Path("one.csv"), predictor, [one])
    return Path("one.csv").read_text().splitlines()[1].split(",")


def test_classes_that_are_not_the_papers_are_neither_malignant_nor_benign(tmp_path: Path, command: Command) -> None:
    train(small_config(), tmp_path / "run", store=small_store())
    photographs(tmp_path / "photos")
    _, out, _ = command(tmp_path / "run", tmp_path / "photos", "--json")
    assert {one["malignancy"] for one in json.loads(out)["predictions"]} == {None}
    assert "malignant" not in command(tmp_path / "run", tmp_path / "photos")[1]


# When it abstains


def validation(run: Path, clients: list[int], name: str = "last") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return confidence and whether it is right, of the validation images of clients."""
    store = skin_store()
    rows = np.concatenate([store.partition.clients[client].validation for client in clients])
    found = by_hand(run, store.pixels(rows), name).astype(np.float64)
    return found.max(axis=1), found.argmax(axis=1) == store.manifest.label[rows]


@pytest.mark.parametrize(
    ("name", "clients"), [("last", [0, 1, 2, 3, 4]), ("global_best", [0, 1, 2, 3, 4]), ("client_3_best", [3])]
)
@pytest.mark.parametrize("risk", [0.05, 0.1, 0.2])
def test_the_threshold_keeps_the_risk_on_validation_images_and_keeps_most(
    run: Path, name: str, clients: list[int], risk: float
) -> None:
    predictor = open_predictor(run, name)
    confidence, right = validation(run, clients, name)
    fine = [t for t in np.arange(200) / 200 if (kept := confidence >= t).any() and (~right[kept]).mean() <= risk]
    if not fine:
        with pytest.raises(RunError, match="no threshold reaches it"):
            abstention(predictor, risk=risk)
        return
    found = abstention(predictor, risk=risk)
    assert found is not None
    kept = confidence >= found.threshold
    assert kept.sum() == (confidence >= min(fine)).sum()  # no threshold of the same grid keeps more
    assert found.validation_risk == pytest.approx((~right[kept]).mean())
    assert (~right[kept]).mean() <= risk
    assert found.validation_coverage == pytest.approx(kept.mean())
    assert found.validation_images == len(right)
    assert found.validation_holders == tuple(map(str, clients))


def test_abstains_below_the_threshold_and_then_shows_no_class(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # short paths, so that the table does not fold them
    confidence = np.sort(by_hand(run, photographs(tmp_path / "photos")).max(axis=1))
    between = float(confidence[2:4].mean())
    _, out, _ = command(run, tmp_path / "photos", "--threshold", between, "--json")
    found = json.loads(out)["predictions"]
    assert [one["decision"] for one in found].count("abstains") == 3
    assert all((one["confidence"] < between) == (one["decision"] == "abstains") for one in found)
    _, out, _ = command(run, "photos", "--threshold", between)
    lines = [line for line in out.splitlines() if ".png" in line]
    assert len(lines) == 6
    for line in lines:
        assert ("abstains" in line) == (not any(name in line for name in CLASSES))
    assert "3 of 6 images kept" in out
    code, out, _ = command(run, tmp_path / "photos", "--risk", 0.2)
    assert code == 0
    assert "validation images of 5 clients" in out
    assert "no promise for other images" in out


def test_a_risk_that_cannot_be_had_and_a_run_without_counts_are_errors(
    run: Path, tmp_path: Path, command: Command
) -> None:
    photographs(tmp_path / "photos")
    again = tmp_path / "again"
    shutil.copytree(run, again)
    curves = RunFolder(again).read_curves()
    for sums in curves["sums"].values():
        sums["validation"]["confidence"] = [[a + b, 0] for a, b in sums["validation"]["confidence"]]
    (again / "curves.json").write_text(json.dumps(curves))
    code, _, error = command(again, tmp_path / "photos", "--risk", 0.1)
    assert (code, error.count("\n")) == (2, 1)
    assert "--risk 0.1: no threshold reaches it on the 60 validation images" in error
    assert "the least is 1.000" in error
    (again / "curves.json").unlink()
    code, _, error = command(again, tmp_path / "photos", "--risk", 0.1)
    assert code == 2
    assert "curves.json: cannot be read" in error
    shutil.copy(run / "models" / "last.safetensors", tmp_path / "alone.safetensors")
    code, _, error = command(tmp_path / "alone.safetensors", tmp_path / "photos", "--risk", 0.1)
    assert code == 2
    assert "lies in no run folder" in error
    assert command(tmp_path / "alone.safetensors", tmp_path / "photos", "--threshold", 0.5)[0] == 0


def test_another_rounds_model_and_local_batch_norm_have_no_threshold(run: Path, tmp_path: Path, store: Store) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    curves = RunFolder(again).read_curves()
    key = curves["chosen"]["last"]["0"]
    curves["chosen"]["last"]["0"] = "0@99"
    curves["sums"]["0@99"] = curves["sums"][key]
    (again / "curves.json").write_text(json.dumps(curves))
    with pytest.raises(RunError, match="round 8, 99; wanted the run's own model"):
        abstention(open_predictor(again), risk=0.1)
    counts = curves["sums"][key]["validation"]
    counts["confusion"], counts["scores"] = [[0, 0], [0, 0]], counts["scores"][:2]  # one client's: of other classes
    curves["chosen"]["last"]["0"] = key
    (again / "curves.json").write_text(json.dumps(curves))
    with pytest.raises(RunError, match=r"curves\.json: cannot be used.*wanted one shape"):
        abstention(open_predictor(again), risk=0.1)
    (again / "curves.json").write_text('{"chosen": {"last": {"0": 3}}, "sums": {}}')
    with pytest.raises(RunError, match=r"curves\.json"):
        abstention(open_predictor(again), risk=0.1)
    for own, told in (
        ({"batch_norm": "local"}, "batch-norm layers of its own"),
        ({"own_share": 0.5}, "50 % of its own"),
        ({"own_share": "validation"}, "a share of its own models' running mean, chosen on its validation images"),
    ):
        train(small_config(federation=own), tmp_path / told, store=store)
        with pytest.raises(RunError, match=told):
            abstention(open_predictor(tmp_path / told), risk=1.0)
        assert abstention(open_predictor(tmp_path / told, "client_2_best"), risk=1.0) is not None


def test_clients_that_trained_alone(tmp_path: Path, store: Store) -> None:
    train(small_config(method="local_lower"), tmp_path / "run", store=store)
    with pytest.raises(RunError, match="choose with --model: client_0_best, client_1_best"):
        open_predictor(tmp_path / "run")
    found = abstention(open_predictor(tmp_path / "run", "client_1_best"), risk=1.0)
    assert found is not None
    assert found.validation_holders == ("1",)
    assert found.validation_images == 6


# What cannot be predicted


def test_a_folder_with_files_that_are_no_images_reports_each(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "inbox"
    photographs(folder, rows=2)
    (folder / "notes.txt").write_text("a mole on the left arm")
    Image.effect_noise((64, 64), 80).convert("RGB").save(folder / "whole.jpg")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "cut.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:900])
    (folder / "deep_grey.png").write_bytes(deep_png(grey=True))
    (folder / "deep_rgb.png").write_bytes(deep_png(grey=False))
    (folder / "empty.png").write_bytes(b"")
    (folder / "scan.dcm").write_bytes(b"\0" * 128 + b"DICM")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "[bold].png").write_bytes(b"no")
    (folder / ".hidden").write_bytes(b"passed over")
    os.mkfifo(folder / "pipe.png")
    os.mkdir(folder / "none")
    code, out, _ = command(run, folder, "--json")
    assert code == 1
    found = {str(Path(one["image"]).relative_to(folder)): one for one in json.loads(out)["predictions"]}
    assert list(found) == sorted(found)
    assert {name for name, one in found.items() if one["error"] is None} == {"0.png", "1.png", "whole.jpg"}
    for name, reason in {
        "notes.txt": "not an image of a known format",
        "deeper/cut.jpg": "truncated",
        "deep_grey.png": "more than 8 bits a channel",
        "deep_rgb.png": "more than 8 bits a channel",
        "empty.png": "an empty file",
        "scan.dcm": "DICOM, which is not read",
        "gone.png": "No such file or directory",
        "linked": "a link to a folder, which is not followed",
        "[bold].png": "not an image of a known format",
        "pipe.png": "not a regular file",
    }.items():
        assert reason in found.pop(name)["error"]
    assert set(found) == {"0.png", "1.png", "whole.jpg"}
    monkeypatch.chdir(folder)
    code, out, _ = command(run, ".", "--threshold", 0.5)
    assert code == 1
    for word in ("notes.txt", "deep_grey.png", "[bold].png", "8 bits", "10 of 13 could not be predicted"):
        assert word in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_permission_are_reported(run: Path, tmp_path: Path, command: Command) -> None:
    photographs(tmp_path / "photos")
    (tmp_path / "photos" / "0.png").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    code, out, _ = command(run, tmp_path / "photos", tmp_path / "closed" / "a.png", tmp_path / "closed", "--json")
    errors = [one["error"] for one in json.loads(out)["predictions"] if one["error"]]
    assert code == 1
    assert errors == ["Permission denied", "Permission denied", "cannot be listed: Permission denied"]
    (tmp_path / "read_only").mkdir(mode=0o500)
    code, out, error = command(run, tmp_path / "photos", "--csv", tmp_path / "read_only" / "out.csv")
    assert (code, out) == (2, "")  # before anything is predicted
    assert "its folder may not be written to" in error


def test_nothing_to_predict_is_2_and_says_why(run: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "empty").mkdir()
    code, out, _ = command(run, tmp_path / "empty", "--json")
    assert code == 2
    assert json.loads(out)["predictions"][0]["error"] == "a folder without images"
    (tmp_path / "bad.csv").write_text("name,label\nx,y\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\0\0")
    (tmp_path / "rowless.csv").write_text("image\n")
    (tmp_path / "null.csv").write_bytes(b"image\na\0b.png\n")
    listed = [tmp_path / "bad.csv", tmp_path / "binary.csv", tmp_path / "rowless.csv", tmp_path / "none.csv"]
    code, out, _ = command(run, *listed, tmp_path / ("x" * 300), "--json")
    assert code == 2
    errors = [one["error"] for one in json.loads(out)["predictions"]]
    assert "found name, label; wanted rows with one column 'path' or 'image'" in errors[0]
    assert "cannot be read as csv" in errors[1]
    assert "found no row" in errors[2]
    assert errors[3] == "No such file or directory"
    assert "too long" in errors[4]
    (tmp_path / "twice.csv").write_text("image,image\na.png,b.png\n")
    code, out, _ = command(run, tmp_path / "twice.csv", "--json")
    assert "found image, image; wanted rows with one column" in json.loads(out)["predictions"][0]["error"]
    code, out, _ = command(run, tmp_path / "null.csv", "--json")
    assert code == 2
    assert "null" in json.loads(out)["predictions"][0]["error"]
    code, out, _ = command(run, tmp_path / "empty")
    assert code == 2
    assert "a folder without images" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}/models/none.safetensors", "{photos}"], "none.safetensors: no such model"),
        (["{run}", "{photos}", "--model", "none"], "choose with --model: client_0_best"),
        (["{run}/models/last.safetensors", "{photos}", "--model", "last"], "chooses from a run folder"),
        (["{photos}/0.png", "{photos}"], "not a safetensors file"),
        (["{tmp}/other.safetensors", "{photos}"], "does not say its net, classes, size and input"),
        (["{tmp}", "{photos}"], "wanted a run's .safetensors file or a finished run"),
        (["{run}", "{photos}", "--risk", "0.1", "--threshold", "0.5"], "wanted one of them"),
        (["{run}", "{photos}", "--risk", "1.5"], "--risk 1.5; wanted 0 to 1"),
        (["{run}", "{photos}", "--threshold", "-1"], "--threshold -1.0; wanted 0 to 1"),
        (["{run}", "{photos}", "--threshold", "nan"], "--threshold nan; wanted 0 to 1"),
        (["{run}", "{photos}", "--fit", "stretch"], "--fit 'stretch'; wanted crop or squash"),
        (["{run}", "{photos}", "--csv", "{tmp}/no/such/out.csv"], "its folder is not there"),
        (["{run}", "{photos}", "--device", "tpu"], "wanted 'cpu', 'cuda' or 'cuda:N'"),
    ],
)
def test_errors_are_one_sentence_and_exit_2(
    run: Path, tmp_path: Path, command: Command, arguments: list[str], message: str
) -> None:
    photographs(tmp_path / "photos")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors", {"net": "small_cnn"})
    filled = [text.format(run=run, photos=tmp_path / "photos", tmp=tmp_path) for text in arguments]
    code, out, error = command(*filled)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("fedperl: ")
    assert message in error


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("classes", '["MEL", "MEL", "NV"]', "wanted each once"),
        ("classes", '["MEL", "", "NV"]', "wanted each once"),
        ("classes", '"MEL"', "wanted a list of names"),
        ("classes", '["MEL", 1, "NV"]', "wanted a list of names"),
        ("classes", '["MEL", "\\u001b[31m", "NV"]', "wanted a list of names"),
        ("size", "1", "size = 1: Input should be greater than or equal to 16"),
        ("size", "100000", "size = 100000: Input should be less than or equal to 224"),
        ("input", "nonsense", "input_scale = 'nonsense'"),
        ("net", "nonsense", "net = 'nonsense'"),
        ("round", "", "invalid literal"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(
    run: Path, tmp_path: Path, key: str, value: str, message: str
) -> None:
    about = read_metadata(run / "models" / "last.safetensors") | {key: value}
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors", about)
    with pytest.raises(RunError, match=r"does not say its net, classes, size and input") as found:
        open_predictor(tmp_path / "other.safetensors")
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_a_store_made_square_in_another_way_is_noticed(run: Path, tmp_path: Path) -> None:
    store = dataclasses.replace(skin_store(), made={"source": "test", "fit": "squash"})
    store.save(tmp_path / "store")
    again = tmp_path / "again"
    shutil.copytree(run, again)
    text = (again / "config.toml").read_text()
    (again / "config.toml").write_text(text.replace('source = "dermsim"', f'source = "{tmp_path / "store"}"'))
    assert check_fit(again, "squash") == check_fit(again) == "squash"
    with pytest.raises(ConfigError, match="were made with 'squash'; wanted --fit squash"):
        check_fit(again, "crop")


def test_batches_and_progress_over_many_files(run: Path, tmp_path: Path) -> None:
    photographs(tmp_path / "photos", rows=1)
    entries = list_images([tmp_path / "photos" / "0.png"] * 150 + [tmp_path / "none.png"])
    seen: list[tuple[int, int]] = []
    predictor = open_predictor(run)
    found = predict_images(predictor, entries, batch=64, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(64, 151), (128, 151), (151, 151)]
    assert len({one.confidence for one in found[:64]}) == 1
    assert found[-1].error == "No such file or directory"
    turning = dataclasses.replace(predictor, orientations=8)
    shown = torch.from_numpy(read_image(tmp_path / "photos" / "0.png", predictor.size, "crop"))[None]
    turned = [torch.rot90(way, turns, (2, 3)) for way in (shown, shown.flip(3)) for turns in range(4)]
    mean = torch.stack([predict(predictor.net, view.contiguous()) for view in turned]).mean(0)
    (told,) = predict_images(turning, entries[:1])
    assert told.confidence == pytest.approx(float(mean.max()), abs=1e-4)
    assert told.confidence != pytest.approx(found[0].confidence, abs=1e-4)
    alone = predict_images(predictor, entries[:1], batch=1)
    assert alone[0].confidence == pytest.approx(found[100].confidence, abs=1e-6)
