"""Fashion-MNIST (Xiao et al. 2017): 28 x 28 grey images of clothes in four idx files, widened to 32 x 32 x 3."""

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fedperl.data.readers.base import Array, Listing, Row
from fedperl.data.readers.files import find_file, need_file
from fedperl.errors import DataError

SOURCE = "Fashion-MNIST"
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
PREFIXES = {"train": "train", "test": "t10k"}
TELL_TALE = "train-images-idx3-ubyte.gz"
IMAGES, LABELS = 0x0803, 0x0801  # what an idx file of bytes in three dimensions, and in one, begins with
SIDE, WIDE = 28, 32
MOST = 60_000  # images a file: what the published ones hold, and a bound on what is ever unpacked


def recognises(folder: Path) -> bool:
    """Whether the folder holds the idx file of the training images."""
    return find_file(folder, *_names("train-images", 3)) is not None


def read(folder: Path) -> Listing:
    """Return all 70,000 images, with a black margin of two pixels and the grey in all three channels.

    Raises:
        DataError: a file is missing, or is not the idx file that its header announces.
    """
    rows = [row for split, prefix in PREFIXES.items() for row in _rows(folder, split, prefix)]
    return Listing(SOURCE, folder, CLASSES, rows)


def _rows(folder: Path, split: str, prefix: str) -> Iterator[Row]:
    images = read_idx(need_file(folder, *_names(f"{prefix}-images", 3)), IMAGES, (SIDE, SIDE))
    path = need_file(folder, *_names(f"{prefix}-labels", 1))
    labels = read_idx(path, LABELS, ())
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(labels)} labels; wanted {len(images)}, one an image")
    wrong = np.flatnonzero(labels >= len(CLASSES))
    if wrong.size:
        raise DataError(f"{path}: label {labels[wrong[0]]} of image {wrong[0]}; wanted 0 to {len(CLASSES) - 1}")
    margin = (WIDE - SIDE) // 2
    grey = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    pixels = np.broadcast_to(grey[..., None], (*grey.shape, 3))  # three channels, stored once
    about = {"split": split}
    for number, label in enumerate(labels.tolist()):
        image = f"{split}/{number:05d}"
        yield Row(image, pixels[number], CLASSES[label], f"{SOURCE} {image}", about)


def _names(stem: str, dimensions: int) -> list[str]:
    return [f"{stem}{mark}idx{dimensions}-ubyte{end}" for mark in "-." for end in ("", ".gz")]


def read_idx(path: Path, magic: int, shape: tuple[int, ...]) -> Array:
    """Return the bytes of an idx file, gzipped or not, (n, *shape).

    Never more is unpacked than one byte beyond what the header announces, and that is bounded.

    Raises:
        DataError: the file is of another kind or shape, or longer or shorter than its header announces.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if zipped else file as stream:
                count = _count(path, stream, magic, shape)
                wanted = count * math.prod(shape)
                content = stream.read(wanted + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if len(content) != wanted:
        found = "more" if len(content) > wanted else str(len(content))
        raise DataError(f"{path}: {found} bytes after its header, which announces {wanted}")
    return np.frombuffer(content, dtype=np.uint8).reshape(count, *shape)


def _count(path: Path, stream: IO[bytes] | gzip.GzipFile, magic: int, shape: tuple[int, ...]) -> int:
    form = f">{2 + len(shape)}I"
    header = stream.read(struct.calcsize(form))
    if len(header) != struct.calcsize(form):
        raise DataError(f"{path}: {len(header)} bytes; wanted an idx header of {struct.calcsize(form)}")
    first, count, *sides = struct.unpack(form, header)
    if first != magic or tuple(sides) != shape:
        raise DataError(
            f"{path}: begins with {first:#x} and sides {sides}; wanted {magic:#x} and {list(shape)}, idx of bytes"
        )
    if not 1 <= count <= MOST:
        raise DataError(f"{path}: announces {count} items; wanted 1 to {MOST}")
    return int(count)
