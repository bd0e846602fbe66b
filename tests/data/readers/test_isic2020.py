from pathlib import Path

import pytest

from fedperl.data.readers import isic2020
from fedperl.errors import DataError
from tests.data.readers import trees

TRUTH, DUPLICATES = isic2020.TRUTHS[0], isic2020.DUPLICATES


def test_labels_patients_and_what_else_is_said(tmp_path: Path) -> None:
    listing = isic2020.read(trees.write(tmp_path, trees.isic2020()))
    assert (listing.source, listing.classes) == ("ISIC20", ("benign", "malignant"))
    assert [(row.image, row.label, row.group) for row in listing.rows] == [
        ("ISIC_0015719", "benign", "IP_2842074"),  # its duplicate's patient
        ("ISIC_0052212", "benign", "IP_2842074"),
        ("ISIC_0068279", "malignant", "IP_6890425"),
        ("ISIC_0074268", "benign", "IL_7654321"),
        ("ISIC_0074269", "benign", "image ISIC_0074269"),
        ("ISIC_0074270", "benign", "IP_2842074"),
    ]
    assert listing.rows[0].about == {"age": "45", "sex": "female", "body_site": "upper extremity"}
    assert listing.rows[2].about == {"age": "", "sex": "", "body_site": "head/neck"}
    assert listing.rows[0].pixels == tmp_path / "ISIC_2020_Training_JPEG/train/ISIC_0015719.jpg"


def test_duplicates_join_transitively_and_unknown_images_are_passed_over(tmp_path: Path) -> None:
    tree = trees.isic2020()
    tree[DUPLICATES] += trees.lines("ISIC_0074270,ISIC_0068279", "ISIC_0074268,ISIC_0068279", "ISIC_1,ISIC_0074269")
    groups = [row.group for row in isic2020.read(trees.write(tmp_path, tree)).rows]
    assert groups == ["IL_7654321"] * 4 + ["image ISIC_0074269", "IL_7654321"]


def test_the_first_version_and_the_images_unpacked_plainly(tmp_path: Path) -> None:
    tree = {name.replace("ISIC_2020_Training_JPEG/", ""): content for name, content in trees.isic2020().items()}
    rows = [line.split(",") for line in tree.pop(TRUTH).decode().splitlines()]
    tree["ISIC_2020_Training_GroundTruth.csv"] = trees.lines(*(",".join(row[:2] + row[3:]) for row in rows))
    del tree[DUPLICATES], tree["train/ISIC_0068279.jpg"]
    trees.write(tmp_path, tree)
    assert isic2020.recognises(tmp_path)
    listing = isic2020.read(tmp_path)
    assert [row.group for row in listing.rows] == [
        "IP_3075186",
        "IP_2842074",
        "image ISIC_0074268",
        "image ISIC_0074269",
        "IP_2842074",
    ]
    assert listing.missing == ["ISIC_0068279"]


def test_dicom_alone_is_refused_by_its_first_file(tmp_path: Path) -> None:
    tree = trees.isic2020()
    dicom = {
        name.replace("JPEG", "Dicom").replace(".jpg", ".dcm"): content
        for name, content in tree.items()
        if name.endswith(".jpg")
    }
    tables = {name: content for name, content in tree.items() if name.endswith(".csv")}
    with pytest.raises(DataError, match="line 2: 'ISIC_2020_Training_Dicom/train/ISIC_0015719.dcm' is DICOM"):
        isic2020.read(trees.write(tmp_path / "alone", tables | dicom))
    assert len(isic2020.read(trees.write(tmp_path / "beside", tree | dicom)).rows) == 6


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        (TRUTH, b"malignant,1", b"malignant,0", "line 4: target 0, but benign_malignant 'malignant'; wanted benign"),
        (TRUTH, b"malignant,1", b"malignant,2", "line 4: target '2'; wanted one of: 0, 1"),
        (TRUTH, b"malignant,1", b",1", "line 4: target 1, but benign_malignant ''; wanted malignant"),
        (TRUTH, b"ISIC_0052212", b"ISIC_0015719", "line 3: image 'ISIC_0015719' is already in .*line 2"),
        (TRUTH, b"ISIC_0052212", b"isic_0015719", "line 3: image 'isic_0015719' is already in .*line 2"),
        (TRUTH, b"ISIC_0052212", b"../secret", "line 3: image '../secret' is not a plain name"),
        (TRUTH, b"patient_id", b"patient", "no column patient_id"),
        (DUPLICATES, b"image_name_2", b"image", "no column image_name_2"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, table: str, old: bytes, new: bytes, message: str) -> None:
    tree = trees.isic2020()
    assert old in tree[table]
    tree[table] = tree[table].replace(old, new)
    with pytest.raises(DataError, match=message):
        isic2020.read(trees.write(tmp_path, tree))
