import os
from pathlib import Path

import pytest

from fedperl.data.readers.files import ImageFiles, find_file, find_folder, need_file
from fedperl.errors import DataError
from tests.data.readers.trees import write


def test_names_are_found_whatever_their_case_suffix_and_folder(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"one/A.JPG": b"a", "two/deep/b_downsampled.jpeg": b"b", "c.png": b"c", "notes/a.txt": b"no image"}
    )
    files = ImageFiles(root)
    assert files.by_name("a", "here") == files.by_name("A.jpg", "here") == root / "one/A.JPG"
    assert files.by_name("B", "here") == files.by_name("b_downsampled", "here") == root / "two/deep/b_downsampled.jpeg"
    assert files.by_name("d", "here") is None
    assert files.by_path("ONE/a.jpg", "here") == files.by_path("one\\a", "here") == root / "one/A.JPG"
    assert files.by_path("a.jpg", "here") is None
    assert files.all() == [root / "c.png", root / "one/A.JPG", root / "two/deep/b_downsampled.jpeg"]


def test_only_the_named_folders_are_listed_where_one_is_there(tmp_path: Path) -> None:
    root = write(tmp_path, {"Images/a.jpg": b"a", "copy/a.jpg": b"smaller", "a.jpg": b"smallest"})
    assert ImageFiles(root, below=("images",)).all() == [root / "Images/a.jpg"]
    assert len(ImageFiles(root, below=("elsewhere",)).all()) == 3


def test_the_same_bytes_twice_are_one_file_and_different_ones_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path, {"part_1/a.jpg": b"a", "Part_1/a.jpg": b"a"})
    assert ImageFiles(root).by_name("a", "here") == root / "Part_1/a.jpg"
    write(root, {"Part_1/a.jpg": b"b"})
    for find in (ImageFiles(root).by_name, ImageFiles(root).by_path):
        with pytest.raises(DataError, match="here: two different files for image .*'Part_1/a.jpg' and 'part_1/a.jpg'"):
            find("a" if find.__name__ == "by_name" else "PART_1/a.jpg", "here")
    assert ImageFiles(root).by_path("part_1/a.jpg", "here") == root / "part_1/a.jpg"


def test_accents_are_found_in_either_spelling(tmp_path: Path) -> None:
    root = write(tmp_path, {"ne\u0301vus.jpg": b"a"})
    assert ImageFiles(root).by_name("n\u00e9vus", "here") is not None


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    root = write(tmp_path, {"a/._x.jpg": b"", "__MACOSX/a/x.jpg": b"", ".cache/x.jpg": b"", "a/x.jpg": b"x"})
    assert ImageFiles(root).all() == [root / "a/x.jpg"]


@pytest.mark.parametrize("name", ["", "..", "../a", "/etc/passwd", "a/b", "a\\b", "a\0"])
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="here: image .* is not a plain name"):
        ImageFiles(tmp_path).by_name(name, "here")


@pytest.mark.parametrize(
    "name", ["", "../a.jpg", "x/../../a.jpg", "..\\a.jpg", "/etc/a.jpg", "\\a.jpg", "C:/a.jpg", "a\0"]
)
def test_a_path_that_leaves_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="here: image .* is not a path below"):
        ImageFiles(tmp_path).by_path(name, "here")


def test_a_link_that_leaves_is_refused_by_name_and_one_that_stays_is_not(tmp_path: Path) -> None:
    write(tmp_path, {"outside/x.jpg": b"x", "root/y.jpg": b"y"})
    root = tmp_path / "root"
    (root / "stays.jpg").symlink_to("y.jpg")
    assert ImageFiles(root).by_name("stays", "here") == root / "stays.jpg"
    (root / "leaves.jpg").symlink_to(tmp_path / "outside/x.jpg")
    (root / "sideways.jpg").symlink_to("../outside/x.jpg")
    (root / "self.jpg").symlink_to("self.jpg")
    files = ImageFiles(root)
    for name in ("leaves", "sideways", "self"):
        with pytest.raises(DataError, match=f"{name}.jpg' is a link that leaves|{name}.jpg' is no file"):
            files.by_name(name, "here")
        with pytest.raises(DataError, match=f"{name}.jpg"):
            files.by_path(f"{name}.jpg", "here")
    with pytest.raises(DataError, match="leaves.jpg"):
        files.all()
    assert files.by_name("y", "here") == root / "y.jpg"


def test_a_folder_that_is_a_link_out_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, {"outside/x.jpg": b"x", "root/y.jpg": b"y"})
    (tmp_path / "root/images").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="'images' is a link that leaves"):
        ImageFiles(tmp_path / "root")


def test_a_folder_that_is_a_link_within_is_not_listed_twice(tmp_path: Path) -> None:
    root = write(tmp_path, {"part/x.jpg": b"x"})
    (root / "again").symlink_to("part")
    assert ImageFiles(root).all() == [root / "part/x.jpg"]


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path, {"real/x.jpg": b"x"})
    (tmp_path / "link").symlink_to("real")
    assert ImageFiles(tmp_path / "link").by_name("x", "here") == tmp_path / "link/x.jpg"


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "dangling.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "folder.jpg").mkdir()
    files = ImageFiles(tmp_path)
    for name in ("pipe", "dangling"):
        with pytest.raises(DataError, match=f"here: '{name}.jpg' is no file that can be read"):
            files.by_name(name, "here")
    assert files.by_name("folder", "here") is None


def test_dicom_is_refused_unless_an_image_of_that_name_is_there(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.dcm": b"patient", "b.DICOM": b"patient", "b.jpg": b"b"})
    files = ImageFiles(root)
    with pytest.raises(DataError, match="here: 'a.dcm' is DICOM"):
        files.by_name("a", "here")
    with pytest.raises(DataError, match="'a.dcm' is DICOM"):
        files.by_path("a.dcm", "here")
    assert files.by_name("b", "here") == root / "b.jpg"
    with pytest.raises(DataError, match="'a.dcm' is DICOM"):
        files.all()


def test_find_file(tmp_path: Path) -> None:
    root = write(tmp_path, {"Meta/META.csv": b"1", "a.csv": b"2", "A.CSV": b"3"})
    assert find_file(root, "nothing.csv", "meta/meta.csv") == root / "Meta/META.csv"
    assert find_file(root, "A.CSV") == root / "A.CSV"
    assert find_file(root, "a.csv") == root / "a.csv"
    assert find_file(root, "meta") is None
    assert find_folder(root, "meta") == root / "Meta"
    assert find_folder(root, "a.csv", "a.csv/b") is None
    assert find_file(root / "absent", "a.csv") is None
    with pytest.raises(DataError, match="no file x.csv or y.csv"):
        need_file(root, "x.csv", "y.csv")


def test_a_table_that_is_a_link_out_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, {"outside/meta.csv": b"1", "root/x": b""})
    root = tmp_path / "root"
    (root / "meta.csv").symlink_to("../outside/meta.csv")
    (root / "meta").symlink_to("../outside")
    for name in ("meta.csv", "meta/meta.csv"):
        with pytest.raises(DataError, match="is a link that leaves"):
            find_file(root, name)
