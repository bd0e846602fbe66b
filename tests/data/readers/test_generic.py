import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedperl.data.readers import generic
from fedperl.data.readers.base import SKIN, Listing
from fedperl.errors import DataError
from tests.data.readers import trees


def labels(listing: Listing) -> dict[str, str]:
    return {row.image: row.label for row in listing.rows}


def with_table(folder: Path, *rows: str, name: str = "images.csv") -> Path:
    tree = trees.generic_table()
    del tree["images.csv"]
    return trees.write(folder / "clinic A", tree | {name: trees.lines(*rows)})


def test_a_table(tmp_path: Path) -> None:
    folder = trees.write(tmp_path / "clinic A", trees.generic_table())
    listing = generic.read(folder)
    assert (listing.source, listing.classes) == ("clinic A", SKIN)
    assert [(row.image, row.label, row.group, row.about) for row in listing.rows] == [
        ("clinic/a.jpg", "NV", "clinic A p1", {"age": "40", "institution": "North 2.0"}),
        ("clinic/b", "MEL", "clinic A p1", {"age": "", "institution": "South"}),
        ("c.png", "", "clinic A image c.png", {"age": "", "institution": ""}),
    ]
    assert listing.rows[1].pixels == folder / "clinic/b.JPG"


@pytest.mark.parametrize("name", ["images.csv", "Labels.csv", "metadata.CSV", "mine.csv"])
def test_the_tables_names(tmp_path: Path, name: str) -> None:
    folder = with_table(tmp_path, "image,label", "c.png,wart", "clinic/a,", "clinic/z.jpg,mole", name=name)
    assert generic.recognises(folder)
    listing = generic.read(folder)
    assert listing.classes == ("mole", "wart")
    assert labels(listing) == {"c.png": "wart", "clinic/a": ""}
    assert listing.missing == ["clinic/z.jpg"]


def test_two_other_tables_are_not_chosen_between(tmp_path: Path) -> None:
    folder = with_table(tmp_path, "image,label", "c.png,wart", name="one.csv")
    trees.write(folder, {"two.csv": trees.lines("image,label", "c.png,mole")})
    assert generic.find_table(folder) is None


def test_no_label_at_all_and_labels_beyond_the_papers(tmp_path: Path) -> None:
    assert generic.read(with_table(tmp_path / "1", "image,label", "c.png,", "clinic/a,")).classes == SKIN
    listing = generic.read(with_table(tmp_path / "2", "image,label", "c.png,nv", "clinic/a,wart"))
    assert listing.classes == ("nv", "wart")
    assert labels(listing) == {"c.png": "nv", "clinic/a": "wart"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("c.png,nv", "clinic/a.jpg,nv", "clinic/A.JPG,mel"), "line 4: image .* is already in .*line 3"),
        (("clinic/a,nv", "clinic/a.jpg,nv"), "line 3: image .* is already in .*line 2"),
        (("../c.png,nv",), "line 2: image '../c.png' is not a path below"),
        (("/etc/passwd,nv",), "line 2: image '/etc/passwd' is not a path below"),
        ((",nv",), "line 2: image '' is not a path below"),
        (("c.png,wart", "clinic/a,Wart"), "labels 'Wart' and 'wart' differ in letter case only"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        generic.read(with_table(tmp_path, "image,label", *rows))


def test_an_ambiguous_name_without_extension_is_refused(tmp_path: Path) -> None:
    folder = with_table(tmp_path, "image,label", "c,nv")
    trees.write(folder, {"c.jpg": b"another"})
    with pytest.raises(DataError, match="line 2: two different files for image 'c': 'c.jpg' and 'c.png'"):
        generic.read(folder)


def test_folders_for_classes(tmp_path: Path) -> None:
    folder = trees.write(tmp_path / "clinic B", trees.generic_folders())
    assert generic.recognises(folder)
    listing = generic.read(folder)
    assert (listing.source, listing.classes) == ("clinic B", ("melanoma", "nevus"))
    assert [(row.image, row.label, row.group) for row in listing.rows] == [
        ("melanoma/a.jpg", "melanoma", "clinic B image melanoma/a.jpg"),
        ("nevus/a.jpg", "nevus", "clinic B image nevus/a.jpg"),
        ("nevus/deeper/b.jpg", "nevus", "clinic B image nevus/deeper/b.jpg"),
        ("unlabelled/c.png", "", "clinic B image unlabelled/c.png"),
    ]


def test_folders_of_the_papers_classes_and_names_that_differ_in_case(tmp_path: Path) -> None:
    tree = {"nv/a.jpg": b"1", "NV/A.jpg": b"2", "Mel/a.jpg": b"3", "UNLABELLED/a.jpg": b"4"}
    listing = generic.read(trees.write(tmp_path, tree))
    assert listing.classes == SKIN
    assert labels(listing) == {"Mel/a.jpg": "MEL", "NV/A.jpg": "NV", "UNLABELLED/a.jpg": "", "nv/a.jpg": "NV"}
    trees.write(tmp_path, {"nv/A.jpg": b"5"})
    assert len(generic.read(tmp_path).rows) == 5


def test_odd_names_are_kept_as_they_are(tmp_path: Path) -> None:
    tree = {"nevus/a\\b.jpg": b"1", "nevus/*.jpg": b"2", "C:/a.jpg": b"3", "nevus/a b\n.jpg": b"4"}
    listing = generic.read(trees.write(tmp_path, tree))
    assert labels(listing) == {name: name.split("/")[0] for name in tree}
    assert not listing.missing


def test_an_image_in_no_class_is_refused(tmp_path: Path) -> None:
    trees.write(tmp_path, trees.generic_folders() | {"z.jpg": b""})
    with pytest.raises(DataError, match="image 'z.jpg' lies in no class's folder"):
        generic.read(tmp_path)


@pytest.mark.parametrize(
    "name", ["HAM10000_images_part_1", "ISIC_2019_Training_Input", "images", "Train", "imgs_part_2"]
)
def test_a_folder_of_images_is_no_class(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"folder '{name}' is no class"):
        generic.read(trees.write(tmp_path, {f"{name}/a.jpg": b"", "nevus/a.jpg": b""}))


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    trees.write(tmp_path, {"nevus/readme.txt": b"", "notes.csv": b"a,b\n"})
    assert not generic.recognises(tmp_path)
    with pytest.raises(DataError, match="no images; wanted images.csv"):
        generic.read(tmp_path)


def link_an_image(root: Path, outside: Path) -> None:
    (root / "nevus/x.jpg").symlink_to(outside / "x.jpg")


def link_a_class(root: Path, outside: Path) -> None:
    (root / "wart").symlink_to(outside)


def add_dicom(root: Path, outside: Path) -> None:
    (root / "nevus/x.dcm").write_bytes(b"")


def add_a_pipe(root: Path, outside: Path) -> None:
    os.mkfifo(root / "nevus/x.jpg")


def add_bytes_that_are_no_text(root: Path, outside: Path) -> None:
    Path(os.fsdecode(os.fsencode(root / "nevus") + b"/\xff.jpg")).write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (link_an_image, "'nevus/x.jpg' is a link that leaves"),
        (link_a_class, "'wart' is a link that leaves"),
        (add_dicom, "'nevus/x.dcm' is DICOM"),
        (add_a_pipe, "'nevus/x.jpg' is no file"),
        (add_bytes_that_are_no_text, r"'nevus/\\udcff.jpg' is not UTF-8"),
    ],
)
def test_what_cannot_be_an_image_is_refused(tmp_path: Path, spoil: Callable[[Path, Path], None], message: str) -> None:
    outside = trees.write(tmp_path / "outside", {"x.jpg": b"x"})
    root = trees.write(tmp_path / "root", trees.generic_folders())
    spoil(root, outside)
    with pytest.raises(DataError, match=message):
        generic.read(root)
