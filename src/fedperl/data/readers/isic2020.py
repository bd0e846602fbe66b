"""ISIC 2020 (Rotemberg et al. 2021): dermoscopy by patient, benign or malignant, with a list of its duplicates."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fedperl.data.readers.base import Entry, Listing, find_images, quoted, read_table, stated, translate
from fedperl.data.readers.files import ImageFiles, find_file, need_file
from fedperl.errors import DataError

SOURCE = "ISIC20"
CLASSES = ("benign", "malignant")
TRUTHS = ("ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_GroundTruth.csv")
TELL_TALE = TRUTHS[0]
DUPLICATES = "ISIC_2020_Training_Duplicates.csv"
IMAGES = ("ISIC_2020_Training_JPEG", "train")
COLUMNS = (
    "image_name",
    "patient_id",
    "sex",
    "age_approx",
    "anatom_site_general_challenge",
    "benign_malignant",
    "target",
)


def recognises(folder: Path) -> bool:
    """Whether the folder holds the training set's labels."""
    return find_file(folder, *TRUTHS) is not None


def read(folder: Path) -> Listing:
    """Return the training images, grouped by patient; patients with a duplicate of each other's image are one group.

    Raises:
        DataError: as `read_table`, `find_images` and `ImageFiles`; a row's two labels contradict each other.
    """
    entries = list(_entries(need_file(folder, *TRUTHS)))
    duplicates = find_file(folder, DUPLICATES)
    if duplicates:
        pairs = read_table(duplicates, ("image_name_1", "image_name_2"))
        entries = _joined(entries, ((row["image_name_1"], row["image_name_2"]) for _, row in pairs))
    return find_images(SOURCE, folder, CLASSES, entries, ImageFiles(folder, below=IMAGES).by_name)


def _entries(table: Path) -> Iterator[Entry]:
    for where, row in read_table(table, COLUMNS):
        image = row["image_name"]
        label = translate(row["target"], {"0": CLASSES[0], "1": CLASSES[1]}, where, "target")
        if row["benign_malignant"].lower() != label:
            contrary = quoted(row["benign_malignant"])
            raise DataError(f"{where}: target {row['target']}, but benign_malignant {contrary}; wanted {label}")
        about = {
            "age": stated(row, "age_approx"),
            "sex": stated(row, "sex"),
            "body_site": stated(row, "anatom_site_general_challenge"),
        }
        yield Entry(where, image, label, row["patient_id"] or row.get("lesion_id") or f"image {image}", about)


def _joined(entries: list[Entry], pairs: Iterable[tuple[str, str]]) -> list[Entry]:
    group = {entry.image: entry.group for entry in entries}
    leader = {entry.group: entry.group for entry in entries}

    def first(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for one, other in pairs:
        if one in group and other in group:
            low, high = sorted((first(group[one]), first(group[other])))
            leader[high] = low
    return [replace(entry, group=first(entry.group)) for entry in entries]
