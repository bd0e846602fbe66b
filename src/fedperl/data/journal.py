"""Images into one file, restartably: a journal says what became of each row, and is flushed after the images.

A start after a crash goes on behind the last line that holds, and ends with the same bytes.
"""

import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from fedperl.data.identity import ISIC_ARCHIVE
from fedperl.data.packed import BLOB, PIXEL_CAP, BadImageError, Codec, Fit, decode, encode, in_order
from fedperl.data.readers.base import Listing, Row
from fedperl.files import digest, write_durably

JOURNAL, RECIPE = "journal.jsonl", "recipe.json"
FLUSH_EVERY = 256  # rows
FILE_CAP = 256 * 2**20  # bytes

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recipe:
    """How the images are made."""

    size: int
    fit: Fit = "crop"
    codec: Literal["auto", "jpeg", "png"] = "auto"
    pixel_cap: int = PIXEL_CAP
    twins: bool = True


@dataclass(frozen=True)
class Line:
    """What became of one row: the hash of its bytes, and the stored image or the reason why there is none."""

    content: str
    pixels: int = -1
    length: int = 0  # bytes added; 0 where the image was stored already
    reason: str = ""


def done_before(work: Path, described: str) -> list[Line]:
    """Return the journal of an interrupted call with the same recipe and files, its images cut where it ends."""
    with suppress(FileNotFoundError):
        if (work / RECIPE).read_text(encoding="utf-8") == described:
            lines = _read_journal(work)
            kept = sum(line.length for line in lines)
            if (work / BLOB).exists() and (work / BLOB).stat().st_size >= kept:
                os.truncate(work / BLOB, kept)
                _write_journal(work, lines)
                return lines
    (work / BLOB).write_bytes(b"")
    (work / JOURNAL).write_bytes(b"")
    write_durably(work / RECIPE, described.encode(), mode=0o644)
    return []


def _read_journal(work: Path) -> list[Line]:
    lines = []
    for text in (work / JOURNAL).read_bytes().split(b"\n")[:-1]:  # what follows the last newline was cut
        try:
            line = Line(**json.loads(text))
        except (ValueError, TypeError):
            break
        if not line.content:  # its file could not be read: perhaps it can now
            break
        lines.append(line)
    return lines


def _write_journal(work: Path, lines: Iterable[Line]) -> None:
    write_durably(work / JOURNAL, _to_journal(lines), mode=0o644)


def _to_journal(lines: Iterable[Line]) -> bytes:
    return b"".join(json.dumps(asdict(line)).encode() + b"\n" for line in lines)


def process(
    rows: Sequence[tuple[Listing, Row]],
    before: Sequence[Line],
    work: Path,
    recipe: Recipe,
    codec: Codec,
    progress: Progress,
) -> list[Line]:
    """Store the images of the rows that are left, and return what became of each."""
    keeper = _Keeper(work, rows, before)
    left = rows[len(before) :]

    def make(item: tuple[Listing, Row]) -> tuple[str, bytes | str | None]:
        return _make(item[1], recipe, codec, keeper.known)

    lines: list[Line] = []
    progress(len(before), len(rows))
    with (work / BLOB).open("ab") as blob, (work / JOURNAL).open("ab") as journal:
        unsaved: list[Line] = []

        def save() -> None:
            for file, content in ((blob, b""), (journal, _to_journal(unsaved))):  # images first
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unsaved.clear()

        try:
            for item, (content, made) in zip(left, in_order(make, left), strict=True):
                line = keeper.keep(item, content, made, blob)
                lines.append(line)
                unsaved.append(line)
                if len(unsaved) >= FLUSH_EVERY:
                    save()
                    progress(len(before) + len(lines), len(rows))
        finally:
            save()
    progress(len(rows), len(rows))
    return lines


def _make(row: Row, recipe: Recipe, codec: Codec, known: dict[str, int]) -> tuple[str, bytes | str | None]:
    """Return the hash of a row's bytes and the encoded image, the reason against it, or None where it is known."""
    try:
        content = _read(row.pixels) if isinstance(row.pixels, Path) else row.pixels
    except (BadImageError, OSError) as error:
        return "", str(error)
    found = digest(content if isinstance(content, bytes) else content.tobytes())
    if found in known:
        return found, None
    try:
        return found, encode(decode(content, recipe.size, recipe.fit, recipe.pixel_cap), codec)
    except BadImageError as error:
        return found, str(error)


def _read(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadImageError("not a regular file")
    if status.st_size > FILE_CAP:
        raise BadImageError(f"{status.st_size} bytes; at most {FILE_CAP}")
    return path.read_bytes()


class _Keeper:
    """Decides what is stored: one image for equal bytes, and one for a photograph that two sets of an archive name."""

    def __init__(self, work: Path, rows: Sequence[tuple[Listing, Row]], before: Sequence[Line]) -> None:
        self.work = work
        self.known: dict[str, int] = {}
        self.extents: list[tuple[int, int]] = []  # offset, length of each stored image
        self._named: dict[str, int] = {}
        self._end = 0
        for (listing, row), line in zip(rows, before, strict=False):
            self._note(listing, row, line)

    def keep(self, item: tuple[Listing, Row], content: str, made: bytes | str | None, blob: io.BufferedWriter) -> Line:
        listing, row = item
        if isinstance(made, str):
            return Line(content, reason=made)
        if made is None or content in self.known:
            line = Line(content, self.known[content])
        else:
            named = self._named.get(row.image) if listing.source in ISIC_ARCHIVE else None
            blob.flush()
            if named is not None and _same_picture(made, self._stored(named)):
                line = Line(content, named)
            else:
                blob.write(made)
                line = Line(content, len(self.extents), len(made))
        self._note(listing, row, line)
        return line

    def _note(self, listing: Listing, row: Row, line: Line) -> None:
        if line.pixels < 0:
            return
        self.known[line.content] = line.pixels
        if line.length:
            self.extents.append((self._end, line.length))
            self._end += line.length
        if listing.source in ISIC_ARCHIVE:
            self._named.setdefault(row.image, line.pixels)

    def _stored(self, number: int) -> bytes:
        offset, length = self.extents[number]
        with (self.work / BLOB).open("rb") as file:
            file.seek(offset)
            return file.read(length)


def _same_picture(first: bytes, second: bytes) -> bool:
    """Whether two encoded images show the same photograph, in two encodings."""
    grey = [np.asarray(Image.open(io.BytesIO(c)).convert("L").resize((16, 16)), np.float64) for c in (first, second)]
    a, b = (image.ravel() - image.mean() for image in grey)
    return bool(a @ b >= 0.98 * np.linalg.norm(a) * np.linalg.norm(b))
