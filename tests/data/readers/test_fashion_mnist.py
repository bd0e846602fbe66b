import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedperl.data.packed import decode
from fedperl.data.readers import fashion_mnist
from fedperl.errors import DataError
from tests.data.readers import trees

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def test_pixels_labels_and_names(tmp_path: Path) -> None:
    tree = trees.fashion_mnist()
    listing = fashion_mnist.read(trees.write(tmp_path, tree))
    assert (listing.source, listing.classes) == ("Fashion-MNIST", fashion_mnist.CLASSES)
    assert [(row.image, row.label, row.about["split"]) for row in listing.rows] == [
        ("train/00000", "Ankle boot", "train"),
        ("train/00001", "Bag", "train"),
        ("train/00002", "Sneaker", "train"),
        ("train/00003", "Shirt", "train"),
        ("test/00000", "Ankle boot", "test"),
        ("test/00001", "Bag", "test"),
        ("test/00002", "Sneaker", "test"),
    ]
    assert listing.rows[1].group == "Fashion-MNIST train/00001"
    grey = np.frombuffer(gzip.decompress(tree[IMAGES])[16:], dtype=np.uint8).reshape(-1, 28, 28)[1]
    expected = np.zeros((32, 32, 3), dtype=np.uint8)
    for channel in range(3):
        expected[2:30, 2:30, channel] = grey
    pixels = listing.rows[1].pixels
    assert isinstance(pixels, np.ndarray)
    np.testing.assert_array_equal(pixels, expected)
    np.testing.assert_array_equal(np.asarray(decode(pixels, 32)), expected)


def test_unzipped_and_dotted_names(tmp_path: Path) -> None:
    tree = {
        name.removesuffix(".gz").replace("-idx", ".idx").upper(): gzip.decompress(content)
        for name, content in trees.fashion_mnist().items()
    }
    trees.write(tmp_path, tree)
    assert fashion_mnist.recognises(tmp_path)
    assert len(fashion_mnist.read(tmp_path).rows) == 7


def images(count: int, *, magic: int = 0x803, sides: tuple[int, ...] = (28, 28), size: int | None = None) -> bytes:
    return trees.idx(magic, count, *sides, content=bytes(count * 784 if size is None else size))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, images(4, magic=0x802), "begins with 0x802"),
        (IMAGES, images(4, sides=(28, 29)), r"sides \[28, 29\]; wanted 0x803 and \[28, 28\]"),
        (IMAGES, images(4, size=3135), "3135 bytes after its header, which announces 3136"),
        (IMAGES, images(4, size=3137), "more bytes after its header, which announces 3136"),
        (IMAGES, images(0), "announces 0 items"),
        (IMAGES, images(60_001, size=10), "announces 60001 items; wanted 1 to 60000"),
        (IMAGES, images(3), "train-labels.*: 4 labels; wanted 3"),
        (IMAGES, b"\0\0\x08", "3 bytes; wanted an idx header of 16"),
        (IMAGES, b"\x1f\x8bnot gzip", "cannot be read"),
        (IMAGES, gzip.compress(images(4), mtime=0)[:-20], "cannot be read"),
        (LABELS, trees.idx(0x801, 4, content=b"\0\1\2\x0a"), "train-labels.*label 10 of image 3; wanted 0 to 9"),
        (LABELS, images(4), "begins with 0x803"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        fashion_mnist.read(trees.write(tmp_path, trees.fashion_mnist() | {name: content}))
    assert str(tmp_path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    tree = trees.fashion_mnist()
    del tree["t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(DataError, match="no file t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz"):
        fashion_mnist.read(trees.write(tmp_path, tree))


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    size = 100_000_000
    path = tmp_path / IMAGES
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(trees.idx(0x803, 4, 28, 28, content=b""))
        for _ in range(size // 10_000_000):
            file.write(bytes(10_000_000))
    trees.write(tmp_path, {name: content for name, content in trees.fashion_mnist().items() if name != IMAGES})
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more bytes after its header"):
            fashion_mnist.read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
