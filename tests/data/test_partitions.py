import dataclasses
from collections import Counter

import numpy as np
import pytest

from fedperl.data.manifest import Manifest
from fedperl.data.partition import PARTS, Partition
from fedperl.data.partitions import deal
from fedperl.data.partitions.fedmatch import class_chances
from fedperl.data.partitions.paper import PAPER
from fedperl.data.readers.base import SKIN
from fedperl.errors import DataError
from fedperl.settings import Partitioning


def skin_manifest(ham: int = 900, other: int = 400, pad: int = 240, derm: int = 0, seed: int = 0) -> Manifest:
    """HAM10000 listed twice, as in the published sets: once by itself, once by ISIC 2019 with AK and SCC told apart."""
    generator = np.random.default_rng(seed)
    lesion = np.sort(generator.integers(0, ham * 3 // 4, size=ham))
    of_lesion = generator.choice(7, size=ham, p=[0.1, 0.6, 0.05, 0.1, 0.1, 0.02, 0.03])
    ham_label = of_lesion[lesion]
    isic_label = np.where((ham_label == 3) & (lesion % 2 == 0), 7, ham_label)
    other_label = generator.integers(0, 8, size=other)
    patient = np.sort(generator.integers(0, pad // 2, size=pad))
    names = [f"ISIC_{i}" for i in range(ham)]
    image = names + names + [f"ISIC_{100_000 + i}" for i in range(other)] + [f"PAT_{i}" for i in range(pad)]
    image += [f"case_{i}" for i in range(derm)]
    group = [f"HAM_{i}" for i in lesion] * 2 + [f"image {i}" for i in range(other)] + [f"P{i}" for i in patient]
    group += [f"case {i}" for i in range(derm)]
    source = ["HAM10000"] * ham + ["ISIC19"] * (ham + other) + ["PAD-UFES"] * pad + ["Derm7pt"] * derm
    label = np.concatenate(
        [ham_label, isic_label, other_label, generator.integers(0, 5, size=pad), generator.integers(0, 3, size=derm)]
    )
    pixels = np.concatenate([np.arange(ham), np.arange(ham + other + pad + derm)])
    return Manifest(SKIN, np.array(image), label.astype(np.int64), np.array(group), np.array(source), pixels)


def holders(partition: Partition, values: np.ndarray) -> dict[str, set[str]]:
    """Group (or image) -> the places that hold a row of it."""
    found: dict[str, set[str]] = {}
    for place, rows in partition.places():
        for value in values[rows].tolist():
            found.setdefault(value, set()).add(place)
    return found


@pytest.mark.parametrize("kind", ["share", "exclude"])
def test_the_papers_clients_share_no_group_and_no_image(kind: str) -> None:
    manifest = skin_manifest()
    partition = deal(manifest, Partitioning(kind="paper", ham_in_isic19=kind), seed=3)  # type: ignore[arg-type]
    partition.check(manifest.group)
    assert max(map(len, holders(partition, manifest.group).values())) == 1
    assert max(map(len, holders(partition, manifest.pixels).values())) == 1
    assert not partition.straddles
    assert [client.source for client in partition.clients] == [hospital.source for hospital in PAPER[:9]]
    assert partition.made["left_out"] == ["Derm7pt"]
    for client in partition.clients:
        assert set(manifest.source[client.rows()]) == {client.source}  # hence labelled by its own set's truth
        assert min(len(getattr(client, part)) for part in PARTS) >= 2


def test_share_deals_ham_lesions_two_to_one_and_exclude_none() -> None:
    manifest = skin_manifest(ham=3000, other=600)
    is_ham = np.char.startswith(manifest.group, "HAM_")

    def in_isic(kind: str) -> float:
        partition = deal(manifest, Partitioning(kind="paper", ham_in_isic19=kind), seed=1)  # type: ignore[arg-type]
        counts = Counter[str]()
        for client in partition.clients:
            counts[client.source] += int(is_ham[client.rows()].sum())
        counts["ISIC19"] += int(is_ham[partition.server.rows()].sum())
        return counts["ISIC19"] / (counts["ISIC19"] + counts["HAM10000"])

    assert in_isic("share") == pytest.approx(2 / 3, abs=0.02)
    assert in_isic("exclude") == 0


def test_overlap_is_the_papers_leak() -> None:
    manifest = skin_manifest()
    partition = deal(manifest, Partitioning(kind="paper", ham_in_isic19="overlap"), seed=3)
    partition.check(manifest.group)  # said to straddle, so not refused
    assert partition.straddles
    assert max(map(len, holders(partition, manifest.pixels).values())) == 2
    by_image = deal(manifest, Partitioning(kind="paper", ham_in_isic19="overlap", group_by="image"), seed=3)
    within = [
        len({place for place in places if place.startswith(("client 5", "client 6", "client 7"))})
        for places in holders(by_image, manifest.group).values()
    ]
    assert max(within) > 1  # even inside HAM10000 a lesion is on both sides


def test_sizes_are_the_papers_or_scaled_to_the_pool() -> None:
    large = skin_manifest(ham=10_015, other=15_316, pad=2298, derm=987)
    partition = deal(large, Partitioning(kind="paper", ham_in_isic19="overlap"), seed=1)
    assert len(partition.server.validation) == pytest.approx(1000, abs=5)
    for client, hospital in zip(partition.clients, PAPER, strict=True):
        for part, wanted in zip(PARTS, hospital.parts(1.0), strict=True):
            assert len(getattr(client, part)) == pytest.approx(wanted, abs=8)
    small = deal(skin_manifest(), Partitioning(kind="paper"), seed=1)
    dealt = sum(map(len, small.clients)) + len(small.server)
    assert dealt == pytest.approx(900 + 400 + 240, abs=20)  # every lesion once
    sizes = [len(client) for client in small.clients]
    assert sizes[0] / sizes[4] == pytest.approx(4000 / 3255, abs=0.06)


def test_a_group_over_two_pools_stays_in_one() -> None:
    manifest = skin_manifest()
    group = manifest.group.copy()
    first_patient = np.flatnonzero(manifest.source == "PAD-UFES")[0]
    group[first_patient] = "HAM_1"  # a twin of a HAM image among the smartphone photographs
    twinned = Manifest(SKIN, manifest.image, manifest.label, group, manifest.source, manifest.pixels)
    for kind in ("share", "exclude"):
        deal(twinned, Partitioning(kind="paper", ham_in_isic19=kind), seed=3).check(group)


def test_the_same_seed_gives_the_same_partition() -> None:
    manifest = skin_manifest()
    for kind in ("paper", "iid", "dirichlet", "site"):
        settings = Partitioning(kind=kind)
        one, two, three = (deal(manifest, settings, seed=seed).hash(manifest) for seed in (1, 1, 2))
        assert one == two != three


def test_auto_is_the_papers_partition() -> None:
    manifest = skin_manifest()
    auto, paper = (deal(manifest, Partitioning(kind=kind), seed=1).hash(manifest) for kind in ("auto", "paper"))
    assert auto == paper


def test_the_paper_partition_wants_the_papers_sets() -> None:
    names = np.array(["a", "b"])
    other = Manifest(("x", "y"), names, np.array([0, 1]), names, np.array(["mine", "mine"]))
    with pytest.raises(DataError, match=r"wants images of ISIC19, HAM10000, PAD-UFES, Derm7pt; the store has mine"):
        deal(other, Partitioning(kind="paper"), seed=1)


def test_iid_clients_are_alike_and_dirichlet_ones_are_not() -> None:
    manifest = skin_manifest(ham=3000, other=600)

    def skew(partition: Partition) -> float:
        """Mean over clients of the distance between its class mix and everyone's."""
        every = np.bincount(manifest.label[np.unique(manifest.pixels, return_index=True)[1]], minlength=8)
        mixes = [np.bincount(manifest.label[client.rows()], minlength=8) for client in partition.clients]
        return float(np.mean([np.abs(mix / mix.sum() - every / every.sum()).sum() / 2 for mix in mixes]))

    iid = deal(manifest, Partitioning(kind="iid", clients=6), seed=1)
    iid.check(manifest.group)
    sizes = [len(client) for client in iid.clients]
    assert max(sizes) - min(sizes) < 12
    assert max(map(len, holders(iid, manifest.pixels).values())) == 1
    mild = deal(manifest, Partitioning(kind="dirichlet", clients=6, alpha=100.0), seed=1)
    strong = deal(manifest, Partitioning(kind="dirichlet", clients=6, alpha=0.1), seed=1)
    strong.check(manifest.group)
    assert skew(iid) < 0.03
    assert skew(mild) < 0.12
    assert skew(strong) > 0.3
    assert sum(map(len, strong.clients)) + len(strong.server) == 3000 + 600 + 240


def test_dirichlet_shares_have_the_distributions_spread() -> None:
    """The share of one class at one client has the mean 1/K and the variance (K-1) / (K^2 (K alpha + 1))."""
    n, clients, alpha = 4000, 4, 0.7
    names = np.array([str(i) for i in range(n)])
    manifest = Manifest(("x",), names, np.zeros(n, dtype=np.int64), names, np.full(n, "s"))
    settings = Partitioning(kind="dirichlet", clients=clients, alpha=alpha, server=0.0)
    shares = [len(client) / n for seed in range(60) for client in deal(manifest, settings, seed=seed).clients]
    assert np.mean(shares) == pytest.approx(1 / clients)
    assert np.var(shares) == pytest.approx((clients - 1) / clients**2 / (clients * alpha + 1), rel=0.35)


def test_dirichlet_without_enough_images_is_refused() -> None:
    with pytest.raises(DataError, match="fewer clients or a larger alpha"):
        deal(skin_manifest(60, 20, 20), Partitioning(kind="dirichlet", clients=40, alpha=0.01), seed=1)


def test_site_is_the_institution_or_the_set() -> None:
    manifest = skin_manifest()
    partition = deal(manifest, Partitioning(kind="site"), seed=1)
    partition.check(manifest.group)
    assert {client.source for client in partition.clients} == {"HAM10000", "ISIC19", "PAD-UFES"}
    place = np.where(np.arange(len(manifest)) % 2 == 0, "Vienna", "")
    place[manifest.source != "HAM10000"] = ""
    named = Manifest(
        SKIN,
        manifest.image,
        manifest.label,
        manifest.group,
        manifest.source,
        manifest.pixels,
        {"institution": place},
    )
    sources = {client.source for client in deal(named, Partitioning(kind="site"), seed=1).clients}
    assert sources == {"HAM10000", "ISIC19", "PAD-UFES", "Vienna"}
    names = np.array([str(i) for i in range(20)])
    one = Manifest(("x",), names, np.zeros(20, dtype=np.int64), names, np.full(20, "s"))
    with pytest.raises(DataError, match=r"found s \(19 images\); wanted two or more"):
        deal(one, Partitioning(kind="site", server=0.05), seed=1)


def test_images_without_label_are_only_ever_unlabelled() -> None:
    n = 400
    names = np.array([f"{i}" for i in range(n)])
    label = np.where(np.arange(n) % 3 == 0, -1, np.arange(n) % 2)
    group = np.array([f"g{i // 2}" for i in range(n)])
    manifest = Manifest(("x", "y"), names, label, group, np.full(n, "s"))
    for kind in ("iid", "dirichlet"):
        partition = deal(manifest, Partitioning(kind=kind, clients=4, alpha=5.0), seed=1)
        partition.check(group)
        for client in partition.clients:
            for part in ("labelled", "validation", "test"):
                assert (label[getattr(client, part)] >= 0).all()
                assert len(getattr(client, part))
        assert sum(map(len, partition.clients)) + len(partition.server) == n


# FedMatch


def ten_classes(n: int = 8000) -> Manifest:
    names = np.array([f"{i}" for i in range(n)])
    split = np.where(np.arange(n) % 6 == 0, "test", "train")
    classes = tuple("abcdefghij")
    return Manifest(classes, names, np.arange(n) % 10, names, np.full(n, "CIFAR-10"), about={"split": split})


def test_fedmatch_class_chances_are_the_published_ones() -> None:
    for kind in range(10):
        chances = class_chances(kind)
        assert chances.sum() == pytest.approx(1)
        assert chances[kind] == 0.5
        assert chances[(kind + 1) % 10] == chances[(kind - 1) % 10] == 0.15
        assert chances[(kind + 5) % 10] == 0.02
        assert sorted(chances)[1:7] == [0.03] * 6


@pytest.mark.parametrize("kind", ["fedmatch_iid", "fedmatch_noniid", "fedmatch_streaming"])
def test_fedmatch_tasks(kind: str) -> None:
    manifest = ten_classes()
    settings = Partitioning(kind=kind, clients=20)  # type: ignore[arg-type]
    partition = deal(manifest, settings, seed=1)
    partition.check(manifest.group)
    assert (len(partition.server.validation), len(partition.server.test)) == (400, 400)
    assert not len(partition.server.labelled)
    each = (8000 - 800 - 20 * 50) // 20
    for number, client in enumerate(partition.clients):
        assert np.bincount(manifest.label[client.labelled]).tolist() == [5] * 10  # balanced even in non-IID
        assert len(client.unlabelled) == each
        assert not len(client.validation)
        mix = np.bincount(manifest.label[client.unlabelled], minlength=10) / each
        if kind == "fedmatch_iid":
            assert mix.max() < 0.17
        else:
            assert mix.argmax() == number % 10
            assert mix[number % 10] == pytest.approx(0.5, abs=0.12)
            assert (mix > 0).all()
        if kind == "fedmatch_streaming":
            assert np.bincount(client.step).tolist() == [31] * 10
        else:
            assert not len(client.step)


def test_fedmatch_with_labels_at_the_server_or_the_official_test_set() -> None:
    manifest = ten_classes()
    at_server = deal(manifest, Partitioning(kind="fedmatch_iid", clients=20), seed=1, labels_at_server=True)
    assert np.bincount(manifest.label[at_server.server.labelled]).tolist() == [100] * 10
    assert all(len(client.labelled) == 0 for client in at_server.clients)
    assert len(at_server.clients[0].unlabelled) == (8000 - 800 - 1000) // 20
    official = deal(manifest, Partitioning(kind="fedmatch_iid", clients=20, official_test=True), seed=1)
    assert set(official.server.test) == set(np.flatnonzero(manifest.about["split"] == "test"))
    assert max(map(len, holders(official, manifest.image).values())) == 1


def test_fedmatch_has_the_published_numbers_on_sixty_and_seventy_thousand_images() -> None:
    cifar, fashion = ten_classes(60_000), ten_classes(70_000)
    batch = deal(cifar, Partitioning(kind="fedmatch_noniid"), seed=1)
    assert (len(batch.clients), len(batch.server.validation), len(batch.server.test)) == (100, 3000, 3000)
    assert {len(client.unlabelled) for client in batch.clients} == {490}
    server = deal(cifar, Partitioning(kind="fedmatch_iid"), seed=1, labels_at_server=True)
    assert {len(client.unlabelled) for client in server.clients} == {530}
    stream = deal(fashion, Partitioning(kind="fedmatch_streaming"), seed=1)
    assert (len(stream.clients), len(stream.server.test)) == (10, 3500)
    assert {len(client.unlabelled) for client in stream.clients} == {6250}
    released = deal(cifar, Partitioning(kind="fedmatch_iid", held_out=2000 / 60000), seed=1)
    assert (len(released.server.validation), len(released.server.test)) == (2000, 2000)
    assert {len(client.unlabelled) for client in released.clients} == {510}


def test_fedmatch_wants_ten_classes_and_enough_images() -> None:
    with pytest.raises(DataError, match="is for ten classes"):
        deal(skin_manifest(), Partitioning(kind="fedmatch_iid"), seed=1)
    with pytest.raises(DataError, match=r"partition.held_out = 0.0001 of 8000 images is none"):
        deal(ten_classes(), Partitioning(kind="fedmatch_iid", held_out=0.0001), seed=1)
    with pytest.raises(DataError, match=r"labels 500 images a class; 'a' has no more"):
        deal(ten_classes(4000), Partitioning(kind="fedmatch_iid"), seed=1)
    plain = dataclasses.replace(ten_classes(4000), about={})
    with pytest.raises(DataError, match="no image of the store is published as a test image"):
        deal(plain, Partitioning(kind="fedmatch_iid", clients=5, official_test=True), seed=1)
