"""HAM10000 (Tschandl et al. 2018): dermoscopy from Vienna and Queensland, seven diagnoses, several images a lesion."""

from collections.abc import Iterator
from pathlib import Path

from fedperl.data.readers.base import SKIN, Entry, Listing, find_images, read_table, required, stated, translate
from fedperl.data.readers.files import ImageFiles, find_file, need_file

SOURCE = "HAM10000"
TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata")  # the second as the Harvard Dataverse ships it
TELL_TALE = TABLES[0]
IMAGES = ("HAM10000_images_part_1", "HAM10000_images_part_2")
CLASSES = {"nv": "NV", "mel": "MEL", "bkl": "BKL", "bcc": "BCC", "akiec": "AK", "vasc": "VASC", "df": "DF"}


def recognises(folder: Path) -> bool:
    """Whether the folder holds the set's table."""
    return find_file(folder, *TABLES) is not None


def read(folder: Path) -> Listing:
    """Return the images that the table lists, grouped by lesion.

    Raises:
        DataError: as `read_table`, `find_images` and `ImageFiles`; a diagnosis or a lesion is not known.
    """
    table = need_file(folder, *TABLES)
    return find_images(SOURCE, folder, SKIN, _entries(table), ImageFiles(folder, below=IMAGES).by_name)


def _entries(table: Path) -> Iterator[Entry]:
    for where, row in read_table(table, ("lesion_id", "image_id", "dx", "age", "sex", "localization")):
        about = {
            "age": stated(row, "age"),
            "sex": stated(row, "sex"),
            "body_site": stated(row, "localization"),
            "institution": stated(row, "dataset"),
        }
        label = translate(row["dx"], CLASSES, where, "dx")
        yield Entry(where, row["image_id"], label, required(row, "lesion_id", where), about)
