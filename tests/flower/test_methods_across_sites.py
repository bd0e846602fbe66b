"""Every method that may run across sites gives the local engine's model, its sites opened anew for every message."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedperl.config import dump, methods
from fedperl.data.store import Store
from fedperl.engines.flower.exchange import Waiting
from fedperl.engines.flower.rules import check_deployable, config_of
from fedperl.engines.flower.server_app import SimulatedSites, serve
from fedperl.engines.flower.site import Asking, Site, answer, as_client
from fedperl.errors import ConfigError
from fedperl.federation.wire import Parcel
from fedperl.opening import open_store
from fedperl.settings import Config
from fedperl.training import train
from tests.test_methods import short

pytestmark = pytest.mark.slow


def deployable(method: str) -> bool:
    try:
        check_deployable(short(method))
    except ConfigError:
        return False
    return True


@cache
def whole() -> Store:
    return open_store(short("fedperl"))


@cache
def part(number: int) -> Store:
    return as_client(whole().of_client(number), number)


class SitesHere:
    """A grid whose nodes are sites in this process, with a folder each."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.text, self.folder, self.open = dump(config), folder, dict[str, Message]()
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    def get_node_ids(self) -> list[int]:
        return list(range(100, 110))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.open)} to {message.metadata.dst_node_id}"
            self.open[message.metadata.message_id] = message
        return list(self.open)

    def pull_messages(self, names: Iterable[str]) -> Iterator[Message]:
        for name in list(names):
            message = self.open.pop(name)

            def do(parcel: Parcel, asked: Asking, kind: str = message.metadata.message_type) -> Parcel:
                site = Site(asked.client, part(asked.client), config_of(self.text), self.folder / str(asked.client))
                what = {"query": site.about, "train": site.train, "evaluate": site.evaluate}[kind.split(".")[0]]
                return what(parcel, asked)

            yield Message(answer(message.content, do), reply_to=message)


@pytest.mark.parametrize("method", [name for name in methods() if deployable(name)])
def test_a_method_gives_the_local_engines_model(method: str, tmp_path: Path) -> None:
    config = short(method)
    train(config, tmp_path / "local")
    grid: Any = SitesHere(config, tmp_path / "sites")
    serve(grid, config, tmp_path / "across", SimulatedSites(grid), Waiting(600, 0), resume=False)
    for file in sorted((tmp_path / "local" / "models").glob("last.safetensors")):
        assert (tmp_path / "across" / "models" / file.name).read_bytes() == file.read_bytes()


def test_refused_are_those_with_raw_peers_or_without_a_server() -> None:
    refused = {name for name in methods() if not deployable(name)}
    assert refused == {name for name in methods() if (c := short(name)).raw_peers or c.federation.alone}
    assert {"fedperl_raw", "fedmatch", "local_lower"} <= refused
