"""Communities: how often a client's peers come from among its own kind (paper, section 3.3)."""

from collections.abc import Collection, Mapping


def peer_share(frequency: Mapping[int, Mapping[int, int]], members: Collection[int]) -> float | None:
    """Return the share of the members' peers that are members themselves; None if they never had a peer.

    Args:
        frequency: receiver -> peer -> in how many rounds the peer helped the receiver.
    """
    inside = sum(count for m in members for k, count in frequency.get(m, {}).items() if k in members)
    every = sum(count for m in members for count in frequency.get(m, {}).values())
    return inside / every if every else None
