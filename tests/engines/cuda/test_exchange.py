"""Clients side by side, without a GPU: places that only note what is asked of them; and validated together."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fedperl.config import load_config
from fedperl.engines.cuda.exchange import CudaExchange, Place
from fedperl.engines.local import LocalExchange, PastStates
from fedperl.federation.client import Client, EvaluationImages, Workspace, client_of_store
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.personal import BATCH_NORM, own_mean
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.nets import build_net
from fedperl.learn.state import State, state_of, with_prefix
from tests.conftest import small_config, small_store

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


# Validation, with clients and networks on the CPU

CLIENTS = 9


def model(seed: int) -> State:
    net = build_net("small_cnn", 3, seed=seed).train()
    net(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
    return state_of(net)


class Federation:
    """Both ways to evaluate, over the same clients and what they kept, and how many images each pass shows."""

    def __init__(self, folder: Path, **federation: Any) -> None:
        config, store = small_config(federation=federation, model={"orientations": 4}), small_store(CLIENTS, 48)
        self.work = Workspace(config, 3)
        self.clients: dict[int, Client] = {
            number: client_of_store(number, store, config, self.work) for number in range(CLIENTS)
        }
        self.past = PastStates(StateFiles(folder / "past", "client"))
        states, watch = StateFiles(folder / "states", "client"), Stopwatch()
        self.together = CudaExchange(self.clients, states, self.past, watch, lambda: cast(Place, None), 0)
        self.apart = LocalExchange(self.clients, states, self.past, watch)
        self.received, self.shown = model(4), list[int]()
        self.work.net.register_forward_pre_hook(lambda _, given: self.shown.append(len(given[0])))

    def compare(self, **changes: Any) -> tuple[list[Evaluation], list[int], list[int]]:
        """Return the evaluations, and how many images the passes showed each way."""
        received = GlobalModel(3, self.received)
        tasks = [EvaluateTask("run", 3, n, received, **{"part": "validation"} | changes) for n in range(CLIENTS)]
        counts, answers = [], []
        for exchange in (self.together, self.apart):
            self.shown.clear()
            answers.append(list(exchange.evaluate(tasks)))
            counts.append(self.shown.copy())
        for ours, theirs in zip(*answers, strict=True):
            assert (ours.client, ours.part) == (theirs.client, theirs.part)
            assert ours.numbers == pytest.approx(theirs.numbers, rel=1e-5, abs=1e-7)
        return answers[0], counts[0], counts[1]


def test_clients_that_choose_a_share_are_validated_together(tmp_path: Path) -> None:
    made = Federation(tmp_path, own_share="validation")
    few = made.clients[2].evaluation["validation"]  # too few to choose by
    made.clients[2].evaluation["validation"] = EvaluationImages(few.images[:5], few.labels[:5])
    for number in made.clients.keys() - {7}:  # which never trained
        made.past.put(number, 2, own_mean({}, model(30 + number)))
    shares = [c._chosen_share(made.received, made.past.at(n, 3)) for n, c in made.clients.items()]
    takers = sum(share == 0.5 for share in shares)
    assert 1 < takers < CLIENTS - 3  # of those that may choose, some take half and some nothing
    assert shares[2] == shares[7] == 0.0
    found, ours, theirs = made.compare()
    assert len(ours) == 1 + (CLIENTS - 2) + 3 * takers + 3
    assert len(theirs) == CLIENTS + (CLIENTS - 2) + 3 * CLIENTS
    every = [len(one.evaluation["validation"].labels) for one in made.clients.values()]
    to_choose_by = [count for number, count in enumerate(every) if number not in (2, 7)]
    assert sum(ours) == sum(theirs) == 4 * sum(every) + sum(to_choose_by)  # no image is shown twice alike
    made.past.files.keep_only([])
    plain = [one.numbers["loss"] for one in made.compare()[0]]
    assert [one.numbers["loss"] == pytest.approx(loss) for one, loss in zip(found, plain, strict=True)] == [
        share == 0.0 for share in shares
    ]


@pytest.mark.parametrize("changes", [{"part": "test"}, {"full": True}])
def test_what_is_chosen_on_other_images_or_told_in_full_is_asked_client_by_client(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    made = Federation(tmp_path, own_share="validation")
    for number in made.clients:
        made.past.put(number, 2, own_mean({}, model(30 + number)))
    _, ours, theirs = made.compare(**changes)
    assert ours == theirs


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_clients_with_a_fixed_share_or_norms_of_their_own_are_validated_one_by_one(
    share: float, tmp_path: Path
) -> None:
    made = Federation(tmp_path, own_share=share)
    other = model(40)
    norms = with_prefix({name: value for name, value in other.items() if "running" in name}, BATCH_NORM)
    made.past.put(1, 2, own_mean({}, other) if share else norms)
    found, ours, theirs = made.compare()
    assert ours == theirs
    assert len(ours) == 4 * CLIENTS
    made.past.files.keep_only([])
    plain, ours, _ = made.compare()
    assert len(ours) == 4
    assert [one.numbers["loss"] for one in found] != [one.numbers["loss"] for one in plain]
