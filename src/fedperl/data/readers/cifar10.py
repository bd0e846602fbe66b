"""CIFAR-10 (Krizhevsky 2009), the binary version: no medical images, but the field's common yardstick."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedperl.data.readers.base import LONGEST, Listing, Row, quoted
from fedperl.data.readers.files import find_file, find_folder, need_file
from fedperl.errors import DataError

SOURCE = "CIFAR-10"
FOLDER, PICKLED = "cifar-10-batches-bin", "cifar-10-batches-py"
BATCHES = {**{f"data_batch_{number}": "train" for number in range(1, 6)}, "test_batch": "test"}
NAMES = "batches.meta.txt"
TELL_TALE = f"{FOLDER}/data_batch_1.bin"
SIZE, COUNT = 32, 10
RECORD = 1 + 3 * SIZE * SIZE  # the label, then red, green and blue


def recognises(folder: Path) -> bool:
    """Whether the folder is or holds the set's, in whichever version."""
    files = [*(f"{batch}.bin" for batch in BATCHES), "data_batch_1"]
    return find_folder(folder, FOLDER, PICKLED) is not None or find_file(folder, *files) is not None


def read(folder: Path) -> Listing:
    """Return all 60,000 images, their pixels still on disk, mapped.

    Raises:
        DataError: a file is missing, is no whole number of records, or has a label above 9; or it is the version
            for Python, whose pickles are never opened.
    """
    home = find_folder(folder, FOLDER) or folder
    missing = [name for name in (*(f"{batch}.bin" for batch in BATCHES), NAMES) if find_file(home, name) is None]
    if missing and find_file(folder, "data_batch_1", f"{PICKLED}/data_batch_1"):
        raise DataError(
            f"{folder}: CIFAR-10 in its version for Python, whose pickles could run any code and are not opened; "
            "wanted the binary version, cifar-10-binary.tar.gz"
        )
    if missing:
        raise DataError(f"{home}: no {', '.join(missing)}; wanted all files of cifar-10-binary.tar.gz")
    classes = _names(need_file(home, NAMES))
    rows = [row for batch in BATCHES for row in _rows(need_file(home, f"{batch}.bin"), batch, classes)]
    return Listing(SOURCE, folder, classes, rows)


def _names(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) != COUNT or len(set(names)) != COUNT:
        raise DataError(f"{path}: {len(set(names))} names of classes; wanted {COUNT}, one a line")
    for name in names:
        if not name.isprintable() or len(name) > LONGEST:
            raise DataError(f"{path}: {quoted(name)} cannot be the name of a class")
    return names


def _rows(path: Path, batch: str, classes: tuple[str, ...]) -> Iterator[Row]:
    length = path.stat().st_size
    if not length or length % RECORD:
        raise DataError(
            f"{path}: {length} bytes, record {length // RECORD} is cut short; wanted {RECORD} bytes a record"
        )
    try:
        records = np.asarray(np.memmap(path, dtype=np.uint8, mode="r")).reshape(-1, RECORD)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    wrong = np.flatnonzero(records[:, 0] >= COUNT)
    if wrong.size:
        raise DataError(f"{path}: record {wrong[0]} has label {records[wrong[0], 0]}; wanted 0 to {COUNT - 1}")
    pixels = records[:, 1:].reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)
    about = {"split": BATCHES[batch]}
    for number, label in enumerate(records[:, 0].tolist()):
        image = f"{batch}/{number:05d}"
        yield Row(image, pixels[number], classes[label], f"{SOURCE} {image}", about)
