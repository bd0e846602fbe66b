"""A client that leaves: it is never asked again, and nothing of it stays with the server."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedperl import train, training
from fedperl.data.store import Store
from fedperl.engines.local import LocalExchange, PastStates
from fedperl.errors import RunError
from fedperl.federation.ledger import Ledger
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, TrainTask, Update
from fedperl.federation.rounds import FRUITLESS, Progress
from fedperl.federation.run_folder import RunFolder
from fedperl.results import Results
from fedperl.settings import Config
from tests.conftest import artefacts, small_config
from tests.federation.test_server import answer, rounds, server

GONE = 2

# The server alone


def test_a_withdrawn_client_is_nowhere_again(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 4}, peers={"T": 2, "warmup": 1})
    rounds(s, 6)
    assert GONE in s.bank.records
    s.bank.prune()
    (file,) = (tmp_path / "bank").glob(f"client-{GONE:05d}-*")
    s.withdraw(GONE)
    assert GONE not in s.known
    assert s.withdrawn == {GONE}
    helped = set()
    for round in range(7, 27):
        tasks = list(s.plan(round))
        assert len(tasks) == 4
        assert GONE not in [task.client for task in tasks]
        members = {k for task in tasks for k in s._summary.committees[task.client]}
        assert GONE not in members
        helped |= members
        s.absorb(answer(task) for task in tasks)
        assert GONE not in [task.client for task in s.evaluation_tasks()]
        assert GONE not in s.bank.records
    assert helped == {0, 1, 3, 4, 5}
    index = s.bank.to_json()
    s.bank.prune()
    assert not file.exists()
    assert not list((tmp_path / "bank").glob(f"client-{GONE:05d}-*"))
    assert str(GONE) not in index


def test_an_update_that_is_still_being_written_goes_too(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6})
    s.absorb(answer(task) for task in s.plan(1))
    s.withdraw(GONE)  # before the checkpoint has waited for the files
    s.bank.prune()
    assert sorted(path.name[:12] for path in (tmp_path / "bank").iterdir()) == [
        f"client-{k:05d}" for k in range(6) if k != GONE
    ]


def test_one_that_is_none_of_the_runs_may_be_taken_out(tmp_path: Path) -> None:
    s = server(tmp_path, clients=4, federation={"cohort": 3, "quorum": 3})
    s.withdraw(4)
    rounds(s, 1)
    assert s.model.round == 1


@pytest.mark.parametrize("sampling", ["uniform", "size"])
def test_cohorts_get_smaller_when_too_few_are_left(sampling: str, tmp_path: Path) -> None:
    s = server(tmp_path, clients=4, federation={"cohort": 3, "quorum": 3, "client_sampling": sampling})
    rounds(s, 1)
    for client in (0, 3):
        s.withdraw(client)
    s.withdraw(0)  # twice is once
    summary = s.absorb(answer(task) for task in s.plan(2))
    assert (sorted(summary.cohort), summary.accepted, summary.void) == ([1, 2], [1, 2], True)  # the quorum stays
    s.withdraw(1)
    assert s.absorb(answer(task) for task in s.plan(3)).void
    s.withdraw(2)
    assert list(s.plan(4)) == []
    assert s.absorb([]).void
    assert s.model.round == 1


def test_as_many_as_the_quorum_are_enough(tmp_path: Path) -> None:
    s = server(tmp_path, clients=5)
    for client in (0, 3):
        s.withdraw(client)
    assert not s.absorb(answer(task) for task in s.plan(1)).void
    s.withdraw(1)
    assert s.absorb(answer(task) for task in s.plan(2)).void  # of two, each could solve for the other
    assert s.model.round == 1


# Whole runs


@dataclass
class Plan:
    """Who withdraws when: asked to train or to validate from a round on, or to test after so many answers."""

    train: dict[int, int] = field(default_factory=dict)
    validate: dict[int, int] = field(default_factory=dict)
    test: dict[int, int] = field(default_factory=dict)


class Leaving(LocalExchange):
    """The local engine in which clients withdraw."""

    plan: Plan

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        for task in tasks:
            assert task.client not in self.left
            if self.plan.train.get(task.client, 99) <= task.round:
                self.left.add(task.client)
                yield Failure(task.run, task.round, task.client, "Withdrawn")
            else:
                yield from super().train([task])

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        for task in tasks:
            assert task.full or task.client not in self.left
            last = self.plan.validate.get(task.client, 99) <= task.round
            if task.full and task.client in self.plan.test:
                last = not self.plan.test[task.client]
                self.plan.test[task.client] -= 1
            if task.client in self.left or last:
                self.left.add(task.client)
            else:
                yield from super().evaluate([task])


@pytest.fixture(name="plan")
def _plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of every run of the test."""
    found = Plan()

    def exchange(_: Config, __: int, clients: Any, folder: RunFolder, watch: Any) -> LocalExchange:
        made = Leaving(clients, folder.client_states, PastStates(folder.past_states), watch)
        made.plan = found
        return made

    monkeypatch.setattr(training, "_exchange", exchange)
    return found


def config_of(**federation: Any) -> Config:
    return small_config(federation={"rounds": 7, "cohort": 4} | federation, peers={"warmup": 1})


def withdrawals(folder: Path) -> list[dict[str, Any]]:
    entries = Ledger(folder / "state" / "ledger.jsonl").entries()
    return [entry for entry in entries if entry["kind"] == "withdraw"]


def checkpoint(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "state" / "checkpoint.json").read_text())["content"]
    return found


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_gone(folder: Path, results: Results, client: int = GONE, others: int = 4) -> None:
    assert [entry["client"] for entry in withdrawals(folder)] == [client]
    assert checkpoint(folder)["withdrawn"] == [client]
    assert str(client) not in checkpoint(folder)["bank"]
    assert (folder / "state" / "bank").is_dir()
    assert not list((folder / "state" / "bank").glob(f"client-{client:05d}-*"))
    for found in (results["test"], json.loads((folder / "curves.json").read_text())["chosen"]):
        for choice in found.values():
            assert str(client) not in choice
            assert len(choice) == others


def last_with(lines: list[dict[str, Any]], client: int, what: str) -> int:
    """Return the last round in which a client was in a cohort, a committee or the validation."""
    last = 0
    for line in lines:
        members = {
            "cohort": line["cohort"],
            "committees": [k for committee in line["committees"].values() for k in committee],
            "validation": [int(k) for k in line["validation"]],
        }[what]
        last = line["round"] if client in members else last
    return last


@pytest.mark.parametrize("asked", ["train", "validate"])
def test_the_run_goes_on_without_it(asked: str, tmp_path: Path, store: Store, plan: Plan) -> None:
    (plan.train if asked == "train" else plan.validate)[GONE] = 3
    results = train(config_of(), tmp_path, store=store)
    check_gone(tmp_path, results)
    lines, left = lines_of(tmp_path), withdrawals(tmp_path)[0]["round"]
    assert 3 <= left <= 5
    assert len(lines) == 7
    assert 1 <= last_with(lines, GONE, "cohort") <= left < 7
    assert 2 <= last_with(lines, GONE, "committees") <= left
    assert last_with(lines, GONE, "validation") == left - 1
    if asked == "train":
        assert lines[left - 1]["rejected"] == {str(GONE): "it failed with Withdrawn"}
    assert all(set(line["validation"]) == set("0134") for line in lines[left:])
    assert all(len(line["cohort"]) == 4 for line in lines)
    assert not (tmp_path / "models" / f"client_{GONE}_best.safetensors").exists()
    assert (tmp_path / "models" / "client_1_best.safetensors").exists()


class Stop(Exception):
    pass


def stop_at(round: int) -> Any:
    def watcher(progress: Progress) -> None:
        if progress.round == round:
            raise Stop

    return watcher


def test_a_resumed_run_does_not_bring_it_back(tmp_path: Path, store: Store, plan: Plan) -> None:
    plan.validate[GONE] = 3
    train(config_of(), tmp_path / "whole", store=store)
    with pytest.raises(Stop):
        train(config_of(), tmp_path / "cut", store=store, watchers=[stop_at(4)])
    assert checkpoint(tmp_path / "cut")["withdrawn"] == [GONE]
    plan.validate.clear()  # it would answer now
    results = train(config_of(), tmp_path / "cut", store=store, resume=True)
    check_gone(tmp_path / "cut", results)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")


def test_a_crash_before_the_commit_notes_it_once(
    tmp_path: Path, store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.validate[GONE] = 3
    train(config_of(), tmp_path / "whole", store=store)
    commit = RunFolder.commit

    def crashing(self: RunFolder, content: dict[str, Any]) -> None:
        if content["round"] == 3:
            raise Stop
        commit(self, content)

    monkeypatch.setattr(RunFolder, "commit", crashing)
    with pytest.raises(Stop):
        train(config_of(), tmp_path / "cut", store=store)
    monkeypatch.setattr(RunFolder, "commit", commit)
    assert "withdrawn" not in checkpoint(tmp_path / "cut")
    assert len(withdrawals(tmp_path / "cut")) == 1
    results = train(config_of(), tmp_path / "cut", store=store, resume=True)
    check_gone(tmp_path / "cut", results)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")


def test_it_may_leave_during_the_final_tests(tmp_path: Path, store: Store, plan: Plan) -> None:
    plan.test[GONE] = 0
    results = train(config_of(), tmp_path, store=store)
    check_gone(tmp_path, results)
    assert withdrawals(tmp_path)[0]["round"] == 7
    assert all(set(line["validation"]) == set("01234") for line in lines_of(tmp_path))
    others = [results["test"]["last"][str(k)]["accuracy"] for k in (0, 1, 3, 4)]
    assert results["over_clients"]["last"]["accuracy"]["mean"] == pytest.approx(sum(others) / 4)


def test_it_may_leave_between_two_reported_models(tmp_path: Path, store: Store, plan: Plan) -> None:
    label = np.random.default_rng(1).permutation(store.manifest.label)  # nothing to learn: best rounds differ
    plan.test[GONE] = 2
    results = train(config_of(), tmp_path, store=replace(store, manifest=replace(store.manifest, label=label)))
    assert withdrawals(tmp_path)[0]["round"] == 7
    check_gone(tmp_path, results)
    assert not (tmp_path / "models" / f"client_{GONE}_best.safetensors").exists()


def test_where_nobody_leaves_there_is_no_trace_of_it(tmp_path: Path, store: Store, plan: Plan) -> None:
    results = train(config_of(rounds=2), tmp_path, store=store)
    assert plan == Plan()
    assert withdrawals(tmp_path) == []
    assert "withdrawn" not in checkpoint(tmp_path)
    assert set(results["test"]["last"]) == set("01234")


def test_when_all_have_left_the_run_ends_with_an_error(tmp_path: Path, store: Store, plan: Plan) -> None:
    plan.validate |= dict.fromkeys(range(5), 2)
    with pytest.raises(RunError, match=f"round {2 + FRUITLESS}: .* for {FRUITLESS} rounds"):
        train(config_of(rounds=30), tmp_path, store=store)
    assert [entry["client"] for entry in withdrawals(tmp_path)] == [0, 1, 2, 3, 4]
    assert not list((tmp_path / "state" / "bank").iterdir())


# Rounds in which nothing comes


class Silent(LocalExchange):
    """The local engine that nobody answers, or all with an error, until a round."""

    until: int
    fails: bool

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        for task in tasks:
            if task.round >= self.until:
                yield from super().train([task])
            elif self.fails:
                yield Failure(task.run, task.round, task.client, "MemoryError")


@pytest.fixture(name="silent")
def _silent(monkeypatch: pytest.MonkeyPatch) -> type[Silent]:
    class Own(Silent):
        until, fails = 99, False

    def exchange(_: Config, __: int, clients: Any, folder: RunFolder, watch: Any) -> LocalExchange:
        return Own(clients, folder.client_states, PastStates(folder.past_states), watch)

    monkeypatch.setattr(training, "_exchange", exchange)
    return Own


def test_a_run_waits_some_rounds_for_a_first_answer(tmp_path: Path, store: Store, silent: type[Silent]) -> None:
    with pytest.raises(RunError, match=f"round {FRUITLESS}: no client has sent .* no update came back"):
        train(config_of(rounds=14), tmp_path, store=store)
    assert len(lines_of(tmp_path)) == FRUITLESS
    assert all(line["void"] and not line["accepted"] for line in lines_of(tmp_path))
    silent.until = FRUITLESS + 2
    results = train(config_of(rounds=14), tmp_path, store=store, resume=True)
    assert [line["round"] for line in lines_of(tmp_path) if not line["accepted"]] == list(range(1, FRUITLESS + 2))
    assert results["totals"]["accepted"] == 4 * (14 - FRUITLESS - 1)


def test_a_run_whose_clients_all_fail_in_the_first_round_ends_at_once(
    tmp_path: Path, store: Store, silent: type[Silent]
) -> None:
    silent.fails = True
    with pytest.raises(RunError, match=r"round 1: no client has sent .*client \d: it failed with MemoryError"):
        train(config_of(rounds=4), tmp_path, store=store)
    assert len(lines_of(tmp_path)) == 1
    silent.fails, silent.until = False, 3
    train(config_of(rounds=4), tmp_path, store=store, resume=True)
    assert [line["round"] for line in lines_of(tmp_path) if not line["accepted"]] == [1, 2]


def test_an_evaluation_without_an_accuracy_does_not_end_the_run(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = LocalExchange.evaluate

    def evaluate(self: LocalExchange, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        for task, found in zip(listed := list(tasks), evaluated(self, listed), strict=True):
            yield found if task.full or task.client != 1 else replace(found, numbers={"images": 4})

    monkeypatch.setattr(LocalExchange, "evaluate", evaluate)
    results = train(config_of(), tmp_path, store=store)
    assert len(lines_of(tmp_path)) == 7
    assert "1" in results["test"]["last"]
    assert "1" not in results["test"]["per_client_best"]
