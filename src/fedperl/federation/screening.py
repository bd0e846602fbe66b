"""What an update may not be: a model that was there before. And which updates may not help others."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fedperl.federation.ledger import Entry
from fedperl.federation.messages import Update
from fedperl.federation.robust import movement, reach, screened
from fedperl.files import digest
from fedperl.learn.state import State, is_running_statistic
from fedperl.peers import profile

NOTHING = 1e-6
"""Of the weights' own length: a change that is no more is none."""


IMAGE_LOSSES = (
    "accepted",
    "loss_labelled",
    "loss_unlabelled",
    "loss_consistency",
    "loss_relation",
    "loss_teacher",
)
"""Of a round's numbers: those that are 0 where no image taught anything."""


class Screen:
    """Knows every model that was sent, either way, by a fingerprint.

    Whoever sends a known model back hides nobody: mixed with one other client's, it lets all who know it solve for
    that one.
    """

    def __init__(self, *, repeats: bool = True) -> None:
        """Start before the first model.

        Args:
            repeats: whether a client that is asked again answers the same; not where its training is noisy.
        """
        self.seen: dict[str, tuple[int, int] | None] = {}
        """By fingerprint: the client and round of an upload, None of a global model."""
        self.sent: dict[tuple[int, int], str] = {}
        """The fingerprint of each upload."""
        self._repeats = repeats
        self._start: State = {}
        self._reach: float | None = None
        self._moved: dict[int, float] = {}
        self._idle: set[int] = set()

    def begin(self, start: State) -> None:
        """Take in the model that a round's clients train from."""
        self._start, self._reach, self._moved, self._idle = start, None, {}, set()

    def is_idle(self, client: int) -> bool:
        """Whether a client has learnt nothing: whoever has the global model has its model, and it would hide nobody.

        That is no fault: where labels are at the server, a client may find no image that it is sure of.
        """
        return client in self._idle

    def outliers(self, clients: Iterable[int], last: Mapping[int, float]) -> tuple[dict[int, float], set[int]]:
        """Return how far each client of the round moved, and those that moved too far to help others.

        Args:
            last: everyone's last movement before.
        """
        moved = {client: self._moved[client] for client in clients}
        return moved, screened(moved, last, self._far_away() or math.inf)

    def _far_away(self) -> float:
        if self._reach is None:
            self._reach = reach(self._start)
        return self._reach

    def find_fault(self, update: Update) -> str | None:
        """Return what is wrong with an update; one in order that changed something is known from now on."""
        own = update.client, update.round
        self._moved[update.client] = movement(update.state, self._start)
        self._idle.discard(update.client)
        if self._moved[update.client] <= NOTHING * self._far_away() or used_no_image(update.numbers):
            self._idle.add(update.client)
            return None
        print = fingerprint(update.state)
        if self.seen.setdefault(print, own) != own:
            return "it is a copy of a model that was sent before"
        if self._repeats and self.sent.setdefault(own, print) != print:
            return "it answered this round otherwise before: the two together would tell what it changed"
        self.sent[own] = print
        return None

    def release(self, state: State) -> str:
        """Note a global model, and return its fingerprint."""
        print = fingerprint(state)
        self.seen[print] = None
        return print

    def uploads(self, round: int, clients: Iterable[int]) -> dict[str, str]:
        """Return the fingerprints of a round's updates, by client, as the ledger has them."""
        return {str(client): self.sent[client, round] for client in clients if (client, round) in self.sent}

    def replay(self, entries: Iterable[Entry]) -> None:
        """Take in what a ledger knows of."""
        for entry in entries:
            for client, print in entry.get("prints", {}).items():
                ours = client in ("model", "average")
                self.seen[print] = None if ours else (int(client), entry["round"])
                if not ours:
                    self.sent[int(client), entry["round"]] = print


def used_no_image(numbers: Mapping[str, float]) -> bool:
    """Whether a client's numbers say that none of its images had a part in any loss.

    Its weights may have moved all the same, by their decay for instance: as anybody's would.
    """
    parts = {name: value for name, value in numbers.items() if name in IMAGE_LOSSES}
    return bool(parts) and not any(parts.values())


def fingerprint(state: State) -> str:
    """Return a digest of the mean and spread of every weight tensor: a model's and its copies', and nobody else's."""
    weights = {name: state[name] for name in sorted(state) if not is_running_statistic(name)}
    return digest(np.ascontiguousarray(profile(weights, tensors="all", std="population")).tobytes())[:32]
