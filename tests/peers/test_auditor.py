"""The release auditor against a naive one that keeps every equation and solves them in exact fractions."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.peers.auditor import Auditor, Upload, equation


class Naive:
    """Keeps all that each coalition was sent, and asks for every organisation whether its uploads alone can be made."""

    def __init__(self, of: Mapping[int, int], size: int) -> None:
        self.of, names = of, sorted(set(of.values()))
        self.sent: dict[frozenset[int], list[dict[Upload, Fraction]]] = {
            frozenset(group): [] for group in combinations(names, size)
        }

    def refuses(self, row: Mapping[Upload, Fraction], to: int | None) -> bool:
        return any(
            self.solvable(rows, group) < self.solvable([*rows, row], group)
            for group, rows in self.sent.items()
            if to is None or self.of[to] in group
        )

    def release(self, row: Mapping[Upload, Fraction], to: int | None) -> None:
        for group, rows in self.sent.items():
            if to is None or self.of[to] in group:
                rows.append(dict(row))

    def solvable(self, rows: Iterable[Mapping[Upload, Fraction]], group: frozenset[int]) -> int:
        """Return of how many dimensions what is solved for is: of each organisation, rank less rank without it."""
        known = [{u: v for u, v in row.items() if self.of[u[0]] not in group} for row in rows]
        full = rank(known)
        others = set(self.of.values()) - group
        return sum(full - rank([{u: v for u, v in r.items() if self.of[u[0]] != k} for r in known]) for k in others)


def rank(rows: Iterable[Mapping[Upload, Fraction]]) -> int:
    left, found = [dict(row) for row in rows if row], 0
    while left:
        row = left.pop()
        if not row:
            continue
        found += 1
        pivot, value = next(iter(row.items()))
        for other in left:
            if pivot in other:
                factor = other[pivot] / value
                for upload, entry in row.items():
                    other[upload] = other.get(upload, Fraction(0)) - factor * entry
                    if not other[upload]:
                        del other[upload]
    return found


def exact(weights: Mapping[Upload, float]) -> dict[Upload, Fraction]:
    return {upload: Fraction(weight).limit_denominator(1000) for upload, weight in weights.items() if weight}


@given(
    seed=st.integers(0, 2**31),
    clients=st.integers(4, 7),
    size=st.integers(1, 2),
    aliases=st.booleans(),
    weighted=st.booleans(),
    lives=st.booleans(),
    early=st.booleans(),
)
def test_it_refuses_what_a_naive_auditor_refuses(
    seed: int, clients: int, size: int, aliases: bool, weighted: bool, lives: bool, early: bool
) -> None:
    """Where `lives`, rounds come again with other survivors; where `early`, peers hold models of their own round."""
    rng = np.random.default_rng(seed)
    of = {k: (0 if aliases and k == 1 else k) for k in range(clients)}
    if len(set(of.values())) < size + 2:
        return
    ours, naive, made = Auditor(of, size), Naive(of, size), dict[int, int]()
    refused = 0
    for round in range(1, 15):
        cohort = [int(k) for k in rng.choice(clients, size=min(clients, size + 3), replace=False)]
        for client in cohort:
            for _ in range(3):
                others = [k for k in made if of[k] != of[client]]
                if len(others) < 2:
                    break
                members = rng.choice(others, size=rng.integers(1, min(3, len(others)) + 1), replace=False)
                peer = {(int(k), made[int(k)]): 1.0 for k in members}
                answer = ours.refuses(equation(peer), client)
                assert answer == naive.refuses(exact(peer), client), (round, client, peer)
                refused += answer
                if not answer:
                    ours.release(equation(peer), client)
                    naive.release(exact(peer), client)
                    break
        if early:
            peer = {(int(k), round): 1.0 for k in cohort[1 : 1 + size + 1] if of[k] != of[cohort[0]]}
            if peer and not naive.refuses(exact(peer), cohort[0]):
                assert not ours.refuses(equation(peer), cohort[0])
                ours.release(equation(peer), cohort[0])
                naive.release(exact(peer), cohort[0])
        for _ in range(1 + (lives and round % 2)):
            survivors = [int(k) for k in rng.permutation(cohort)[: int(rng.integers(1, len(cohort) + 1))]]
            weights = {(k, round): float(rng.integers(1, 4)) if weighted else 1.0 for k in survivors}
            answer = ours.refuses_model(equation(weights))
            assert answer == naive.refuses(exact(weights), None), (round, weights)
            refused += answer
            if not answer:
                ours.release_model(equation(weights))
                naive.release(exact(weights), None)
                last = survivors
        if any(upload[1] == round for upload in ours.models):
            made |= dict.fromkeys(last, round)
            ours.retire_all_but(made.items())


def test_a_committee_of_one_is_its_model() -> None:
    auditor = Auditor({k: k for k in range(5)})
    assert auditor.refuses(equation({(1, 1): 1.0}), 0)


def test_overlapping_committees_are_a_system() -> None:
    auditor = Auditor({k: k for k in range(5)})
    for pair in ((1, 2), (2, 3)):
        row = equation({(k, 1): 1.0 for k in pair})
        assert not auditor.refuses(row, 0)
        auditor.release(row, 0)
    assert auditor.refuses(equation({(1, 1): 1.0, (3, 1): 1.0}), 0)
    assert not auditor.refuses(equation({(1, 1): 1.0, (3, 1): 1.0}), 4)  # who was sent nothing of it


def test_the_change_of_one_member_is_solved_for_by_differencing() -> None:
    auditor = Auditor({k: k for k in range(6)})
    auditor.release_model(equation({(k, 1): 1.0 for k in (1, 2, 3)}))
    auditor.release(equation({(1, 1): 1.0, (2, 1): 1.0}), 0)
    auditor.release_model(equation({(k, 2): 1.0 for k in (2, 4, 5)}))
    auditor.retire_all_but([(1, 1), (2, 2), (3, 1), (4, 2), (5, 2)])
    assert auditor.refuses(equation({(1, 1): 1.0, (2, 2): 1.0}), 0)
    assert auditor.refuses(equation({(1, 1): 1.0, (2, 2): 1.0}), 0)  # asking changes nothing
    assert not auditor.refuses(equation({(1, 1): 1.0, (4, 2): 1.0}), 0)
    # The same after three further rounds in which member 2 trained: any two of its models, not only neighbours.
    for round in (3, 4):
        auditor.release_model(equation({(k, round): 1.0 for k in (2, 4, 5)}))
    auditor.retire_all_but([(1, 1), (2, 4), (3, 1), (4, 4), (5, 4)])
    assert auditor.refuses(equation({(1, 1): 1.0, (2, 4): 1.0}), 0)


def test_a_global_model_of_a_receivers_own_round_leaves_two() -> None:
    auditor = Auditor({k: k for k in range(5)})
    auditor.release_model(equation({(k, 1): 1.0 for k in (0, 1, 2)}))
    assert not auditor.refuses(equation({(1, 1): 1.0, (2, 1): 1.0}), 0)  # which client 0 can compute itself
    auditor.release(equation({(1, 1): 1.0, (3, 1): 1.0}), 0)
    assert auditor.refuses(equation({(2, 1): 1.0, (3, 1): 1.0}), 0)  # (1 + 2), (1 + 3), (2 + 3)


@pytest.mark.parametrize(("survivors", "size", "refused"), [(2, 1, True), (3, 1, False), (3, 2, True), (4, 2, False)])
def test_a_global_model_of_too_few(survivors: int, size: int, refused: bool) -> None:
    auditor = Auditor({k: k for k in range(6)}, size)
    assert auditor.refuses_model(equation({(k, 1): 1.0 for k in range(survivors)})) is refused


def test_clients_of_one_organisation_know_and_hide_together() -> None:
    of = {0: 0, 1: 0, 2: 2, 3: 3, 4: 4}
    auditor = Auditor(of)
    auditor.release(equation({(2, 1): 1.0, (3, 1): 1.0}), 0)
    auditor.release(equation({(3, 1): 1.0, (4, 1): 1.0}), 1)
    assert auditor.refuses(equation({(2, 1): 1.0, (4, 1): 1.0}), 0)
    assert auditor.refuses(equation({(0, 1): 1.0, (1, 1): 1.0}), 2)  # two models of one organisation


def test_a_round_repeated_with_fewer_survivors_shows_the_missing_one() -> None:
    auditor = Auditor({k: k for k in range(6)})
    auditor.release_model(equation({(k, 1): 1.0 for k in (0, 1, 2, 3)}))
    assert auditor.refuses_model(equation({(k, 1): 1.0 for k in (0, 1, 2)}))
    assert not auditor.refuses_model(equation({(k, 1): 1.0 for k in (0, 1, 2, 3)}))


def test_of_a_round_with_two_lives_both_models_are_known() -> None:
    """Life 1 gave 0 + 1 + 2, life 2 gives 0 + 1 + 3 + 4; client 2 then knows 0 + 1, and two peers more would do."""
    auditor = Auditor({k: k for k in range(6)})
    for survivors in ((0, 1, 2), (0, 1, 3, 4)):
        row = equation({(k, 1): 1.0 for k in survivors})
        assert not auditor.refuses_model(row)
        auditor.release_model(row)
    for members in (((3, 1), (5, 2)), ((0, 1), (5, 2))):
        row = equation(dict.fromkeys(members, 1.0))
        assert not auditor.refuses(row, 2)
        auditor.release(row, 2)
    assert auditor.refuses(equation({(1, 1): 1.0, (5, 2): 1.0}), 2)


def test_a_model_of_uploads_that_a_peer_has_shown() -> None:
    auditor = Auditor({k: k for k in range(6)})
    auditor.release(equation({(1, 1): 1.0, (2, 1): 1.0}), 0)
    assert auditor.refuses_model(equation({(k, 1): 1.0 for k in (0, 1, 2, 3)}))  # less the peer, it is 3
    assert not auditor.refuses_model(equation({(k, 1): 1.0 for k in (0, 1, 2, 3, 4)}))


def test_weights_that_are_meant_to_be_equal_cancel() -> None:
    thirds = equation({(k, 1): 1 / 3 for k in range(3)})
    assert thirds == equation({(k, 1): 1.0 for k in range(3)})
    assert equation({(0, 1): 100 / 600, (1, 1): 200 / 600, (2, 1): 0.0}).keys() == {(0, 1), (1, 1)}
    for wrong in ({}, {(0, 1): 0.0}, {(0, 1): -1.0, (1, 1): 1.0}, {(0, 1): float("nan")}):
        with pytest.raises(ValueError, match="weights"):
            equation(wrong)


@pytest.mark.parametrize(("clients", "size"), [(2, 1), (3, 2), (5, 0)])
def test_too_few_to_hide_among(clients: int, size: int) -> None:
    with pytest.raises(ValueError, match="whoever knows all but one"):
        Auditor({k: k for k in range(clients)}, size)
