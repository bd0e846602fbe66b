"""A store: all images as one uint8 array, in memory or mapped from disk, with manifest and partition.

On disk it is a folder. The images are either packed (`images.bin`, each one encoded, as `fedperl data prepare` writes
them: small enough to be carried) or plain (`images.npy`, mapped: nothing to decode).
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.data.manifest import Indices, Manifest
from fedperl.data.packed import shape_of, unpack
from fedperl.data.partition import PARTS, SERVER_PARTS, Partition, ServerPart
from fedperl.errors import DataError
from fedperl.files import write_durably

Images = npt.NDArray[np.uint8]

FORMAT = 2
ABOUT, MANIFEST, PARTITION, PLAIN = "store.json", "manifest.csv", "partition.csv", "images.npy"


@dataclass(frozen=True)
class Store:
    """Images (m, 3, size, size), the rows that point to them, who holds which, and how all this was made."""

    images: Images
    manifest: Manifest
    partition: Partition = field(default_factory=Partition)
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their indices."""
        return self.manifest.classes

    @property
    def size(self) -> int:
        """Pixels along an edge."""
        return int(self.images.shape[-1])

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[1] != 3 or self.images.dtype != np.uint8:
            raise DataError(
                f"store: images are {self.images.dtype} {self.images.shape}; wanted uint8 (n, 3, size, size)"
            )
        pixels = self.manifest.pixels
        if len(pixels) and not (pixels.min() >= 0 and pixels.max() < len(self.images)):
            raise DataError(
                f"store: {len(self.images)} images, but the manifest points to {pixels.min()} ... {pixels.max()}"
            )
        self.partition.check(self.manifest.group, self.manifest.image)

    def pixels(self, rows: Indices) -> Images:
        """Return a copy of the images of the given rows, (n, 3, size, size)."""
        return np.ascontiguousarray(self.images[self.manifest.pixels[rows]])

    def dealt(self, partition: Partition) -> "Store":
        """Return the same images with another partition."""
        return replace(self, partition=partition)

    def of_client(self, number: int) -> "Store":
        """Return one client's images alone, as that hospital would have them."""
        part = self.partition.clients[number]
        rows = np.sort(part.rows())
        own = replace(part, **{name: np.searchsorted(rows, getattr(part, name)) for name in PARTS})
        return self._only(rows, Partition((own,), made=self.partition.made, straddles=self.partition.straddles))

    def of_server(self) -> "Store":
        """Return the server's images alone."""
        part = self.partition.server
        rows = np.sort(part.rows())
        own = ServerPart(**{name: np.searchsorted(rows, getattr(part, name)) for name in SERVER_PARTS})
        return self._only(rows, Partition(server=own, made=self.partition.made, straddles=self.partition.straddles))

    def _only(self, rows: Indices, partition: Partition) -> "Store":
        listed = self.manifest
        used, pixels = np.unique(listed.pixels[rows], return_inverse=True)
        manifest = Manifest(
            listed.classes,
            listed.image[rows],
            listed.label[rows],
            listed.group[rows],
            listed.source[rows],
            pixels,
            {name: column[rows] for name, column in listed.about.items()},
        )
        return Store(np.ascontiguousarray(self.images[used]), manifest, partition, self.made)

    def digest(self) -> str:
        """Return a hash of names, labels, partition and of up to 64 images: another store is noticed, at any size."""
        found = hashlib.sha256(self.partition.hash(self.manifest).encode())
        found.update("\0".join(self.manifest.image).encode() + self.manifest.label.tobytes())
        found.update(self.manifest.pixels.tobytes() + str(self.images.shape).encode())
        for row in np.linspace(0, len(self.images) - 1, min(64, len(self.images)), dtype=np.int64):
            found.update(self.images[row].tobytes())
        return found.hexdigest()

    def save(self, folder: Path) -> None:
        """Write the store into a folder as plain images, `store.json` last: a folder without it is not a store."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / PLAIN, self.images)
        self.manifest.write(folder / MANIFEST)
        self.partition.write(folder / PARTITION, self.manifest)
        write_about(folder, self.manifest, self.made)

    @staticmethod
    def open(folder: Path, *, decode: bool = True) -> "Store":
        """Return the store of a folder: packed images are decoded by all cores, plain ones stay on disk, mapped.

        Args:
            decode: false leaves packed images black, for those who want the lists alone.
        Raises:
            DataError: the folder holds no store, or one that contradicts itself.
        """
        classes, made, rows = read_about(folder)
        manifest = Manifest.read(folder / MANIFEST, classes)
        if rows not in (None, len(manifest.image)):  # cut at the end of a line it would look whole
            raise DataError(f"{folder / MANIFEST}: {len(manifest.image)} rows; {ABOUT} says that {rows} were written")
        try:
            images: Images
            if (folder / PLAIN).exists():
                images = np.lib.format.open_memmap(folder / PLAIN, mode="r")  # neither pickles nor zip files
            else:
                images = unpack(folder) if decode else np.broadcast_to(np.uint8(0), shape_of(folder))
        except DataError:
            raise
        except Exception as error:  # numpy may raise anything on hostile bytes
            raise DataError(f"{folder}: its images cannot be read: {error!r}") from None
        dealt = (folder / PARTITION).exists()
        partition = Partition.read(folder / PARTITION, manifest) if dealt else Partition()
        return Store(images, manifest, partition, made)


def write_about(folder: Path, manifest: Manifest, made: dict[str, Any]) -> None:
    """Write `store.json`, which makes a folder a store."""
    about = {"format": FORMAT, "classes": list(manifest.classes), "rows": len(manifest.image), "made": made}
    write_durably(folder / ABOUT, (json.dumps(about, indent=1) + "\n").encode(), mode=0o644)


def read_about(folder: Path) -> tuple[tuple[str, ...], dict[str, Any], int | None]:
    """Return a store's classes, how it was made, and how many rows it has, where it says so.

    Raises:
        DataError: the folder holds no store, or one of another format.
    """
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError(f"{ABOUT} holds a {type(about).__name__}; wanted an object with format, classes and made")
        if about["format"] != FORMAT:
            raise DataError(f"{folder}: a store of format {about['format']!r}; this version reads {FORMAT}")
        names = about["classes"]
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"classes {names!r:.60}; wanted a list of names")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"classes {names!r:.60}; wanted at least one, and each once")
        return tuple(names), dict(about["made"]), about.get("rows")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: not a store, {ABOUT} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder}: cannot be read as a store: {error!r}") from None
