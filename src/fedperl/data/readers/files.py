"""The files of a data set's folder, whatever the letter case of their names; nothing outside it is ever opened."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NoReturn

from fedperl.data.readers.base import LONGEST, fold, quoted
from fedperl.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
DICOM = (".dcm", ".dicom")
DOWNSAMPLED = "_downsampled"


class ImageFiles:
    """The image files below a folder, found whatever the letter case; nothing outside it is ever opened."""

    def __init__(self, root: Path, *, below: Sequence[str] = ()) -> None:
        """List the files of the sub-folders of `root` that are named, all levels down; of all where none of them is.

        Hidden files and folders are passed over: archives made on a Mac carry a `._name.jpg` for each image.

        Raises:
            DataError: `root` is no folder, or a folder cannot be listed or is a link that leaves it.
        """
        if not root.is_dir():
            raise DataError(f"{root}: no such folder")
        self.root = root
        self._by_path: dict[str, list[Path]] = {}
        self._by_bare_path: dict[str, list[Path]] = {}
        self._by_stem: dict[str, list[Path]] = {}
        wanted = {name.lower() for name in below}
        for folder, folders, names in os.walk(root, onerror=_refuse):
            if Path(folder) == root and any(name.lower() in wanted for name in folders):
                folders[:], names = [name for name in folders if name.lower() in wanted], []
            folders[:] = sorted(name for name in folders if not _hidden(name))
            for name in folders:
                refuse_outside(Path(folder, name), root, str(root))
            for name in sorted(names):
                if not _hidden(name) and Path(name).suffix.lower() in SUFFIXES + DICOM:
                    self._add(Path(folder, name))

    def by_name(self, name: str, where: str) -> Path | None:
        """Return the file of an image's name (an extension and `_downsampled` may be there or not), or None.

        The same bytes under two folders count as one file: some mirrors ship folders twice.

        Raises:
            DataError: the name is a path, the file lies outside the folder or is DICOM, or two files differ.
        """
        stem = name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in SUFFIXES + DICOM else name
        if stem in ("", ".", "..") or any(character in stem for character in "/\\\0"):
            raise DataError(f"{where}: image {quoted(name)} is not a plain name")
        return self._one(self._by_stem.get(_key(stem), []), name, where)

    def by_path(self, name: str, where: str) -> Path | None:
        """Return the file of a path below the folder (letter case ignored, its extension there or not), or None.

        Raises:
            DataError: the path leaves the folder, the file does or is DICOM, or two different files are meant.
        """
        text = name.replace("\\", "/")
        pure = PurePosixPath(text)
        if not text or pure.is_absolute() or PureWindowsPath(name).drive or ".." in pure.parts or "\0" in text:
            raise DataError(f"{where}: image {quoted(name)} is not a path below {self.root}")
        key = fold(pure.as_posix())
        found = self._by_path.get(key) or self._by_bare_path.get(key, [])
        exact = [path for path in found if path == self.root / pure]
        return self._one(exact or found, name, where)

    def all(self) -> list[Path]:
        """Return every file by its path's order, each inside the folder and none of it DICOM.

        Raises:
            DataError: naming the first that is not.
        """
        found = [path for paths in self._by_path.values() for path in paths]
        return [self._checked(path, str(self.root)) for path in sorted(found)]

    def _add(self, path: Path) -> None:
        relative = fold(path.relative_to(self.root).as_posix())
        self._by_path.setdefault(relative, []).append(path)
        self._by_bare_path.setdefault(relative[: -len(path.suffix)], []).append(path)
        self._by_stem.setdefault(_key(path.stem), []).append(path)

    def _one(self, found: Sequence[Path], name: str, where: str) -> Path | None:
        # DICOM beside a JPEG of the same name is left alone; where there is nothing else it is refused by name.
        images = [path for path in found if path.suffix.lower() not in DICOM] or found[:1]
        usable = [self._checked(path, where) for path in images]
        if len(usable) > 1 and len({_digest(path) for path in usable}) > 1:
            raise DataError(
                f"{where}: two different files for image {quoted(name)}: "
                f"{self._named(usable[0])} and {self._named(usable[1])}"
            )
        return usable[0] if usable else None

    def _checked(self, path: Path, where: str) -> Path:
        if path.suffix.lower() in DICOM:
            raise DataError(
                f"{where}: {self._named(path)} is DICOM, which is not read: its header carries the patient; "
                "wanted JPEG or PNG"
            )
        refuse_outside(path, self.root, where)
        try:
            regular = stat.S_ISREG(path.stat().st_mode)  # a pipe would be waited on for ever
        except OSError:
            regular = False
        if not regular:
            raise DataError(f"{where}: {self._named(path)} is no file that can be read")
        return path

    def _named(self, path: Path) -> str:
        return quoted(path.relative_to(self.root).as_posix(), LONGEST)


def find_file(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files ("meta.csv", "meta/meta.csv") of a folder, letter case ignored, or None.

    Raises:
        DataError: it is a link that leaves the folder, or a folder cannot be listed.
    """
    return next((path for path in _descend(folder, names) if path.is_file()), None)


def find_folder(folder: Path, *names: str) -> Path | None:
    """Return the first of the named folders of a folder, as `find_file`."""
    return next((path for path in _descend(folder, names) if path.is_dir()), None)


def need_file(folder: Path, *names: str) -> Path:
    """Return the first of the named files of a folder, letter case ignored.

    Raises:
        DataError: none is there, or as `find_file`.
    """
    found = find_file(folder, *names)
    if found is None:
        raise DataError(f"{folder}: no file {' or '.join(names)}")
    return found


def refuse_outside(path: Path, root: Path, where: str) -> None:
    """Refuse a link that leads out of `root`.

    Raises:
        DataError: naming the link.
    """
    if not path.is_symlink():
        return
    try:
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return  # a link to itself leads nowhere
    if not inside:
        raise DataError(
            f"{where}: {quoted(str(path.relative_to(root)))} is a link that leaves {root}; copy what it points to"
        )


def _descend(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    listed: dict[Path, list[Path]] = {}
    for name in names:
        path = folder
        for part in name.split("/"):
            if path not in listed:
                listed[path] = list_folder(path)
            found = [entry for entry in listed[path] if entry.name.lower() == part.lower()]
            if not found:
                break
            path = min(found, key=lambda entry: (entry.name != part, entry.name))
            refuse_outside(path, folder, str(folder))
        else:
            yield path


def list_folder(folder: Path) -> list[Path]:
    """Return what a folder holds, by name; nothing where it is no folder.

    Raises:
        DataError: it cannot be listed.
    """
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename}: cannot be listed: {error.strerror}") from None


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _key(stem: str) -> str:
    return fold(stem).removesuffix(DOWNSAMPLED)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
