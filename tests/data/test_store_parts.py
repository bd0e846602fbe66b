"""One hospital's images taken out of a store: the same ones in the same order, and nobody else's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.data.manifest import Manifest
from fedperl.data.partition import PARTS, SERVER_PARTS, ClientPart, Partition, ServerPart, no_rows
from fedperl.data.store import Store
from fedperl.federation.client import Workspace, client_of_store
from fedperl.federation.messages import EvaluateTask, GlobalModel, TrainTask
from fedperl.federation.wire import evaluation_parcel, update_parcel
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.state import state_of
from tests.conftest import small_config, small_store


@pytest.fixture(scope="module", name="dermsim")
def _dermsim() -> Store:
    return ten_hospitals(size=16, scale=0.02, seed=0)


def rich_store() -> Store:
    """A store in which everything is odd: rows in no order, images listed twice, patients described, a stream."""
    plain = small_store(clients=4, images=24)
    generator = np.random.default_rng(7)
    n = len(plain.manifest)
    pixels = generator.permutation(n)
    listed_twice = plain.partition.clients[1].test[:2], plain.partition.clients[2].test[:2]
    pixels[listed_twice[1]] = pixels[listed_twice[0]]
    label = plain.manifest.label.copy()
    label[plain.partition.clients[1].unlabelled[:3]] = -1
    sex, age = np.resize(np.array(["female", "male", ""]), n), np.array([str(20 + k % 60) for k in range(n)])
    manifest = Manifest(
        plain.classes,
        plain.manifest.image,
        label,
        plain.manifest.group,
        np.resize(np.array(["one", "other"]), n),
        pixels,
        {"sex": sex, "age": age},
    )
    parts = [
        ClientPart(part.source, *(generator.permutation(getattr(part, name)) for name in PARTS))
        for part in plain.partition.clients
    ]
    parts[2] = replace(parts[2], step=np.arange(len(parts[2].unlabelled)) % 3)
    rows = plain.partition.server.validation
    server = ServerPart(labelled=rows[[2, 0]], validation=rows[3:6], test=rows[[7, 6]])
    return Store(plain.images, manifest, Partition(tuple(parts), server, {"by": "hand"}), plain.made)


def check_same(part: Store, own: ClientPart | ServerPart, whole: Store, held: ClientPart | ServerPart) -> None:
    """Check that every use has the images, in their order, with all that is known of them."""
    names = SERVER_PARTS if isinstance(held, ServerPart) else PARTS
    for name in names:
        ours, theirs = getattr(own, name), getattr(held, name)
        assert len(ours) == len(theirs)
        for row, other in zip(ours.tolist(), theirs.tolist(), strict=True):
            assert np.array_equal(part.pixels(np.array([row]))[0], whole.images[whole.manifest.pixels[other]])
            for column in ("image", "label", "group", "source"):
                assert getattr(part.manifest, column)[row] == getattr(whole.manifest, column)[other]
            assert {k: v[row] for k, v in part.manifest.about.items()} == {
                k: v[other] for k, v in whole.manifest.about.items()
            }
    assert part.classes == whole.classes
    assert part.made == whole.made
    assert dict(part.partition.made) == dict(whole.partition.made)
    # Of others there is nothing, neither a row nor an image.
    rows = held.rows()
    assert len(part.manifest) == len(held)
    assert set(part.manifest.names()) == {whole.manifest.names()[row] for row in rows}
    assert len(part.images) == len(np.unique(whole.manifest.pixels[rows]))
    assert {image.tobytes() for image in part.images} == {image.tobytes() for image in whole.pixels(rows)}
    assert not np.shares_memory(part.images, whole.images)


@pytest.mark.parametrize("kind", ["dermsim", "rich"])
def test_a_part_is_the_same_images_in_the_same_order_and_no_others(kind: str, dermsim: Store) -> None:
    whole = dermsim if kind == "dermsim" else rich_store()
    for number, held in enumerate(whole.partition.clients):
        part = whole.of_client(number)
        (own,) = part.partition.clients
        check_same(part, own, whole, held)
        assert (own.source, own.step.tolist()) == (held.source, held.step.tolist())
        assert len(part.partition.server) == 0
    part = whole.of_server()
    assert part.partition.clients == ()
    check_same(part, part.partition.server, whole, whole.partition.server)


def test_an_image_that_two_hold_is_in_both_parts() -> None:
    whole = rich_store()
    ones, others = (whole.of_client(number) for number in (1, 2))
    shared = {image.tobytes() for image in ones.images} & {image.tobytes() for image in others.images}
    assert len(shared) == 2
    assert not set(ones.manifest.names()) & set(others.manifest.names())


def test_groups_on_both_sides_of_a_split_stay_so_on_purpose() -> None:
    plain = small_store()
    part, group = plain.partition.clients[1], plain.manifest.group.copy()
    group[part.test[0]] = group[part.labelled[0]]
    partition = replace(plain.partition, straddles=True)
    whole = Store(plain.images, replace(plain.manifest, group=group), partition, plain.made)
    found = whole.of_client(1)
    check_same(found, found.partition.clients[0], whole, part)
    assert found.partition.straddles


def test_saved_and_opened_again_it_is_the_same(tmp_path: Path, dermsim: Store) -> None:
    for whole in (dermsim, rich_store()):
        parts = {f"client_{n}": whole.of_client(n) for n in range(len(whole.partition.clients))}
        for name, part in (parts | {"server": whole.of_server()}).items():
            part.save(tmp_path / str(len(whole.images)) / name)
            again = Store.open(tmp_path / str(len(whole.images)) / name)
            assert again.digest() == part.digest()
            assert np.array_equal(again.images, part.images)
            assert again.partition.to_csv(again.manifest) == part.partition.to_csv(part.manifest)
            assert again.manifest.about.keys() == part.manifest.about.keys()
            assert all((again.manifest.about[key] == part.manifest.about[key]).all() for key in part.manifest.about)
            assert (again.classes, again.made) == (part.classes, part.made)


def at_its_number(part: Store, number: int) -> Store:
    """Return a hospital's own store with the client at its number; the others hold nothing."""
    nobody = ClientPart("", no_rows(), no_rows(), no_rows(), no_rows())
    return part.dealt(Partition((nobody,) * number + part.partition.clients, made=part.partition.made))


@pytest.mark.parametrize("method", ["fedperl", "upper", "fedirm"])
@pytest.mark.parametrize("kind", ["dermsim", "rich"])
def test_a_client_trains_from_its_part_to_the_same_bytes(
    kind: str, method: str, dermsim: Store, tmp_path: Path
) -> None:
    whole = dermsim if kind == "dermsim" else rich_store()
    if method == "upper":  # which wants every label
        known = np.where(whole.manifest.label < 0, 0, whole.manifest.label)
        whole = replace(whole, manifest=replace(whole.manifest, label=known))
    config = small_config(method=method, objective={} if method == "upper" else {"start": 0, "tau": 0.3})
    settings = LocalSettings(config.objective, config.optimizer, config.views, 3, 4, round=2, rounds=4)
    for number in (0, 2, 3):
        part = whole.of_client(number)
        part.save(tmp_path / str(number))
        model = GlobalModel(1, state_of(Workspace(config, len(whole.classes)).net))
        task = TrainTask("run", 2, number, model, None, settings, 77)
        asked = EvaluateTask("run", 1, number, model, "test", full=True)
        found = []
        for store in (whole, at_its_number(part, number), at_its_number(Store.open(tmp_path / str(number)), number)):
            client = client_of_store(number, store, config, Workspace(config, len(whole.classes)))
            update, kept = client.train(task, {})
            sent = update_parcel(update)
            states = {name: tensor.numpy().tobytes() for name, tensor in kept.items()}
            found.append((sent.text, dict(sent.pieces), states, evaluation_parcel(client.evaluate(asked)).text))
        assert found[1] == found[0]
        assert found[2] == found[0]
        other = client_of_store(1, whole, config, Workspace(config, len(whole.classes)))
        assert update_parcel(other.train(task, {})[0]).pieces != found[0][1]
