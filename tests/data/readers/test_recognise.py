from collections.abc import Callable
from pathlib import Path

import pytest

from fedperl.data.manifest import ABOUT
from fedperl.data.readers import READERS, read, recognise
from fedperl.errors import DataError
from tests.data.readers import trees

TREES: dict[str, Callable[[], trees.Tree]] = {
    "ham10000": trees.ham10000,
    "isic2019": trees.isic2019,
    "pad_ufes20": trees.pad_ufes20,
    "derm7pt": trees.derm7pt,
    "isic2020": trees.isic2020,
    "cifar10": trees.cifar10,
    "fashion_mnist": trees.fashion_mnist,
    "generic": trees.generic_folders,
}


@pytest.mark.parametrize("kind", READERS)
def test_each_layout_is_recognised_as_itself_alone(tmp_path: Path, kind: str) -> None:
    folder = trees.write(tmp_path / "set", TREES[kind]())
    assert recognise(folder) == kind
    others = [name for name, reader in READERS.items() if reader.recognises(folder)]
    assert set(others) <= {kind, "generic"}
    listing = read(folder)
    assert [row.image for row in listing.rows] == [row.image for row in read(folder, kind).rows]
    assert listing.rows
    for row in listing.rows:
        assert row.label in (*listing.classes, "")
        assert row.group
        assert set(row.about) <= set(ABOUT)


@pytest.mark.parametrize(
    "kind", ["ham10000", "isic2019", "pad_ufes20", "isic2020", "fashion_mnist", "cifar10", "derm7pt"]
)
def test_letter_case_does_not_matter(tmp_path: Path, kind: str) -> None:
    tree = {name.lower(): content for name, content in TREES[kind]().items()}
    assert recognise(trees.write(tmp_path, tree)) == kind
    assert len(read(tmp_path).rows) + len(read(tmp_path).dropped) >= 5


def test_a_generic_table(tmp_path: Path) -> None:
    assert recognise(trees.write(tmp_path, trees.generic_table())) == "generic"
    renamed = trees.generic_table()
    renamed["metadata.csv"] = renamed.pop("images.csv")
    assert recognise(trees.write(tmp_path / "b", renamed)) == "generic"


def test_an_unknown_kind_or_folder_lists_the_known_ones(tmp_path: Path) -> None:
    for attempt in (lambda: read(tmp_path, "imagenet"), lambda: read(tmp_path), lambda: recognise(tmp_path)):
        with pytest.raises(DataError) as caught:
            attempt()
        for kind, reader in READERS.items():
            assert f"{kind} (by {reader.TELL_TALE})" in str(caught.value)
    with pytest.raises(DataError, match="no such folder"):
        read(tmp_path / "absent")
    with pytest.raises(DataError, match="no such folder"):
        recognise(tmp_path / "absent")


def test_two_sets_in_one_folder_need_the_kind(tmp_path: Path) -> None:
    trees.write(tmp_path, trees.ham10000() | trees.isic2019())
    with pytest.raises(DataError, match="could be any of ham10000, isic2019; name the kind"):
        read(tmp_path)
    assert len(read(tmp_path, "ham10000").rows) == 8
    assert len(read(tmp_path, "isic2019").rows) == 5


def test_a_folder_of_data_sets_is_not_one_with_the_sets_as_classes(tmp_path: Path) -> None:
    trees.write(tmp_path / "ham", trees.ham10000())
    trees.write(tmp_path / "pad", trees.pad_ufes20())
    with pytest.raises(DataError, match=r"its folder ham is a data set \(ham10000\); give that"):
        read(tmp_path)
