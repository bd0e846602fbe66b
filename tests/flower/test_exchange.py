"""Messages over a grid that loses, delays, repeats and garbles them: what comes back is right, missing or a failure."""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedperl.config import load_config
from fedperl.engines.flower import exchange as exchange_module
from fedperl.engines.flower.exchange import AFTER, ATTEMPT, CLIENT, HASH, NEEDED, NONCE, RUN, FlowerExchange, Waiting
from fedperl.engines.flower.records import BYTES, ENVELOPE, ERROR, TEXT, parcel_of, record_of
from fedperl.engines.flower.site import Asking, answer
from fedperl.errors import RunError
from fedperl.evaluate import binned_sums
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.wire import (
    Parcel,
    evaluation_parcel,
    model_hash,
    read_evaluate,
    read_train,
    read_update,
    train_parcel,
    update_parcel,
)
from fedperl.learn.local_round import LocalSettings

STATE = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(4)}
SUMS = binned_sums(np.arange(30) % 2, np.full((30, 2), 0.5))
SECRET = "mueller_hans_1953"
WAITING = Waiting(deadline=100.0, patience=300.0)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(name="clock", autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exchange_module, "time", clock)
    for name, value in (("_run_id", 1), ("_task_id", 2), ("_node_id", 3)):  # a message wants to know its process
        monkeypatch.setattr(TaskIdentity, name, value)
    return clock


def site(message: Message) -> Message:
    """Answer as a site does, with the received model plus its number."""

    def do(parcel: Parcel, found: Asking) -> Parcel:
        client, after = found.client, found.after
        if message.metadata.message_type == MessageType.QUERY:
            return Parcel(json.dumps({"client": client}))
        if message.metadata.message_type == MessageType.EVALUATE:
            asked = read_evaluate(parcel)
            numbers = {"accuracy": client / 10, "loss": 1.0 * after, "images": 20, "weighted_f1": 0.5}
            return evaluation_parcel(
                Evaluation(asked.run, asked.round, client, asked.part, numbers, SUMS if asked.full else None)
            )
        task = read_train(parcel)
        state = {name: tensor + client for name, tensor in task.model.state.items()}
        return update_parcel(Update(task.run, task.round, client, state, {"loss": 1.0 * after}))

    return Message(answer(message.content, do), reply_to=message)


Reply = Callable[[Message], Message | None]


@dataclass
class FakeGrid:
    """Nodes 100 + client, that answer at once or after some seconds; all else can be changed."""

    clock: Clock
    nodes: set[int]
    replies: dict[int, Reply] = field(default_factory=dict)
    """By client; the others answer as sites do."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Until a client's answer is there."""
    careless: bool = False
    """Hands out every answer there is, whatever is asked for, again and again."""
    sent: list[Message] = field(default_factory=list)
    held: list[tuple[float, Message]] = field(default_factory=list)

    def get_node_ids(self) -> list[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            client = message.metadata.dst_node_id - 100
            assert message.metadata.dst_node_id in self.nodes
            reply = self.replies.get(client, site)(message)
            if reply is not None:
                self.held.append((self.clock.now + self.seconds.get(client, 0.0), reply))
            found.append(message.metadata.message_id)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        ready = [reply for when, reply in self.held if when <= self.clock.now]
        ready.sort(key=lambda reply: str(reply.metadata.reply_to_message_id), reverse=True)  # any order
        if self.careless:
            return ready
        found = [reply for reply in ready if reply.metadata.reply_to_message_id in wanted]
        self.held = [(when, reply) for when, reply in self.held if not any(reply is one for one in found)]
        return found

    def asked(self) -> list[int]:
        """Return who was sent something, in order."""
        return [message.metadata.dst_node_id - 100 for message in self.sent]


@pytest.fixture(name="grid")
def _grid(clock: Clock) -> FakeGrid:
    return FakeGrid(clock, {100, 101, 102, 103, 104})


def exchange_of(grid: FakeGrid, **more: Any) -> FlowerExchange:
    def online() -> dict[int, int]:
        return {node - 100: node for node in grid.get_node_ids()}

    return FlowerExchange(grid, online, more.pop("waiting", WAITING), classes=2, **more)


def tasks_of(*clients: int, round: int = 4) -> list[TrainTask]:
    config = load_config(None, [])
    settings = LocalSettings(config.objective, config.optimizer, config.views, 3, 8)
    return [
        TrainTask("abc", round, client, GlobalModel(round - 1, STATE), None, settings, client) for client in clients
    ]


def asks_of(*clients: int, full: bool = False, round: int = 3) -> list[EvaluateTask]:
    model = GlobalModel(round, STATE)
    return [EvaluateTask("abc", round, client, model, "test", full) for client in clients]


def kinds(answers: Iterable[Update | Failure]) -> dict[int, str]:
    """Return what became of each task: "update", or the kind of failure."""
    return {one.client: one.kind if isinstance(one, Failure) else "update" for one in answers}


def changed(**envelope: str) -> Reply:
    """Return what answers as a site does, but with another envelope."""

    def reply(message: Message) -> Message:
        parcel, found = parcel_of(site(message).content)
        return Message(record_of(parcel, found | envelope), reply_to=message)

    return reply


# What is asked, and what comes back


def test_answers_in_any_order_come_back_in_the_order_of_the_tasks(grid: FakeGrid) -> None:
    grid.seconds = {3: 1.0, 1: 30.0, 0: 2.5}
    exchange = exchange_of(grid, accepted=lambda round: {1: round - 2, 4: 1})
    found = list(exchange.train(tasks_of(3, 1, 4, 0)))
    assert [one.client for one in found] == [3, 1, 4, 0]
    for one in found:
        assert isinstance(one, Update)
        assert (one.run, one.round) == ("abc", 4)
        assert torch.equal(one.state["weight"], STATE["weight"] + one.client)
        assert one.numbers == {"loss": {1: 2.0, 4: 1.0}.get(one.client, 0.0)}  # the round after which it starts
    tested = list(exchange.evaluate(asks_of(2, 4, 1)))
    assert [(one.client, one.numbers["accuracy"]) for one in tested] == [(2, 0.2), (4, 0.4), (1, 0.1)]
    assert [one.numbers["loss"] for one in tested] == [0.0, 1.0, 2.0]  # accepted up to the model's own round


def test_what_is_sent(grid: FakeGrid) -> None:
    exchange = exchange_of(grid, accepted=lambda _: {2: 3})
    tasks = tasks_of(2, 0)
    list(exchange.train(tasks))
    list(exchange.train(tasks_of(2, 0, round=5)))
    envelopes = []
    for message, task in zip(grid.sent, [*tasks, *tasks_of(2, 0, round=5)], strict=True):
        assert message.metadata.message_type == MessageType.TRAIN
        assert message.metadata.dst_node_id == 100 + task.client
        assert message.metadata.ttl == WAITING.deadline
        parcel, envelope = parcel_of(message.content)
        assert parcel == train_parcel(task)
        assert envelope.keys() == {ATTEMPT, NONCE, AFTER, CLIENT, RUN}
        assert (envelope[CLIENT], envelope[AFTER]) == (str(task.client), "3" if task.client == 2 else "0")
        envelopes.append(envelope)
    assert len({envelope[NONCE] for envelope in envelopes}) == 4
    assert {envelope[ATTEMPT] for envelope in envelopes} == {exchange.attempt}
    assert exchange_of(grid).attempt != exchange.attempt


@pytest.mark.parametrize("seed", range(5))
def test_a_client_is_told_which_of_its_rounds_are_still_needed(seed: int, grid: FakeGrid) -> None:
    generator = np.random.default_rng(seed)
    took = {round: sorted(generator.choice(5, 3, replace=False).tolist()) for round in range(1, 20)}

    def accepted(before: int) -> dict[int, int]:
        return {client: round for round in range(1, before) for client in took[round]}

    exchange = exchange_of(grid, accepted=accepted, personal=True)
    rounds = set(generator.choice(20, 3, replace=False).tolist())
    best = {client: int(generator.integers(20)) for client in range(5) if generator.random() < 0.7}
    list(exchange.train(tasks_of(0, 1, round=20)))
    exchange.keep({1, 2, 3}, {0: 4})  # of an earlier round
    exchange.keep(rounds, best)
    list(exchange.train(tasks_of(*range(5), round=20)))
    list(exchange.evaluate(asks_of(*range(5))))
    envelopes = [parcel_of(message.content)[1] for message in grid.sent]
    assert not any(NEEDED in envelope for envelope in envelopes[:2] + envelopes[7:])  # nothing is known yet
    for client, envelope in enumerate(envelopes[2:7]):
        needed = set()
        for model in rounds | {best.get(client, 0)}:
            for round in range(model, 0, -1):
                if client in took[round]:
                    needed.add(round)
                    break
        assert envelope.get(NEEDED, "") == ",".join(str(round) for round in sorted(needed))


def test_where_nothing_is_personal_the_server_has_the_model_and_looks_nothing_up(grid: FakeGrid) -> None:
    def accepted(round: int) -> dict[int, int]:
        assert round == 4
        return {0: 3}

    exchange, model = exchange_of(grid, accepted=accepted), GlobalModel(2, STATE)
    exchange.keep({1, 2}, {0: 1})
    list(exchange.train(tasks_of(0)))
    assert NEEDED not in parcel_of(grid.sent[0].content)[1]
    assert exchange.in_use(0, model) is STATE
    assert exchange_of(grid, personal=True).in_use(0, model) is None


def test_what_clients_say_of_themselves(grid: FakeGrid) -> None:
    grid.replies = {1: lambda _: None, 2: changed(**{ERROR: "DataError"})}
    grid.nodes.remove(104)
    found = exchange_of(grid).ask_about([0, 1, 2, 3, 4], lambda parcel: json.loads(parcel.text))
    assert found == {0: {"client": 0}, 2: "DataError", 3: {"client": 3}}


# Answers to other questions


@pytest.mark.parametrize(
    "envelope",
    [{ATTEMPT: "0" * 16}, {NONCE: "0" * 32}, {HASH: "0" * 64}, {HASH: ""}, {NONCE: ""}],
    ids=["another attempt", "another nonce", "another model", "no model", "no nonce"],
)
def test_an_answer_to_another_question_is_refused(envelope: dict[str, str], grid: FakeGrid) -> None:
    grid.replies = {1: changed(**envelope)}
    found = kinds(exchange_of(grid).train(tasks_of(0, 1, 2)))
    assert found == {0: "update", 1: "an answer to another question", 2: "update"}
    assert [one.client for one in exchange_of(grid).evaluate(asks_of(0, 1, 2))] == [0, 2]


def test_an_answer_without_an_envelope_is_refused(grid: FakeGrid) -> None:
    grid.replies = {1: lambda message: Message(RecordDict(), reply_to=message)}
    grid.replies |= {2: lambda message: Message(record_of(Parcel("{}"), {}), reply_to=message)}
    found = kinds(exchange_of(grid).train(tasks_of(0, 1, 2)))
    assert found[0] == "update"
    assert found[1].startswith("an answer that cannot be read")
    assert found[2] == "an answer to another question"


def test_a_replayed_answer_is_refused(grid: FakeGrid) -> None:
    """The same question twice, of the same model in the same start: only the nonce tells the answers apart."""
    exchange, kept = exchange_of(grid), []

    def replaying(message: Message) -> Message:
        kept.append(site(message).content)
        return Message(kept[0], reply_to=message)

    grid.replies = {1: replaying}
    for ask, tasks in (("evaluate", asks_of(0, 1)), ("train", tasks_of(0, 1))):
        kept.clear()
        first, again = ([*getattr(exchange, ask)(tasks)] for _ in range(2))
        assert [one.client for one in first] == [0, 1]
        assert not any(isinstance(one, Failure) for one in first)
        if ask == "evaluate":
            assert [one.client for one in again] == [0]
        else:
            assert kinds(again) == {0: "update", 1: "an answer to another question"}


def test_an_answer_is_read_once_and_only_for_its_own_question(grid: FakeGrid) -> None:
    grid.careless = True
    exchange = exchange_of(grid)
    first = [one.round for one in exchange.train(tasks_of(0, 1, round=4)) if isinstance(one, Update)]
    later = [one.round for one in exchange.train(tasks_of(0, 1, round=5)) if isinstance(one, Update)]
    assert (first, later) == ([4, 4], [5, 5])


def test_a_client_cannot_answer_for_another(grid: FakeGrid) -> None:
    def pretending(message: Message) -> Message:
        parcel, envelope = parcel_of(site(message).content)
        text = json.dumps(json.loads(parcel.text) | {"client": 0})
        return Message(record_of(replace(parcel, text=text), envelope), reply_to=message)

    grid.replies = {1: pretending}
    found = [one for one in exchange_of(grid).train(tasks_of(1, 0)) if isinstance(one, Update)]
    assert [float(one.state["weight"][0, 0]) for one in found if one.client == 0] == [0.0]
    tested = list(exchange_of(grid).evaluate(asks_of(0, 1)))
    assert [one.numbers["accuracy"] for one in tested if one.client == 0] == [0.0]


# Late, lost, offline


def test_a_late_answer_is_missing_and_never_read(
    grid: FakeGrid, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grid.seconds, grid.careless = {1: WAITING.deadline + 1}, True
    exchange, start = exchange_of(grid), clock.now
    assert kinds(exchange.train(tasks_of(0, 1, 2))) == {0: "update", 2: "update"}
    assert WAITING.deadline <= clock.now - start < WAITING.deadline + 1
    assert "client 1 did not answer in time" in caplog.text
    clock.sleep(10)
    grid.seconds = {}
    found = [one for one in exchange.train(tasks_of(0, 1, 2, round=5)) if isinstance(one, Update)]
    assert [(one.client, one.round) for one in found] == [(0, 5), (1, 5), (2, 5)]


def test_an_answer_just_in_time_counts(grid: FakeGrid) -> None:
    grid.seconds = {1: WAITING.deadline - 1}
    assert kinds(exchange_of(grid).train(tasks_of(0, 1))) == {0: "update", 1: "update"}


def test_a_lost_answer_is_missing(grid: FakeGrid) -> None:
    grid.replies = {1: lambda _: None}
    assert kinds(exchange_of(grid).train(tasks_of(0, 1, 2))) == {0: "update", 2: "update"}
    assert [one.client for one in exchange_of(grid).evaluate(asks_of(0, 1, 2))] == [0, 2]


def test_offline_clients_are_not_asked(grid: FakeGrid, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    grid.nodes -= {101, 103}
    exchange, start = exchange_of(grid), clock.now
    assert kinds(exchange.train(tasks_of(0, 1, 2))) == {0: "update", 2: "update"}
    assert [one.client for one in exchange.evaluate(asks_of(3, 0))] == [0]
    assert grid.asked() == [0, 2, 0]
    assert clock.now - start < 1
    assert "client 1 is not online" in caplog.text


def test_too_few_online_are_waited_for_and_then_done_without(
    grid: FakeGrid, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grid.nodes = {102, 104}
    exchange, start = exchange_of(grid, quorum=2), clock.now
    assert list(exchange.train(tasks_of(0, 1, 2))) == []
    assert WAITING.patience <= clock.now - start < WAITING.patience + 5
    assert grid.sent == []
    assert "waiting for clients: 1 of 3 online, 2 wanted" in caplog.text
    assert caplog.text.count("waiting for clients") == 1
    assert "1 of 3 clients are online, 2 wanted: going on without" in caplog.text


def test_clients_that_come_online_in_time_are_asked(grid: FakeGrid, clock: Clock) -> None:
    start = clock.now

    def online() -> dict[int, int]:
        return {client: 100 + client for client in ((1, 2) if clock.now > start + 20 else (2,))}

    exchange = FlowerExchange(grid, online, WAITING, quorum=2)
    assert kinds(exchange.train(tasks_of(0, 1, 2))) == {1: "update", 2: "update"}
    assert 20 < clock.now - start < 25
    assert kinds(exchange.train(tasks_of(1))) == {1: "update"}  # no more are wanted than a cohort has


# Errors


def test_of_an_error_only_its_code_is_told(grid: FakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    grid.replies = {1: lambda message: Message(Error(7, f"cannot read /data/{SECRET}.jpg"), reply_to=message)}
    exchange = exchange_of(grid, waiting=Waiting(10, 20))
    found = list(exchange.train(tasks_of(0, 1)))
    assert kinds(found) == {0: "update", 1: "code 7"}
    tested = list(exchange.evaluate(asks_of(0, 1)))
    said = exchange.ask_about([1], read_update)
    with pytest.raises(RunError, match=r"client 1 \(code 7\)") as raised:
        list(exchange.evaluate(asks_of(0, 1, full=True)))
    assert [one.client for one in tested] == [0]
    assert said == {1: "code 7"}
    assert SECRET not in repr(found) + repr(tested) + repr(said) + repr(raised.value) + caplog.text


@pytest.mark.parametrize("code", [3, 4, 5])
def test_flowers_word_that_a_client_is_late_or_gone_is_no_answer(code: int, grid: FakeGrid, clock: Clock) -> None:
    grid.replies = {1: lambda message: Message(Error(code, f"no {SECRET}"), reply_to=message)}
    exchange, start = exchange_of(grid, waiting=Waiting(10, 20)), clock.now
    assert kinds(exchange.train(tasks_of(0, 1, 2))) == {0: "update", 2: "update"}
    assert [one.client for one in exchange.evaluate(asks_of(0, 1))] == [0]
    assert exchange.ask_about([0, 1], lambda parcel: json.loads(parcel.text)) == {0: {"client": 0}}
    assert clock.now == start  # it is known at once
    assert exchange.left == set()
    with pytest.raises(RunError, match=r"client 1 \(it did not answer\)"):
        list(exchange.evaluate(asks_of(0, 1, full=True)))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("MemoryError", "MemoryError"),
        ("E" * 60, "E" * 60),
        ("E" * 61, "an error"),
        (f"cannot read {SECRET}.jpg", "an error"),
        (f"{SECRET}.jpg", "an error"),
        ("", "an error"),
        ("a\nb", "an error"),
    ],
)
def test_the_kind_of_an_error_is_one_word_or_none(
    said: str, wanted: str, grid: FakeGrid, caplog: pytest.LogCaptureFixture
) -> None:
    grid.replies = {1: changed(**{ERROR: said})}
    found = list(exchange_of(grid).train(tasks_of(0, 1)))
    assert kinds(found) == {0: "update", 1: wanted}
    assert SECRET not in repr(found) + caplog.text


def test_a_client_that_has_withdrawn_is_not_asked_again(grid: FakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    grid.replies = {1: changed(**{ERROR: "Withdrawn"})}
    exchange = exchange_of(grid)
    assert kinds(exchange.train(tasks_of(0, 1, 2))) == {0: "update", 1: "Withdrawn", 2: "update"}
    assert exchange.left == {1}
    assert "client 1 has withdrawn" in caplog.text
    assert grid.asked() == [0, 1, 2]
    assert kinds(exchange.train(tasks_of(1, 2))) == {2: "update"}
    assert [one.client for one in exchange.evaluate(asks_of(1, 2, full=True))] == [2]
    assert grid.asked() == [0, 1, 2, 2, 2]


def test_a_client_may_withdraw_when_it_is_to_test(grid: FakeGrid, clock: Clock) -> None:
    grid.replies = {1: changed(**{ERROR: "Withdrawn"})}
    exchange, start = exchange_of(grid), clock.now
    assert [one.client for one in exchange.evaluate(asks_of(0, 1, 2, full=True))] == [0, 2]
    assert exchange.left == {1}
    assert clock.now == start  # nobody is waited for
    assert [one.client for one in exchange.evaluate(asks_of(0, 1))] == [0]


def test_only_the_clients_own_word_makes_it_leave(grid: FakeGrid) -> None:
    """An old answer, or one with another hash, says nothing."""
    grid.replies = {0: changed(**{ERROR: "Withdrawn", NONCE: "old"}), 1: changed(**{ERROR: "withdrawn"})}
    grid.replies |= {2: lambda message: Message(Error(1, "Withdrawn"), reply_to=message)}
    exchange = exchange_of(grid)
    list(exchange.train(tasks_of(0, 1, 2)))
    assert exchange.left == set()


def test_those_that_the_operator_has_taken_out_are_not_asked(grid: FakeGrid) -> None:
    exchange = exchange_of(grid, removed=lambda: {1})
    assert kinds(exchange.train(tasks_of(0, 1, 2))) == {0: "update", 2: "update"}
    assert exchange.left == {1}
    assert grid.asked() == [0, 2]


# Models that are reported


def test_a_reported_model_waits_for_a_client_that_comes_back(grid: FakeGrid, clock: Clock) -> None:
    """One is offline for a while, one fails twice, one loses an answer: each is asked until it has answered."""
    start, faults = clock.now, {1: 2}
    away = WAITING.patience / 2

    def online() -> dict[int, int]:
        return {client: 100 + client for client in range(4) if client != 2 or clock.now > start + away}

    def failing(message: Message) -> Message:
        faults[1] -= 1
        return changed(**{ERROR: "MemoryError"})(message) if faults[1] >= 0 else site(message)

    grid.replies = {1: failing}
    exchange = FlowerExchange(grid, online, WAITING, classes=2)
    tasks = asks_of(0, 1, 2, 3, full=True)
    found = list(exchange.evaluate(tasks))
    assert [one.client for one in found] == [0, 1, 2, 3]
    assert all(one.sums is not None and one.sums.images == 30 for one in found)
    assert away < clock.now - start < away + 10
    assert {client: grid.asked().count(client) for client in range(4)} == {0: 1, 1: 3, 2: 1, 3: 1}


def test_a_reported_model_that_one_client_never_tests_is_an_error(grid: FakeGrid, clock: Clock) -> None:
    grid.nodes.remove(102)
    grid.replies = {3: changed(**{ERROR: "MemoryError"})}
    start = clock.now
    with pytest.raises(RunError) as raised:
        list(exchange_of(grid).evaluate(asks_of(0, 2, 3, full=True, round=6)))
    said = str(raised.value)
    assert "the model of round 6 was not tested by client 2 (it did not answer), client 3 (MemoryError)" in said
    assert "--resume" in said
    assert WAITING.patience < clock.now - start < WAITING.patience + WAITING.deadline + 5
    list(exchange_of(grid).evaluate(asks_of(0, 2, 3)))  # of others nobody is waited for


def test_an_operator_can_take_out_who_does_not_test_a_reported_model(grid: FakeGrid, clock: Clock) -> None:
    """As the error says it: with `fedperl server remove`, while the server waits or before it goes on."""
    grid.nodes.remove(102)
    start = clock.now
    exchange = exchange_of(grid, removed=lambda: {2} if clock.now > start + 60 else set())
    assert [one.client for one in exchange.evaluate(asks_of(0, 2, 3, full=True))] == [0, 3]
    assert exchange.left == {2}


def test_nothing_is_trained_where_there_is_nobody(grid: FakeGrid) -> None:
    assert list(exchange_of(grid).train([])) == []


def test_nothing_is_tested_where_there_is_nobody(grid: FakeGrid) -> None:
    assert list(exchange_of(grid).evaluate([])) == []
    assert exchange_of(grid).ask_about([], read_update) == {}
    assert grid.sent == []


# What cannot be read


def spoiled(spoil: Callable[[RecordDict, dict[str, Any]], None]) -> Reply:
    """Return what answers as a site does, with its records or its text changed."""

    def reply(message: Message) -> Message:
        content = site(message).content
        text = json.loads(content[ENVELOPE][TEXT])
        spoil(content, text)
        if content.get(ENVELOPE) is not None and content[ENVELOPE].get(TEXT, "").startswith("{"):
            content[ENVELOPE][TEXT] = json.dumps(text)
        return Message(content, reply_to=message)

    return reply


def put(name: str, value: Any) -> Callable[[RecordDict, dict[str, Any]], None]:
    return lambda content, _: content.__setitem__(name, value)


def write(text: str) -> Callable[[RecordDict, dict[str, Any]], None]:
    return lambda content, _: content[ENVELOPE].__setitem__(TEXT, text)


def say(**keys: Any) -> Callable[[RecordDict, dict[str, Any]], None]:
    return lambda _, text: text.update(keys)


def array(values: Any) -> ArrayRecord:
    return ArrayRecord({BYTES: Array(np.asarray(values))})


def as_array(change: Callable[[Any], Any]) -> Callable[[RecordDict, dict[str, Any]], None]:
    """Return what sends the same bytes in another kind of array."""
    return lambda content, _: content.__setitem__("model", array(change(content["model"][BYTES].numpy())))


SPOILED = [
    pytest.param(write("no JSON"), id="no JSON"),
    pytest.param(write("[]"), id="no object"),
    pytest.param(write(""), id="no text"),
    pytest.param(put("model", array([0.5, 1.5])), id="floats"),
    pytest.param(as_array(lambda piece: piece[None]), id="two dimensions"),
    pytest.param(as_array(lambda piece: piece.view(np.int8)), id="signed bytes"),
    pytest.param(put("model", array(np.zeros(9, dtype=np.uint8))), id="no safetensors"),
    pytest.param(put("model", ArrayRecord({BYTES: Array("uint8", (4,), "numpy.ndarray", b"none")})), id="no array"),
    pytest.param(put("model", ArrayRecord({"other": Array(np.zeros(3, dtype=np.uint8))})), id="another name"),
    pytest.param(put("model", ConfigRecord({"a": "b"})), id="a record of texts"),
    pytest.param(put("more", MetricRecord({"patients": 7})), id="a record of numbers"),
    pytest.param(lambda content, _: content.__delitem__("model"), id="a missing piece"),
    pytest.param(lambda content, _: content.__delitem__(ENVELOPE), id="no envelope"),
    pytest.param(lambda content, _: content[ENVELOPE].__delitem__(TEXT), id="no text in the envelope"),
    pytest.param(lambda content, _: content[ENVELOPE].__setitem__("more", 7), id="a number in the envelope"),
    pytest.param(say(file="x.jpg"), id="an extra key"),
    pytest.param(say(numbers={"patients": 1.0}), id="a number of another name"),
    pytest.param(say(numbers={"loss": float("nan")}), id="no finite number"),
    pytest.param(say(round="4"), id="a round in words"),
    pytest.param(say(numbers={"loss": 10**400}), id="a number beyond all bounds"),
    pytest.param(write("[" * 100_000), id="brackets in brackets"),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_cannot_be_read_is_a_failure(spoil: Any, grid: FakeGrid) -> None:
    grid.replies = {1: spoiled(spoil)}
    found = kinds(exchange_of(grid).train(tasks_of(0, 1, 2)))
    assert found.pop(1).startswith("an answer that cannot be read: ")
    assert found == {0: "update", 2: "update"}


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(write("no JSON"), id="no JSON"),
        pytest.param(say(file="x.jpg"), id="an extra key"),
        pytest.param(say(numbers={"patients": 1.0}), id="a number of another name"),
        pytest.param(say(sums={}), id="no counts"),
        pytest.param(say(sums=[1, 2]), id="a list of counts"),
        pytest.param(say(sums=SUMS.to_dict() | {"confusion": [[-1, 0], [0, 0]]}), id="negative counts"),
        pytest.param(say(groups={"sex": 1}), id="no groups"),
        pytest.param(say(groups={"name": {"groups": {}, "too_few": 0}}), id="groups by name"),
        pytest.param(
            say(groups={"sex": {"groups": {"male": [[3, 0], [0, 3]]}, "too_few": 0}}), id="a group of six images"
        ),
        pytest.param(say(sums=SUMS.to_dict() | {"confusion": [[10**30, 0], [0, 0]]}), id="a count beyond all"),
    ],
)
def test_an_evaluation_that_cannot_be_read_is_missing(spoil: Any, grid: FakeGrid) -> None:
    grid.replies = {1: spoiled(spoil)}
    assert [one.client for one in exchange_of(grid).evaluate(asks_of(0, 1, 2))] == [0, 2]
    with pytest.raises(RunError, match=r"client 1 \(an answer that cannot be read"):
        list(exchange_of(grid, waiting=Waiting(10, 20)).evaluate(asks_of(0, 1, full=True)))


def test_of_an_error_in_reading_only_its_kind_is_told(grid: FakeGrid) -> None:
    def read(_: Parcel) -> Update:
        raise ZeroDivisionError(SECRET)

    assert exchange_of(grid).ask_about([1], read) == {1: "an answer that cannot be read: ZeroDivisionError"}


def test_a_parcel_comes_back_from_a_record_as_it_was() -> None:
    for given in (train_parcel(tasks_of(2)[0]), Parcel("{}"), Parcel("", {"model": b"", "peer": b"\x00\xff"})):
        parcel, envelope = parcel_of(record_of(given, {"a": "b", "c": ""}))
        assert (parcel.text, dict(parcel.pieces)) == (given.text, dict(given.pieces))
        assert envelope == {"a": "b", "c": ""}
    sent = train_parcel(tasks_of(2)[0])
    assert model_hash(parcel_of(record_of(sent, {}))[0]) == model_hash(sent)


def test_the_watch_knows_waiting_from_training(grid: FakeGrid) -> None:
    exchange = exchange_of(grid)
    list(exchange.train(tasks_of(0)))
    list(exchange.evaluate(asks_of(0)))
    assert set(exchange.watch.take()) == {"waiting", "training", "validation"}
