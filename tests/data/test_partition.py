import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.data.manifest import Manifest
from fedperl.data.partition import PARTS, Partition, ServerPart, split_by_group
from fedperl.data.partitions.paper import PAPER
from fedperl.data.store import Store
from fedperl.errors import DataError
from tests.conftest import small_store


@given(st.integers(0, 10_000), st.lists(st.integers(1, 4), min_size=8, max_size=60))
def test_groups_stay_whole_and_sizes_hold(seed: int, group_sizes: list[int]) -> None:
    groups = np.repeat([f"g{i}" for i in range(len(group_sizes))], group_sizes)
    n = len(groups)
    labels = np.random.default_rng(seed).integers(0, 3, size=len(group_sizes)).repeat(group_sizes)
    sizes = [n // 8, n // 4, n // 8, n - n // 2]
    parts = split_by_group(np.arange(n), labels, groups, sizes, np.random.default_rng(seed))
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))
    holders = Counter(g for part in parts for g in set(groups[part]))
    assert max(holders.values()) == 1
    assert all(abs(len(part) - size) <= max(group_sizes) for part, size in zip(parts, sizes, strict=True))


def test_classes_are_in_proportion() -> None:
    labels = np.repeat([0, 1], [300, 100])
    parts = split_by_group(
        np.arange(400), labels, np.arange(400).astype(np.str_), [50, 150, 50, 150], np.random.default_rng(1)
    )
    for part in parts:
        assert abs((labels[part] == 1).mean() - 0.25) < 0.03


def test_ten_hospitals_are_the_papers() -> None:
    store = ten_hospitals(size=16, scale=0.04, seed=3)
    none: set[int] = set()
    missing = dict.fromkeys(range(10), none) | {5: {7}, 6: {7}, 7: {7}, 8: {5, 6}, 9: {3, 7}}
    for number, (client, paper) in enumerate(zip(store.partition.clients, PAPER, strict=True)):
        assert client.source == paper.source
        for part, size in zip(PARTS, paper.parts(0.04), strict=True):
            assert abs(len(getattr(client, part)) - size) <= 3
        absent = set(range(8)) - set(store.manifest.label[client.rows()].tolist())
        assert missing[number] <= absent
    assert len(store.partition.server) == 40
    assert set(store.manifest.source[store.partition.clients[8].rows()]) == {"PAD-UFES"}
    assert len(np.unique(store.manifest.group)) < len(store.manifest)  # some lesions have several photographs
    again = ten_hospitals(size=16, scale=0.04, seed=3)
    assert again.digest() == store.digest()
    assert (again.images == store.images).all()
    assert ten_hospitals(size=16, scale=0.04, seed=4).digest() != store.digest()


def test_partition_file_round_trip(tmp_path: Path) -> None:
    store = small_store()
    first = store.partition.clients[0]
    streams = dataclasses.replace(first, step=np.arange(len(first.unlabelled)) // 2)
    server = ServerPart(*np.array_split(store.partition.server.rows(), 3))
    partition = Partition((streams, *store.partition.clients[1:]), server, {"kind": "test"}, straddles=True)
    file = tmp_path / "p.csv"
    partition.write(file, store.manifest)
    again = Partition.read(file, store.manifest)
    assert again.hash(store.manifest) == partition.hash(store.manifest)
    assert again.made == {"kind": "test"}
    assert again.straddles
    assert (again.clients[0].step == streams.step).all()
    for name, rows in partition.places():
        assert (dict(again.places())[name] == rows).all()
    line = f"0,labelled,,test,{store.manifest.image[first.labelled[0]]},{store.manifest.group[first.labelled[0]]}"
    assert line in file.read_text().splitlines()  # by name: the same file serves a store of another size


def test_bad_partition_files_are_refused(tmp_path: Path) -> None:
    store, file = small_store(), tmp_path / "p.csv"
    store.partition.write(file, store.manifest)
    good = file.read_text()
    for bad, message in (
        ('{"clients": 3}', r"p\.csv: cannot be read as a partition"),
        (good.replace(",image_0,", ",image_x,"), r"p\.csv, line \d+: no image 'image_x' of 'test' in the store"),
        (good.replace("false", '"no"', 1), r"p\.csv: straddles is 'no'; wanted true or false"),
        (good.replace("0,unlabelled,,", "0,unlabelled,-1,"), r"steps \[-1\] \.\.\.; wanted 0, 1, 2"),
        (good.replace("0,unlabelled,,", "0,unlabelled,99999999999,"), r"wanted 0, 1, 2 and so on"),
        (good.replace("0,labelled", "7,labelled"), r"holder '7', part 'labelled'; there are 5 clients"),
        (good.replace("0,labelled", "0,secret"), r"holder '0', part 'secret'"),
        (good + "0,labelled\n", r"p\.csv, line \d+: wanted the columns"),
    ):
        file.write_text(bad)
        with pytest.raises(DataError, match=message):
            Partition.read(file, store.manifest)
    with pytest.raises(DataError, match="cannot be read as a partition"):
        Partition.read(tmp_path / "none.csv", store.manifest)
    file.write_bytes(b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode())  # as a spreadsheet saves it
    assert Partition.read(file, store.manifest).hash(store.manifest) == store.partition.hash(store.manifest)


def test_leaks_are_refused() -> None:
    store = small_store()
    groups = store.manifest.group.copy()
    groups[store.partition.clients[0].test[0]] = groups[store.partition.clients[0].labelled[0]]
    with pytest.raises(DataError, match="on both sides of a split, client 0, labelled and client 0, test"):
        store.partition.check(groups)
    dataclasses.replace(store.partition, straddles=True).check(groups)
    twice = Partition(store.partition.clients, ServerPart(validation=store.partition.clients[0].test[:1]))
    with pytest.raises(DataError, match="row .* is dealt to the server, validation and to client 0, test"):
        twice.check(store.manifest.group)
    with pytest.raises(DataError, match="the manifest has 3 rows"):
        store.partition.check(store.manifest.group[:3])


def test_store_round_trip_is_mapped(tmp_path: Path) -> None:
    store = small_store()
    store.save(tmp_path / "s")
    opened = Store.open(tmp_path / "s")
    assert isinstance(opened.images, np.memmap)
    assert (opened.images == store.images).all()
    assert (opened.manifest.label == store.manifest.label).all()
    assert opened.digest() == store.digest()
    (tmp_path / "s" / "store.json").unlink()
    with pytest.raises(DataError, match=r"not a store, store\.json is missing"):
        Store.open(tmp_path / "s")


def test_bad_manifests_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("image,label,group,source\na,A,g,s\nb,X,g,s\n")
    with pytest.raises(DataError, match=r"m\.csv, line 3: label 'X'"):
        Manifest.read(file, ("A", "B"))
    file.write_text("image,label\na,A\n")
    with pytest.raises(DataError, match="missing: \\['group', 'source'\\]"):
        Manifest.read(file, ("A", "B"))
    file.write_text("image,label,group,source\na,A,g,s\na,,g,s\n")
    with pytest.raises(DataError, match="s lists image 'a' more than once"):
        Manifest.read(file, ("A", "B"))
    names = np.array(["a"])
    for label in (-100, 2):
        with pytest.raises(DataError, match=f"has label {label}"):
            Manifest(("A", "B"), names, np.array([label]), names, names)
