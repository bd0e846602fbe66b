"""PAD-UFES-20 (Pacheco et al. 2020): smartphone photographs from Brazil, six diagnoses, several lesions a patient."""

from collections.abc import Iterator
from pathlib import Path

from fedperl.data.readers.base import (
    SKIN,
    Entry,
    Listing,
    find_images,
    read_header,
    read_table,
    required,
    stated,
    translate,
)
from fedperl.data.readers.files import ImageFiles, find_file, need_file

SOURCE = "PAD-UFES"
TABLE = "metadata.csv"
TELL_TALE = f"{TABLE} with the columns img_id and diagnostic"
IMAGES = ("images",)
COLUMNS = ("patient_id", "age", "gender", "fitspatrick", "region", "diagnostic", "img_id")
CLASSES = {"ack": "AK", "nev": "NV", "sek": "BKL", "bcc": "BCC", "scc": "SCC", "mel": "MEL"}


def recognises(folder: Path) -> bool:
    """Whether the folder holds a table with this set's columns: other sets name theirs the same."""
    table = find_file(folder, TABLE)
    return table is not None and {"img_id", "diagnostic"} <= set(read_header(table))


def read(folder: Path) -> Listing:
    """Return the images that the table lists, grouped by patient.

    Raises:
        DataError: as `read_table`, `find_images` and `ImageFiles`; a diagnosis or a patient is not known.
    """
    table = need_file(folder, TABLE)
    return find_images(SOURCE, folder, SKIN, _entries(table), ImageFiles(folder, below=IMAGES).by_name)


def _entries(table: Path) -> Iterator[Entry]:
    for where, row in read_table(table, COLUMNS):
        about = {
            "age": stated(row, "age"),
            "sex": stated(row, "gender").lower(),
            "body_site": stated(row, "region").lower(),
            "skin_type": stated(row, "fitspatrick"),
        }
        label = translate(row["diagnostic"], CLASSES, where, "diagnostic")
        yield Entry(where, row["img_id"], label, required(row, "patient_id", where), about)
