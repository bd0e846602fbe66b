from pathlib import Path

import pytest

from fedperl.data.readers.base import (
    LONGEST,
    Entry,
    find_images,
    quoted,
    read_header,
    read_table,
    required,
    stated,
    translate,
)
from fedperl.errors import DataError


def table(folder: Path, content: bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(content)
    return path


def test_a_table_is_read_with_its_lines(tmp_path: Path) -> None:
    path = table(tmp_path, b'\xef\xbb\xbfimage, label\r\n a ,"x, y"\r\n\r\nb,"two\nlines"\r\n')
    assert list(read_table(path, ("image", "label"))) == [
        (f"{path}, line 2", {"image": "a", "label": "x, y"}),
        (f"{path}, line 5", {"image": "b", "label": "two\nlines"}),
    ]
    assert read_header(path) == ["image", "label"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column image, label"),
        (b"image;label\na;b\n", "no column image, label; found: 'image;label'"),
        (b"image,label,label\na,b,c\n", "column label is there 2 times"),
        (b"image,label\na\n", "line 2: 1 values; wanted 2"),
        (b"image,label\na,b\na,b,c\n", "line 3: 3 values; wanted 2"),
        (b"image,label\na,b\0\n", "NUL"),
        (b"image,label\n\xff,b\n", "cannot be read as csv"),
        (b'image,label\n"a,b\n', "cannot be read as csv"),
        (b"image,label\n" + b"a" * 200_000 + b",b\n", "cannot be read as csv"),
        ("image,label\na,b\n".encode("utf-16"), "cannot be read as csv"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = table(tmp_path, content)
    with pytest.raises(DataError) as caught:
        list(read_table(path, ("image", "label")))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_table_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(DataError, match="cannot be read as csv"):
            list(read_table(path, ("image",)))


def test_values() -> None:
    row = {"age": "80.0", "sex": "Unknown", "site": "level 2.0", "blank": ""}
    assert [stated(row, name) for name in ("age", "sex", "site", "blank", "absent")] == ["80", "", "level 2.0", "", ""]
    assert required(row, "age", "here") == "80.0"
    with pytest.raises(DataError, match="here: blank is blank"):
        required(row, "blank", "here")
    assert translate("  Blue   NEVUS ", {"blue nevus": "NV"}, "here", "dx") == "NV"
    with pytest.raises(DataError, match="here: dx 'red nevus'; wanted one of: blue nevus, mole"):
        translate("red nevus", {"blue nevus": "NV", "mole": "NV"}, "here", "dx")
    assert quoted("a\x1b[31m") == r"'a\x1b[31m'"
    assert len(quoted("a" * 10_000)) < 100


def test_entries_become_rows_missing_or_dropped(tmp_path: Path) -> None:
    entries = [
        Entry("1", "a", "NV", "g", {"age": "4"}),
        Entry("2", "b", "MEL", "g"),
        Entry("3", "c", "", "h", dropped="UNK"),
        Entry("4", "d", "", "h", dropped="UNK"),
    ]
    there = {"a": tmp_path / "a.jpg", "c": tmp_path / "c.jpg"}
    listing = find_images("S", tmp_path, ("NV", "MEL"), entries, lambda image, where: there.get(image))
    assert [(row.image, row.pixels, row.label, row.group, row.about) for row in listing.rows] == [
        ("a", tmp_path / "a.jpg", "NV", "g", {"age": "4"})
    ]
    assert listing.missing == ["b"]
    assert listing.dropped == {"UNK": 2}


@pytest.mark.parametrize("second", ["a", "A"])
def test_an_image_listed_twice_is_refused_even_when_it_is_missing_or_dropped(tmp_path: Path, second: str) -> None:
    entries = [Entry("line 1", "a", "", "g", dropped="UNK"), Entry("line 2", second, "NV", "g")]
    with pytest.raises(DataError, match=f"line 2: image '{second}' is already in line 1"):
        find_images("S", tmp_path, ("NV",), entries, lambda image, where: None)
    with pytest.raises(DataError, match="already in line 1"):
        find_images("S", tmp_path, ("NV",), entries, lambda image, where: tmp_path / "a.jpg")


def test_overlong_and_unwritable_values_are_refused(tmp_path: Path) -> None:
    for entry in (Entry("here", "a", "NV", "g" * (LONGEST + 1)), Entry("here", "a", "NV", "g", {"sex": "x" * 5000})):
        with pytest.raises(DataError, match=f"characters; at most {LONGEST}"):
            find_images("S", tmp_path, ("NV",), [entry], lambda image, where: None)
    with pytest.raises(DataError, match="not UTF-8"):
        find_images("S", tmp_path, ("NV",), [Entry("here", "a\udcff", "NV", "g")], lambda image, where: None)
