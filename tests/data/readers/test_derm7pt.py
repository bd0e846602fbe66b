from pathlib import Path

import pytest

from fedperl.data.readers import derm7pt
from fedperl.data.readers.base import SKIN
from fedperl.errors import DataError
from tests.data.readers import trees


def test_labels_cases_and_what_else_is_said(tmp_path: Path) -> None:
    listing = derm7pt.read(trees.write(tmp_path, trees.derm7pt()))
    assert (listing.source, listing.classes) == ("Derm7pt", SKIN)
    assert [(row.image, row.label, row.group) for row in listing.rows] == [
        ("NEL/Nel026.jpg", "BCC", "Derm7pt case 1"),
        ("A1l/Aal002.jpg", "MEL", "Derm7pt case 2"),
        ("A1l/Aal004.jpg", "NV", "Derm7pt case 3"),
        ("NEL/Nel035.jpg", "BKL", "Derm7pt case 6"),
    ]
    assert [str(row.pixels) for row in listing.rows] == [
        str(tmp_path / "images" / name)
        for name in ("NEL/NEL026.JPG", "A1L/aal002.jpg", "A1L/Aal004.jpg", "nel/nel035.jpg")
    ]
    assert [row.about for row in listing.rows] == [
        {"split": "train", "sex": "female", "body_site": "abdomen"},
        {"split": "valid", "sex": "male", "body_site": "head neck"},
        {"split": "train", "sex": "female", "body_site": "back"},
        {"split": "", "sex": "male", "body_site": "back"},
    ]
    assert listing.dropped == {"melanosis": 1, "miscellaneous": 1}
    assert not listing.missing


def test_the_folder_above_the_splits_absent_and_an_image_missing(tmp_path: Path) -> None:
    tree = {f"Release_v0/{name}": content for name, content in trees.derm7pt().items() if "indexes" not in name}
    del tree["Release_v0/images/nel/nel035.jpg"]
    trees.write(tmp_path, tree)
    assert derm7pt.recognises(tmp_path)
    assert derm7pt.recognises(tmp_path / "Release_v0")
    listing = derm7pt.read(tmp_path)
    assert len(listing.rows) == 3
    assert listing.missing == ["NEL/Nel035.jpg"]
    assert {row.about["split"] for row in listing.rows} == {""}


@pytest.mark.parametrize(
    ("diagnosis", "label"),
    [
        ("clark nevus", "NV"),
        ("reed or spitz nevus", "NV"),
        ("dermal nevus", "NV"),
        ("blue nevus", "NV"),
        ("congenital nevus", "NV"),
        ("combined nevus", "NV"),
        ("recurrent nevus", "NV"),
        ("melanoma", "MEL"),
        ("melanoma (in situ)", "MEL"),
        ("melanoma (less than 0.76 mm)", "MEL"),
        ("melanoma (0.76 to 1.5 mm)", "MEL"),
        ("melanoma (more than 1.5 mm)", "MEL"),
        ("melanoma metastasis", "MEL"),
        ("basal cell carcinoma", "BCC"),
        ("seborrheic keratosis", "BKL"),
        ("lentigo", "BKL"),
        ("dermatofibroma", "DF"),
        ("vascular lesion", "VASC"),
        ("Clark   Nevus ", "NV"),
    ],
)
def test_every_diagnosis(tmp_path: Path, diagnosis: str, label: str) -> None:
    tree = trees.derm7pt()
    tree["meta/meta.csv"] = tree["meta/meta.csv"].replace(b"basal cell carcinoma", diagnosis.encode())
    assert derm7pt.read(trees.write(tmp_path, tree)).rows[0].label == label


META = "meta/meta.csv"


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        (META, b"clark nevus", b"nevus", "line 4: diagnosis 'nevus'; wanted one of: clark nevus, .*miscellaneous"),
        (META, b"A1l/Aal004.jpg", b"a1l/AAL002.JPG", "line 4: image 'a1l/AAL002.JPG' is already in .*line 3"),
        (META, b"A1l/Aal004.jpg", b"A1l/Aal006.jpg", "line 5: image 'A1l/Aal006.jpg' is already in .*line 4"),
        (META, b"A1l/Aal004.jpg", b"../secret.jpg", "line 4: image '../secret.jpg' is not a path below"),
        (META, b"A1l/Aal004.jpg", b"/etc/secret.jpg", "line 4: image '/etc/secret.jpg' is not a path below"),
        (META, b"\n3,", b"\n,", "line 4: case_num is blank"),
        (META, b",derm,", b",Derm,", "no column derm"),
        ("meta/test_indexes.csv", b"4", b"6", "6 rows, but the split's indexes name row 6"),
        ("meta/test_indexes.csv", b"4", b"-1", "line 2: index '-1'; wanted a row"),
        ("meta/test_indexes.csv", b"4", b"2", "line 2: row 2 is already in train"),
        ("meta/test_indexes.csv", b"indexes", b"index", "no column indexes"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, table: str, old: bytes, new: bytes, message: str) -> None:
    tree = trees.derm7pt()
    assert old in tree[table]
    tree[table] = tree[table].replace(old, new)
    with pytest.raises(DataError, match=message):
        derm7pt.read(trees.write(tmp_path, tree))


def test_links_out_and_absent_images_are_refused(tmp_path: Path) -> None:
    root = trees.write(tmp_path / "root", trees.derm7pt())
    (root / "images").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="images: no such folder"):
        derm7pt.read(root)
    (root / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="'images' is a link that leaves"):
        derm7pt.read(root)
