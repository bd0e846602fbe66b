import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.peers import apply_policy, scale_scores
from fedperl.peers.policies import Policy, Scale

CANDIDATES = [7, 2, 9, 4]
SIMILARITY = {7: 0.95, 2: 0.85, 9: 0.74, 4: -0.3}
SCORES = {1: 0.6, 2: 0.6, 4: 0.59, 7: 0.72, 8: 0.5}  # 1 is the client, 9 has none

shares = st.floats(0.0, 1.0)
candidate_lists = st.lists(st.integers(1, 9), unique=True)
tables = st.dictionaries(st.integers(0, 9), shares)


def kept(policy: Policy, rho: float = 0.0, scale: Scale = "absolute", scores: dict[int, float] = SCORES) -> list[int]:
    return apply_policy(policy, CANDIDATES, client=1, similarity=SIMILARITY, scores=scores, rho=rho, scale=scale)


def test_all_keeps_every_candidate_in_its_order() -> None:
    assert kept("all", rho=1.0) == [7, 2, 9, 4]


def test_validation_keeps_those_at_least_as_good_as_the_client() -> None:
    assert kept("validation", rho=1.0) == [7, 2]
    assert kept("validation", scores=SCORES | {1: 0.59}) == [7, 2, 4]
    assert kept("validation", scores=SCORES | {1: 0.8}) == []
    assert kept("validation", scores={k: v for k, v in SCORES.items() if k != 1}) == []
    assert kept("validation", scores=SCORES | {1: 0.0}) == [7, 2, 4]  # 9 has no score, and none is not 0


def test_gated_validation_on_each_scale() -> None:
    assert kept("gated_validation", rho=0.6) == [7, 2]
    assert kept("gated_validation", rho=0.75) == []  # nobody reaches the paper's lowest gate
    assert kept("gated_validation", rho=0.83, scale="relative_to_best") == [7, 2]
    assert kept("gated_validation", rho=0.84, scale="relative_to_best") == [7]
    # 8 is no candidate but the worst known: 7 -> 1, 2 -> 0.4545, 4 -> 0.409
    assert kept("gated_validation", rho=0.45, scale="minmax") == [7, 2]
    assert kept("gated_validation", rho=0.4, scale="minmax") == [7, 2, 4]
    assert kept("gated_validation", rho=1.0, scale="minmax") == [7]


def test_gated_similarity_keeps_those_at_the_gate_and_above() -> None:
    assert kept("gated_similarity", rho=0.95) == [7]
    assert kept("gated_similarity", rho=0.85) == [7, 2]
    assert kept("gated_similarity", rho=0.75) == [7, 2]
    assert kept("gated_similarity", rho=0.74) == [7, 2, 9]
    assert kept("gated_similarity", rho=1e-9) == [7, 2, 9]


@given(candidate_lists, st.dictionaries(st.integers(0, 9), st.floats(-1.0, 1.0) | st.just(math.nan)), tables)
def test_a_gate_at_0_is_the_static_policy(
    candidates: list[int], similarity: dict[int, float], scores: dict[int, float]
) -> None:
    gates: list[Policy] = ["gated_similarity", "gated_validation"]
    for policy in gates:
        assert (
            apply_policy(policy, candidates, client=0, similarity=similarity, scores=scores, rho=0.0, scale="minmax")
            == candidates
        )


@given(candidate_lists, tables, tables, shares, st.sampled_from(["absolute", "relative_to_best", "minmax"]))
def test_policies_against_naive(
    candidates: list[int], similarity: dict[int, float], scores: dict[int, float], rho: float, scale: Scale
) -> None:
    scaled = naive_scale(scores, scale)
    expected: dict[Policy, list[int]] = {
        "all": [],
        "validation": [],
        "gated_validation": [],
        "gated_similarity": [],
    }
    for k in candidates:
        expected["all"].append(k)
        if 0 in scores and k in scores and scores[k] >= scores[0]:
            expected["validation"].append(k)
        if scaled.get(k, 0.0) >= rho:
            expected["gated_validation"].append(k)
        if similarity.get(k, 0.0) >= rho:
            expected["gated_similarity"].append(k)
    for policy, wanted in expected.items():
        found = apply_policy(policy, candidates, client=0, similarity=similarity, scores=scores, rho=rho, scale=scale)
        assert found == wanted


def naive_scale(scores: dict[int, float], scale: str) -> dict[int, float]:
    ordered = sorted(scores.values())
    found = {}
    for client, score in scores.items():
        if scale == "absolute":
            found[client] = score
        elif scale == "relative_to_best":
            found[client] = score / ordered[-1] if ordered[-1] else 0.0
        elif ordered[0] == ordered[-1]:
            found[client] = 1.0
        else:
            found[client] = (score - ordered[0]) / (ordered[-1] - ordered[0])
    return found


def test_scale_scores() -> None:
    scores = {3: 0.2, 5: 0.8, 6: 0.5}
    assert scale_scores(scores, "absolute") == scores
    assert scale_scores(scores, "relative_to_best") == pytest.approx({3: 0.25, 5: 1.0, 6: 0.625})
    assert scale_scores(scores, "minmax") == pytest.approx({3: 0.0, 5: 1.0, 6: 0.5})
    assert scale_scores({3: 0.0, 5: 0.0}, "relative_to_best") == {3: 0.0, 5: 0.0}
    assert scale_scores({3: 0.0, 5: 0.0}, "minmax") == {3: 1.0, 5: 1.0}
    assert scale_scores({}, "minmax") == {}


@given(tables, st.sampled_from(["absolute", "relative_to_best", "minmax"]))
def test_scaled_scores_keep_their_order_and_lie_between_0_and_1(scores: dict[int, float], scale: Scale) -> None:
    scaled = scale_scores(scores, scale)
    assert all(0 <= value <= 1 for value in scaled.values())
    assert all(scaled[a] <= scaled[b] for a in scores for b in scores if scores[a] <= scores[b])


def test_refuses() -> None:
    with pytest.raises(ValueError, match="policy = 'none'; wanted one of all, validation, gated_validation, gated_sim"):
        kept("none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale = 'best'; wanted one of absolute, relative_to_best, minmax"):
        kept("gated_validation", scale="best")  # type: ignore[arg-type]
    for rho in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="rho = "):
            kept("gated_similarity", rho=rho)
    for score in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="client 4 has the score"):
            scale_scores({2: 0.5, 4: score}, "minmax")
    with pytest.raises(TypeError):
        apply_policy("all", CANDIDATES)  # type: ignore[call-arg]
