"""The list of images: what each is called, shows, belongs to and comes from."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedperl.errors import DataError

Indices = npt.NDArray[np.int64]

UNLABELLED = -1
COLUMNS = ("image", "label", "group", "source")


@dataclass(frozen=True)
class Manifest:
    """One row an image, columns as arrays; `group` is the lesion or patient that must not straddle a split."""

    classes: tuple[str, ...]
    image: npt.NDArray[np.str_]
    label: Indices  # index into classes, or UNLABELLED
    group: npt.NDArray[np.str_]
    source: npt.NDArray[np.str_]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in COLUMNS}
        if len(set(lengths.values())) != 1:
            raise DataError(f"manifest: columns of different lengths, {lengths}")
        if len(np.unique(self.image)) != len(self.image):
            names, counts = np.unique(self.image, return_counts=True)
            raise DataError(
                f"manifest: image {str(names[counts > 1][0])!r} is listed {counts.max()} times; wanted once"
            )
        wrong = np.flatnonzero((self.label < UNLABELLED) | (self.label >= len(self.classes)))
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"manifest: image {str(self.image[row])!r} has label {self.label[row]}; "
                f"wanted 0 to {len(self.classes) - 1}, or {UNLABELLED} for none"
            )

    def __len__(self) -> int:
        return len(self.image)

    def write(self, path: Path) -> None:
        """Write the manifest as csv, labels by name, an empty label for none."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            names = (*self.classes, "")
            for image, label, group, source in zip(self.image, self.label, self.group, self.source, strict=True):
                writer.writerow([image, names[label], group, source])

    @staticmethod
    def read(path: Path, classes: tuple[str, ...]) -> "Manifest":
        """Return the manifest of a csv file with the columns image, label, group, source.

        Raises:
            DataError: the file is missing, a column is, or a label is none of the classes.
        """
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: cannot be read as a manifest: {error}") from None
        missing = [name for name in COLUMNS if rows and rows[0].get(name) is None]
        if not rows or missing:
            raise DataError(
                f"{path}: wanted rows with the columns {', '.join(COLUMNS)}; missing: {missing or 'all rows'}"
            )
        index = {name: i for i, name in enumerate(classes)} | {"": UNLABELLED}
        for number, row in enumerate(rows, start=2):
            if row["label"] not in index:
                raise DataError(f"{path}, line {number}: label {row['label']!r}; wanted one of {', '.join(classes)}")
        return Manifest(
            classes,
            np.array([row["image"] for row in rows], dtype=np.str_),
            np.array([index[row["label"]] for row in rows], dtype=np.int64),
            np.array([row["group"] for row in rows], dtype=np.str_),
            np.array([row["source"] for row in rows], dtype=np.str_),
        )
