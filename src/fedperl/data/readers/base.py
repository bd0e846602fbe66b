"""What a reader returns: the images that a published data set lists, found in its folder and never outside it."""

import csv
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedperl.errors import DataError

SKIN = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
"""The paper's eight classes, in its order."""

LONGEST = 500
"""Characters of a name or a group: a manifest's columns are as wide as their longest value."""

Array = npt.NDArray[np.uint8]
Find = Callable[[str, str], Path | None]
"""From an image's name, and where it was read, to its file."""


@dataclass(frozen=True)
class Row:
    """One image of a set: its published name, where its pixels are, and what the set says about it."""

    image: str
    pixels: Path | Array  # a file inside the set's folder, or (h, w, 3) bytes
    label: str  # one of the listing's classes; "" for none
    group: str  # the lesion or patient, unique over all sets that share images
    about: Mapping[str, str] = field(default_factory=dict)  # keys of manifest.ABOUT


@dataclass(frozen=True)
class Listing:
    """All images of a set that are to be stored, and what was left out on the way."""

    source: str
    folder: Path
    classes: tuple[str, ...]
    rows: Sequence[Row]
    missing: Sequence[str] = ()  # listed in the set's table, but no file is there
    dropped: Mapping[str, int] = field(default_factory=dict)  # diagnoses outside the classes, and how many


@dataclass(frozen=True)
class Entry:
    """What one line of a set's table says: a row whose file is still to be found."""

    where: str  # the table and the line
    image: str
    label: str
    group: str
    about: Mapping[str, str] = field(default_factory=dict)
    dropped: str = ""  # its diagnosis, where that is outside the classes


def find_images(
    source: str,
    folder: Path,
    classes: tuple[str, ...],
    entries: Iterable[Entry],
    find: Find,
) -> Listing:
    """Return the listing of a table's entries, in their order, each with the file that `find(image, where)` returns.

    Raises:
        DataError: two lines mean one image, a value is overlong or no UTF-8 (some file names), or what `find` raises.
    """
    rows: list[Row] = []
    missing: list[str] = []
    dropped: Counter[str] = Counter()
    lines: dict[str, str] = {}
    for entry in entries:
        for text in (entry.image, entry.label, entry.group, *entry.about.values()):
            if len(text) > LONGEST:
                raise DataError(f"{entry.where}: {quoted(text)} has {len(text)} characters; at most {LONGEST}")
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise DataError(f"{entry.where}: {quoted(text)} is not UTF-8; rename it")
        path = find(entry.image, entry.where)
        key = fold(entry.image) if path is None else str(path)
        if key in lines:
            raise DataError(f"{entry.where}: image {quoted(entry.image)} is already in {lines[key]}; wanted once")
        lines[key] = entry.where
        if entry.dropped:
            dropped[entry.dropped] += 1
        elif path is None:
            missing.append(entry.image)
        else:
            rows.append(Row(entry.image, path, entry.label, entry.group, entry.about))
    return Listing(source, folder, classes, rows, missing, dict(dropped))


def read_header(path: Path) -> list[str]:
    """Return the names of a csv file's columns, none where it is empty.

    Raises:
        DataError: the file cannot be read as csv.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [name.strip() for name in next(csv.reader(file, strict=True), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as csv: {error}") from None


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file and line, row) of a csv file, every value a stripped string.

    Raises:
        DataError: the file is missing or no csv, a wanted column is missing or there twice, or a row has a NUL
            or more or fewer values.
    """
    names = read_header(path)
    missing = [name for name in columns if name not in names]
    if missing:
        raise DataError(f"{path}: no column {', '.join(missing)}; found: {quoted(', '.join(names), 300)}")
    twice = [name for name in columns if names.count(name) > 1]
    if twice:
        raise DataError(f"{path}: column {twice[0]} is there {names.count(twice[0])} times; wanted once")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            next(reader)
            for values in filter(None, reader):
                where = f"{path}, line {reader.line_num}"
                if len(values) != len(names):
                    raise DataError(f"{where}: {len(values)} values; wanted {len(names)}, one a column")
                if any("\0" in value for value in values):
                    raise DataError(f"{where}: a NUL character; wanted text")
                yield where, {name: value.strip() for name, value in zip(names, values, strict=True)}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as csv: {error}") from None


def translate(value: str, meaning: Mapping[str, str], where: str, column: str) -> str:
    """Return what a table's value means, letter case and extra blanks ignored.

    Raises:
        DataError: naming the value and the known ones.
    """
    try:
        return meaning[" ".join(value.lower().split())]
    except KeyError:
        raise DataError(f"{where}: {column} {quoted(value)}; wanted one of: {', '.join(meaning)}") from None


def required(row: Mapping[str, str], column: str, where: str) -> str:
    """Return a value that must not be blank.

    Raises:
        DataError: it is.
    """
    if not row[column]:
        raise DataError(f"{where}: {column} is blank; images are kept together by it")
    return row[column]


def stated(row: Mapping[str, str], column: str) -> str:
    """Return a value as text: empty where the set does not know it or has no such column, 80 for 80.0."""
    value = row.get(column, "")
    if value.lower() in ("unknown", "nan", "na"):
        return ""
    return value[:-2] if value.endswith(".0") and value[:-2].isdigit() else value


def quoted(text: str, longest: int = 80) -> str:
    """Return the text as it may stand in a message: in quotes, escaped, and not endless."""
    return repr(text if len(text) <= longest else text[:longest] + "...")


def fold(text: str) -> str:
    """Return a name as names are compared: in lower case, and é as one character, which some systems write as two."""
    return unicodedata.normalize("NFC", text).lower()
