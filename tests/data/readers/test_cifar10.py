from pathlib import Path

import numpy as np
import pytest

from fedperl.data.packed import decode
from fedperl.data.readers import cifar10
from fedperl.errors import DataError
from tests.data.readers import trees

HOME = "cifar-10-batches-bin"


@pytest.mark.parametrize("above", [True, False])
def test_pixels_labels_and_names(tmp_path: Path, above: bool) -> None:
    trees.write(tmp_path, trees.cifar10())
    folder = tmp_path if above else tmp_path / HOME
    assert cifar10.recognises(folder)
    listing = cifar10.read(folder)
    assert (listing.source, listing.classes, len(listing.rows)) == ("CIFAR-10", trees.CIFAR_CLASSES, 13)
    assert [(row.image, row.label, row.group, row.about) for row in (listing.rows[1], listing.rows[-1])] == [
        ("data_batch_1/00001", "bird", "CIFAR-10 data_batch_1/00001", {"split": "train"}),
        ("test_batch/00002", "ship", "CIFAR-10 test_batch/00002", {"split": "test"}),
    ]
    record = trees.cifar_records(2, 1)[3073:]
    expected = np.empty((32, 32, 3), dtype=np.uint8)
    for row in range(32):
        for column in range(32):
            for channel in range(3):
                expected[row, column, channel] = record[1 + channel * 1024 + row * 32 + column]
    pixels = listing.rows[1].pixels
    assert isinstance(pixels, np.ndarray)
    assert not pixels.flags.owndata
    np.testing.assert_array_equal(pixels, expected)
    np.testing.assert_array_equal(np.asarray(decode(pixels, 32)), expected)


def test_missing_files_are_all_named(tmp_path: Path) -> None:
    tree = trees.cifar10()
    for name in ("data_batch_3.bin", "test_batch.bin", "batches.meta.txt"):
        del tree[f"{HOME}/{name}"]
    with pytest.raises(DataError, match="no data_batch_3.bin, test_batch.bin, batches.meta.txt"):
        cifar10.read(trees.write(tmp_path, tree))


@pytest.mark.parametrize("home", ["", "cifar-10-batches-py/"])
def test_pickles_are_refused_unopened(tmp_path: Path, home: str) -> None:
    trees.write(tmp_path, {f"{home}data_batch_1": b"\x80\x04.", f"{home}batches.meta": b"\x80\x04."})
    assert cifar10.recognises(tmp_path)
    with pytest.raises(DataError, match="pickles could run any code.*wanted the binary version"):
        cifar10.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2.bin", trees.cifar_records(2, 0)[:-1], "data_batch_2.bin: 6145 bytes, record 1 is cut short"),
        ("data_batch_2.bin", b"", "data_batch_2.bin: 0 bytes, record 0 is cut short"),
        ("test_batch.bin", trees.cifar_records(1, 0) + b"\x0a" + bytes(3072), "test_batch.bin: record 1 has label 10"),
        ("batches.meta.txt", b"cat\ndog\n", "batches.meta.txt: 2 names of classes; wanted 10"),
        ("batches.meta.txt", b"cat\n" * 10, "batches.meta.txt: 1 names of classes; wanted 10"),
        ("batches.meta.txt", b"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\0\n", r"batches.meta.txt: 'j\\x00' cannot be the name"),
        ("batches.meta.txt", b"\xff", "batches.meta.txt: cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        cifar10.read(trees.write(tmp_path, trees.cifar10() | {f"{HOME}/{name}": content}))


def test_a_link_out_is_refused(tmp_path: Path) -> None:
    root = trees.write(tmp_path / "root", trees.cifar10())
    (root / HOME / "test_batch.bin").rename(tmp_path / "test_batch.bin")
    (root / HOME / "test_batch.bin").symlink_to(tmp_path / "test_batch.bin")
    with pytest.raises(DataError, match="'test_batch.bin' is a link that leaves"):
        cifar10.read(root)
