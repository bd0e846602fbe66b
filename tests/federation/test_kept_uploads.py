"""What is kept of every model for the attacker: which numbers, and that nothing is lost or half-written."""

import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from fedperl.errors import RunError
from fedperl.federation.kept_uploads import FILE, Kept, KeptUploads, read_kept
from fedperl.learn.nets import build_net
from fedperl.learn.state import State, is_running_statistic, state_of
from tests.federation.test_server import rounds, server

SIZES = {"b.weight": (4, 3), "a.weight": (5,), "a.running_mean": (6,), "a.running_var": (6,)}


def state(shift: float = 0.0) -> State:
    """A model each of whose numbers occurs once."""
    found, begin = {}, 0
    for name, shape in SIZES.items():
        size = int(np.prod(shape))
        found[name] = (torch.arange(begin, begin + size, dtype=torch.float32) + shift).reshape(shape)
        begin += size
    return {**found, "a.num_batches_tracked": torch.tensor(99)}


def read(folder: Path, most: int = 4096) -> Kept:
    kept = read_kept(folder, most)
    assert kept is not None
    return kept


def test_all_parameters_and_no_statistics(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path / "kept", 17)
    kept.model(0, state())
    kept.upload(3, 1, state(100))
    found = read(tmp_path / "kept")
    assert found.models[0][0].tolist() == [12, 13, 14, 15, 16, *range(12)]  # in the order of names
    assert found.uploads[3, 1].tolist() == [100 + value for value in found.models[0][0].tolist()]
    assert found.peers == {}


def test_a_sample_is_the_same_numbers_of_every_model_in_every_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        kept = KeptUploads(tmp_path / name, 7)
        kept.model(0, state() if name == "one" else dict(reversed(state().items())))
        kept.upload(3, 1, state(100))
        without = {n: t for n, t in state(200).items() if not is_running_statistic(n) and t.is_floating_point()}
        kept.peer(4, 2, without)
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    chosen = one.models[0][0]
    assert len(set(chosen.tolist())) == 7
    assert max(chosen) < 17
    assert np.array_equal(one.uploads[3, 1], chosen + 100)
    assert np.array_equal(one.peers[4, 2][0], chosen + 200)
    assert np.array_equal(two.models[0][0], chosen)


def test_what_a_peer_lacks_is_not_a_number(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, state())
    kept.peer(1, 2, {"b.weight": state()["b.weight"]})
    assert np.isnan(read(tmp_path).peers[1, 2][0]).tolist() == [True] * 5 + [False] * 12


def test_double_precision_stays(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, {"w": torch.tensor([1 / 3], dtype=torch.float64)})
    kept.model(1, {"w": torch.tensor([1 / 3], dtype=torch.bfloat16)})
    assert read(tmp_path).models[0][0].tolist() == [1 / 3]
    assert read(tmp_path).models[1][0].dtype == np.float32


def test_a_repeated_round_replaces_its_uploads_and_forgets_no_release(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, state())
    for shift in (1, 2, 2):
        kept = KeptUploads(tmp_path, 3)  # the sample stays as it was drawn
        kept.upload(0, 1, state(shift))
        kept.peer(0, 1, state(shift))
        kept.model(1, state(shift))
    found, first = read(tmp_path), read(tmp_path).models[0][0]
    assert np.array_equal(found.uploads[0, 1], first + 2)
    assert [v[0] - first[0] for v in found.peers[0, 1]] == [1, 2]
    assert [v[0] - first[0] for v in found.models[1]] == [1, 2]


def test_whatever_a_kill_leaves_can_be_read_and_gone_on_with(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path / "whole", 17)
    sizes = [0]
    for client in range(3):
        kept.upload(client, 1, state(client))
        sizes.append(kept.path.stat().st_size)
    content = kept.path.read_bytes()
    folder = tmp_path / "torn"
    folder.mkdir()
    for length in {*range(0, len(content), 31), *(max(0, size + step) for size in sizes for step in (-1, 0, 1, 8))}:
        (folder / FILE).write_bytes(content[:length])
        KeptUploads(folder, 17).upload(7, 2, state(7))
        whole = sum(size <= length for size in sizes[1:])
        assert sorted(read(folder).uploads) == [*((client, 1) for client in range(whole)), (7, 2)]


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path / "kept", 17)
    kept.model(0, state())
    kept.upload(0, 1, state())
    kept.forget(0)
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700


def test_a_client_that_withdraws_is_forgotten_and_what_was_sent_is_not(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, state())
    for client in (1, 11):
        kept.upload(client, 1, state(1000 + client))
        kept.peer(client, 1, state(client))
    kept.forget(1)
    kept.forget(1)
    kept.upload(2, 2, state(2))
    found = read(tmp_path)
    assert sorted(found.uploads) == [(2, 2), (11, 1)]
    assert sorted(found.peers) == [(1, 1), (11, 1)]
    assert np.float32(1001.0).tobytes() not in kept.path.read_bytes()


def test_of_many_coordinates_some_are_read(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, state())
    assert read(tmp_path, most=5).models[0][0].tolist() == [12, 16, 3, 7, 11]
    assert len(read(tmp_path, most=17).models[0][0]) == 17


def test_nothing_kept_and_something_else(tmp_path: Path) -> None:
    assert read_kept(tmp_path) is None
    with pytest.raises(ValueError, match="coordinates = 0; wanted at least 1"):
        KeptUploads(tmp_path, 0)
    path = tmp_path / FILE
    path.write_bytes((20).to_bytes(8, "little") + b"\x80\x04 pickled something.")
    with pytest.raises(RunError, match=f"{path}: a piece of it cannot be read"):
        read_kept(tmp_path)
    with pytest.raises(RunError, match=f"{path}: a piece of it cannot be read"):
        KeptUploads(tmp_path, 3)
    path.write_bytes(b"")
    with pytest.raises(RunError, match=f"{path}: a piece of it cannot be read"):
        read_kept(tmp_path)


@pytest.mark.parametrize("name", ["other/1/2", "upload/1", "upload/one/2", "model/1/2"])
def test_a_piece_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, state())
    kept._keep(name, state())
    with pytest.raises(RunError, match=f"{name!r} is nothing that is kept of a model"):
        read_kept(tmp_path)


def test_a_piece_of_another_size_is_refused(tmp_path: Path) -> None:
    kept = KeptUploads(tmp_path, 17)
    kept.model(0, state())
    kept._places = {"a.weight": torch.arange(3)}
    kept.model(1, state())
    with pytest.raises(RunError, match=r"found shape \(3,\), wanted \(17,\)"):
        read_kept(tmp_path)


def test_a_real_network(tmp_path: Path) -> None:
    nets = [state_of(build_net("small_cnn", 4, seed=seed)) for seed in (0, 1)]
    kept = KeptUploads(tmp_path, 500)
    kept.model(0, nets[0])
    kept.upload(0, 1, nets[1])
    found = read(tmp_path)
    assert found.models[0][0].shape == (500,)
    every = torch.cat(
        [t.flatten() for n, t in nets[1].items() if t.is_floating_point() and not is_running_statistic(n)]
    )
    assert set(found.uploads[0, 1].tolist()) <= set(every.tolist())
    assert not np.array_equal(found.models[0][0], found.uploads[0, 1])


def test_of_a_client_that_withdraws_nothing_is_kept(tmp_path: Path) -> None:
    s = server(tmp_path, privacy="research", federation={"cohort": 5})
    s.kept = KeptUploads(tmp_path / "kept", 50)
    rounds(s, 2)
    client = s._summary.cohort[0]
    assert client in {owner for owner, _ in read(tmp_path / "kept").uploads}
    s.withdraw(client)
    assert client not in {owner for owner, _ in read(tmp_path / "kept").uploads}
    assert read(tmp_path / "kept").uploads
