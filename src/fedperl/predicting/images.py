"""The images that are asked about: from files, folders and csv files; what cannot be read is listed with the reason."""

import csv
import io
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedperl.data.journal import FILE_CAP
from fedperl.data.packed import BadImageError, Fit, Images, decode
from fedperl.data.readers.files import DICOM

COLUMNS = ("path", "image")
MACINTOSH = "__MACOSX"
FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""


@dataclass(frozen=True)
class Entry:
    """One image to be read, or the reason why it cannot be."""

    name: str
    path: Path | None
    error: str = ""


def list_images(given: Iterable[Path], *, out: Path | None = None) -> list[Entry]:
    """Return the images of files, of folders at all levels and of csv files, in the order given, folders sorted.

    What cannot be read is in the list too, with the reason; hidden files of a folder are passed over.

    Args:
        out: a file to be written, perhaps for the second time: not looked at where a folder has it.
    """
    found: list[Entry] = []
    for path in given:
        if os.path.isdir(path):  # unlike Path.is_dir, False where the folder above may not be entered
            found += list(_of_folder(path, out)) or [_missing(path, "a folder without images")]
        elif path.suffix.lower() == ".csv":
            found += _of_csv(path)
        else:
            found.append(Entry(shown(path), path))
    return found


def _of_folder(folder: Path, out: Path | None) -> Iterator[Entry]:
    errors: list[Entry] = []

    def refuse(error: OSError) -> None:
        errors.append(_missing(Path(str(error.filename)), f"cannot be listed: {error.strerror}"))

    entries = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not _hidden(name)]
        linked = [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
        errors += [_missing(path, "a link to a folder, which is not followed") for path in linked]
        paths = [Path(parent, name) for name in names if not _hidden(name)]
        entries += [Entry(shown(path), path) for path in paths if out is None or not _same(path, out)]
    yield from sorted([*entries, *errors], key=lambda entry: entry.name)


def _of_csv(path: Path) -> list[Entry]:
    """Return the images that the column `path` or `image` of a csv file names, relative to the file's folder."""
    try:
        reader = csv.DictReader(io.StringIO(_read(path).decode("utf-8-sig"), newline=""))
        rows, there = list(reader), list(reader.fieldnames or ())
    except OSError as error:
        return [_missing(path, error.strerror or str(error))]
    except (BadImageError, UnicodeDecodeError, ValueError, csv.Error) as error:
        return [_missing(path, f"cannot be read as csv: {error}")]
    column = next((name for name in COLUMNS if rows and there.count(name) == 1), None)
    if column is None:
        found = ", ".join(there) if rows else "no row"
        return [_missing(path, f"found {found}; wanted rows with one column {' or '.join(map(repr, COLUMNS))}")]
    entries = []
    for number, row in enumerate(rows, start=1):
        if text := (row[column] or "").strip():
            entries.append(Entry(shown(path.parent / text), path.parent / text))
        else:
            entries.append(Entry(f"{shown(path)}, row {number}", None, f"no {column}"))
    return entries


def _missing(path: Path, reason: str) -> Entry:
    return Entry(shown(path), None, reason)


def shown(path: Path) -> str:
    """Return a path as one line that any terminal, file and spreadsheet can hold: what would act there is escaped."""
    text = "".join(one if _harmless(one) else one.encode("unicode_escape").decode() for one in str(path))
    return f"./{text}" if text.startswith(FORMULA) else text


def _harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of all widths


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == MACINTOSH


def _same(path: Path, out: Path) -> bool:
    return path.name == out.name and os.path.exists(path) and os.path.exists(out) and path.samefile(out)


def _read(path: Path) -> bytes:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise BadImageError("a folder; wanted a file")
    if not stat.S_ISREG(status.st_mode):
        raise BadImageError("not a regular file")  # a pipe would be waited on for ever
    if status.st_size > FILE_CAP:
        raise BadImageError(f"{status.st_size} bytes; at most {FILE_CAP}")
    return path.read_bytes()


def read_image(path: Path, size: int, fit: Fit) -> Images:
    """Return the pixels of a file, (3, size, size), made as `fedperl data prepare` makes them but for its compression.

    Raises:
        BadImageError: the file cannot be read, or is no image that `prepare` would take; the message is the reason.
    """
    if path.suffix.lower() in DICOM:
        raise BadImageError("DICOM, which is not read: its header carries the patient; wanted JPEG or PNG")
    try:
        content = _read(path)
    except (OSError, ValueError) as error:  # ValueError: a name no file can have
        raise BadImageError(getattr(error, "strerror", None) or str(error)) from None
    if not content:
        raise BadImageError("an empty file")
    return np.ascontiguousarray(np.asarray(decode(content, size, fit)).transpose(2, 0, 1))
