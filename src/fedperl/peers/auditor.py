"""The release auditor: what each client, or coalition of clients, could solve for from all it was ever sent.

Every release is a linear equation in the models that clients uploaded: a global model is their weighted mean, an
anonymized peer the mean of a committee. A coalition knows its own uploads and every equation it was sent. It solves for
a client when some combination of its equations holds uploads of that one client (or organisation) and of nobody else:
one model, the change between two, or any other sum of one client's models. A release is refused if afterwards any
coalition of the stated size could.

The bookkeeping is exact and small. An upload is live while it may still be part of a release: until the client's next
one. Future equations hold live uploads alone. So of all combinations of past ones only those matter, for each client k,
that hold nothing but live uploads and retired ones of k. Without k's own part these span, for every k, a space of at
most as many dimensions as there are live uploads; this is kept, and nothing else. The next equation lets the coalition
solve for k if, without k's own part, it lies in that space, unless the equation was known before.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations

PRIME = 2**61 - 1
"""Coefficients are counted modulo this: exact, and they do not grow."""
FINEST = 10**6
"""Weights are taken as fractions with at most this denominator: floats that are meant to be 1/3 cancel as 1/3 does."""

Upload = tuple[int, int]
"""A client, and the round in which it sent a model."""
Equation = dict[Upload, int]


def equation(weights: Mapping[Upload, float]) -> Equation:
    """Return a weighted mean of uploads as an equation; its scale is of no matter, and a weight of 0 is none.

    Raises:
        ValueError: no upload has a weight, or one is negative or not finite.
    """
    if not all(0 <= weight < float("inf") for weight in weights.values()) or not any(weights.values()):
        raise ValueError(f"an equation needs weights, 0 or more and one positive; found {dict(weights)}")
    largest = max(weights.values())
    found = {}
    for upload, weight in weights.items():
        share = Fraction(weight / largest).limit_denominator(FINEST)
        if weight > 0:
            found[upload] = max(share.numerator, 1) * pow(share.denominator, -1, PRIME) % PRIME
    return found


class Span:
    """Equations that can be combined, in reduced form: each has an upload, its pivot, that no other one holds."""

    def __init__(self) -> None:
        self.rows: dict[Upload, Equation] = {}

    def reduce(self, row: Mapping[Upload, int]) -> Equation:
        """Return what is left of an equation when all that is known is subtracted: nothing if it was known."""
        left = dict(row)
        for pivot in row:  # a row of ours holds no pivot but its own
            if pivot in self.rows:
                _subtract(left, self.rows[pivot], left[pivot])
        return left

    def add(self, row: Mapping[Upload, int]) -> None:
        """Take an equation in."""
        left = self.reduce(row)
        if left:
            self._pivot(next(iter(left)), left)

    def retire(self, upload: Upload) -> None:
        """Keep only what can be combined without an upload: it comes in no further equation."""
        if upload not in self.rows:
            holding = next((row for row in self.rows.values() if upload in row), None)
            if holding is None:
                return
            del self.rows[next(pivot for pivot, row in self.rows.items() if row is holding)]
            self._pivot(upload, holding)
        del self.rows[upload]

    def copy(self) -> "Span":
        """Return one that grows on its own."""
        other = Span()
        other.rows = {pivot: dict(row) for pivot, row in self.rows.items()}
        return other

    def _pivot(self, upload: Upload, row: Equation) -> None:
        factor = pow(row[upload], -1, PRIME)
        row = {other: value * factor % PRIME for other, value in row.items()}
        for other in self.rows.values():
            if upload in other:
                _subtract(other, row, other[upload])
        self.rows[upload] = row


def _subtract(row: Equation, other: Mapping[Upload, int], factor: int) -> None:
    for upload, value in other.items():
        left = (row.get(upload, 0) - factor * value) % PRIME
        if left:
            row[upload] = left
        else:
            row.pop(upload, None)


class Coalition:
    """What some organisations know together, as far as it hangs together with the peers they were sent.

    A global model's uploads are new: its equation is of no use until a peer holds one of them. So it is looked at then.
    """

    def __init__(self, members: frozenset[int], organisations: Mapping[int, int]) -> None:
        """Start knowing nothing.

        Args:
            members: organisations.
            organisations: of every client.
        """
        self.members, self.of = members, organisations
        self.seen: set[Upload] = set()
        """Live uploads whose global model is known."""
        self.all = Span()
        self.without: dict[int, Span] = {}
        """For each other organisation k in these equations, what can be combined, without k's own part."""

    def solves(self, row: Equation) -> list[int]:
        """Return the organisations for which one more equation would let them solve."""
        row = self._foreign(row)
        if not row or not self.all.reduce(row):
            return []
        own = {self.of[upload[0]] for upload in row}
        return [
            k
            for k in sorted(self.without.keys() | own)
            if not self.without.get(k, self.all).reduce({u: v for u, v in row.items() if self.of[u[0]] != k})
        ]

    def learn(self, row: Equation) -> None:
        """Take an equation in."""
        row = self._foreign(row)
        for k in {self.of[upload[0]] for upload in row} - self.without.keys():
            self.without[k] = self.all.copy()  # nothing of k's is in it
        self.all.add(row)
        for k, span in self.without.items():
            span.add({upload: value for upload, value in row.items() if self.of[upload[0]] != k})

    def retire(self, upload: Upload) -> None:
        """Note that an upload comes in no further equation."""
        self.seen.discard(upload)
        own = self.of[upload[0]]
        if own in self.members:
            return
        self.all.retire(upload)
        for k, span in self.without.items():
            if k != own:
                span.retire(upload)

    def _foreign(self, row: Equation) -> Equation:
        return {upload: value for upload, value in row.items() if self.of[upload[0]] not in self.members}


class Auditor:
    """Keeps what every coalition of one size knows.

    One of fewer members knows less than it does with a further member, who is protected from others.
    """

    def __init__(self, organisations: Mapping[int, int], size: int = 1) -> None:
        """Start before the first release.

        Args:
            organisations: of every client; those of one organisation count as one.
            size: organisations that may put together what they were sent.
        Raises:
            ValueError: no size, or fewer than two others outside of a coalition.
        """
        self.of, self.size, self.names = dict(organisations), size, sorted(set(organisations.values()))
        if size < 1 or len(self.names) < size + 2:
            raise ValueError(
                f"coalitions of {size} among {len(self.names)} organisations; wanted at least 1, and two others: "
                "whoever knows all but one solves for that one"
            )
        self.coalitions: dict[frozenset[int], Coalition] = {}
        """Those that were sent a peer."""
        self.models: dict[Upload, list[Equation]] = {}
        """The global models that hold an upload, for uploads that are live."""
        self.retired: set[Upload] = set()
        """Those in such models that are not."""

    def refuses(self, row: Equation, to: int) -> bool:
        """Return whether a peer would let a coalition with its receiver solve for somebody."""
        return any(coalition.solves(row) for coalition in self._holders(row, to))

    def release(self, row: Equation, to: int) -> None:
        """Note that a peer was sent to a client."""
        for coalition in self._holders(row, to):
            coalition.learn(row)

    def refuses_model(self, row: Equation) -> bool:
        """Return whether a global model, which everyone gets, would let a coalition solve for somebody."""
        if len({self.of[upload[0]] for upload in row}) < self.size + 2:
            return True
        known = [coalition for coalition in self.coalitions.values() if not coalition.seen.isdisjoint(row)]
        if any(upload in self.models for upload in row):
            # A round that was repeated with other survivors: those that sent the same again stand in two models.
            everyone = [Coalition(frozenset(group), self.of) for group in combinations(self.names, self.size)]
            known = [*everyone, *self.coalitions.values()]
        for coalition in known:
            self._look_up(coalition, row)
        return any(coalition.solves(row) for coalition in known)  # uploads that are new stand in no other equation

    def release_model(self, row: Equation) -> None:
        """Note that a global model was sent to everyone."""
        known = [coalition for coalition in self.coalitions.values() if not coalition.seen.isdisjoint(row)]
        for coalition in known:
            self._look_up(coalition, row)
            coalition.learn(row)
        for upload in row:
            self.models.setdefault(upload, []).append(row)

    def retire_all_but(self, uploads: Iterable[Upload]) -> None:
        """Note that no other upload comes in a further release."""
        keep = set(uploads)
        gone = {u for c in self.coalitions.values() for u in c.seen if u not in keep} | (self.models.keys() - keep)
        for upload in sorted(gone):
            for coalition in self.coalitions.values():
                if upload in coalition.seen:
                    coalition.retire(upload)
            self.models.pop(upload, None)
        self.retired = (self.retired | gone) & {u for rows in self.models.values() for row in rows for u in row}

    def _holders(self, row: Equation, to: int) -> list[Coalition]:
        """Return the coalitions that a client may be in, with all that is known of a peer's uploads."""
        own = self.of[to]
        others = [name for name in self.names if name != own]
        found = []
        for group in combinations(others, self.size - 1):
            members = frozenset((own, *group))
            coalition = self.coalitions.get(members)
            if coalition is None:
                coalition = self.coalitions[members] = Coalition(members, self.of)
            self._look_up(coalition, row)
            found.append(coalition)
        return found

    def _look_up(self, coalition: Coalition, row: Equation) -> None:
        """Let a coalition learn the global models that hold an upload of an equation."""
        ahead = [upload for upload in row if upload not in coalition.seen]
        while ahead:  # of a round that was repeated there are two models, with uploads in common
            upload = ahead.pop()
            if upload in coalition.seen:
                continue
            coalition.seen.add(upload)
            for model in self.models.get(upload, []):
                coalition.learn(model)
                ahead += model
        for upload in sorted(coalition.seen & self.retired):
            coalition.retire(upload)
