"""The only types that cross between server and client.

Towards a client: the global model, an anonymized peer, FedIRM's averaged relation matrix, settings. Raw peers exist for
research on the local engine. From a client: a model, the relation matrix of its labelled images where the method asks
for one, the numbers on two fixed lists, and of a model that is reported counts in bins and of groups of ten images or
more. A client's update has no way out of the server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedperl.evaluate import ATTRIBUTES, FULL_NUMBERS, SCALED_NUMBERS, BinnedSums, GroupCounts
from fedperl.evaluate.scaling import COLDEST, HOTTEST
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.state import State, size_in_bytes
from fedperl.peers import AnonymizedPeer, RawPeers

UPDATE_NUMBERS = frozenset(
    {
        "loss",
        "loss_labelled",
        "loss_unlabelled",
        "loss_consistency",
        "loss_relation",
        "loss_teacher",
        "loss_proximal",
        "accepted",
        "certain",
        "accuracy",  # of the sent model on the client's own images, where a policy asks for it
    }
)
SHARE = (0.0, 1.0)
RANGES = {
    **dict.fromkeys(("accepted", "certain", "accuracy", "ece_scaled"), SHARE),
    "temperature": (COLDEST, HOTTEST),
    "nll_scaled": (0.0, math.inf),
    "brier_scaled": (0.0, 2.0),
}
"""What some numbers lie between."""
ROUNDING = 1e-9
EVALUATION_NUMBERS = frozenset(
    {
        "images",
        "loss",
        "accuracy",
        "balanced_accuracy",
        "weighted_f1",
        "weighted_precision",
        "weighted_recall",
        "macro_f1",
        "macro_precision",
        "macro_recall",
        *FULL_NUMBERS,
        *SCALED_NUMBERS,
    }
)


@dataclass(frozen=True)
class GlobalModel:
    """The model every client starts the round from."""

    round: int
    """The round that made it; 0 is the initial one."""
    state: State


@dataclass(frozen=True)
class ReceivedPeer:
    """An anonymized peer as a client received it from another machine. It is not sent on."""

    state: State


@dataclass(frozen=True)
class TrainTask:
    """Server to client: train from this model, with this help."""

    run: str
    round: int
    client: int
    model: GlobalModel
    peer: AnonymizedPeer | RawPeers | ReceivedPeer | None
    settings: LocalSettings
    seed: int
    relation: Tensor | None = None

    def peer_states(self) -> tuple[State, ...]:
        """Return the models that help to label: one if anonymized, several if raw, or none."""
        if isinstance(self.peer, RawPeers):
            return self.peer.states
        return () if self.peer is None else (self.peer.state,)

    def size(self) -> int:
        """Return the bytes of the models, and of the relation matrix, that the task carries."""
        models = size_in_bytes(self.model.state) + sum(size_in_bytes(state) for state in self.peer_states())
        return models + (0 if self.relation is None else size_in_bytes({"relation": self.relation}))


@dataclass(frozen=True)
class Update:
    """Client to server: the trained model and the allowed numbers."""

    run: str
    round: int
    client: int
    state: State
    numbers: dict[str, float]
    relation: Tensor | None = None

    def __post_init__(self) -> None:
        _only(UPDATE_NUMBERS, self.numbers, "an update")

    def size(self) -> int:
        """Return the bytes of the model, and of the relation matrix."""
        return size_in_bytes(self.state) + (0 if self.relation is None else size_in_bytes({"": self.relation}))


@dataclass(frozen=True)
class Failure:
    """Client to server: no update, and the kind of error. Its text, which may name files, stays at the client."""

    run: str
    round: int
    client: int
    kind: str


@dataclass(frozen=True)
class EvaluateTask:
    """Server to client: evaluate this model on your own images of one part."""

    run: str
    round: int
    client: int
    model: GlobalModel
    part: Literal["validation", "test"]
    full: bool = False
    """Of a model that is reported: calibration, ranking and counts in bins too."""
    to_use: bool = False
    """Whether it is the one that the client uses when the run is over: a site then writes it to a file of its own."""


@dataclass(frozen=True)
class Evaluation:
    """Client to server: the allowed numbers, and counts in bins and of groups; nothing of any single image."""

    run: str
    round: int
    client: int
    part: Literal["validation", "test"]
    numbers: dict[str, float]
    sums: BinnedSums | None = None
    groups: Mapping[str, GroupCounts] = field(default_factory=dict)
    """By attribute, of what the client knows of its patients."""

    def __post_init__(self) -> None:
        _only(EVALUATION_NUMBERS, self.numbers, "an evaluation")
        for attribute, counts in self.groups.items():
            if attribute not in ATTRIBUTES or self.sums is None:
                raise ValueError(
                    f"an evaluation may carry groups by {', '.join(ATTRIBUTES)}, beside counts in bins; "
                    f"found {attribute!r}{'' if self.sums else ' without those'}"
                )
            counts.check(self.sums.confusion)


def _only(allowed: frozenset[str], numbers: dict[str, float], what: str) -> None:
    other = sorted(numbers.keys() - allowed)
    if other:
        raise ValueError(f"{what} may not carry {', '.join(other)}; allowed: {', '.join(sorted(allowed))}")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{what} may carry finite numbers alone; {name} is {value!r}")
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if not low - ROUNDING <= value <= high + ROUNDING:
            share = "a share, " if (low, high) == SHARE else ""
            raise ValueError(f"{what} carries {name} = {value!r}; wanted {share}{low:g} to {high:g}")
