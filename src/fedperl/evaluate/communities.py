"""Communities: how often a client's peers come from among its own kind (paper, section 3.3)."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Help = tuple[int, int, Sequence[int]]
"""Round, receiver, and the members of the committee that helped it."""
Frequency = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True)
class HeatMap:
    """Each receiver's peers, as shares that sum to 1 in a row; a row of None where it never had a peer."""

    clients: tuple[int, ...]
    shares: tuple[tuple[float | None, ...], ...]
    """[receiver][peer], in the order of `clients`."""

    def to_dict(self) -> dict[str, Any]:
        """Return clients and shares by name."""
        return asdict(self)


@dataclass(frozen=True)
class Purity:
    """How often clients learned from their own kind, as means over clients; None where there is none to average.

    A client that is alone of its kind has no such peer to choose and is left out. `chance` is what peers drawn blindly
    would give.
    """

    overall: float | None
    chance: float | None
    by_community: dict[str, float | None]
    by_client: dict[int, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Return the shares by name."""
        return asdict(self)


@dataclass(frozen=True)
class EarlyLate:
    """The same in the rounds before `late_from`, and in the others."""

    late_from: int
    early: HeatMap
    late: HeatMap
    early_purity: Purity
    late_purity: Purity

    def to_dict(self) -> dict[str, Any]:
        """Return both halves by name."""
        return asdict(self)


def peer_share(frequency: Frequency, members: Collection[int]) -> float | None:
    """Return the share of the members' peers that are members themselves; None if they never had a peer.

    Args:
        frequency: receiver -> peer -> in how many rounds the peer helped the receiver.
    """
    inside = sum(count for m in members for k, count in frequency.get(m, {}).items() if k in members)
    every = sum(count for m in members for count in frequency.get(m, {}).values())
    return inside / every if every else None


def peer_counts(helped: Iterable[Help]) -> dict[int, dict[int, int]]:
    """Return receiver -> peer -> in how many rounds the peer helped the receiver."""
    found: dict[int, dict[int, int]] = {}
    for _, receiver, members in helped:
        row = found.setdefault(receiver, {})
        for member in members:
            row[member] = row.get(member, 0) + 1
    return found


def heat_map(frequency: Frequency, clients: Sequence[int]) -> HeatMap:
    """Return which share of each client's peers each other one was (paper, the figure of communities).

    Args:
        frequency: receiver -> peer -> in how many rounds the peer helped the receiver.
        clients: all of them, in the order of rows and columns.
    Raises:
        ValueError: a receiver or a peer is not among the clients.
    """
    known = set(clients)
    others = {m for m in frequency if m not in known} | {k for row in frequency.values() for k in row if k not in known}
    if others:
        raise ValueError(f"clients {sorted(others)} took part; wanted only {list(clients)}")
    return HeatMap(tuple(clients), tuple(_shares(frequency.get(receiver, {}), clients) for receiver in clients))


def purity(frequency: Frequency, communities: Mapping[int, Hashable]) -> Purity:
    """Return how often clients learned from others of their community.

    The paper's average over the rows of a community in its heat map; `peer_share` counts every peer alike instead.

    Args:
        frequency: receiver -> peer -> in how many rounds the peer helped the receiver.
        communities: client -> what it is one of, such as the data set its images come from.
    Raises:
        ValueError: a receiver or a peer has no community.
    """
    shares = heat_map(frequency, list(communities))
    members: dict[Hashable, list[int]] = {}
    for client, community in communities.items():
        members.setdefault(community, []).append(client)
    by_client: dict[int, float | None] = {}
    chances: dict[int, float] = {}
    for client, row in zip(shares.clients, shares.shares, strict=True):
        own = members[communities[client]]
        inside = [share for peer, share in zip(shares.clients, row, strict=True) if peer in own and share is not None]
        by_client[client] = sum(inside) if inside and len(own) > 1 else None
        if by_client[client] is not None:
            chances[client] = (len(own) - 1) / (len(communities) - 1)
    return Purity(
        _mean(by_client.values()),
        _mean(chances.values()),
        {str(community): _mean(by_client[client] for client in own) for community, own in members.items()},
        by_client,
    )


def early_and_late(
    helped: Collection[Help], communities: Mapping[int, Hashable], late_from: int | None = None
) -> EarlyLate:
    """Return who helped whom in the first rounds and in the later ones.

    Args:
        helped: who helped whom, round by round.
        communities: client -> what it is one of.
        late_from: the first of the later rounds; by default that half of the rounds with peers are before it.
    Raises:
        ValueError: no round, or a client without a community.
    """
    if not helped:
        raise ValueError("no round with a peer; wanted at least one")
    if late_from is None:
        rounds = sorted({round for round, _, _ in helped})
        late_from = rounds[len(rounds) // 2]
    halves = [peer_counts(one for one in helped if (one[0] >= late_from) == late) for late in (False, True)]
    early, late = (heat_map(half, list(communities)) for half in halves)
    return EarlyLate(late_from, early, late, *(purity(half, communities) for half in halves))


def _shares(row: Mapping[int, int], clients: Sequence[int]) -> tuple[float | None, ...]:
    total = sum(row.values())
    return tuple(row.get(peer, 0) / total if total else None for peer in clients)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
