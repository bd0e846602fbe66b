import json
from itertools import permutations
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import risk_coverage, selective_guaranteed_risk, threshold_at_risk
from fedperl.evaluate.selective import binomial_bound
from tests.evaluate.predictions import Floats, Labels, drawn, predictions


def of_confidences(confidence: list[float], right: list[bool]) -> tuple[Labels, Floats]:
    """Two classes; the first is predicted with that confidence, and true where right."""
    probabilities = np.array([[c, 1 - c] for c in confidence])
    return np.array([0 if r else 1 for r in right]), probabilities


def naive_risks(confidence: list[float], right: list[bool]) -> list[float]:
    """The risk among the k most confident, averaged over all orders of equals."""
    images = list(zip(confidence, right, strict=True))
    orders = [order for order in permutations(images) if [c for c, _ in order] == sorted(confidence, reverse=True)]
    counts = range(1, len(right) + 1)
    return [sum(sum(not r for _, r in order[:k]) / k for order in orders) / len(orders) for k in counts]


def looped_risks(truth: Labels, probabilities: Floats) -> list[float]:
    """The same for many images: the wrong ones among equals in equal shares."""
    confidence, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != truth
    share = {c: wrong[confidence == c].mean() for c in set(confidence.tolist())}
    found, errors = [], 0.0
    for k, c in enumerate(sorted(confidence.tolist(), reverse=True), start=1):
        errors += share[c]
        found.append(errors / k)
    return found


@given(st.lists(st.tuples(st.sampled_from([0.6, 0.75, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_equals_the_mean_over_all_orders_of_equals(images: list[tuple[float, bool]]) -> None:
    confidence, right = [c for c, _ in images], [r for _, r in images]
    found = risk_coverage(*of_confidences(confidence, right))
    expected = naive_risks(confidence, right)
    assert found.risks == pytest.approx(expected)
    assert found.coverages == pytest.approx([k / len(right) for k in range(1, len(right) + 1)])
    assert found.thresholds == tuple(sorted(confidence, reverse=True))
    assert found.aurc == pytest.approx(sum(expected) / len(expected))


@given(drawn(150))
def test_equals_a_naive_loop(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    found = risk_coverage(truth, probabilities)
    risks = looped_risks(truth, probabilities)
    assert found.risks == pytest.approx(risks)
    assert found.risk == pytest.approx(risks[-1])
    assert found.aurc == pytest.approx(sum(risks) / len(risks))
    r = found.risk
    limit = r + (1 - r) * log(1 - r) if r < 1 else 1.0
    assert found.e_aurc == pytest.approx(found.aurc - limit, abs=1e-12)
    confidence, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != truth
    for at in found.at_risk:
        kept = [(confidence >= c) for c in confidence]
        good = [mask for mask in kept if wrong[mask].mean() <= at.wanted]
        assert at.coverage == pytest.approx(max((mask.mean() for mask in good), default=0.0))
        if at.threshold is None:
            assert (at.coverage, at.risk) == (0, 0)
        else:
            mask = confidence >= at.threshold
            assert (mask.mean(), wrong[mask].mean()) == pytest.approx((at.coverage, at.risk))
            assert at.risk <= at.wanted
        assert threshold_at_risk(truth, probabilities, at.wanted) == at


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_the_best_ranking_has_no_excess(right: list[bool]) -> None:
    """All right before all wrong: the least AURC there is; no excess but what n images differ from very many."""
    right = sorted(right, reverse=True)
    found = risk_coverage(*of_confidences(np.linspace(0.99, 0.51, len(right)).tolist(), right))
    assert found.aurc == pytest.approx(found.best_aurc)
    assert -1e-12 <= found.e_aurc <= found.risk / len(right) + 1e-12


@given(drawn(120))
def test_order_does_not_matter_and_areas_are_bounded(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    found = risk_coverage(truth, probabilities)
    shuffle = np.random.default_rng(2).permutation(len(truth))
    other = risk_coverage(truth[shuffle], probabilities[shuffle])
    assert other.aurc == pytest.approx(found.aurc)
    assert other.at_risk == found.at_risk
    assert -1e-12 <= found.best_aurc - 1e-12 <= found.aurc <= 1 + 1e-12
    assert found.e_aurc >= -1e-12
    coverages = [at.coverage for at in found.at_risk]
    assert coverages == sorted(coverages)


def test_all_right_and_all_wrong_and_all_alike() -> None:
    right = risk_coverage(*predictions(0, 30, 3, "all right"))
    assert (right.aurc, right.e_aurc, right.risk) == (0, 0, 0)
    assert [at.coverage for at in right.at_risk] == [1, 1, 1]
    wrong = risk_coverage(*predictions(0, 30, 3, "all wrong"))
    assert (wrong.aurc, wrong.e_aurc, wrong.best_aurc) == pytest.approx((1, 0, 1))
    assert [at.threshold for at in wrong.at_risk] == [None, None, None]
    alike = risk_coverage(np.array([0, 0, 0, 1]), np.full((4, 2), 0.5))
    assert alike.risks == pytest.approx([0.25] * 4)
    assert alike.at_risk[-1].coverage == 0  # no threshold keeps a part of them


@pytest.mark.parametrize("kind", ["random", "sharp", "tied"])
def test_a_thinned_curve_keeps_its_area(kind: str) -> None:
    truth, probabilities = predictions(5, 5000, 4, kind)
    whole, thin = risk_coverage(truth, probabilities, points=5000), risk_coverage(truth, probabilities, points=100)
    assert len(whole.risks) == 5000
    assert len(thin.risks) <= 100
    areas = [np.diff(c.coverages) @ (np.array(c.risks[1:]) + c.risks[:-1]) / 2 for c in (thin, whole)]
    assert areas[0] == pytest.approx(areas[1], abs=1e-3)
    assert (thin.aurc, thin.coverages[-1]) == (whole.aurc, 1)
    assert thin.risks[-1] == pytest.approx(whole.risk)


def tail(errors: int, trials: int, rate: float) -> float:
    return sum(comb(trials, j) * rate**j * (1 - rate) ** (trials - j) for j in range(errors + 1))


@given(st.integers(1, 200), st.floats(0, 1), st.sampled_from([0.5, 0.05, 0.001, 1e-6]))
def test_the_bound_is_where_the_binomial_tail_is_delta(trials: int, share: float, delta: float) -> None:
    errors = int(share * trials)
    bound = binomial_bound(errors, trials, delta)
    if errors == trials:
        assert bound == 1
        return
    assert errors / trials <= bound <= 1
    assert tail(errors, trials, bound) == pytest.approx(delta, rel=1e-6)


def test_the_bound_of_no_error_and_of_many_trials() -> None:
    assert binomial_bound(0, 50, 0.01) == pytest.approx(1 - 0.01 ** (1 / 50))
    # One-sided Clopper-Pearson bounds by a beta quantile: scipy.stats.beta.ppf(1 - delta, k + 1, n - k).
    assert binomial_bound(5_000, 100_000, 0.001) == pytest.approx(0.052165103496107416, rel=1e-9)
    assert binomial_bound(99_990, 100_000, 1e-5) == pytest.approx(0.999983356012888, rel=1e-9)


def naive_guarantee(truth: Labels, probabilities: Floats, risk: float, delta: float) -> tuple[float, float] | None:
    """Algorithm 1 of Geifman and El-Yaniv in its own words; the threshold and coverage last found good enough."""
    confidence, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != truth
    ordered = sorted(confidence.tolist())
    m = len(ordered)
    k = max(1, int(np.ceil(np.log2(m))))
    z_min, z_max, best = 1, m, None
    for _ in range(k):
        z = int(np.ceil((z_min + z_max) / 2))
        kept = confidence >= ordered[z - 1]
        low, high = wrong[kept].mean(), 1.0
        for _ in range(60):
            rate = (low + high) / 2
            likely = tail(int(wrong[kept].sum()), int(kept.sum()), rate) > delta / k
            low, high = (rate, high) if likely else (low, rate)
        if high < risk:
            z_max, best = z, (ordered[z - 1], float(kept.mean()))
        else:
            z_min = z
    return best


@given(drawn(120), st.sampled_from([0.05, 0.2, 0.5, 0.9]), st.sampled_from([0.001, 0.1]))
def test_guaranteed_risk_equals_the_published_algorithm(
    images: tuple[Labels, Floats], risk: float, delta: float
) -> None:
    found = selective_guaranteed_risk(*images, risk, delta)
    expected = naive_guarantee(*images, risk, delta)
    if expected is None:
        assert (found.threshold, found.coverage, found.bound) == (None, 0, 1)
    else:
        assert (found.threshold, found.coverage) == pytest.approx(expected)
        assert found.risk <= found.bound < risk


def test_the_guarantee_holds_on_other_images() -> None:
    """Confidence c is right with probability c. Of 100 promises of at most 10 % risk at delta = 0.1, few may fail."""
    generator = np.random.default_rng(0)
    broken = 0
    for _ in range(100):
        confidence = generator.uniform(0.5, 1, size=400)
        truth, probabilities = of_confidences(confidence.tolist(), (generator.random(400) < confidence).tolist())
        found = selective_guaranteed_risk(truth, probabilities, 0.1, 0.1)
        if found.threshold is not None:
            broken += 1 - (1 + found.threshold) / 2 > 0.1  # the true risk from there on
    assert broken <= 10


def test_it_stops_one_image_short_of_all() -> None:
    found = selective_guaranteed_risk(*predictions(0, 1000, 3, "all right"), risk=0.1)
    assert found.coverage == pytest.approx(0.999)


def test_to_dict_is_json() -> None:
    truth, probabilities = predictions(0, 40, 3, "random")
    found = json.loads(json.dumps(risk_coverage(truth, probabilities).to_dict()))
    assert [at["wanted"] for at in found["at_risk"]] == [0.05, 0.1, 0.2]
    assert json.loads(json.dumps(selective_guaranteed_risk(truth, probabilities, 0.2).to_dict()))["wanted"] == 0.2


def test_bad_arguments() -> None:
    truth, probabilities = np.array([0, 1]), np.eye(2)
    with pytest.raises(ValueError, match="risk 1.5; wanted 0 to 1"):
        threshold_at_risk(truth, probabilities, 1.5)
    with pytest.raises(ValueError, match="risk 0, delta 0.1; wanted both between 0 and 1"):
        selective_guaranteed_risk(truth, probabilities, 0, 0.1)
    with pytest.raises(ValueError, match="3 errors in 2 trials"):
        binomial_bound(3, 2, 0.1)
    with pytest.raises(ValueError, match="n > 0"):
        risk_coverage(truth[:0], probabilities[:0])
