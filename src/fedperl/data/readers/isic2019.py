"""ISIC 2019: HAM10000, BCN20000 and the MSK images together, eight classes; some images have no lesion id."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedperl.data.readers.base import SKIN, Entry, Listing, find_images, quoted, read_table, stated, translate
from fedperl.data.readers.files import DOWNSAMPLED, ImageFiles, find_file, need_file
from fedperl.errors import DataError

SOURCE = "ISIC19"
TRUTH, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
TELL_TALE = TRUTH
IMAGES = ("ISIC_2019_Training_Input",)
UNKNOWN = "UNK"
INSTITUTIONS = {"HAM_": "HAM10000", "BCN_": "BCN20000", "MSK": "MSK"}
ONE_HOT = {"0": "0", "0.0": "0", "1": "1", "1.0": "1"}


def recognises(folder: Path) -> bool:
    """Whether the folder holds the training set's labels."""
    return find_file(folder, TRUTH) is not None


def read(folder: Path) -> Listing:
    """Return the training images under the archive's own names, grouped by lesion; class UNK is dropped.

    Raises:
        DataError: as `read_table`, `find_images` and `ImageFiles`; an image has no single class, or no metadata.
    """
    entries = _entries(need_file(folder, TRUTH), need_file(folder, METADATA))
    return find_images(SOURCE, folder, SKIN, entries, ImageFiles(folder, below=IMAGES).by_name)


def _entries(truth: Path, metadata: Path) -> Iterator[Entry]:
    described = _metadata(metadata)
    for where, row in read_table(truth, ("image", *SKIN, UNKNOWN)):
        image = row["image"].removesuffix(DOWNSAMPLED)  # so that HAM10000 and ISIC 2020 have the same name for it
        if image not in described:
            raise DataError(f"{where}: no metadata for image {quoted(row['image'])} in {metadata}")
        label, about = _label(row, where), described[image]
        lesion = about["lesion_id"]
        yield Entry(
            where,
            image,
            "" if label == UNKNOWN else label,
            lesion or f"image {image}",
            {
                "age": stated(about, "age_approx"),
                "sex": stated(about, "sex"),
                "body_site": stated(about, "anatom_site_general"),
                "institution": next((name for start, name in INSTITUTIONS.items() if lesion.startswith(start)), ""),
            },
            dropped=label if label == UNKNOWN else "",
        )


def _metadata(table: Path) -> dict[str, Mapping[str, str]]:
    described: dict[str, Mapping[str, str]] = {}
    for where, row in read_table(table, ("image", "age_approx", "anatom_site_general", "lesion_id", "sex")):
        image = row["image"].removesuffix(DOWNSAMPLED)
        if image in described:
            raise DataError(f"{where}: image {quoted(row['image'])} is there a second time; wanted once")
        described[image] = row
    return described


def _label(row: Mapping[str, str], where: str) -> str:
    chosen = [name for name in (*SKIN, UNKNOWN) if translate(row[name], ONE_HOT, where, name) == "1"]
    if len(chosen) != 1:
        raise DataError(
            f"{where}: image {quoted(row['image'])} has class {' and '.join(chosen) or 'none'}; wanted exactly one"
        )
    return chosen[0]
