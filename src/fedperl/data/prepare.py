"""Published archives -> one packed store: every image decoded once, cut, resized, encoded; shared ones stored once.

The work is done in `OUT.partial` and renamed at the end; an interrupted call is gone on with.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from fedperl import __version__
from fedperl.data import packed
from fedperl.data.journal import JOURNAL, RECIPE, Line, Progress, Recipe, done_before, process
from fedperl.data.manifest import ABOUT, UNLABELLED, Manifest
from fedperl.data.packed import PIXEL_CAP, QUALITY, Codec, Fit
from fedperl.data.readers.base import Listing, Row
from fedperl.data.store import MANIFEST, write_about
from fedperl.data.twins import Fingerprints, Pair, find_twins, fingerprints, merge_groups
from fedperl.errors import DataError
from fedperl.files import digest, lock, sync_folder, write_durably

PARTIAL, SKIPPED = ".partial", "skipped.csv"
BAD_SHARE = 0.01
FIRST = 512
"""So many images are searched for near duplicates as soon as they are stored: where all look alike, so do these."""


def recipe_of(
    listings: Sequence[Listing],
    *,
    size: int | None = None,
    fit: str = "crop",
    codec: str = "auto",
    pixel_cap: int = PIXEL_CAP,
    twins: bool = True,
) -> Recipe:
    """Return a recipe from what a person typed; without a size, the sets' own if they are arrays, else the paper's.

    Raises:
        DataError: a name is none of the known ones.
    """
    if fit not in get_args(Fit):
        raise DataError(f"fit {fit!r}; wanted {' or '.join(get_args(Fit))}")
    if codec != "auto" and codec not in get_args(Codec):
        raise DataError(f"codec {codec!r}; wanted auto, {' or '.join(get_args(Codec))}")
    shapes = {row.pixels.shape[0] for listing in listings for row in listing.rows if isinstance(row.pixels, np.ndarray)}
    return Recipe(size or max(shapes, default=224), cast(Fit, fit), cast(Codec, codec), pixel_cap, twins)


@dataclass(frozen=True)
class Prepared:
    """What came of it."""

    folder: Path
    rows: int
    images: int
    skipped: list[tuple[str, str, str]]  # set, image, reason
    twins: int | None  # pairs; None where they were not looked for


def prepare(
    listings: Sequence[Listing],
    out: Path,
    recipe: Recipe,
    *,
    allow_missing: bool = False,
    allow_bad: bool = False,
    progress: Progress = lambda done, total: None,
) -> Prepared:
    """Write the listed images into a new store; what an interrupted call did is kept and gone on with.

    Args:
        out: the store's folder, which must not exist.
        allow_missing: go on where a table lists images that are not there.
        allow_bad: go on where more than one file in a hundred cannot be used.
        progress: called with the rows done and all rows.
    Raises:
        DataError: the sets do not fit each other, images are missing, or too many are bad; each is named.
    """
    _check(listings, out, allow_missing)
    rows = [(listing, row) for listing in listings for row in listing.rows]
    arrays = all(isinstance(row.pixels, np.ndarray) for _, row in rows)
    codec: Codec = ("png" if arrays else "jpeg") if recipe.codec == "auto" else recipe.codec
    work = out.with_name(out.name + PARTIAL)
    work.mkdir(parents=True, exist_ok=True)
    with lock(work / "lock"):
        encoded = asdict(replace(recipe, twins=True))  # the search changes no image: what is done serves either way
        described = json.dumps(encoded | {"codec": codec, "listings": _describe(rows)})
        lines = done_before(work, described)
        if recipe.twins and not arrays:
            if len(lines) < FIRST:
                lines += process(rows[:FIRST], lines, work, recipe, codec, lambda done, _: progress(done, len(rows)))
            _check_twins(work, lines)
        lines += process(rows, lines, work, recipe, codec, progress)
        prepared = _finish(listings, rows, lines, work, out, recipe, codec, allow_bad)
        sync_folder(out.parent)
    return prepared


def _check(listings: Sequence[Listing], out: Path, allow_missing: bool) -> None:
    if out.exists():
        raise DataError(f"{out}: is there already; wanted a new folder for the store")
    if not any(len(listing.rows) for listing in listings):
        raise DataError(f"no image found in {', '.join(str(listing.folder) for listing in listings)}")
    sources = [listing.source for listing in listings]
    twice = next((source for source in sources if sources.count(source) > 1), None)
    if twice is not None:
        raise DataError(f"two of the folders are both {twice!r}; wanted each set once")
    first = listings[0]
    for listing in listings[1:]:
        if listing.classes != first.classes:
            raise DataError(
                f"{listing.folder}: classes {', '.join(listing.classes)}; {first.folder} has "
                f"{', '.join(first.classes)}; wanted sets of the same classes in one store"
            )
    absent = [f"{listing.source} {name}" for listing in listings for name in listing.missing]
    if absent and not allow_missing:
        raise DataError(
            f"{len(absent)} images are listed but not there, the first: {', '.join(absent[:5])}; "
            "--allow-missing goes on with the others"
        )


def _describe(rows: Iterable[tuple[Listing, Row]]) -> str:
    """Return a digest of all that decides the store, files by name, size and time."""
    found = hashlib.sha256()
    for listing, row in rows:
        where: object = "unreadable"
        if isinstance(row.pixels, np.ndarray):
            where = digest(row.pixels.tobytes())
        else:
            with suppress(OSError):
                status = row.pixels.stat()
                where = (str(row.pixels.relative_to(listing.folder)), status.st_size, status.st_mtime_ns)
        found.update(repr((listing.source, row.image, row.label, row.group, sorted(row.about.items()), where)).encode())
    return found.hexdigest()


def _finish(
    listings: Sequence[Listing],
    rows: Sequence[tuple[Listing, Row]],
    lines: Sequence[Line],
    work: Path,
    out: Path,
    recipe: Recipe,
    codec: Codec,
    allow_bad: bool,
) -> Prepared:
    skipped = [
        (listing.source, row.image, line.reason)
        for (listing, row), line in zip(rows, lines, strict=True)
        if line.pixels < 0
    ]
    if len(skipped) > BAD_SHARE * len(rows) and not allow_bad:
        first = "; ".join(f"{source} {image}: {reason}" for source, image, reason in skipped[:5])
        raise DataError(
            f"{len(skipped)} of {len(rows)} images cannot be used, the first: {first}; more than 1 % is an error "
            "unless --allow-bad is given (what is done is kept)"
        )
    kept = [(listing, row, line.pixels) for (listing, row), line in zip(rows, lines, strict=True) if line.pixels >= 0]
    if not kept:
        raise DataError(f"not one of {len(rows)} images can be used, the first: {': '.join(skipped[0][1:])}")
    packed.write_offsets(work, (line.length for line in lines if line.length))
    pixels = np.array([number for _, _, number in kept], dtype=np.int64)
    groups = np.array([row.group for _, row, _ in kept], dtype=np.str_)
    photographs = any(isinstance(row.pixels, Path) for _, row, _ in kept)
    pairs = _twins(packed.stream(work)) if recipe.twins and photographs else None
    manifest = _manifest(listings[0].classes, kept, pixels, merge_groups(groups, pixels, pairs or []))
    manifest.write(work / MANIFEST)
    text = io.StringIO()
    csv.writer(text).writerows([("set", "image", "reason"), *skipped])
    write_durably(work / SKIPPED, text.getvalue().encode(), mode=0o644)
    write_about(work, manifest, _made(listings, rows, lines, recipe, codec, pairs))
    for name in (JOURNAL, RECIPE, "lock"):
        (work / name).unlink()
    sync_folder(work)
    work.rename(out)
    return Prepared(out, len(manifest), int(pixels.max()) + 1, skipped, None if pairs is None else len(pairs))


def _check_twins(work: Path, lines: Sequence[Line]) -> None:
    """Refuse at once images of which the first already cannot be told apart; all of them could be even less."""
    lengths = [line.length for line in lines if line.length]
    if lengths:
        packed.write_offsets(work, lengths)
        _twins([next(packed.stream(work, chunk=FIRST))])


def _twins(images: Iterable[packed.Images]) -> list[Pair]:
    prints = Fingerprints.concatenate([fingerprints(some) for some in images])
    try:
        return find_twins(prints)
    except DataError as error:
        raise DataError(f"{error}; --no-twins goes on without the search (what is encoded is kept)") from None


def _manifest(
    classes: tuple[str, ...],
    kept: Sequence[tuple[Listing, Row, int]],
    pixels: np.ndarray[Any, np.dtype[np.int64]],
    groups: np.ndarray[Any, np.dtype[np.str_]],
) -> Manifest:
    index = {name: number for number, name in enumerate(classes)} | {"": UNLABELLED}
    about = {name: [row.about.get(name, "") for _, row, _ in kept] for name in ABOUT}
    about["published_group"] = [row.group for _, row, _ in kept]
    return Manifest(
        classes,
        np.array([row.image for _, row, _ in kept], dtype=np.str_),
        np.array([index[row.label] for _, row, _ in kept], dtype=np.int64),
        groups,
        np.array([listing.source for listing, _, _ in kept], dtype=np.str_),
        pixels,
        {name: np.array(column, dtype=np.str_) for name, column in about.items() if any(column)},
    )


def _made(
    listings: Sequence[Listing],
    rows: Sequence[tuple[Listing, Row]],
    lines: Sequence[Line],
    recipe: Recipe,
    codec: Codec,
    pairs: list[Pair] | None,
) -> dict[str, Any]:
    sets = []
    for listing in listings:
        bad = sum(line.pixels < 0 for (other, _), line in zip(rows, lines, strict=True) if other is listing)
        sets.append(
            {
                "source": listing.source,
                "listed": len(listing.rows) + len(listing.missing) + sum(listing.dropped.values()),
                "missing": len(listing.missing),
                "dropped": dict(listing.dropped),
                "skipped": bad,
                "read": len(listing.rows) - bad,
            }
        )
    return {
        "source": "published sets",
        "by": f"fedperl {__version__}",
        "size": recipe.size,
        "fit": recipe.fit,
        "codec": f"jpeg, quality {QUALITY}" if codec == "jpeg" else codec,
        "pixel_cap": recipe.pixel_cap,
        "twins": "not looked for" if pairs is None else len(pairs),
        "sets": sets,
    }
