"""Readers, one file for each published layout: a folder in, a listing of its images out."""

from pathlib import Path
from typing import Protocol

from fedperl.data.readers import cifar10, derm7pt, fashion_mnist, generic, ham10000, isic2019, isic2020, pad_ufes20
from fedperl.data.readers.base import SKIN, Listing, Row
from fedperl.data.readers.files import list_folder
from fedperl.errors import DataError

__all__ = ["READERS", "SKIN", "Listing", "Reader", "Row", "read", "read_named", "recognise"]


class Reader(Protocol):
    """What a reader's module offers."""

    TELL_TALE: str

    def recognises(self, folder: Path) -> bool:
        """Whether the folder is laid out as this set is published."""

    def read(self, folder: Path) -> Listing:
        """Return the set's images."""


PUBLISHED: dict[str, Reader] = {
    "ham10000": ham10000,
    "isic2019": isic2019,
    "pad_ufes20": pad_ufes20,
    "derm7pt": derm7pt,
    "isic2020": isic2020,
    "cifar10": cifar10,
    "fashion_mnist": fashion_mnist,
}
READERS: dict[str, Reader] = {**PUBLISHED, "generic": generic}


def read(folder: Path, kind: str | None = None) -> Listing:
    """Return the images of a data set's folder, of the given kind or of the one that its files tell.

    Raises:
        DataError: there is no such kind or folder, the folder's is not known, or what its reader raises.
    """
    if kind is not None and kind not in READERS:
        raise DataError(f"data set kind {kind!r} is not known; {_known()}")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    return READERS[kind or recognise(folder)].read(folder)


def read_named(text: str) -> Listing:
    """Return the images of a folder as a person names it: FOLDER, or kind=FOLDER.

    Raises:
        DataError: as `read`.
    """
    kind, equals, folder = text.partition("=")
    return read(Path(folder), kind) if equals and not Path(text).exists() else read(Path(text))


def recognise(folder: Path) -> str:
    """Return the kind of data set that a folder holds.

    Raises:
        DataError: none is recognised, or more than one, or the folder holds folders of several sets.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found = _published(folder)
    if len(found) > 1:
        raise DataError(f"{folder}: could be any of {', '.join(found)}; name the kind, or give each its own folder")
    if found:
        return found[0]
    if not generic.recognises(folder):
        raise DataError(f"{folder}: no data set that is known; {_known()}")
    if generic.find_table(folder) is None:
        # Without this a folder of data sets would be read as one whose classes are the sets.
        for inner in (path for path in list_folder(folder) if path.is_dir() and not path.is_symlink()):
            if _published(inner):
                raise DataError(f"{folder}: its folder {inner.name} is a data set ({_published(inner)[0]}); give that")
    return "generic"


def _published(folder: Path) -> list[str]:
    return [kind for kind, reader in PUBLISHED.items() if reader.recognises(folder)]


def _known() -> str:
    kinds = (f"{kind} (by {reader.TELL_TALE})" for kind, reader in READERS.items())
    return f"known are: {'; '.join(kinds)}"
