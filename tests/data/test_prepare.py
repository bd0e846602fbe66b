import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedperl.data import journal, packed, twins
from fedperl.data.dermsim.draw import draw
from fedperl.data.journal import Recipe
from fedperl.data.packed import BadImageError, decode, encode
from fedperl.data.prepare import prepare, recipe_of
from fedperl.data.readers import read
from fedperl.data.readers.base import Listing, Row
from fedperl.data.store import Store
from fedperl.errors import DataError


def picture(number: int, size: int = 48, label: int = 1) -> Image.Image:
    return Image.fromarray(draw([label], [number], [0], [0], size=size)[0].transpose(1, 2, 0))


def jpeg(image: Image.Image, quality: int = 95, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, **options)
    return out.getvalue()


def write_set(folder: Path, images: int = 6, *, columns: str = "") -> Path:
    """A generic set of drawn lesions: image,label,group."""
    folder.mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label", "group"])
        for i in range(images):
            (folder / f"{i}.jpg").write_bytes(jpeg(picture(i)))
            writer.writerow([f"{i}.jpg", "NV" if i % 2 else "MEL", ""])
    return folder


def bare(size: int = 32, **options: object) -> Recipe:
    return Recipe(size, twins=False, **options)  # type: ignore[arg-type]


# One image


def test_an_image_is_cut_square_resized_upright_and_bare() -> None:
    wide = Image.new("RGB", (60, 40), (10, 20, 30))
    wide.paste((250, 0, 0), (10, 0, 30, 40))  # the left half of the centred square
    cut = np.asarray(decode(jpeg(wide), 20))
    assert cut.shape == (20, 20, 3)
    assert cut[:, :9, 0].min() > 200
    assert cut[:, 11:, 0].max() < 40
    squashed = np.asarray(decode(jpeg(wide), 20, "squash"))
    assert squashed[10, 1, 0] < 60  # what the crop leaves out is there
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees
    exif[0x010E] = "a patient's name"
    turned = np.asarray(decode(jpeg(wide, exif=exif, comment=b"another name"), 20))
    assert (np.abs(turned.astype(int) - np.rot90(cut, -1)) < 25).all()
    stored = encode(decode(jpeg(wide, exif=exif, comment=b"another name"), 20), "jpeg")
    assert b"name" not in stored
    assert not Image.open(io.BytesIO(stored)).getexif()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "LA", "1"])
def test_every_kind_of_eight_bit_image_becomes_rgb(mode: str) -> None:
    image = picture(1).convert("RGB").convert(mode)
    out = io.BytesIO()
    image.save(out, "TIFF" if mode == "CMYK" else "PNG")
    assert np.asarray(decode(out.getvalue(), 24)).shape == (24, 24, 3)


def sixteen_bit_rgb() -> bytes:
    """A PNG of 2 x 2 pixels, 16 bits a channel, which Pillow would read as 8."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    header = (2).to_bytes(4, "big") * 2 + bytes([16, 2, 0, 0, 0])
    pixels = zlib.compress((b"\0" + bytes(12)) * 2)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_bad_images_are_named() -> None:
    good = jpeg(picture(1))
    deep = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(deep, "PNG")
    gif = io.BytesIO()
    picture(1).save(gif, "GIF")
    for content, reason in (
        (b"", "not an image"),
        (b"hello" * 50, "not an image"),
        (good[: len(good) // 2], "cannot be decoded: OSError"),
        (deep.getvalue(), "more than 8 bits"),
        (sixteen_bit_rgb(), "more than 8 bits"),
        (gif.getvalue(), "not an image of a known format"),
        (bytes(128) + b"DICM" + bytes(100), "DICOM"),
    ):
        with pytest.raises(BadImageError, match=reason):
            decode(content, 16)


def test_huge_images_are_refused_from_their_header() -> None:
    small = io.BytesIO()
    Image.new("L", (8, 8)).save(small, "PNG")
    header = bytearray(small.getvalue())
    for edge, reason in ((12_000, r"12000 x 12000 pixels; at most 100000000 in all"), (60_000, "far too many pixels")):
        header[16:24] = edge.to_bytes(4, "big") * 2  # nothing behind it
        header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
        with pytest.raises(BadImageError, match=reason):
            decode(bytes(header), 16)
    with pytest.raises(BadImageError, match=r"48 x 48 pixels; at most 2000 in all"):
        decode(jpeg(picture(1)), 16, pixel_cap=2000)


def test_a_large_jpeg_is_decoded_smaller_with_the_same_result() -> None:
    large = picture(3, 64).resize((1200, 900), Image.Resampling.BICUBIC)
    full = large.crop((150, 0, 1050, 900)).resize((32, 32), Image.Resampling.BICUBIC, reducing_gap=3.0)
    found = np.asarray(decode(jpeg(large), 32), np.int64)
    assert np.abs(found - np.asarray(full, np.int64)).mean() < 2


# A store


def test_a_store_holds_what_the_set_lists(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    done: list[tuple[int, int]] = []
    found = prepare([read(folder)], tmp_path / "store", bare(), progress=lambda *numbers: done.append(numbers))
    assert (found.rows, found.images, found.skipped) == (6, 6, [])
    assert done[-1] == (6, 6)
    store = Store.open(tmp_path / "store")
    assert store.images.shape == (6, 3, 32, 32)
    for row in range(6):
        wanted = encode(decode((folder / f"{row}.jpg").read_bytes(), 32), "jpeg")
        assert (store.images[row] == np.asarray(Image.open(io.BytesIO(wanted))).transpose(2, 0, 1)).all()
    assert store.manifest.label.tolist() == [0, 1] * 3
    assert store.made["sets"][0] == {
        "source": "set",
        "listed": 6,
        "missing": 0,
        "dropped": {},
        "skipped": 0,
        "read": 6,
    }
    assert (store.made["size"], store.made["codec"], store.made["fit"]) == (32, "jpeg, quality 85", "crop")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "store"]
    assert {path.name for path in (tmp_path / "store").iterdir()} == {
        "images.bin",
        "offsets.npy",
        "manifest.csv",
        "skipped.csv",
        "store.json",
    }
    with pytest.raises(DataError, match="store: is there already"):
        prepare([read(folder)], tmp_path / "store", bare())


def test_arrays_lose_nothing(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 32, 32, 3), dtype=np.uint8)
    rows = [Row(f"{i}", pixels[i], "a", f"{i}", {"split": "train"}) for i in range(4)]
    listing = Listing("arrays", tmp_path, ("a", "b"), rows)
    recipe = recipe_of([listing])
    assert recipe.size == 32
    prepare([listing], tmp_path / "store", recipe)
    store = Store.open(tmp_path / "store")
    assert (store.images == pixels.transpose(0, 3, 1, 2)).all()
    assert store.made["codec"] == "png"
    assert store.manifest.about["split"].tolist() == ["train"] * 4


def two_sets(tmp_path: Path, content: bytes, other: bytes, name: str = "ISIC_1") -> list[Listing]:
    """One ISIC image listed by two sets, with different labels, as HAM10000 is in ISIC 2019."""
    listings = []
    for source, label, data in (("HAM10000", "AK", content), ("ISIC19", "SCC", other)):
        folder = tmp_path / source
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.jpg").write_bytes(data)
        rows = [Row(name, folder / f"{name}.jpg", label, "HAM_7")]
        listings.append(Listing(source, folder, ("AK", "SCC"), rows))
    return listings


def test_a_shared_image_is_stored_once_with_both_labels(tmp_path: Path) -> None:
    same = jpeg(picture(1))
    found = prepare(two_sets(tmp_path, same, same), tmp_path / "store", bare())
    assert (found.rows, found.images) == (2, 1)
    manifest = Store.open(tmp_path / "store").manifest
    assert manifest.label.tolist() == [0, 1]
    assert manifest.pixels.tolist() == [0, 0]
    # Another encoding under the same archive name is the same photograph; another photograph is not.
    again = prepare(two_sets(tmp_path, same, jpeg(picture(1), 60)), tmp_path / "store2", bare())
    assert (again.rows, again.images) == (2, 1)
    other = prepare(two_sets(tmp_path, same, jpeg(picture(2))), tmp_path / "store3", bare())
    assert (other.rows, other.images) == (2, 2)


def test_twins_become_one_group(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", 12)
    (folder / "4.jpg").write_bytes(jpeg(Image.open(folder / "1.jpg"), quality=70))
    found = prepare([read(folder)], tmp_path / "store", Recipe(32))
    manifest = Store.open(tmp_path / "store").manifest
    assert found.twins == 1
    assert manifest.group[1] == manifest.group[4]
    assert len(np.unique(manifest.group)) == 11
    assert len(np.unique(manifest.about["published_group"])) == 12


def alike(folder: Path, images: int) -> Path:
    """A set of photographs of nearly the same thing, in two classes."""
    noise = np.random.default_rng(0).integers(0, 3, (images, 48, 48, 3), dtype=np.uint8)
    one = np.asarray(picture(1)) // 2
    for number in range(images):
        path = folder / ("NV" if number % 2 else "MEL") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one + noise[number]).save(path)
    return folder


def refused_for_twins(listing: Listing, out: Path) -> list[int]:
    """Return how many rows were done when it was refused."""
    done: list[int] = []
    with pytest.raises(DataError, match=r"look like more than 20 others.*--no-twins"):
        prepare([listing], out, Recipe(32), progress=lambda rows, _: done.append(rows))
    return done


def test_images_that_all_look_alike_are_refused_early_and_go_on_without_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "ALIKE", 20)
    monkeypatch.setattr("fedperl.data.prepare.FIRST", 75)
    listing, out = read(alike(tmp_path / "set", 90)), tmp_path / "store"
    assert max(refused_for_twins(listing, out)) == 75
    assert refused_for_twins(listing, out) == []  # the same command again does not encode the rest in vain
    done: list[int] = []
    prepare([listing], out, bare(), progress=lambda rows, _: done.append(rows))
    assert done[0] == 75
    prepare([listing], tmp_path / "whole", bare())
    assert files(out) == files(tmp_path / "whole")


def test_a_search_that_fails_at_the_end_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first images are told apart, all of them are not."""
    monkeypatch.setattr(twins, "ALIKE", 20)
    monkeypatch.setattr("fedperl.data.prepare.FIRST", 10)
    listing, out = read(alike(tmp_path / "set", 80)), tmp_path / "store"
    assert max(refused_for_twins(listing, out)) == 80
    done: list[int] = []
    prepare([listing], out, bare(), progress=lambda rows, _: done.append(rows))
    assert set(done) == {80}
    assert len(Store.open(out).images) == 80


# Bad input


def test_bad_files_are_skipped_counted_and_listed(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", 10)
    (folder / "3.jpg").write_bytes(b"no image")
    (folder / "5.jpg").write_bytes((folder / "5.jpg").read_bytes()[:300])
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "7.jpg", "PNG")
    with pytest.raises(DataError, match=r"3 of 10 images cannot be used, .* set 3\.jpg: not an image.*--allow-bad"):
        prepare([read(folder)], tmp_path / "store", bare())
    assert not (tmp_path / "store").exists()
    found = prepare([read(folder)], tmp_path / "store", bare(), allow_bad=True)
    assert (found.rows, found.images, len(found.skipped)) == (7, 7, 3)
    with (tmp_path / "store" / "skipped.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["image"] for line in lines] == ["3.jpg", "5.jpg", "7.jpg"]
    assert lines[2]["reason"] == "more than 8 bits a channel (mode I;16)"
    store = Store.open(tmp_path / "store")
    assert store.manifest.image.tolist() == [f"{i}.jpg" for i in (0, 1, 2, 4, 6, 8, 9)]
    assert store.made["sets"][0]["skipped"] == 3


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", 3)
    listing = read(folder)
    (folder / "1.jpg").unlink()
    os.mkfifo(folder / "1.jpg")  # opening it would wait for ever
    with pytest.raises(DataError, match=r"'1\.jpg' is no file that can be read"):
        read(folder)
    found = prepare([listing], tmp_path / "store", bare(), allow_bad=True)  # where it became one after the listing
    assert found.skipped == [("set", "1.jpg", "not a regular file")]


def test_one_bad_file_in_a_hundred_is_no_error(tmp_path: Path) -> None:
    pixels = np.zeros((100, 16, 16, 3), np.uint8)
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"x")
    rows = [Row("bad", bad, "a", "bad")] + [Row(f"{i}", pixels[i], "a", f"{i}") for i in range(99)]
    found = prepare([Listing("s", tmp_path, ("a",), rows)], tmp_path / "store", bare(16))
    assert len(found.skipped) == 1


def test_missing_images_are_an_error_unless_allowed(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    for i in (1, 2):
        (folder / f"{i}.jpg").unlink()
    with pytest.raises(DataError, match=r"2 images are listed but not there, the first: set 1\.jpg, set 2\.jpg"):
        prepare([read(folder)], tmp_path / "store", bare())
    found = prepare([read(folder)], tmp_path / "store", bare(), allow_missing=True)
    assert found.rows == 4
    assert Store.open(tmp_path / "store").made["sets"][0]["missing"] == 2


def test_sets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    rows = [Row("a", np.zeros((16, 16, 3), np.uint8), "x", "a")]
    one, two = Listing("one", tmp_path, ("x",), rows), Listing("two", tmp_path, ("x", "y"), rows)
    with pytest.raises(DataError, match="classes x, y; .* wanted sets of the same classes"):
        prepare([one, two], tmp_path / "store", bare(16))
    with pytest.raises(DataError, match="both 'one'"):
        prepare([one, one], tmp_path / "store", bare(16))
    with pytest.raises(DataError, match="no image found"):
        prepare([Listing("none", tmp_path, ("x",), [])], tmp_path / "store", bare(16))
    for wrong in ({"fit": "bend"}, {"codec": "gif"}):
        with pytest.raises(DataError, match="wanted"):
            recipe_of([one], **wrong)  # type: ignore[arg-type]


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    prepare([read(write_set(tmp_path / "set"))], tmp_path / "store", bare())
    blob = (tmp_path / "store" / "images.bin").read_bytes()
    (tmp_path / "store" / "images.bin").write_bytes(blob[:-10])
    with pytest.raises(DataError, match=r"images\.bin and offsets\.npy do not belong together"):
        Store.open(tmp_path / "store")
    (tmp_path / "store" / "images.bin").write_bytes(bytes(len(blob)))
    with pytest.raises(DataError, match=r"image 0 of images\.bin cannot be decoded"):
        Store.open(tmp_path / "store")
    (tmp_path / "store" / "images.bin").unlink()
    with pytest.raises(DataError, match=r"images\.bin is missing"):
        Store.open(tmp_path / "store")


# Stopped and started again


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_stopped_call_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FLUSH_EVERY", 4)
    folder = write_set(tmp_path / "set", 30)
    (folder / "9.jpg").write_bytes((folder / "2.jpg").read_bytes())  # stored once, also across the stop
    prepare([read(folder)], tmp_path / "whole", bare())
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([read(folder)], tmp_path / "store", bare(), progress=stop)
    partial = tmp_path / "store.partial"
    with (partial / "images.bin").open("ab") as file:
        file.write(b"an image whose line was never written")
    with (partial / "journal.jsonl").open("ab") as file:
        file.write(b'{"content": "cut')
    seen.clear()
    prepare([read(folder)], tmp_path / "store", bare(), progress=stop if False else lambda done, _: seen.append(done))
    assert seen[0] >= 16
    assert files(tmp_path / "store") == files(tmp_path / "whole")


def test_changed_arrays_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FLUSH_EVERY", 2)
    pixels = np.random.default_rng(0).integers(0, 256, size=(8, 16, 16, 3), dtype=np.uint8)
    rows = [Row(f"{i}", pixels[i], "a", f"{i}") for i in range(8)]
    listing = Listing("arrays", tmp_path, ("a",), rows)

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([listing], tmp_path / "store", bare(16), progress=stop)
    pixels[0] = 255 - pixels[0]
    prepare([listing], tmp_path / "store", bare(16))
    assert (Store.open(tmp_path / "store").images == pixels.transpose(0, 3, 1, 2)).all()


def test_a_file_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", 5)
    listing, away = read(folder), tmp_path / "away.jpg"
    status = (folder / "2.jpg").stat()
    (folder / "2.jpg").rename(away)
    with pytest.raises(DataError, match="1 of 5 images cannot be used"):
        prepare([listing], tmp_path / "store", bare())
    away.rename(folder / "2.jpg")
    os.utime(folder / "2.jpg", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert prepare([listing], tmp_path / "store", bare()).skipped == []


def test_another_recipe_or_changed_files_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FLUSH_EVERY", 2)
    folder = write_set(tmp_path / "set", 12)

    def stop(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([read(folder)], tmp_path / "store", bare(), progress=stop)
    (folder / "1.jpg").write_bytes(jpeg(picture(99), 80))
    prepare([read(folder)], tmp_path / "store", bare())
    prepare([read(folder)], tmp_path / "whole", bare())
    assert files(tmp_path / "store") == files(tmp_path / "whole")


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", 2500)
    prepare([read(folder)], tmp_path / "whole", Recipe(224, twins=False))
    code = (
        "import sys; from pathlib import Path; from fedperl.data.prepare import prepare; "
        "from fedperl.data.journal import Recipe; from fedperl.data import journal; "
        "from fedperl.data.readers import read; journal.FLUSH_EVERY = 16; "
        "prepare([read(Path(sys.argv[1]))], Path(sys.argv[2]), Recipe(224, twins=False))"
    )
    kills, generator = 0, np.random.default_rng(int.from_bytes(os.urandom(4)))
    while not (tmp_path / "store").exists():
        process = subprocess.Popen([sys.executable, "-c", code, folder, tmp_path / "store"])
        try:
            process.wait(float(generator.uniform(0.4, 0.8)) if kills < 20 else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(0.05)
    assert kills >= 3
    assert files(tmp_path / "store") == files(tmp_path / "whole")


def test_the_journal_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_set(tmp_path / "set", 3)
    monkeypatch.setattr(packed, "write_offsets", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        prepare([read(folder)], tmp_path / "store", bare())
    lines = (tmp_path / "store.partial" / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["pixels"] for line in lines] == [0, 1, 2]
    monkeypatch.undo()
    assert prepare([read(folder)], tmp_path / "store", bare()).rows == 3
