"""Clients side by side, without a GPU: places that only note what is asked of them."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fedperl.config import load_config
from fedperl.engines.cuda.exchange import CudaExchange, Place
from fedperl.engines.local import PastStates
from fedperl.federation.messages import Failure, GlobalModel, TrainTask, Update
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.local_round import LocalSettings

CONFIG = load_config(None, [])
SETTINGS = LocalSettings(CONFIG.objective, CONFIG.optimizer, CONFIG.views, steps=2, batch=4)


class Noted:
    """A place that notes when it is used."""

    work = make_steps = None

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def begin(self) -> None:
        self.log.append("begin")

    @contextmanager
    def used(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.log.append("end")


class Stub:
    """A client that notes its steps, and fails where it is told to."""

    def __init__(self, number: int, log: list[str], fails: BaseException | None = None, at: int = 0) -> None:
        self.number, self.log, self.fails, self.at = number, log, fails, at

    def train_steps(self, task: TrainTask, state: Any, work: Any, make: Any) -> Generator[None, None, Any]:
        for step in range(task.settings.steps):
            if self.fails is not None and step == self.at:
                raise self.fails
            self.log.append(f"{self.number}.{step}")
            yield
        torch.manual_seed(self.number)
        return Update(task.run, task.round, task.client, {"w": torch.tensor([1.0])}, {}), {"seen": torch.ones(1)}


def exchange(folder: Path, log: list[str], **fails: Any) -> CudaExchange:
    clients = {number: cast(Any, Stub(number, log, **fails if number == 1 else {})) for number in range(5)}
    states = StateFiles(folder / "states", "client")
    past = PastStates(StateFiles(folder / "past", "client"))
    return CudaExchange(clients, states, past, Stopwatch(), lambda: cast(Place, Noted(log)), 3)


def tasks(count: int) -> list[TrainTask]:
    return [TrainTask("run", 1, n, GlobalModel(0, {}), None, replace(SETTINGS), n) for n in range(count)]


def test_steps_of_all_are_launched_before_any_end_is_waited_for(tmp_path: Path) -> None:
    log: list[str] = []
    made = exchange(tmp_path, log)
    before = torch.get_rng_state()
    found = list(made.train(tasks(4)))
    assert [update.client for update in found] == [0, 1, 2, 3]
    first = ["begin", "0.0", "0.1", "begin", "1.0", "1.1", "begin", "2.0", "2.1", "end", "end", "end"]
    assert log == [*first, "begin", "3.0", "3.1", "end"]
    assert sorted(made.states.records) == [0, 1, 2, 3]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("at", [0, 1])
def test_a_client_that_fails_is_one_failure_and_its_place_is_made_anew(tmp_path: Path, at: int) -> None:
    log: list[str] = []
    made = exchange(tmp_path, log, fails=RuntimeError("patient 7"), at=at)
    places = list(made.places)
    found = list(made.train(tasks(3)))
    assert [type(answer) for answer in found] == [Update, Failure, Update]
    assert cast(Failure, found[1]).kind == "RuntimeError"
    assert [new is old for new, old in zip(made.places, places, strict=True)] == [True, False, True]
    assert 1 not in made.states.records


def test_a_kept_state_that_cannot_be_read_is_that_clients_failure(tmp_path: Path) -> None:
    log: list[str] = []
    made = exchange(tmp_path, log)
    list(made.train(tasks(2)))
    index = made.states.to_json()
    next((tmp_path / "states").glob("client-00001-*")).write_bytes(b"damaged")
    made.states.restore(index)
    assert [type(answer) for answer in made.train(tasks(2))] == [Update, Failure]


def test_memory_that_is_full_ends_the_run(tmp_path: Path) -> None:
    made = exchange(tmp_path, [], fails=torch.OutOfMemoryError("CUDA out of memory. Tried"))
    with pytest.raises(torch.OutOfMemoryError):
        list(made.train(tasks(3)))
