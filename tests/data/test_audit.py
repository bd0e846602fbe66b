import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from fedperl.data.audit import audit, class_counts
from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.data.manifest import Manifest
from fedperl.data.partition import ClientPart, Partition
from fedperl.data.store import Store
from fedperl.report.pictures import class_counts_svg
from fedperl.report.tables import audit_tables


@pytest.fixture(scope="module", name="clean")
def _clean() -> Store:
    return ten_hospitals(size=48, scale=0.01, seed=5)


def encoded_again(image: np.ndarray, quality: int) -> np.ndarray:
    out = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(out, "JPEG", quality=quality)
    return np.asarray(Image.open(io.BytesIO(out.getvalue()))).transpose(2, 0, 1)


def test_our_split_has_nothing_on_both_sides(clean: Store) -> None:
    found = audit(clean)
    assert found.leaks == 0
    assert found.groups.together > 0  # there are lesions with several photographs, each in one place
    assert found.in_two_sets == {}


def test_a_planted_duplicate_of_another_quality_is_found_wherever_it_is(clean: Store) -> None:
    zero, seven = clean.partition.clients[0], clean.partition.clients[7]
    names, counts = np.unique(clean.manifest.group, return_counts=True)
    alone = np.isin(clean.manifest.group, names[counts == 1])  # another photograph of a lesion may be a twin too
    before = audit(clean).twins
    row, spare = (int(row) for row in zero.labelled[alone[zero.labelled]][:2])
    for victim, where, kind in (
        (int(zero.test[0]), "client 0, test", "parts"),
        (int(seven.unlabelled[0]), "client 7, unlabelled", "clients"),
        (int(clean.partition.server.validation[0]), "the server, validation", "clients"),
        (spare, "", "together"),
    ):
        images = clean.images.copy()
        images[victim] = encoded_again(images[row], 60)
        found = audit(dataclasses.replace(clean, images=images)).twins
        assert dataclasses.asdict(found)[kind] == 1 + (before.together if kind == "together" else 0)
        assert found.apart == (kind != "together")
        assert found.training_and_held_out == (where in ("client 0, test", "the server, validation"))
        assert [where in example for example in found.examples] == [True] * found.apart


def test_one_image_in_two_sets_under_two_labels() -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(4, 3, 32, 32), dtype=np.uint8)
    names = np.array(["a", "b", "a", "c", "d"])
    group = np.array(["g", "b", "g", "c", "d"])
    source = np.array(["HAM10000", "HAM10000", "ISIC19", "ISIC19", "ISIC19"])
    manifest = Manifest(("AK", "SCC"), names, np.array([0, 1, 1, 0, 0]), group, source, np.array([0, 1, 0, 2, 3]))
    none = np.empty(0, dtype=np.int64)
    ham = ClientPart("HAM10000", np.array([0]), none, none, np.array([1]))
    isic = ClientPart("ISIC19", none, np.array([3]), none, np.array([2, 4]))
    found = audit(Store(images, manifest, Partition((ham, isic), straddles=True)))
    assert found.in_two_sets == {"HAM10000 and ISIC19": 1}
    assert found.other_label == {"HAM10000 AK, ISIC19 SCC": 1}
    assert (found.same.clients, found.same.training_and_held_out) == (1, 1)
    assert (found.groups.clients, found.groups.training_and_held_out) == (1, 1)
    assert found.same.examples == ("HAM10000 a (client 0, labelled) and ISIC19 a (client 1, test)",)
    assert found.to_dict()["leaks"] == found.leaks == 2
    one = audit(Store(images, manifest, Partition((ham,))))  # dealt once, it is in two sets all the same
    assert one.leaks == 0
    assert one.in_two_sets == {"HAM10000 and ISIC19": 1}


def test_counts_are_those_of_a_naive_count(clean: Store) -> None:
    counts = class_counts(clean)
    for number, client in enumerate(clean.partition.clients):
        for label, name in enumerate(clean.classes):
            naive = sum(1 for row in client.unlabelled if clean.manifest.label[row] == label)
            assert counts[str(number)]["unlabelled"][name] == naive
    assert sum(counts["server"]["validation"].values()) == len(clean.partition.server)


def test_the_picture_has_a_bar_for_each_class_of_each_holder(clean: Store) -> None:
    counts = class_counts(clean)
    svg = class_counts_svg(counts)
    bars = {
        (holder, name): sum(part[name] for part in parts.values())
        for holder, parts in counts.items()
        for name in clean.classes
    }
    assert svg.count("<title>") == sum(1 for count in bars.values() if count)
    assert f"<title>client 8, BCC: {bars['8', 'BCC']}</title>" in svg
    assert "no label" not in svg
    assert class_counts_svg({}).startswith("<svg")


def test_tables_name_what_was_found(clean: Store) -> None:
    images = clean.images.copy()
    zero = clean.partition.clients[0]
    images[zero.test[0]] = encoded_again(images[zero.labelled[0]], 60)
    store = dataclasses.replace(clean, images=images)
    lines = [line for line in audit_tables(store, audit(store)) if isinstance(line, str)]
    assert any(line.startswith("apart, twins: ISIC19 dermsim_") for line in lines)
