"""The list of images: what each is called, shows, belongs to and comes from."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedperl.errors import DataError

Indices = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]

UNLABELLED = -1
COLUMNS = ("image", "label", "group", "source")
ABOUT = ("published_group", "institution", "split", "age", "sex", "body_site", "skin_type")
"""What a set may say beyond that, as text; empty where it does not."""


@dataclass(frozen=True)
class Manifest:
    """One row for each image that a data set lists, columns as arrays.

    An image that two sets list has a row in each, with that set's own label, and is stored once.
    """

    classes: tuple[str, ...]
    image: Names
    label: Indices  # index into classes, or UNLABELLED
    group: Names  # the lesion or patient, twins included, that must not straddle a split
    source: Names
    pixels: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # which stored image; default: its row
    about: Mapping[str, Names] = field(default_factory=dict)  # of ABOUT, those that are known

    def __post_init__(self) -> None:
        if not len(self.pixels):
            object.__setattr__(self, "pixels", np.arange(len(self.image)))
        lengths = {name: len(getattr(self, name)) for name in (*COLUMNS, "pixels")}
        lengths |= {name: len(column) for name, column in self.about.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"manifest: columns of different lengths, {lengths}")
        seen: set[tuple[str, str]] = set()
        for key in self.names():
            if key in seen:
                raise DataError(f"manifest: {key[0]} lists image {key[1]!r} more than once; wanted once")
            seen.add(key)
        wrong = np.flatnonzero((self.label < UNLABELLED) | (self.label >= len(self.classes)))
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"manifest: image {str(self.image[row])!r} has label {self.label[row]}; "
                f"wanted 0 to {len(self.classes) - 1}, or {UNLABELLED} for none"
            )

    def __len__(self) -> int:
        return len(self.image)

    def names(self) -> list[tuple[str, str]]:
        """Return what names each row: its data set and the image's name there."""
        return list(zip(self.source.tolist(), self.image.tolist(), strict=True))

    def write(self, path: Path) -> None:
        """Write the manifest as csv, labels by name, an empty label for none."""
        names = np.array((*self.classes, ""), dtype=np.str_)
        columns = {
            "image": self.image,
            "label": names[self.label],
            "group": self.group,
            "source": self.source,
            "pixels": self.pixels,
            **self.about,
        }
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))

    @staticmethod
    def read(path: Path, classes: tuple[str, ...]) -> "Manifest":
        """Return the manifest of a csv file: image, label, group, source; pixels and those of ABOUT where there.

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
            if None in row or None in row.values():
                raise DataError(f"{path}, line {number}: wanted {len(rows[0])} columns as in the first row")
        try:
            pixels = np.array([int(row["pixels"]) for row in rows if "pixels" in row], dtype=np.int64)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}: column pixels: {error}") from None
        return Manifest(
            classes,
            np.array([row["image"] for row in rows], dtype=np.str_),
            np.array([index[row["label"]] for row in rows], dtype=np.int64),
            np.array([row["group"] for row in rows], dtype=np.str_),
            np.array([row["source"] for row in rows], dtype=np.str_),
            pixels,
            {name: np.array([row[name] for row in rows], dtype=np.str_) for name in ABOUT if name in rows[0]},
        )
