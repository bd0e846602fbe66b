"""Nothing of one client is in any message to another, nor in any file where it has no business.

Names, patients, per-class counts of training images and the clients' own models are planted in a run of every stage:
rounds with peers, a client that fails, final tests, model card, page. Every message is taken in the form in which it is
sent, and every file in all its versions; all are searched in plain, packed and other types.
"""

import fnmatch
import io
import json
import logging
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fedperl import training
from fedperl.engines.local import PastStates
from fedperl.federation.client import Client
from fedperl.report.page import write_report
from fedperl.settings import Config
from fedperl.training import train
from tests.conftest import small_config
from tests.reliability.canaries import Canary, Search, canaries_of, listed, planted_store
from tests.reliability.capturing import RecordingExchange, Traffic, writing

STORE = planted_store()
PLANTED = canaries_of(STORE)
FAILS = (2, 3)
"""Client and round of an error that names a patient's file."""
MAY_HOLD = {
    "partition.csv": {"file", "patient"},  # of a simulation: who holds all images writes down how they were dealt
    "state/bank/client-*": {"tensor"},  # the server's eyes only: each client's last model
}
"""The only files in which something of a client may be found, and what; those of one client hold its own alone."""
WRITTEN = {
    "config.toml", "partition.csv", "metrics.jsonl", "results.json", "curves.json", "report.html",
    "state/checkpoint.json", "state/ledger.jsonl", "models/last.safetensors", "models/global_best.safetensors",
}  # fmt: skip
"""What must have been seen, among others: a search in files that were not noticed finds nothing."""


def config_of(**sections: Any) -> Config:
    table: dict[str, Any] = {
        "objective": {"label_source": "ema", "tau": 0.34},  # clients keep a state
        "federation": {"rounds": 4, "cohort": 4, "quorum": 3, "steps": 2, "batch": 4},
        "optimizer": {"lr": 0.02},
    }
    for name, value in sections.items():
        table[name] = table.get(name, {}) | value if isinstance(value, dict) else value
    return small_config(**table)


@dataclass
class Captured:
    """What a run said and wrote."""

    out: Path
    traffic: Traffic = field(default_factory=Traffic)
    files: dict[str, list[bytes]] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    log: str = ""

    @cached_property
    def search(self) -> Search:
        return Search(PLANTED + self.traffic.tensors)


def captured(config: Config, out: Path) -> Captured:
    """Run with every message and every file noted; one client fails once, with a patient's file in its error."""
    run, trains = Captured(out), Client.train

    def exchange(config: Config, classes: int, clients: Any, folder: Any, watch: Any) -> RecordingExchange:
        found = RecordingExchange(clients, folder.client_states, PastStates(folder.past_states), watch)
        found.traffic = run.traffic
        return found

    def fails(self: Client, task: Any, *rest: Any) -> Any:
        if (self.number, task.round) == FAILS:
            raise RuntimeError(f"cannot read /data/{PLANTED[0].name}")
        return trains(self, task, *rest)

    with pytest.MonkeyPatch.context() as patch, logged() as log, writing() as files:
        patch.setattr(training, "_exchange", exchange)
        patch.setattr(Client, "train", fails)
        train(config, out, store=STORE)
        write_report([out], out / "report.html")
    run.files, run.elsewhere, run.log = files.written(out), files.elsewhere(out), log.getvalue()
    return run


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """All that is logged, at every level."""
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return captured(config_of(), tmp_path_factory.mktemp("canaries") / "run")


def leaks_to_clients(run: Captured) -> list[Canary]:
    """Return what clients were sent of others; nothing of their own comes back to them either."""
    return [canary for _, content in run.traffic.to_client for canary in run.search(content)]


def leaks_to_server(run: Captured) -> list[Canary]:
    """Return what the server was told beyond each client's own model."""
    found = [(client, canary) for client, piece in run.traffic.to_server for canary in run.search(piece)]
    return [canary for client, canary in found if canary.kind != "tensor" or canary.owner != client]


def leaks_to_files(run: Captured) -> dict[str, list[Canary]]:
    """Return what files hold that they should not."""
    found = {}
    for name, versions in run.files.items():
        kinds = next((kinds for pattern, kinds in MAY_HOLD.items() if fnmatch.fnmatch(name, pattern)), set())
        owner = int(Path(name).name[7:12]) if "/client-" in name else None
        wrong = [
            canary
            for content in versions
            for canary in run.search(content)
            if canary.kind not in kinds or (owner is not None and canary.owner != owner)
        ]
        if wrong:
            found[name] = wrong
    return found


def test_the_run_shows_what_is_to_be_shown(run: Captured) -> None:
    """There were peers, a client failed, and all models, messages and files were noted."""
    assert run.traffic.peers > 0
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert lines[FAILS[1] - 1]["rejected"] == {str(FAILS[0]): "it failed with RuntimeError"}
    accepted = {(client, line["round"]) for line in lines for client in line["accepted"]}
    assert len(accepted) == 15
    told = {(canary.owner, canary.name.rpartition(" ")[2]) for canary in run.traffic.tensors}
    assert told == {(client, str(round)) for client, round in accepted}
    assert run.files.keys() >= WRITTEN
    assert len(run.files["state/checkpoint.json"]) == len(lines) + 1  # every version
    banked = {name for name in run.files if name.startswith("state/bank/")}
    assert banked == {f"state/bank/client-{client:05d}-{round:06d}.safetensors" for client, round in accepted}
    there = {str(path.relative_to(run.out)) for path in run.out.rglob("*") if path.is_file()}
    assert there <= run.files.keys()


def test_clients_are_sent_nothing_of_each_other(run: Captured) -> None:
    assert not (found := leaks_to_clients(run)), listed(found)


def test_the_server_is_told_nothing_but_models_and_numbers(run: Captured) -> None:
    assert not (found := leaks_to_server(run)), listed(found)


def test_files_hold_only_what_they_may(run: Captured) -> None:
    assert not (found := leaks_to_files(run)), {name: listed(wrong) for name, wrong in found.items()}
    assert not run.elsewhere  # no file outside of the run's folder


def test_what_may_be_held_is_there_and_is_found(run: Captured) -> None:
    """The same search finds each client's models in the bank, and names where names are: it is not blind."""
    for pattern, kinds in MAY_HOLD.items():
        held = [c for name, versions in run.files.items() if fnmatch.fnmatch(name, pattern) for c in versions]
        found = {canary.kind for content in held for canary in run.search(content)}
        assert found == kinds, pattern
    sent = {canary.owner for _, content in run.traffic.to_server for canary in run.search(content)}
    assert len(sent) == 5


def test_what_the_server_keeps_for_itself_is_for_its_eyes_alone(run: Captured) -> None:
    for path in (run.out / "state").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        if path.name != "lock":  # of no content
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_the_log_names_files_and_no_message_does(run: Captured) -> None:
    """The error that names a patient's file is in the log of this process, the client's own, and nowhere else."""
    assert PLANTED[0].name in run.log
    assert not [canary for canary in run.search(run.log.encode()) if canary.name != PLANTED[0].name]


def test_raw_peers_are_found_at_once(tmp_path: Path) -> None:
    """Where the guard is off, for research, other clients' models are in the messages, and this search finds them."""
    run = captured(config_of(privacy="research", peers={"anonymize": False, "T": 1}), tmp_path / "raw")
    assert {canary.kind for canary in leaks_to_clients(run)} == {"tensor"}


def test_a_planted_leak_in_any_message_or_file_is_found(run: Captured) -> None:
    for canary in (PLANTED[0], PLANTED[1], next(c for c in PLANTED if c.kind == "count"), run.traffic.tensors[0]):
        content = canary.needles[0] if canary.needles else str(canary.number).encode()
        leak = b"{ " + content + b" }"
        other = Captured(run.out, Traffic([(4, leak)], [(4, leak)], run.traffic.tensors), {"results.json": [leak]})
        assert leaks_to_clients(other) == [canary]
        assert leaks_to_server(other) == [canary]
        assert leaks_to_files(other) == {"results.json": [canary]}
