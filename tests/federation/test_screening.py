"""A model that was handed out comes back as an update of nobody's, in whatever life of a run."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedperl import train, training
from fedperl.engines.local import LocalExchange, PastStates
from fedperl.federation.messages import Failure, TrainTask, Update
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.state import State
from fedperl.settings import Config
from tests.conftest import small_config, small_store


class Stop(Exception):
    pass


class Thieving(LocalExchange):
    """The local engine in which a client sends the first model that was handed out, in a round of its choice."""

    first: State
    round: int

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        for task in tasks:
            if task.round == 1:
                type(self).first = task.model.state
            for found in super().train([task]):
                assert isinstance(found, Update)
                yield replace(found, state=dict(self.first)) if task.round == self.round and task.client == 0 else found


@pytest.mark.parametrize("stopped", [None, 0, 1], ids=["never", "before the first round", "after it"])
def test_the_first_model_that_the_server_trained_is_no_update(
    stopped: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(Thieving):
        first, round = {}, 2

    def exchange(_: Config, __: int, clients: Any, folder: RunFolder, watch: Any) -> LocalExchange:
        return Own(clients, folder.client_states, PastStates(folder.past_states), watch)

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(training, "_exchange", exchange)
    store = small_store()
    config = small_config(scenario={"labels": "server"}, federation={"rounds": 2, "cohort": 5}, objective={"tau": 0.3})
    out = tmp_path / "run"
    if stopped is not None:
        with monkeypatch.context() as patch:
            if stopped == 0:
                patch.setattr(Own, "train", stop)
            with pytest.raises(Stop):
                train(config, out, store=store, watchers=[stop])
    train(config, out, store=store, resume=stopped is not None)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["accepted"] == [0, 1, 2, 3, 4]
    assert lines[1]["rejected"] == {"0": "it is a copy of a model that was sent before"}
