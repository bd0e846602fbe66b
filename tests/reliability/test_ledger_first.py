"""What was handed out is in the ledger before it leaves, also where the server dies in that very moment."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load

from fedperl.benchmarking.reliability.dying import run_apart
from fedperl.config import dump
from fedperl.federation.ledger import Ledger
from fedperl.learn.packing import packed
from fedperl.peers import committee_mean
from tests.conftest import small_config, small_store
from tests.reliability.victims import train_and_note

ROUNDS, COHORT = 4, 3


def config_in(folder: Path) -> Path:
    small_store().save(folder / "store")
    settings = small_config(
        data={"source": str(folder / "store")}, federation={"rounds": ROUNDS, "cohort": COHORT, "steps": 1}
    )
    path = folder / "run.toml"
    path.write_text(dump(settings))
    return path


def check_ledger(out: Path, notes: Path) -> int:
    """Assert that the ledger tells all that was handed out, whose models were in it, and return how many peers were."""
    sends = [entry for entry in Ledger(out / "state" / "ledger.jsonl").entries() if entry["kind"] == "send"]
    told = [(e["round"], release["to"], release) for e in sends for release in e["releases"]]
    peers = 0
    for note in notes.glob("sent-*"):
        round, client, model = (int(part) for part in note.name.split("-")[1:])
        (release,) = [release for r, to, release in told if (r, to) == (round, client)]  # once, in both lives together
        assert release["global"] == model
        uploads = [load((notes / f"got-{made}-{member}").read_bytes()) for member, made in sorted(release["committee"])]
        mean = packed(committee_mean(uploads, "receiver")) if uploads else b""
        assert note.read_bytes() == mean, "the ledger names others than those whose models were sent"
        peers += bool(uploads)
    return peers


def lives(folder: Path, last: int) -> int:
    """Let a server die when it hands out its n-th task, check its ledger, let it go on, check again."""
    config, out, notes = config_in(folder), folder / "out", folder / "notes"
    notes.mkdir()
    end = run_apart(train_and_note, config, out, notes, last, report=folder / "report")
    assert end.killed
    assert len(list(notes.glob("sent-*"))) == last
    check_ledger(out, notes)
    before = (out / "state" / "ledger.jsonl").read_bytes()
    assert run_apart(train_and_note, config, out, notes, None, report=folder / "report").error == ""
    assert (out / "state" / "ledger.jsonl").read_bytes().startswith(before)  # what was said stays
    assert len(list(notes.glob("sent-*"))) == ROUNDS * COHORT
    assert len((out / "state" / "ledger.jsonl").read_text().splitlines()) == 2 * ROUNDS
    assert all("previous" in json.loads(line) for line in before.decode().splitlines())
    return check_ledger(out, notes)


def test_a_server_that_dies_when_it_sends_has_written_it_down(tmp_path: Path) -> None:
    assert lives(tmp_path, ROUNDS * COHORT - 2) > 0


@pytest.mark.slow
@pytest.mark.parametrize("last", range(1, ROUNDS * COHORT + 1))
def test_whenever_it_dies(tmp_path: Path, last: int) -> None:
    assert lives(tmp_path, last) > 0
