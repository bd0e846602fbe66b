"""Any folder of images: with a csv of their labels, or with a folder for each class."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fedperl.data.readers.base import SKIN, Entry, Find, Listing, find_images, quoted, read_header, read_table, stated
from fedperl.data.readers.files import DICOM, SUFFIXES, ImageFiles, find_file, list_folder
from fedperl.errors import DataError

TABLES = ("images.csv", "labels.csv", "metadata.csv")
TELL_TALE = "images.csv with the columns image and label, or a folder for each class"
COLUMNS = ("image", "label")
ABOUT = ("age", "sex", "body_site", "skin_type", "institution")
UNLABELLED = "unlabelled"
NO_CLASS = re.compile(
    r"ham10000_images.*|isic_20\d\d_.*|imgs_part_\d+|images?|train|training|val|valid|validation|test"
)
"""Folders that hold a set's images or a part of it: a table was forgotten, or the folder above was given."""


def recognises(folder: Path) -> bool:
    """Whether the folder holds a csv with the columns image and label, or a folder with images."""
    return find_table(folder) is not None or _has_class_folders(folder)


def read(folder: Path) -> Listing:
    """Return the images of the table, or else of the class folders; the source is the folder's name.

    The classes are the paper's eight where every label is one of them, whatever its letter case.

    Raises:
        DataError: as `read_table`, `find_images` and `ImageFiles`; images lie outside the class folders.
    """
    source = folder.resolve().name or "images"
    files = ImageFiles(folder)
    table = find_table(folder)
    entries = list(_from_table(table, source) if table else _from_folders(files, source))
    find: Find = files.by_path if table else lambda image, where: folder / image
    names = _classes(folder, {entry.label for entry in entries if entry.label})
    classes = SKIN if set(names.values()) <= set(SKIN) else tuple(sorted(names.values()))
    labelled = [replace(entry, label=names.get(entry.label, "")) for entry in entries]
    return find_images(source, folder, classes, labelled, find)


def find_table(folder: Path) -> Path | None:
    """Return the csv file that lists images and labels: one of the known names, or else the only csv, or None.

    Raises:
        DataError: a file of these cannot be read as csv, or is a link that leaves the folder.
    """
    there = (path.name for path in list_folder(folder))
    others = [name for name in there if name.lower().endswith(".csv") and not name.startswith(".")]
    for name in (*TABLES, *(others if len(others) == 1 else ())):
        table = find_file(folder, name)
        if table and set(COLUMNS) <= set(read_header(table)):
            return table
    return None


def _from_table(table: Path, source: str) -> Iterator[Entry]:
    for where, row in read_table(table, COLUMNS):
        group = row.get("group") or f"image {row['image']}"
        about = {name: stated(row, name) for name in ABOUT if name in row}
        yield Entry(where, row["image"], row["label"], f"{source} {group}", about)


def _from_folders(files: ImageFiles, source: str) -> Iterator[Entry]:
    images = files.all()
    if not images:
        raise DataError(f"{files.root}: no images; wanted {TELL_TALE}")
    for path in images:
        relative = path.relative_to(files.root)
        image, label = relative.as_posix(), relative.parts[0]
        if len(relative.parts) == 1:
            raise DataError(f"{files.root}: image {quoted(image)} lies in no class's folder; wanted {TELL_TALE}")
        if NO_CLASS.fullmatch(label.lower()):
            raise DataError(f"{files.root}: folder {quoted(label)} is no class; wanted {TELL_TALE}")
        known = "" if label.lower() == UNLABELLED else label
        yield Entry(str(files.root), image, known, f"{source} image {image}")


def _classes(folder: Path, labels: Iterable[str]) -> dict[str, str]:
    found = sorted(labels)
    if all(label.upper() in SKIN for label in found):
        return {label: label.upper() for label in found}
    seen: dict[str, str] = {}
    for label in found:
        other = seen.setdefault(label.lower(), label)
        if other != label:
            raise DataError(f"{folder}: labels {quoted(other)} and {quoted(label)} differ in letter case only")
    return {label: label for label in found}


def _has_class_folders(folder: Path) -> bool:
    inside = (names for path, _, names in os.walk(folder) if Path(path) != folder)
    return any(name.lower().endswith(SUFFIXES + DICOM) for names in inside for name in names)
