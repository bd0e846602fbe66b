"""The auditor in a run: which committee a client may be helped by, which averages may go out, what the ledger knows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from fedperl.errors import ConfigError
from fedperl.federation.ledger import Entry
from fedperl.peers.auditor import Auditor, Upload, equation
from fedperl.settings import Config

MOST_TRIES = 1000
"""Committees that are looked at for one client."""


@dataclass(frozen=True)
class Audited:
    """The committee that may be sent."""

    members: list[int]
    swapped: int = 0
    """How many of the chosen ones were left out or replaced."""


class Auditing:
    """Audits the releases of one run: peers and global models, and FedIRM's relation matrices class by class."""

    def __init__(self, config: Config, clients: int, organisations: Mapping[int, int]) -> None:
        """Start before the first release.

        Raises:
            ConfigError: there are too few organisations for coalitions of this size.
        """
        self.of = {client: organisations.get(client, client) for client in range(clients)}
        self.k_min, self.size = config.peers.k_min, config.coalition
        try:
            self.models = Auditor(self.of, self.size)
        except ValueError as error:
            raise ConfigError(f"audit.coalition = {self.size}: {error}") from None
        self.relations: dict[int, Auditor] = {}
        """By class."""

    def committee(self, client: int, chosen: Sequence[int], instead: Sequence[int], made: Mapping[int, int]) -> Audited:
        """Return the committee nearest to the chosen one that lets nobody solve for a client, and note its release.

        First as many, the fewest places down the list, then one more, then fewer; empty where nothing is left.

        Args:
            made: the round of each client's last upload.
        """
        pool = [*chosen, *instead]
        for members in islice(nearest(pool, len(chosen), self.k_min), MOST_TRIES):
            if len({self.of[k] for k in members}) < self.k_min:
                continue
            row = equation({(k, made[k]): 1.0 for k in members})
            if not self.models.refuses(row, client):
                self.models.release(row, client)
                return Audited(members, len(set(chosen) - set(members)))
        return Audited([], len(chosen))

    def related(self, client: int, known: Mapping[int, Sequence[Upload]]) -> dict[int, list[Upload]]:
        """Return of whose relation matrices each class's row may be the mean, and note the release.

        Args:
            known: by class, the uploads whose matrices know it.
        """
        found = {}
        for label, uploads in known.items():
            auditor = self._relation(label)
            for kept in _fewer(list(uploads), self.size + 1):
                row = equation(dict.fromkeys(kept, 1.0))
                if len({self.of[k] for k, _ in kept}) > self.size and not auditor.refuses(row, client):
                    auditor.release(row, client)
                    found[label] = kept
                    break
        return found

    def model(self, weights: Mapping[Upload, float]) -> bool:
        """Return whether a global model may go out to everyone; note its release if so."""
        row = equation(weights)
        if self.models.refuses_model(row):
            return False
        self.models.release_model(row)
        return True

    def keep(self, uploads: Iterable[Upload]) -> None:
        """Note that no other uploads can be part of a further release."""
        uploads = list(uploads)
        for auditor in (self.models, *self.relations.values()):
            auditor.retire_all_but(uploads)

    def replay(self, entries: Iterable[Entry], banked: Iterable[Upload]) -> None:
        """Take in all that a ledger says was sent, in whatever life of the run.

        An upload is looked at as long as the ledger speaks of it, since a round that was repeated goes back to earlier
        ones; those of the last round may come again.

        Args:
            banked: the uploads that may be sent from now on.
        """
        entries, banked = list(entries), set(banked)
        last: dict[Upload, int] = {}
        for place, entry in enumerate(entries):
            last |= dict.fromkeys(uploads_of(entry), place)
        latest = max((made for _, made in last), default=0)
        banked |= {upload for upload in last if upload[1] == latest}
        ahead = set(last) | banked
        for place, entry in enumerate(entries):
            for release in entry.get("releases", []):
                if release["committee"]:
                    row = equation({(k, made): 1.0 for k, made in release["committee"]})
                    self.models.release(row, release["to"])
                for label, uploads in release.get("relation", {}).items():
                    self._relation(int(label)).release(equation({(k, made): 1.0 for k, made in uploads}), release["to"])
            if entry["kind"] == "receive" and entry["weights"]:
                weights = {(int(k), entry["round"]): weight for k, weight in entry["weights"].items()}
                self.models.release_model(equation(weights))
                ahead = {upload for upload in ahead if last.get(upload, -1) > place} | banked
                self.keep(ahead)

    def _relation(self, label: int) -> Auditor:
        if label not in self.relations:
            self.relations[label] = Auditor(self.of, self.size)
        return self.relations[label]


def uploads_of(entry: Entry) -> Iterable[Upload]:
    """Yield the uploads that an entry of a ledger speaks of."""
    for release in entry.get("releases", []):
        yield from ((k, made) for k, made in release["committee"])
        for uploads in release.get("relation", {}).values():
            yield from ((k, made) for k, made in uploads)
    if entry["kind"] == "receive":
        yield from ((int(k), entry["round"]) for k in entry["weights"])


def nearest(pool: Sequence[int], size: int, fewest: int) -> Iterable[list[int]]:
    """Yield committees of this size, those with the best places first; then of one more, then of fewer."""
    for count in (size, size + 1, *range(size - 1, fewest - 1, -1)):
        for places in _by_sum(len(pool), count):
            yield [pool[place] for place in places]


def _by_sum(many: int, count: int) -> Iterable[tuple[int, ...]]:
    """Yield all choices of so many of the places 0, 1, ..., those with the smallest sums first; none ahead of time."""
    if count > many:
        return
    first = tuple(range(count))
    waiting, known = [(sum(first), first)], {first}
    while waiting:
        total, places = heappop(waiting)
        yield places
        for k, place in enumerate(places):
            further = (*places[:k], place + 1, *places[k + 1 :])
            free = place + 1 < (places[k + 1] if k + 1 < count else many)
            if free and further not in known:
                known.add(further)
                heappush(waiting, (total + 1, further))


def _fewer(uploads: list[Any], fewest: int) -> Iterable[list[Any]]:
    """Yield all, then all but one, as long as enough are left."""
    for left_out in (None, *uploads):
        kept = [upload for upload in uploads if upload != left_out]
        if len(kept) >= fewest:
            yield kept
