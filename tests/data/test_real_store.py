"""The published archives end to end: into a store, dealt, audited. Skipped where they are not at hand."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedperl.data.audit import audit
from fedperl.data.journal import Recipe
from fedperl.data.partitions import deal
from fedperl.data.prepare import prepare, recipe_of
from fedperl.data.readers import read
from fedperl.data.store import Store
from fedperl.data.twins import Pair, find_twins, fingerprints
from fedperl.settings import Partitioning

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="skin")
def _skin(published: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("skin") / "store"
    listings = [read(published(name)) for name in ("isic2019", "ham10000", "pad_ufes20")]
    prepare(listings, folder, Recipe(64), allow_missing=True)
    return Store.open(folder)


def test_the_skin_store_holds_what_the_archives_hold(skin: Store) -> None:
    manifest = skin.manifest
    assert Counter(manifest.source.tolist()) == {"ISIC19": 12_907, "HAM10000": 10_015, "PAD-UFES": 1_428}
    for source, counts in (
        ("HAM10000", {"NV": 6705, "MEL": 1113, "BKL": 1099, "BCC": 514, "AK": 327, "VASC": 142, "DF": 115}),
        ("PAD-UFES", {"BCC": 618, "AK": 289, "NV": 195, "BKL": 154, "SCC": 125, "MEL": 47}),
    ):
        found = Counter(skin.classes[label] for label in manifest.label[manifest.source == source])
        assert found == counts
    assert [about["missing"] for about in skin.made["sets"]] == [12_424, 0, 870]
    # Every HAM10000 image is stored once, with both sets' labels; ten files are byte for byte another's copy.
    assert len(skin.images) == 14_335 - 10
    row = {name: number for number, name in enumerate(manifest.names())}
    shared = [(row["ISIC19", image], number) for (source, image), number in row.items() if source == "HAM10000"]
    assert len(shared) == 10_015
    assert all(manifest.pixels[a] == manifest.pixels[b] for a, b in shared)
    other = [(a, b) for a, b in shared if manifest.label[a] != manifest.label[b]]
    assert len(other) == 197
    assert {(skin.classes[manifest.label[a]], skin.classes[manifest.label[b]]) for a, b in other} == {("SCC", "AK")}
    assert set(manifest.about["skin_type"].tolist()) <= {"", "1", "2", "3", "4", "5", "6"}
    assert (manifest.about["skin_type"] == "2").sum() > 300


@pytest.fixture(scope="module", name="twins")
def _twins(skin: Store) -> list[Pair]:
    return find_twins(fingerprints(skin.images))


@pytest.mark.parametrize("kind", ["share", "exclude", "overlap"])
def test_the_audit_finds_the_papers_leak_and_none_in_ours(skin: Store, twins: list[Pair], kind: str) -> None:
    settings = Partitioning(kind="paper", ham_in_isic19=kind)  # type: ignore[arg-type]
    found = audit(skin.dealt(deal(skin.manifest, settings, seed=0)), twins)
    assert found.in_two_sets["HAM10000 and ISIC19"] >= 10_015
    if kind == "overlap":
        assert found.same.clients >= 10_000
        assert found.same.training_and_held_out > 4_000
        assert found.groups.clients == 7_470
        assert found.twins.clients > 100
    else:
        assert found.leaks == 0
        assert found.twins.together > 100


def test_known_twins_are_one_group(skin: Store) -> None:
    row = {str(name): i for i, name in enumerate(skin.manifest.image)}
    published = skin.manifest.about["published_group"]
    for pair in ("ISIC_0000222 ISIC_0014846", "ISIC_0012290 ISIC_0013594", "ISIC_0025226 ISIC_0030074"):
        one, other = pair.split()
        assert published[row[one]] != published[row[other]]
        assert skin.manifest.group[row[one]] == skin.manifest.group[row[other]]
    _, sizes = np.unique(skin.manifest.group, return_counts=True)
    assert sizes.max() < 60  # no chain of likenesses swallows the set


@pytest.mark.parametrize(("name", "images"), [("cifar10", 60_000), ("fashion_mnist", 70_000)])
def test_the_small_sets_are_read_without_loss(
    published: Callable[[str], Path], tmp_path: Path, name: str, images: int
) -> None:
    whole = read(published(name))
    counts = Counter(row.label for row in whole.rows)
    assert set(counts) == set(whole.classes)
    assert set(counts.values()) == {images // 10}
    chosen = np.sort(np.random.default_rng(0).permutation(images)[: images // 5])  # all of them take half a minute
    listing = dataclasses.replace(whole, rows=[whole.rows[row] for row in chosen])
    prepare([listing], tmp_path / "store", recipe_of([listing]))
    store = Store.open(tmp_path / "store")
    assert store.size == 32
    assert len(store.manifest) == images // 5
    for row in (0, images // 10, images // 5 - 1):
        wanted = np.asarray(listing.rows[row].pixels).transpose(2, 0, 1)
        assert (store.pixels(np.array([row]))[0] == wanted).all()
    assert Counter(store.manifest.about["split"].tolist())["test"] == pytest.approx(2_000, abs=200)
    kinds = {"cifar10": ("fedmatch_iid", "fedmatch_noniid"), "fashion_mnist": ("fedmatch_streaming",)}
    for kind in kinds[name]:
        partition = deal(store.manifest, Partitioning(kind=kind), seed=1)  # type: ignore[arg-type]
        store.dealt(partition)
        assert len(partition.clients) == {"cifar10": 100, "fashion_mnist": 10}[name]
