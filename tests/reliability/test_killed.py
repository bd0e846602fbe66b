"""Processes that are killed while they write leave the old checkpoint or the new one, whole, and nothing else."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from fedperl.benchmarking.reliability.dying import Fate, run_apart
from fedperl.errors import RunError
from fedperl.federation.run_folder import RunFolder
from tests.reliability.victims import CLIENTS, commit_rounds, state

KILLS = 200
MOMENTS = 120
"""About three rounds of touching the disk."""
FOR_EVER = 10**9


def check(path: Path, last: int) -> int:
    """Return the round of the checkpoint that a killed process left, all of whose files are whole.

    Args:
        last: the round that it told of last, or started from.
    Raises:
        RunError: it cannot be read.
    """
    folder = RunFolder(path)
    folder.open()
    try:
        content = folder.restore()
        round = 0 if content is None else content["round"]
        assert round in (last, last + 1), "a checkpoint that was said to be done is gone"
        if round:
            for client in range(CLIENTS):
                assert same(folder.bank.get(client), state(client, round))
                assert same(folder.client_states.get(client), state(client + CLIENTS, round))
            assert same(folder.models.get(round), state(-1, round))
        assert folder.read_metrics() == [{"round": r} for r in range(1, round + 1)]
        entries = list(folder.ledger.entries())
        assert entries[: 2 * round] == [
            {"kind": k, "round": r} for r in range(1, round + 1) for k in ("send", "receive")
        ]
        assert not list(path.rglob("*.tmp"))
        files = [file for name in ("bank", "clients", "models") for file in (path / "state" / name).iterdir()]
        assert len(files) == (2 * CLIENTS + 1 if round else 0)
    finally:
        folder.close()
    return int(round)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def leftovers(path: Path) -> int:
    """Return how many files lie there that no checkpoint names, before anybody tidies up."""
    checkpoint = path / "state" / "checkpoint.json"
    named = checkpoint.read_text() if checkpoint.exists() else ""
    states = [p for p in path.rglob("*.safetensors*") if f'"{p.name}"' not in named]
    return len(states) + len(list(path.rglob("*.json.tmp")))


def kill_often(path: Path, fates: Iterable[Fate], *, naive: bool = False) -> Counter[str]:
    """Kill a process for each fate, one after the other in one folder, and count what they leave.

    `old`: the checkpoint that was told of last; `new`: the one after it, of which nothing could be told any more.
    """
    found, last, run, told = Counter[str](), 0, path / "run", path / "told"
    for number, fate in enumerate(fates):
        end = run_apart(commit_rounds, run, FOR_EVER, told, naive, fate=fate, report=path / "report")
        assert end.killed, end
        found["leftovers"] += leftovers(run)
        said = told.read_text().split() if told.exists() else []
        before, last = last, max(last, int(said[-1])) if said else last
        try:
            round = check(run, last)
            found["new" if round > last else "old"] += 1
            found["rounds"] += round - before
            last = round
        except RunError:
            found["unreadable"] += 1
            last, run, told = 0, path / f"run{number}", path / f"told{number}"
    return found


def fates(kills: int) -> Iterator[Fate]:
    """Yield ends at some moment of touching the disk, and, every other time, at any time."""
    chance = random.Random(7)
    for kill in range(kills):
        at = Fate(die_at=chance.randrange(1, MOMENTS)) if kill % 2 else Fate(seconds=chance.uniform(0.02, 0.3))
        yield at


def test_a_few_kills(tmp_path: Path) -> None:
    found = kill_often(tmp_path, fates(8))
    assert found["old"] + found["new"] == 8


@pytest.mark.slow
def test_two_hundred_kills_and_nothing_unreadable(tmp_path: Path) -> None:
    found = kill_often(tmp_path, fates(KILLS))
    print(dict(found))
    assert found["unreadable"] == 0
    assert found["old"] + found["new"] == KILLS
    assert min(found["old"], found["new"], found["leftovers"]) > 0  # they hit before and after, and amid files
    assert found["rounds"] > KILLS // 4


@pytest.mark.slow
def test_files_written_in_their_place_do_not_survive_this(tmp_path: Path) -> None:
    """The same kills, with files written as most programs do: the harness can tell the difference."""
    found = kill_often(tmp_path, (Fate(die_at=moment) for moment in range(1, 40)), naive=True)
    print(dict(found))
    assert found["unreadable"] > 0
