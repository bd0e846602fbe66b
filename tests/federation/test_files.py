import json
import stat
import time
from pathlib import Path

import pytest
import torch

from fedperl.errors import RunError
from fedperl.federation.ledger import Ledger
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.selection import Selection
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch
from fedperl.files import digest, write_durably
from fedperl.learn.state import size_in_bytes


def state(value: float) -> dict[str, torch.Tensor]:
    return {"b": torch.full((3,), value), "a": torch.tensor(2)}


def opened(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.open()
    return folder


def test_states_come_back_and_only_the_newest_stays(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "bank", "client")
    files.put(3, 1, state(1.0))
    files.put(3, 2, state(2.0))
    files.put(4, 2, state(4.0))
    assert list(files.get(3)) == ["a", "b"]
    assert files.get(3)["b"].tolist() == [2, 2, 2]
    assert files.get_part(4, "b")["b"].tolist() == [4, 4, 4]
    assert len(list(files.folder.iterdir())) == 3
    files.prune()
    assert len(list(files.folder.iterdir())) == 2
    files.keep_only([3])
    files.prune()
    assert 4 not in files.records
    assert len(list(files.folder.iterdir())) == 1
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in files.folder.iterdir())


def test_a_changed_or_missing_model_is_refused(tmp_path: Path) -> None:
    written = StateFiles(tmp_path, "client")
    written.put(0, 1, state(1.0))
    files = StateFiles(tmp_path, "client")
    files.restore(written.to_json())
    path = tmp_path / files.records[0].file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x01")
    with pytest.raises(RunError, match="its hash is not the one in the checkpoint"):
        files.get(0)
    path.unlink()
    with pytest.raises(RunError, match="cannot be read"):
        files.get(0)
    with pytest.raises(RunError, match="missing, though the checkpoint names it"):
        StateFiles(tmp_path, "client").restore(files.to_json())


@pytest.mark.parametrize("later", [False, True])
def test_a_part_is_read_without_the_rest_and_no_other_part_is_taken(later: bool, tmp_path: Path) -> None:
    known = {"__profile__": torch.arange(4.0, dtype=torch.float64), "__relation__": torch.tensor([[0.5, 2.0]])}
    large = {"a": torch.ones(50_000), "n": torch.tensor(3), "z": torch.ones(3, dtype=torch.float16)}
    files = StateFiles(tmp_path, "client", "__")
    files.wait = later
    files.put(7, 1, large | known)
    files.put(8, 1, large)
    again = StateFiles(tmp_path, "client", "__")
    again.restore(json.loads(json.dumps(files.to_json())))
    path = tmp_path / again.records[7].file
    content = path.read_bytes()

    def check_known() -> None:
        found = again.get_part(7, "__")
        assert found.keys() == known.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in known.items())

    check_known()
    assert again.get_part(8, "__") == {}
    assert torch.equal(again.get_part(7, "a")["a"], large["a"])
    path.write_bytes(content[:-1] + b"\x01")  # in what is not asked for
    check_known()
    with pytest.raises(RunError, match="its hash is not the one in the checkpoint"):
        again.get(7)
    place = content.index(torch.tensor([0.5, 2.0]).numpy().tobytes())
    for damaged in (
        content[:place] + b"\x01" + content[place + 1 :],
        content[: place + 1],
        b"",
        content[8:],
        b"x" * 99,
    ):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match="its hash is not the one in the checkpoint"):
            again.get_part(7, "__")
    path.unlink()
    with pytest.raises(RunError, match="cannot be read"):
        again.get_part(7, "__")


def test_what_is_in_memory_is_what_is_on_disk_and_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedperl.federation.state_files.RECENT", 2 * size_in_bytes(state(0.0)))
    files = StateFiles(tmp_path, "client")
    for key in range(5):
        files.put(key, 1, state(float(key)))
    assert [files.get(key)["b"][0].item() for key in range(5)] == [0, 1, 2, 3, 4]
    index = files.to_json()
    assert all(digest((tmp_path / r["file"]).read_bytes()) == r["sha256"] for r in index.values())
    for path in tmp_path.iterdir():
        path.unlink()
    for key in (0, 1, 2):
        with pytest.raises(RunError, match="cannot be read"):
            files.get(key)
    assert [files.get(key)["b"][0].item() for key in (3, 4)] == [3, 4]
    files.get(3)["b"] = state(9.0)["b"]
    assert files.get(3)["b"][0].item() == 3


def test_a_state_that_cannot_be_written_is_never_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StateFiles(tmp_path, "client")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    files.put(0, 1, state(1.0))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            files.to_json()


def test_a_folder_is_given_back_when_nothing_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened(tmp_path)
    written: list[str] = []

    def slow(path: Path, content: bytes) -> None:
        time.sleep(0.3)
        written.append(path.name)

    monkeypatch.setattr("fedperl.federation.state_files.write_durably", slow)
    folder.bank.put(1, 1, state(1.0))
    folder.close()
    assert written == ["client-00001-000001.safetensors"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_appends_are_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("os.fsync", flushed.append)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.open()
    ledger.append([{"round": 1}, {"round": 2}])
    assert len(flushed) == 1


def test_ledger_is_chained_and_repeats_are_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    first.open()
    first.append([{"round": 1, "kind": "send"}])
    first.append([{"round": 1, "kind": "receive"}, {"round": 2, "kind": "send"}])
    whole = path.read_bytes()
    resumed = Ledger(path)
    resumed.open(confirmed=2)
    resumed.append([{"round": 2, "kind": "send"}])
    assert path.read_bytes() == whole
    assert resumed.lines == 3
    resumed.append([{"round": 2, "kind": "receive"}])
    assert len(path.read_bytes().splitlines()) == resumed.lines == 4


def test_a_release_that_turns_out_otherwise_is_kept_beside_the_first(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    first.open()
    first.append([{"round": 1, "to": "a"}, {"round": 2, "to": "b"}])
    resumed = Ledger(path)
    resumed.open(confirmed=1)
    resumed.append([{"round": 2, "to": "c"}])
    assert [e["to"] for e in resumed.entries()] == ["a", "b", "c"]
    assert resumed.lines == 3
    again = Ledger(path)
    again.open(confirmed=3)


def test_torn_and_changed_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.open()
    ledger.append([{"round": r} for r in range(3)])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"entry": {"rou')
    Ledger(path).open()
    assert path.read_bytes() == whole
    path.write_bytes(whole.replace(b'"round": 1', b'"round": 7'))
    with pytest.raises(RunError, match="line 3: does not follow"):
        Ledger(path).open()
    path.write_bytes(whole)
    with pytest.raises(RunError, match="3 lines; the checkpoint knows of 5"):
        Ledger(path).open(confirmed=5)
    path.write_bytes(b"[]\n")
    with pytest.raises(RunError, match="line 1: not a line of a ledger"):
        Ledger(path).open()


def test_commit_and_restore(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    assert folder.restore() is None
    folder.bank.put(1, 1, state(1.0))
    folder.append_metrics({"round": 1})
    folder.ledger.append([{"round": 1}])
    folder.commit({"round": 1})
    folder.bank.put(1, 2, state(2.0))  # a second round that never gets committed
    folder.append_metrics({"round": 2})
    folder.close()
    again = opened(tmp_path)
    content = again.restore()
    assert content is not None
    assert content["round"] == 1
    assert again.bank.get(1)["b"].tolist() == [1, 1, 1]
    assert len(list(again.bank.folder.iterdir())) == 1
    assert again.read_metrics() == [{"round": 1}]


def test_what_was_written_before_the_first_commit_is_removed(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.models.put(0, 0, state(1.0))
    folder.append_metrics({"round": 1})
    folder.close()
    again = opened(tmp_path)
    assert again.restore() is None
    assert not list(again.models.folder.iterdir())
    assert again.read_metrics() == []


def test_a_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.restore()
    folder.commit({"round": 7})
    folder.close()
    path = tmp_path / "state" / "checkpoint.json"
    outer = json.loads(path.read_text())
    outer["content"]["round"] = 8
    for content in (json.dumps(outer), "{", "[]", '{"sha256": 1}'):
        path.write_text(content)
        folder = opened(tmp_path)
        with pytest.raises(RunError, match=r"checkpoint\.json: cannot be used as a checkpoint"):
            folder.restore()
        folder.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(RunError, match="another process is working here"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "state" / "bank" / "client-00001-000001.safetensors.tmp"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    opened(tmp_path).close()
    assert not leftover.exists()


def test_selection_takes_the_later_of_equals() -> None:
    selection = Selection()
    selection.observe(1, {0: 0.5, 1: 0.9})
    selection.observe(2, {0: 0.6, 1: 0.8})
    selection.observe(3, {0: 0.4, 1: 0.9})
    assert selection.best == {"global": (pytest.approx(0.7), 2), "0": (0.6, 2), "1": (0.9, 3)}
    assert selection.rounds() == {2, 3}
    again = Selection()
    again.restore(json.loads(json.dumps(selection.to_json())))
    assert again.best == selection.best


def test_stopwatch_takes_inner_time_out_of_the_outer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 3.5, 4.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    watch = Stopwatch()
    with watch.measure("server"), watch.measure("training"):
        pass
    assert watch.take() == {"training": 2.0, "server": 1.5}


def test_what_waits_for_a_checkpoint_is_there_and_written_once(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, "client")
    files.wait = True
    files.put(3, 1, state(1.0))
    files.put(3, 2, state(2.0))
    files.put(4, 2, state(4.0))
    files.put(5, 2, state(5.0))
    files.keep_only([3, 4])
    assert not list(tmp_path.iterdir())
    assert [files.get(key)["b"][0].item() for key in (3, 4)] == [2, 4]
    index = files.to_json()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(record["file"] for record in index.values())
    assert [record["round"] for record in index.values()] == [2, 2]
    again = StateFiles(tmp_path, "client")
    again.restore(index)
    assert [again.get(key)["b"][0].item() for key in (3, 4)] == [2, 4]


def test_what_waits_is_written_before_it_fills_the_memory(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, "client")
    files.wait, files.recent = True, 2 * size_in_bytes(state(0.0))
    for key in range(5):
        files.put(key, 1, state(float(key)))
        assert sum(map(size_in_bytes, files._recent.values())) <= files.recent
        assert files._waiting.keys() <= files._recent.keys()
    assert [files.get(key)["b"][0].item() for key in range(5)] == [0, 1, 2, 3, 4]
    assert len(files.to_json()) == len(list(tmp_path.iterdir())) == 5


def test_what_no_checkpoint_names_does_not_fill_the_disk(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, "client")
    files.wait, files.recent = True, 2 * size_in_bytes(state(0.0))
    for key in range(5):
        files.put(key, 0, state(0.0))
    files.to_json()
    for round in range(1, 20):
        for key in range(5):
            files.put(key, round, state(float(round)))
        files._pool.shutdown(wait=True)  # type: ignore[union-attr]
        files._pool = None
        assert {path.name for path in tmp_path.iterdir()} >= {
            f"client-{key:05d}-000000.safetensors" for key in range(5)
        }
        assert len(list(tmp_path.iterdir())) <= 10
    files.keep_only([0, 1])
    files.to_json()
    files.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"client-{key:05d}-000019.safetensors" for key in range(2)
    ]
