from pathlib import Path

import pytest

from fedperl.data.readers import ham10000
from fedperl.data.readers.base import SKIN
from fedperl.errors import DataError
from tests.data.readers import trees


def changed(folder: Path, old: bytes, new: bytes) -> Path:
    tree = trees.ham10000()
    assert old in tree[ham10000.TELL_TALE]
    tree[ham10000.TELL_TALE] = tree[ham10000.TELL_TALE].replace(old, new)
    return trees.write(folder, tree)


def test_labels_lesions_and_what_else_is_said(tmp_path: Path) -> None:
    listing = ham10000.read(trees.write(tmp_path, trees.ham10000()))
    assert (listing.source, listing.folder, listing.classes) == ("HAM10000", tmp_path, SKIN)
    assert [(row.image, row.label, row.group) for row in listing.rows] == [
        ("ISIC_0027419", "BKL", "HAM_0000118"),
        ("ISIC_0025030", "BKL", "HAM_0000118"),
        ("ISIC_0026769", "NV", "HAM_0002730"),
        ("ISIC_0031633", "AK", "HAM_0001466"),
        ("ISIC_0031634", "MEL", "HAM_0001467"),
        ("ISIC_0031635", "BCC", "HAM_0001468"),
        ("ISIC_0031636", "VASC", "HAM_0001469"),
        ("ISIC_0031637", "DF", "HAM_0001470"),
    ]
    assert listing.rows[0].pixels == tmp_path / "HAM10000_images_part_1/ISIC_0027419.jpg"
    assert listing.rows[7].pixels == tmp_path / "HAM10000_images_part_2/ISIC_0031637.jpg"
    assert listing.rows[0].about == {"age": "80", "sex": "male", "body_site": "scalp", "institution": "vidir_modern"}
    assert listing.rows[3].about == {"age": "", "sex": "", "body_site": "", "institution": "vienna_dias"}
    assert listing.rows[4].about["age"] == "0"
    assert not listing.missing
    assert not listing.dropped


def test_the_table_without_extension_and_without_the_dataset_column(tmp_path: Path) -> None:
    tree = trees.ham10000()
    table = tree.pop("HAM10000_metadata.csv").decode().splitlines()
    tree["ham10000_METADATA"] = trees.lines(*(line.rpartition(",")[0] for line in table))
    trees.write(tmp_path, tree)
    assert ham10000.recognises(tmp_path)
    assert {row.about["institution"] for row in ham10000.read(tmp_path).rows} == {""}


def test_folders_shipped_twice_in_another_letter_case(tmp_path: Path) -> None:
    tree = trees.ham10000()
    trees.write(tmp_path, tree | {name.lower(): content for name, content in tree.items() if name.endswith(".jpg")})
    assert len(ham10000.read(tmp_path).rows) == 8
    (tmp_path / "ham10000_images_part_2/isic_0031637.jpg").write_bytes(b"another")
    with pytest.raises(DataError, match="line 9: two different files for image 'ISIC_0031637'"):
        ham10000.read(tmp_path)


def test_a_listed_image_may_be_missing(tmp_path: Path) -> None:
    tree = trees.ham10000()
    del tree["HAM10000_images_part_1/ISIC_0025030.jpg"]
    listing = ham10000.read(trees.write(tmp_path, tree))
    assert len(listing.rows) == 7
    assert listing.missing == ["ISIC_0025030"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"nv,histo", b"mole,histo", "line 4: dx 'mole'; wanted one of: nv, mel, bkl, bcc, akiec, vasc, df"),
        (b"ISIC_0025030", b"isic_0027419", "line 3: image 'isic_0027419' is already in .*line 2"),
        (b"HAM_0002730", b"", "line 4: lesion_id is blank"),
        (b"ISIC_0025030", b"../../secret", "line 3: image '../../secret' is not a plain name"),
        (b"ISIC_0025030", b"/etc/passwd", "line 3: image '/etc/passwd' is not a plain name"),
        (b"lesion_id,image_id", b"lesion_id\timage_id", "no column lesion_id, image_id"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ham10000.read(changed(tmp_path, old, new))


def test_an_image_that_is_a_link_out_or_dicom_is_refused(tmp_path: Path) -> None:
    root = trees.write(tmp_path / "root", trees.ham10000())
    image = root / "HAM10000_images_part_1/ISIC_0026769.jpg"
    image.rename(tmp_path / "elsewhere.jpg")
    image.symlink_to(tmp_path / "elsewhere.jpg")
    with pytest.raises(DataError, match="line 4: 'HAM10000_images_part_1/ISIC_0026769.jpg' is a link that leaves"):
        ham10000.read(root)
    image.unlink()
    image.with_suffix(".dcm").write_bytes(b"")
    with pytest.raises(DataError, match="line 4: 'HAM10000_images_part_1/ISIC_0026769.dcm' is DICOM"):
        ham10000.read(root)
