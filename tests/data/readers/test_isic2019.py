from pathlib import Path

import pytest

from fedperl.data.readers import isic2019
from fedperl.data.readers.base import SKIN
from fedperl.errors import DataError
from tests.data.readers import trees

TRUTH, METADATA = isic2019.TRUTH, isic2019.METADATA


def test_labels_lesions_and_what_else_is_said(tmp_path: Path) -> None:
    listing = isic2019.read(trees.write(tmp_path, trees.isic2019()))
    assert (listing.source, listing.classes) == ("ISIC19", SKIN)
    assert [(row.image, row.label, row.group, row.about["institution"]) for row in listing.rows] == [
        ("ISIC_0000000", "NV", "image ISIC_0000000", ""),
        ("ISIC_0000017", "MEL", "image ISIC_0000017", ""),
        ("ISIC_0024306", "NV", "HAM_0000550", "HAM10000"),
        ("ISIC_0053453", "SCC", "BCN_0002083", "BCN20000"),
        ("ISIC_0010850", "BKL", "MSK4_0010850", "MSK"),
    ]
    assert listing.rows[1].pixels == tmp_path / "ISIC_2019_Training_Input/ISIC_0000017_downsampled.jpg"
    assert listing.rows[0].about == {"age": "55", "sex": "female", "body_site": "anterior torso", "institution": ""}
    assert listing.rows[4].about == {"age": "", "sex": "", "body_site": "head/neck", "institution": "MSK"}
    assert listing.dropped == {"UNK": 1}
    assert not listing.missing


def test_downsampled_may_be_absent_from_the_file_or_from_the_tables(tmp_path: Path) -> None:
    tree = trees.isic2019()
    image = "ISIC_2019_Training_Input/ISIC_0000017{}.jpg"
    tree[image.format("")] = tree.pop(image.format("_downsampled"))
    first = isic2019.read(trees.write(tmp_path / "file", tree))
    tree = trees.isic2019()
    tree[TRUTH] = tree[TRUTH].replace(b"_downsampled", b"")
    second = isic2019.read(trees.write(tmp_path / "table", tree))
    for listing in (first, second):
        assert [(row.image, row.group) for row in listing.rows][1] == ("ISIC_0000017", "image ISIC_0000017")


def test_images_may_be_nested_twice_and_missing(tmp_path: Path) -> None:
    tree = trees.isic2019()
    folder = "ISIC_2019_Training_Input/"
    nested = {name.replace(folder, 2 * folder): content for name, content in tree.items()}
    del nested[2 * folder + "ISIC_0024306.jpg"], nested[2 * folder + "ISIC_0099999.jpg"]
    listing = isic2019.read(trees.write(tmp_path, nested))
    assert len(listing.rows) == 4
    assert listing.missing == ["ISIC_0024306"]
    assert listing.dropped == {"UNK": 1}


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        (TRUTH, b"downsampled,1,0", b"downsampled,1,1", "line 3: image .* has class MEL and NV; wanted exactly one"),
        (TRUTH, b"downsampled,1,0", b"downsampled,0,0", "line 3: image .* has class none; wanted exactly one"),
        (TRUTH, b"downsampled,1,0", b"downsampled,2,0", "line 3: MEL '2'; wanted one of: 0, 0.0, 1, 1.0"),
        (TRUTH, b"ISIC_0024306", b"ISIC_0000000", "line 4: image 'ISIC_0000000' is already in .*line 2"),
        (TRUTH, b"ISIC_0024306", b"ISIC_0000017", "line 4: image 'ISIC_0000017' is already in .*line 3"),
        (TRUTH, b"ISIC_0024306", b"ISIC_7", "line 4: no metadata for image 'ISIC_7' in .*Metadata.csv"),
        (METADATA, b"ISIC_0024306", b"ISIC_0000017", "line 4: image 'ISIC_0000017' is there a second time"),
        (METADATA, b"lesion_id", b"lesion", "no column lesion_id"),
        (TRUTH, b"VASC", b"VASQ", "no column VASC"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, table: str, old: bytes, new: bytes, message: str) -> None:
    tree = trees.isic2019()
    assert old in tree[table]
    tree[table] = tree[table].replace(old, new)
    with pytest.raises(DataError, match=message):
        isic2019.read(trees.write(tmp_path, tree))


@pytest.mark.parametrize("name", [b"../../secret", b"/etc/passwd"])
def test_a_path_is_no_name(tmp_path: Path, name: bytes) -> None:
    tree = {path: content.replace(b"ISIC_0024306", name) for path, content in trees.isic2019().items()}
    with pytest.raises(DataError, match="line 4: image .* is not a plain name"):
        isic2019.read(trees.write(tmp_path, tree))


def test_the_metadata_must_be_there(tmp_path: Path) -> None:
    tree = trees.isic2019()
    del tree[METADATA]
    with pytest.raises(DataError, match="no file ISIC_2019_Training_Metadata.csv"):
        isic2019.read(trees.write(tmp_path, tree))
