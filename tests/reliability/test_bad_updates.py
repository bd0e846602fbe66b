"""Whatever is wrong with one client's update, it is refused by name, and the round goes on as if it had not come."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.learn.state import State
from tests.federation.test_server import INITIAL, answer, server

FLOATS = [name for name, tensor in INITIAL.items() if tensor.is_floating_point()]
KINDS = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.complex64]


@st.composite
def faults(draw: st.DrawFn) -> tuple[str, Callable[[State], None]]:
    """Draw one thing that is wrong with a state, and the tensor that is to be named."""
    name = draw(st.sampled_from(sorted(INITIAL)))
    shape = INITIAL[name].shape

    def put(value: Any, where: str = name) -> tuple[str, Callable[[State], None]]:
        return where, lambda state: state.__setitem__(where, value)

    way = draw(st.sampled_from(["value", "shape", "kind", "missing", "extra", "no tensor"]))
    if way == "value":
        name = draw(st.sampled_from(FLOATS))
        tensor = torch.zeros_like(INITIAL[name])
        tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = draw(
            st.sampled_from([float("nan"), float("inf"), -float("inf")])
        )
        return put(tensor, name)
    if way == "shape":
        other = draw(st.lists(st.integers(0, 5), max_size=3).map(tuple).filter(lambda found: found != tuple(shape)))
        return put(torch.zeros(other, dtype=INITIAL[name].dtype))
    if way == "kind":
        kind = draw(st.sampled_from([kind for kind in KINDS if kind != INITIAL[name].dtype]))
        return put(torch.zeros(shape, dtype=kind))
    if way == "missing":
        return name, lambda state: state.pop(name)  # type: ignore[return-value]
    if way == "extra":
        return put(torch.zeros(2), draw(st.sampled_from(["conv.weights", "", "__profile__", "conv.weight.", "0"])))
    return put(draw(st.sampled_from([None, 1.0, "conv", [1.0], {}])))


@given(faults(), st.integers(0, 2))
def test_any_fault_is_named_and_only_that_client_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, fault: tuple[str, Callable[[State], None]], place: int
) -> None:
    name, spoil = fault
    folder = tmp_path_factory.mktemp("server")
    s, without = server(folder / "a", **SECTIONS), server(folder / "b", **SECTIONS)
    for one in (s, without):
        one.absorb(answer(task) for task in one.plan(1))
    tasks = list(s.plan(2))
    bad = tasks[place].client
    before = None if bad not in s.bank.records else s.bank.records[bad].round
    summary = s.absorb(answer(task, spoil) if task.client == bad else answer(task) for task in tasks)
    assert repr(name) in summary.rejected[bad]
    assert summary.accepted == sorted(task.client for task in tasks if task.client != bad)
    assert (None if bad not in s.bank.records else s.bank.records[bad].round) == before
    without.absorb(answer(task) for task in without.plan(2) if task.client != bad)
    assert same(s.model.state, without.model.state)


SECTIONS: dict[str, Any] = {"federation": {"cohort": 4, "quorum": 3}}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_one_that_was_never_accepted_is_never_a_peer(tmp_path: Path) -> None:
    """A client whose values are not finite has no profile, and no similarity that a sort could rank first."""
    s = server(tmp_path, federation={"cohort": 6, "quorum": 3}, peers={"warmup": 0})
    for round in range(1, 5):
        tasks = list(s.plan(round))
        assert all(2 not in s._summary.committees[task.client] for task in tasks)
        s.absorb(answer(task, _not_finite) if task.client == 2 else answer(task) for task in tasks)
    assert 2 not in s.known
    assert any(s._summary.committees.values())


def _not_finite(state: State) -> None:
    state["conv.weight"] = torch.full((4, 3), float("nan"))
