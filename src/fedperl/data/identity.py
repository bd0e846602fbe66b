"""Whether two lists of images speak of the same ones: by name, lesion or patient, whatever the set that lists them."""

import base64
import hashlib

import numpy as np
import numpy.typing as npt

from fedperl.data.manifest import Indices, Manifest

ISIC_ARCHIVE = ("HAM10000", "ISIC19", "ISIC20")
"""Sets that take their names from one archive: one name is one photograph."""

Hashes = npt.NDArray[np.uint64]


def archive_name(source: str, image: str) -> str:
    """Return what an image is called over all sets."""
    return f"ISIC archive {image}" if source in ISIC_ARCHIVE else f"{source} {image}"


def identities(manifest: Manifest, rows: Indices) -> list[tuple[str, str, str]]:
    """Return for each row its image's name over all sets, and its lesion or patient as published and with twins."""
    published = manifest.about.get("published_group", manifest.group)
    names = (archive_name(str(manifest.source[row]), str(manifest.image[row])) for row in rows)
    groups = ((f"group {published[row]}", f"group {manifest.group[row]}") for row in rows)
    return [(name, *pair) for name, pair in zip(names, groups, strict=True)]


def hashed(texts: set[str]) -> Hashes:
    """Return eight bytes of the hash of each text, sorted: what a file can carry of them."""
    found = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in texts]
    return np.sort(np.array(found, dtype=np.uint64))


def to_text(hashes: Hashes) -> str:
    """Return hashes as text."""
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def from_text(text: str) -> Hashes:
    """Return the hashes of a text.

    Raises:
        ValueError: it is none of `to_text`.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
