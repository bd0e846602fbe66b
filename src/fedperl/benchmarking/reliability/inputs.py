"""Bad answers of one client, and what each server makes of them."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedperl.benchmarking.reliability.columns import Column, Given
from fedperl.benchmarking.reliability.toy import CLIENTS, STEP, apart, honest, initial
from fedperl.learn.state import State

SUSPECT = 2
"""The client whose answer is bad; it is neither the first nor the last."""
IMAGES = 20
BOUND = 2.0
"""Honest steps that a round may move the model at most."""

Outcome = Literal["refused", "void", "bounded", "ended", "accepted"]
"""Left out with a reason, the others averaged; the old model stays, with a reason; taken in, but unable to move the
model far; an error that ends the run; taken in silently."""


@dataclass(frozen=True)
class BadInput:
    """One bad answer."""

    name: str
    spoil: Callable[[State, State], State] = lambda state, start: state
    """From the honest model, and the one that the round started from."""
    images: int = IMAGES
    everyone: bool = False
    """All clients say so many images."""
    again: bool = False
    """The client answers twice."""
    alone: bool = False
    """Nobody else answers."""
    borrowed: bool = False
    """The client sends another client's model."""


def _with(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[State, State], State]:
    return lambda state, start: {**state, name: change(state[name])}


def _first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.flatten().index_fill(0, torch.tensor([0]), value).reshape(tensor.shape)


BAD: tuple[BadInput, ...] = (
    BadInput("one value is NaN", _with("head.weight", _first(float("nan")))),
    BadInput("one value is infinite", _with("head.weight", _first(float("inf")))),
    BadInput("a tensor of another shape", _with("head.weight", lambda tensor: tensor[:, :-1].clone())),
    BadInput("a tensor of shape (1, 1), which broadcasts", _with("head.weight", lambda tensor: tensor[:1, :1].clone())),
    BadInput("a tensor of another type", _with("head.weight", lambda tensor: tensor.double())),
    BadInput("a tensor is missing", lambda state, start: {k: v for k, v in state.items() if k != "head.bias"}),
    BadInput("a tensor too many", lambda state, start: {**state, "extra": torch.zeros(3)}),
    BadInput("-9 images", images=-9),
    BadInput("0 images, said by all", images=0, everyone=True),
    BadInput("nothing was changed (null update)", lambda state, start: {k: v.clone() for k, v in start.items()}),
    BadInput("a copy of another client's model", borrowed=True),
    BadInput("the client answers twice", again=True),
    BadInput(
        "the change times a million",
        lambda state, start: {name: start[name] + 1e6 * (state[name] - start[name]) for name in state},
    ),
    BadInput("one client alone answers", alone=True),
)


def honest_answers(start: State) -> dict[int, State]:
    """Return what the clients would send, were all honest."""
    return {client: honest(start, 2, client) for client in range(CLIENTS)}


def given(bad: BadInput) -> tuple[State, Given]:
    """Return the model that a round starts from, and its answers."""
    start = initial()
    states = honest_answers(start)
    states[SUSPECT] = states[SUSPECT - 1] if bad.borrowed else bad.spoil(states[SUSPECT], start)
    answers = []
    for client, state in states.items():
        if bad.alone and client != SUSPECT:
            continue
        images = bad.images if bad.everyone or client == SUSPECT else IMAGES
        answers += [(client, state, images)] * (2 if bad.again and client == SUSPECT else 1)
    return start, answers


def judge(column: Column, bad: BadInput) -> tuple[Outcome, str]:
    """Return what became of a bad answer, and what was said of it."""
    start, answers = given(bad)
    with tempfile.TemporaryDirectory(prefix="fedperl-bench-") as folder:
        try:
            found = column.average(start, answers, SUSPECT, Path(folder))
        except Exception as error:
            return "ended", f"{type(error).__name__}: {error}"
    counting = [state for client, state in honest_answers(start).items() if client != SUSPECT or bad.again]
    mean = {name: torch.stack([state[name] for state in counting]).mean(0) for name in start}
    if found.refused and apart(found.model, start) == 0:
        return "void", found.refused
    if found.refused and apart(found.model, mean) < STEP / 1000:
        return "refused", found.refused
    if bad.name.startswith("the change") and apart(found.model, start) <= BOUND * STEP:
        return "bounded", f"the model moved by {apart(found.model, start) / STEP:.2f} honest steps"
    return "accepted", ""
