"""A store: all images as one uint8 array, in memory or mapped from disk, with manifest and partition."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.data.manifest import Manifest
from fedperl.data.partition import Partition
from fedperl.errors import DataError
from fedperl.files import write_durably

Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Store:
    """Images (n, 3, size, size) in the manifest's order, and how they were made."""

    images: Images
    manifest: Manifest
    partition: Partition
    made: dict[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their indices."""
        return self.manifest.classes

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[1] != 3 or self.images.dtype != np.uint8:
            raise DataError(
                f"store: images are {self.images.dtype} {self.images.shape}; wanted uint8 (n, 3, size, size)"
            )
        if len(self.images) != len(self.manifest):
            raise DataError(f"store: {len(self.images)} images but {len(self.manifest)} rows in the manifest")
        self.partition.check(self.manifest.group)

    def digest(self) -> str:
        """Return a hash of names, labels, partition and of up to 64 images: another store is noticed, at any size."""
        found = hashlib.sha256(self.partition.hash.encode())
        found.update("\0".join(self.manifest.image).encode() + self.manifest.label.tobytes())
        found.update(str(self.images.shape).encode())
        for row in np.linspace(0, len(self.images) - 1, min(64, len(self.images)), dtype=np.int64):
            found.update(self.images[row].tobytes())
        return found.hexdigest()

    def save(self, folder: Path) -> None:
        """Write the store into a folder, `store.json` last: a folder without it is not a store."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "images.npy", self.images)
        self.manifest.write(folder / "manifest.csv")
        self.partition.write(folder / "partition.json")
        about = {"format": 1, "classes": list(self.classes), "made": self.made}
        write_durably(folder / "store.json", (json.dumps(about, indent=1) + "\n").encode(), mode=0o644)

    @staticmethod
    def open(folder: Path) -> "Store":
        """Return the store of a folder; the images stay on disk and are mapped.

        Raises:
            DataError: the folder holds no store, or one that contradicts itself.
        """
        try:
            about = json.loads((folder / "store.json").read_text(encoding="utf-8"))
            classes = tuple(str(name) for name in about["classes"])
            images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
            made = dict(about["made"])
        except FileNotFoundError as error:
            raise DataError(f"{folder}: not a store, {Path(str(error.filename)).name} is missing") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: cannot be read as a store: {error!r}") from None
        return Store(
            images, Manifest.read(folder / "manifest.csv", classes), Partition.read(folder / "partition.json"), made
        )
