"""Derm7pt (Kawahara et al. 2018, `release_v0`): a dermoscopic image a case, twenty diagnoses, its own split."""

from collections.abc import Iterator
from pathlib import Path

from fedperl.data.readers.base import (
    SKIN,
    Entry,
    Listing,
    find_images,
    quoted,
    read_header,
    read_table,
    required,
    stated,
    translate,
)
from fedperl.data.readers.files import ImageFiles, find_file, find_folder, need_file
from fedperl.errors import DataError

SOURCE = "Derm7pt"
TABLE = "meta/meta.csv"
TELL_TALE = f"{TABLE} with the columns derm and diagnosis"
SPLITS = ("train", "valid", "test")
DROPPED = ("melanosis", "miscellaneous")
CLASSES = {
    "clark nevus": "NV",
    "reed or spitz nevus": "NV",
    "dermal nevus": "NV",
    "blue nevus": "NV",
    "congenital nevus": "NV",
    "combined nevus": "NV",
    "recurrent nevus": "NV",
    "melanoma": "MEL",
    "melanoma (in situ)": "MEL",
    "melanoma (less than 0.76 mm)": "MEL",
    "melanoma (0.76 to 1.5 mm)": "MEL",
    "melanoma (more than 1.5 mm)": "MEL",
    "melanoma metastasis": "MEL",
    "basal cell carcinoma": "BCC",
    "seborrheic keratosis": "BKL",
    "lentigo": "BKL",
    "dermatofibroma": "DF",
    "vascular lesion": "VASC",
    **dict.fromkeys(DROPPED, ""),
}


def recognises(folder: Path) -> bool:
    """Whether the folder, or `release_v0` in it, holds a table with this set's columns."""
    table = find_file(_release(folder), TABLE)
    return table is not None and {"derm", "diagnosis"} <= set(read_header(table))


def read(folder: Path) -> Listing:
    """Return the dermoscopic images, grouped by case; melanosis and miscellaneous are dropped.

    Raises:
        DataError: as `read_table`, `find_images` and `ImageFiles`; a diagnosis or a case is not known.
    """
    release = _release(folder)
    table = need_file(release, TABLE)
    images = ImageFiles(find_folder(release, "images") or release / "images")
    return find_images(SOURCE, folder, SKIN, _entries(table, _splits(release)), images.by_path)


def _release(folder: Path) -> Path:
    return find_folder(folder, "release_v0") or folder


def _entries(table: Path, splits: dict[int, str]) -> Iterator[Entry]:
    number = -1
    for number, (where, row) in enumerate(read_table(table, ("case_num", "diagnosis", "derm"))):
        label = translate(row["diagnosis"], CLASSES, where, "diagnosis")
        about = {
            "split": splits.get(number, ""),
            "sex": stated(row, "sex"),
            "body_site": stated(row, "location"),
        }
        group = f"{SOURCE} case {required(row, 'case_num', where)}"
        dropped = "" if label else " ".join(row["diagnosis"].lower().split())
        yield Entry(where, row["derm"], label, group, about, dropped)
    beyond = [row for row in splits if row > number]
    if beyond:
        raise DataError(f"{table}: {number + 1} rows, but the split's indexes name row {min(beyond)}, counted from 0")


def _splits(release: Path) -> dict[int, str]:
    splits: dict[int, str] = {}
    for split in SPLITS:
        table = find_file(release, f"meta/{split}_indexes.csv")
        for where, row in read_table(table, ("indexes",)) if table else ():
            text = row["indexes"]
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise DataError(f"{where}: index {quoted(text)}; wanted a row of meta.csv, counted from 0")
            if int(text) in splits:
                raise DataError(f"{where}: row {text} is already in {splits[int(text)]}; wanted one split a row")
            splits[int(text)] = split
    return splits
