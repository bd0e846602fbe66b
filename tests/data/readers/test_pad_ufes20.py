from pathlib import Path

import pytest

from fedperl.data.readers import pad_ufes20
from fedperl.data.readers.base import SKIN
from fedperl.errors import DataError
from tests.data.readers import trees


def test_labels_patients_and_what_else_is_said(tmp_path: Path) -> None:
    listing = pad_ufes20.read(trees.write(tmp_path, trees.pad_ufes20()))
    assert (listing.source, listing.classes) == ("PAD-UFES", SKIN)
    assert [(row.image, row.label, row.group) for row in listing.rows] == [
        ("PAT_1516_1765_530.png", "NV", "PAT_1516"),
        ("PAT_46_881_939.png", "BCC", "PAT_46"),
        ("PAT_46_882_940.png", "AK", "PAT_46"),
        ("PAT_7_1_2.png", "BKL", "PAT_7"),
        ("PAT_8_2_3.png", "SCC", "PAT_8"),
        ("PAT_9_3_4.png", "MEL", "PAT_9"),
    ]
    assert listing.rows[0].about == {"age": "8", "sex": "", "body_site": "arm", "skin_type": ""}
    assert listing.rows[1].about == {"age": "55", "sex": "female", "body_site": "neck", "skin_type": "3"}
    assert listing.rows[3].about == {"age": "70", "sex": "male", "body_site": "hand", "skin_type": "1"}
    assert listing.rows[2].pixels == tmp_path / "images/imgs_part_2/PAT_46_882_940.png"


def test_a_listed_image_may_be_missing_or_lie_elsewhere_below(tmp_path: Path) -> None:
    tree = trees.pad_ufes20()
    del tree["images/imgs_part_3/PAT_8_2_3.png"]
    tree["imgs_part_1/x/PAT_46_881_939.png"] = tree.pop("images/imgs_part_1/PAT_46_881_939.png")
    listing = pad_ufes20.read(trees.write(tmp_path, tree))
    assert listing.missing == ["PAT_46_881_939.png", "PAT_8_2_3.png"]
    flat = {name.removeprefix("images/"): content for name, content in tree.items()}
    assert pad_ufes20.read(trees.write(tmp_path / "flat", flat)).missing == ["PAT_8_2_3.png"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b",NEV,", b",NAEVUS,", "line 2: diagnostic 'NAEVUS'; wanted one of: ack, nev, sek, bcc, scc, mel"),
        (b"PAT_46_882_940.png", b"PAT_46_881_939.PNG", "line 4: image 'PAT_46_881_939.PNG' is already in .*line 3"),
        (b"PAT_46_882_940.png", b"PAT_46_881_939", "line 4: image 'PAT_46_881_939' is already in .*line 3"),
        (b"PAT_1516,", b",", "line 2: patient_id is blank"),
        (b"PAT_7_1_2.png", b"../PAT_7_1_2.png", "line 5: image .* is not a plain name"),
        (b"region", b"Region", "no column region"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    tree = trees.pad_ufes20()
    assert old in tree["metadata.csv"]
    tree["metadata.csv"] = tree["metadata.csv"].replace(old, new)
    with pytest.raises(DataError, match=message):
        pad_ufes20.read(trees.write(tmp_path, tree))
