"""A federation that takes no time: six clients with a few hundred weights, whose answers are drawn from a seed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fedperl.benchmarking.reliability.dying import moments
from fedperl.learn.state import State
from fedperl.seeds import seed_for

CLIENTS, ROUNDS = 6, 5
TRAINING = "a client trains"
STEP = 0.1
"""Length of what an honest client changes."""
SHAPES = {"stem.weight": (8, 3, 3, 3), "stem.bias": (8,), "head.weight": (4, 8), "head.bias": (4,)}

Happens = Literal["lost", "error", "late"]
"""To a client's answer: it never comes, is an error, or comes in the next round."""
Script = Mapping[tuple[int, int], Happens]
"""What happens to the answer of a round and client; the others come."""


def drawn(*names: object) -> State:
    """Return numbers that depend on the names alone, of length 1 in all."""
    generator = torch.Generator().manual_seed(seed_for(0, *map(str, names)))
    state = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    whole = length(state)
    return {name: tensor / whole for name, tensor in state.items()}


def initial() -> State:
    """Return the model that all start from."""
    return drawn("initial")


def honest(start: State, round: int, client: int) -> State:
    """Return what a client trains: most of the way is everybody's, some of it its own; every change is as long."""
    moments.pass_by(TRAINING)
    common, own = drawn("way", round), drawn("own", round, client)
    change = {name: common[name] + 0.5 * own[name] for name in start}
    scale = STEP / length(change)
    return {name: tensor + scale * change[name] for name, tensor in start.items()}


def length(state: State) -> float:
    """Return the Euclidean length of all numbers."""
    return float(torch.cat([tensor.double().flatten() for tensor in state.values()]).norm())


def apart(one: State, other: State) -> float:
    """Return the distance of two models; infinite where a value is not finite, or their tensors differ."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    found = length({name: one[name].double() - other[name].double() for name in one})
    return found if found == found else float("inf")


@dataclass(frozen=True)
class Answers:
    """What comes back in a round."""

    states: Mapping[int, State]
    errors: frozenset[int]
    late: Mapping[int, State]
    """Answers to the round before."""


class Clients:
    """Six clients, to whom something may happen."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._held: dict[int, State] = {}

    def answer(self, start: State, round: int, clients: Iterable[int]) -> Answers:
        """Return what comes back in a round, from those that are asked."""
        states, errors, late = dict[int, State](), set[int](), self._held
        self._held = {}
        for client in clients:
            what = self.script.get((round, client))
            if what == "error":
                errors.add(client)
                continue
            state = honest(start, round, client)
            if what == "late":
                self._held[client] = state
            elif what is None:
                states[client] = state
        return Answers(states, frozenset(errors), late)


def expected(script: Script, quorum: int) -> State:
    """Return the model after all rounds, by a plain loop: the mean of those that came, if they are enough."""
    model = initial()
    for round in range(1, ROUNDS + 1):
        came = [honest(model, round, k) for k in range(CLIENTS) if (round, k) not in script]
        if len(came) >= quorum:
            model = {name: torch.stack([s[name].double() for s in came]).mean(0).float() for name in model}
    return model
