"""Peak memory of the server's program with many sites of EfficientNet-B0 in its bank.

    python bench/flower_memory.py [--sites 50] [--cohort 3]

Every site answers in this process, through the same records, checks and bank as over the network: its update is the
global model with another offset. All sites are banked before the rounds that are measured, two of which have peers.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedperl.config import load_config
from fedperl.engines.flower.environment import MEMORY
from fedperl.engines.flower.exchange import AFTER, ATTEMPT, CLIENT, HASH, NONCE, FlowerExchange, Waiting
from fedperl.engines.flower.records import parcel_of, record_of
from fedperl.engines.flower.server_app import RECENT
from fedperl.federation.client import Workspace
from fedperl.federation.messages import Update
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.federation.wire import model_hash, read_train, update_parcel
from fedperl.learn.state import size_in_bytes, state_of

CLASSES = 8


class Answers(Grid):  # type: ignore[misc]
    """A grid whose nodes answer at once, one at a time."""

    def __init__(self) -> None:
        self.open: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return []

    def get_nodes(self) -> Iterable[Any]:
        return []

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        return []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for number, message in enumerate(messages):
            names.append(f"{number}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.open[names[-1]] = message
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for name in list(message_ids)[:1]:
            yield _reply(self.open.pop(name))


def _reply(message: Message) -> Message:
    parcel, envelope = parcel_of(message.content)
    task = read_train(parcel)
    state = {n: t + 1e-3 * task.client if t.is_floating_point() else t for n, t in task.model.state.items()}
    back = {ATTEMPT: envelope[ATTEMPT], NONCE: envelope[NONCE], HASH: model_hash(parcel)}
    assert {AFTER, CLIENT} <= envelope.keys()
    update = Update(task.run, task.round, task.client, state, {"loss": 1.0})
    return Message(record_of(update_parcel(update), back), reply_to=message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--cohort", type=int, default=3)
    arguments = parser.parse_args()
    if not os.environ.keys() >= MEMORY.keys():  # as the server's programs are started
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | MEMORY)
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    settings = [
        "model.net=efficientnet_b0",
        f"federation.cohort={arguments.cohort}",
        "federation.quorum=3",
        "peers.warmup=1",
    ]
    config = load_config(None, settings)
    work = Workspace(config, CLASSES)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        folder.open()
        folder.bank.recent = RECENT
        folder.restore()
        initial = state_of(work.net)
        server = Server(config, [100] * arguments.sites, 1, initial, folder.bank, folder.ledger)
        nodes = {number: number + 1 for number in range(arguments.sites)}
        exchange = FlowerExchange(Answers(), lambda: nodes, Waiting(60, 1))
        round = 0
        while len(server.known) < arguments.sites or round % 2:
            round += 1
            server.absorb(exchange.train(server.plan(round)))
            folder.commit({"round": round})
        for _ in range(2):
            round += 1
            summary = server.absorb(exchange.train(server.plan(round)))
            folder.commit({"round": round})
            assert all(len(members) == 2 for members in summary.committees.values())
        held = sum(file.stat().st_size for file in (folder.state / "bank").iterdir())
        folder.close()
    found = {
        "sites": arguments.sites,
        "rounds": server.round,
        "model MB": size_in_bytes(initial) / 1e6,
        "bank on disk MB": held / 1e6,
        "after imports MB": begin * 1.048576,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576,
    }
    print(json.dumps({name: round_(value) for name, value in found.items()}))


def round_(value: float) -> float:
    return round(value, 1)


if __name__ == "__main__":
    main()
