"""The same across sites: what Flower would carry, what the server writes, and what stays at each hospital.

The real programs of server and sites run in this process over a grid that only hands messages on, and hands every
earlier answer out again whenever somebody asks for one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, MessageType
from flwr.supercore.task_identity import TaskIdentity

from fedperl.engines.flower.exchange import Waiting
from fedperl.engines.flower.records import parcel_of
from fedperl.engines.flower.server_app import SimulatedSites, serve
from fedperl.engines.flower.site import Site, answer, as_client
from fedperl.federation.client import Client
from fedperl.federation.wire import Parcel, read_train, read_update
from tests.reliability.canaries import listed
from tests.reliability.capturing import writing
from tests.reliability.test_canaries import (
    FAILS,
    MAY_HOLD,
    PLANTED,
    STORE,
    Captured,
    config_of,
    leaks_to_clients,
    leaks_to_files,
    leaks_to_server,
    logged,
)

CONFIG = config_of()
SITES = range(len(STORE.partition.clients))
METHODS = {MessageType.QUERY: "about", MessageType.TRAIN: "train", MessageType.EVALUATE: "evaluate"}


@dataclass
class OpenGrid:
    """Answers at once, and notes all that is carried."""

    run: Captured
    sites: dict[int, Site]
    again: bool = False
    """Hand out every earlier answer too."""
    replies: list[Message] = field(default_factory=list)
    sent: int = 0

    def get_node_ids(self) -> list[int]:
        return [100 + number for number in self.sites]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = f"message {self.sent}"
            names.append(message.metadata.message_id)
            client, kind = message.metadata.dst_node_id - 100, message.metadata.message_type
            asked = self._noted(message, client, to_client=True)
            reply = Message(answer(message.content, getattr(self.sites[client], METHODS[kind])), reply_to=message)
            told = self._noted(reply, client, to_client=False)
            if kind == MessageType.TRAIN and told.pieces:
                task = read_train(asked)
                self.run.traffic.peers += task.peer is not None
                self.run.traffic.note_update(read_update(told), task)
            self.replies.append(reply)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        wanted = set(names)
        return [r for r in self.replies if self.again or r.metadata.reply_to_message_id in wanted]

    def _noted(self, message: Message, client: int, *, to_client: bool) -> Parcel:
        parcel, envelope = parcel_of(message.content)
        outside = json.dumps([envelope, str(message.metadata)]).encode()
        note = self.run.traffic.down if to_client else self.run.traffic.up
        note(client, Parcel(parcel.text, {**parcel.pieces, "": outside}))
        return parcel


def carried(root: Path, *, again: bool = False) -> Captured:
    """Run the server and its sites; one fails once, with a patient's file in its error."""
    run, trains = Captured(root / "server"), Client.train
    sites = {
        n: Site(n, as_client(STORE.of_client(n), n), CONFIG, root / f"site_{n}", root / f"model_{n}") for n in SITES
    }
    grid: Any = OpenGrid(run, sites, again)

    def fails(self: Client, task: Any, *rest: Any) -> Any:
        if (self.number, task.round) == FAILS:
            raise RuntimeError(f"cannot read /data/{PLANTED[0].name}")
        return trains(self, task, *rest)

    with pytest.MonkeyPatch.context() as patch, logged() as log, writing() as files:
        patch.setattr(Client, "train", fails)
        for name, value in (("_run_id", 1), ("_task_id", 2), ("_node_id", 3)):  # a message wants to know its process
            patch.setattr(TaskIdentity, name, value)
        serve(grid, CONFIG, run.out, SimulatedSites(grid), Waiting(60.0, 60.0), resume=False)
    run.files, run.elsewhere, run.log = files.written(run.out), files.elsewhere(root), log.getvalue()
    return run


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return carried(tmp_path_factory.mktemp("sites"))


def test_nothing_of_a_site_is_carried_or_written_elsewhere(run: Captured) -> None:
    assert run.traffic.peers > 0
    assert len(run.traffic.tensors) > 100
    assert "state/members.json" in run.files
    assert not (found := leaks_to_clients(run)), listed(found)
    assert not (found := leaks_to_server(run)), listed(found)
    assert not run.elsewhere
    assert not (wrong := leaks_to_files(run)), {name: listed(found) for name, found in wrong.items()}


def test_the_server_does_not_know_the_sites_images(run: Captured) -> None:
    """Where a simulation writes down who holds which image, a server of real sites has nothing to write."""
    assert MAY_HOLD["partition.csv"] == {"file", "patient"}
    assert not [canary for content in run.files["partition.csv"] for canary in run.search(content)]


def test_a_patients_file_is_named_at_the_site_and_the_server_learns_the_kind_of_error(run: Captured) -> None:
    assert PLANTED[0].name in run.log  # of all programs, here
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert lines[FAILS[1] - 1]["rejected"] == {str(FAILS[0]): "it failed with RuntimeError"}


def test_answers_that_come_again_and_again_change_nothing(run: Captured, tmp_path: Path) -> None:
    other = carried(tmp_path, again=True)
    for name in ("last", "global_best"):
        assert run.files[f"models/{name}.safetensors"] == other.files[f"models/{name}.safetensors"]
    ledgers = [(found.out / "state" / "ledger.jsonl").read_bytes() for found in (run, other)]
    assert ledgers[0] == ledgers[1]
