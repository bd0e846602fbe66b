import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import early_and_late, heat_map, peer_counts, peer_share, purity

KINDS = {0: "ISIC19", 1: "ISIC19", 2: "ISIC19", 3: "HAM10000", 4: "HAM10000", 5: "PAD-UFES"}


def test_peer_share() -> None:
    frequency = {0: {1: 3, 2: 1}, 1: {0: 2}, 2: {0: 9}}
    assert peer_share(frequency, [0, 1]) == pytest.approx(5 / 6)
    assert peer_share(frequency, [5]) is None


def some(seed: int, rounds: int) -> list[tuple[int, int, list[int]]]:
    generator = np.random.default_rng(seed)
    found = []
    for round in range(1, rounds + 1):
        for receiver in generator.choice(6, size=3, replace=False).tolist():
            others = [client for client in range(6) if client != receiver]
            peers = generator.choice(others, size=generator.integers(0, 4), replace=False)
            found.append((round, int(receiver), [int(peer) for peer in peers]))
    return found


@given(st.integers(0, 1000), st.integers(1, 30))
def test_heat_map_and_purity_equal_loops(seed: int, rounds: int) -> None:
    helped = some(seed, rounds)
    found = heat_map(peer_counts(helped), range(6))
    ours = purity(peer_counts(helped), KINDS)
    inside: dict[int, float] = {}
    for receiver in range(6):
        peers = [peer for _, to, members in helped if to == receiver for peer in members]
        row = found.shares[receiver]
        if not peers:
            assert row == (None,) * 6
        else:
            assert row == pytest.approx([peers.count(peer) / len(peers) for peer in range(6)])
            if receiver != 5:  # alone of its kind
                inside[receiver] = sum(KINDS[peer] == KINDS[receiver] for peer in peers) / len(peers)
    assert ours.by_client == {
        client: pytest.approx(inside[client]) if client in inside else None for client in range(6)
    }
    for kind in ("ISIC19", "HAM10000", "PAD-UFES"):
        shares = [share for client, share in inside.items() if KINDS[client] == kind]
        assert ours.by_community[kind] == (pytest.approx(np.mean(shares)) if shares else None)
    assert ours.overall == (pytest.approx(np.mean(list(inside.values()))) if inside else None)
    chances = [(2 if client < 3 else 1) / 5 for client in inside]
    assert ours.chance == (pytest.approx(np.mean(chances)) if chances else None)


def test_the_papers_first_community() -> None:
    """Section 3.3: rows of 81.6, 85.6, 89.5, 86.4 and 88.1 % among clients 0 to 4, on average 86.24 %."""
    percent = [81.6, 85.6, 89.5, 86.4, 88.1]
    frequency = {m: {(m + 1) % 5: round(10 * p), 8: 1000 - round(10 * p)} for m, p in enumerate(percent)}
    kinds = {client: "ISIC19" if client < 5 else "HAM10000" if client < 8 else str(client) for client in range(10)}
    found = purity(frequency, kinds)
    assert found.by_community["ISIC19"] == pytest.approx(0.8624)
    assert (found.by_community["HAM10000"], found.by_community["8"]) == (None, None)
    assert found.chance == pytest.approx(4 / 9)


def test_blind_choices_have_the_purity_of_chance() -> None:
    generator = np.random.default_rng(0)
    helped = []
    for round in range(4000):
        receiver = round % 6
        others = [client for client in range(6) if client != receiver]
        helped.append((round, receiver, generator.choice(others, size=2, replace=False).tolist()))
    found = purity(peer_counts(helped), KINDS)
    assert found.overall == pytest.approx(found.chance, abs=0.02)


def test_early_and_late() -> None:
    helped = [(11, 0, [3, 4]), (12, 0, [1, 3]), (13, 0, [1, 2]), (13, 3, [4]), (14, 0, [1, 2])]
    found = early_and_late(helped, KINDS)
    assert found.late_from == 13
    assert (found.early_purity.by_client[0], found.late_purity.by_client[0]) == (0.25, 1)
    assert (found.early_purity.by_client[3], found.late_purity.by_client[3]) == (None, 1)
    assert found.early.shares[0] == (0, 0.25, 0, 0.5, 0.25, 0)
    assert found.late.shares[0] == (0, 0.5, 0.5, 0, 0, 0)
    assert early_and_late(helped, KINDS, late_from=12).early.shares[0] == (0, 0, 0, 0.5, 0.5, 0)
    assert early_and_late(helped, KINDS, late_from=99).late_purity.overall is None
    assert json.loads(json.dumps(found.to_dict()))["late"]["clients"] == [0, 1, 2, 3, 4, 5]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"clients \[7, 9\] took part; wanted only \[0, 1\]"):
        heat_map({7: {0: 1}, 0: {9: 1}}, [0, 1])
    with pytest.raises(ValueError, match="no round with a peer"):
        early_and_late([], KINDS)
    with pytest.raises(ValueError, match=r"clients \[9\] took part"):
        purity({9: {0: 1}}, KINDS)
