"""Files that are whole or absent: written aside, flushed to the disk, renamed into place, hashed."""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import IO

from fedperl.errors import BusyError

TEMPORARY = ".tmp"
PRIVATE = 0o600


def digest(content: bytes) -> str:
    """Return the SHA-256 of the content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write_durably(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Replace the file by the content: after a crash it holds the old bytes or the new ones, never a part."""
    aside = path.with_name(path.name + TEMPORARY)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        error.filename = str(path)  # of a disk that is full the system names nothing
        raise
    os.replace(aside, path)


def append_durably(path: Path, content: bytes) -> None:
    """Append the content and flush it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
    try:
        with os.fdopen(descriptor, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


def lock(path: Path) -> IO[bytes]:
    """Return a file that holds a lock until it is closed, or until the process ends in whatever way.

    Raises:
        BusyError: another process holds it.
    """
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BusyError(f"{path.parent}: another process is working here") from None
    return file


def sync_folder(folder: Path) -> None:
    """Make the renames inside a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
