"""Membership inference: each number against a naive version and scikit-learn, and attacks whose answer is known."""

from math import log, sqrt
from statistics import NormalDist, fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from fedperl.evaluate.membership import (
    NUMBERS,
    PRIOR,
    RATES,
    Attack,
    Repeats,
    drawn_images,
    even_weights,
    logit_confidence,
    mean_interval,
    offline_lira,
    ratio_interval,
    within,
)

NORMAL = NormalDist()


def naive_numbers(member: list[bool], score: list[float], weight: list[float]) -> dict[str, float]:
    """Pair by pair, threshold by threshold."""
    cases = list(zip(member, score, weight, strict=True))
    inside, outside = [(s, w) for m, s, w in cases if m], [(s, w) for m, s, w in cases if not m]
    all_inside, all_outside = sum(w for _, w in inside), sum(w for _, w in outside)
    pairs = sum(w * v * ((s > t) + 0.5 * (s == t)) for s, w in inside for t, v in outside)
    found = {"auc": pairs / (all_inside * all_outside)}
    for name, rate in RATES.items():
        best = 0.0
        for threshold in score:
            alarms = sum(w for s, w in outside if s >= threshold) / all_outside
            if alarms <= rate + 1e-12:
                best = max(best, sum(w for s, w in inside if s >= threshold) / all_inside)
        found[name] = best
    return found


def numbers(member: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None) -> dict[str, float]:
    return {name: float(value) for name, value in Attack(member, score, weight).numbers().items()}


# Scores


def test_confidence_is_the_logit_of_the_labels_probability() -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=50)
    labels = np.arange(50) % 4
    expected = [log(row[label] / (1 - row[label])) for row, label in zip(probabilities, labels, strict=True)]
    assert logit_confidence(probabilities, labels) == pytest.approx(expected, abs=1e-9)


def test_a_certain_models_confidences_still_differ() -> None:
    """In single precision p is 1 for all of them; the others' sum is not."""
    rest = np.array([1e-9, 1e-20, 1e-30, 0.0], dtype=np.float32)
    probabilities = np.stack([np.ones(4, dtype=np.float32), rest], axis=1)
    found = logit_confidence(probabilities, np.zeros(4, dtype=np.int64))
    assert found[:3] == pytest.approx([-log(1e-9), -log(1e-20), -log(1e-30)], rel=1e-6)
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()
    assert logit_confidence(probabilities, np.ones(4, dtype=np.int64)) == pytest.approx(-found)


@pytest.mark.parametrize(
    ("probabilities", "labels", "said"),
    [
        (np.ones((2, 2)) / 2, np.zeros(3, dtype=int), "shape|wanted"),
        (np.ones((2, 2)) / 2, np.array([0, 2]), "2 classes"),
        (np.ones((2, 2)) / 2, np.array([-1, 0]), "2 classes"),
        (np.array([[1.5, -0.5]]), np.array([0]), "between 0 and 1"),
        (np.array([[np.nan, 0.5]]), np.array([0]), "between 0 and 1"),
    ],
)
def test_confidence_refuses(probabilities: np.ndarray, labels: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        logit_confidence(probabilities, labels)


def naive_lira(score: np.ndarray, references: np.ndarray, without: np.ndarray) -> list[float]:
    outs = [
        [r for r, out in zip(column, mask, strict=True) if out]
        for column, mask in zip(references.T, without.T, strict=True)
    ]
    squares = [sum((r - fmean(out)) ** 2 for r in out) for out in outs]
    shared = sum(squares) / sum(len(out) - 1 for out in outs)
    return [
        (s - fmean(out)) / sqrt((square + PRIOR * shared) / (len(out) - 1 + PRIOR))
        for s, out, square in zip(score, outs, squares, strict=True)
    ]


def test_lira_equals_a_naive_loop() -> None:
    generator = np.random.default_rng(1)
    references, score = generator.normal(size=(6, 40)), generator.normal(size=40)
    without = generator.random((6, 40)) < 0.5
    without[0] = True
    assert offline_lira(score, references, without) == pytest.approx(naive_lira(score, references, without))


@pytest.mark.parametrize("separation", [0.0, 1.0, 2.5])
def test_lira_on_normal_scores_finds_what_theory_says(separation: float) -> None:
    """Every image has its own difficulty, thirty times the separation: only the references tell it from knowing."""
    generator, n = np.random.default_rng(2), 20_000
    difficulty, spread = 30 * generator.normal(size=n), 1.7
    member = np.arange(n) < n // 2
    references = difficulty + spread * generator.normal(size=(200, n))
    without = np.ones((200, n), dtype=bool)
    references[100:, member] += 40  # trained on the members: must not be looked at
    without[100:, member] = False
    score = difficulty + spread * (generator.normal(size=n) + separation * member)
    found = numbers(member, offline_lira(score, references, without))
    assert found["auc"] == pytest.approx(NORMAL.cdf(separation / sqrt(2)), abs=0.012)
    assert found["tpr_1"] == pytest.approx(1 - NORMAL.cdf(NORMAL.inv_cdf(0.99) - separation), abs=0.025)
    assert found["tpr_01"] == pytest.approx(1 - NORMAL.cdf(NORMAL.inv_cdf(0.999) - separation), abs=0.05)
    plain = numbers(member, score)["auc"]
    assert plain == pytest.approx(0.5, abs=0.05)


def test_lira_weighs_an_images_own_spread() -> None:
    """Two images as far above their references' mean: the one whose references agree counts as more surprising."""
    references = np.array([[0.0, 0.0], [0.1, 10.0], [-0.1, -10.0], [0.05, 5.0], [-0.05, -5.0]])
    found = offline_lira(np.array([8.0, 8.0]), references, np.ones((5, 2), dtype=bool))
    assert found[0] > 1.3 * found[1] > 0


def test_lira_refuses() -> None:
    references, out = np.array([[0.0, 1.0], [1.0, 3.0]]), np.ones((2, 2), dtype=bool)
    score = np.zeros(2)
    with pytest.raises(ValueError, match="wanted"):
        offline_lira(np.zeros(3), references, out)
    with pytest.raises(ValueError, match="bool"):
        offline_lira(score, references, out.astype(int))
    with pytest.raises(ValueError, match="not finite"):
        offline_lira(np.array([0.0, np.inf]), references, out)
    with pytest.raises(ValueError, match="not finite"):
        offline_lira(score, np.array([[0.0, np.nan], [1.0, 3.0]]), out)
    with pytest.raises(ValueError, match="image 1: every reference was trained on it"):
        offline_lira(score, references, np.array([[True, False], [True, False]]))
    with pytest.raises(ValueError, match="no image is scored differently"):
        offline_lira(score, np.ones((2, 2)), out)


def test_within_a_stratum_median_and_quartiles_are_taken_out() -> None:
    generator = np.random.default_rng(3)
    stratum = np.repeat([4, 7], 101)
    score = np.where(stratum == 4, 100.0, -3.0) + np.where(stratum == 4, 9.0, 0.1) * generator.normal(size=202)
    found = within(score, stratum)
    for one in (4, 7):
        here, before = found[stratum == one], score[stratum == one]
        assert median(here) == pytest.approx(0)
        assert np.subtract(*np.quantile(here, [0.75, 0.25])) == pytest.approx(1)
        assert (here.argsort() == before.argsort()).all()
    assert (within(np.ones(4), np.array([0, 0, 1, 1])) == 0).all()
    assert score[0] > 50  # the given scores stay


def test_even_weights_make_both_kinds_count_the_same_in_every_stratum() -> None:
    member = np.array([True, True, False, True, False, False, False, True, False])
    stratum = np.array([0, 0, 0, 1, 1, 1, 1, 2, 3])
    weights = even_weights(member, stratum)
    assert weights.tolist() == pytest.approx([1, 1, 2, 1, 1 / 3, 1 / 3, 1 / 3, 0, 0])


def test_a_stratums_own_level_tells_nothing_once_weighed() -> None:
    """Scores that depend on the hospital alone, and hospitals with more members than others."""
    member = np.concatenate([np.arange(100) < 80, np.arange(100) < 20])
    stratum = np.repeat([0, 1], 100)
    score = np.where(stratum == 0, 1.0, 0.0)
    assert numbers(member, score)["auc"] == pytest.approx(0.8)
    assert numbers(member, score, even_weights(member, stratum))["auc"] == pytest.approx(0.5)


# Numbers


@given(st.data())
def test_numbers_equal_a_naive_loop(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 40))
    member = np.array([True, False, *data.draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))])
    score = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)), dtype=float)  # many ties
    weight = np.array(data.draw(st.lists(st.floats(0.1, 3), min_size=n, max_size=n)))
    found = numbers(member, score, weight)
    assert found == pytest.approx(naive_numbers(member.tolist(), score.tolist(), weight.tolist()))


@pytest.mark.parametrize("rounded", [0, 3])
def test_numbers_equal_scikit_learns(rounded: int) -> None:
    generator = np.random.default_rng(4)
    member = generator.random(3000) < 0.4
    score = np.round(generator.normal(size=3000) + member, rounded)
    weight = generator.random(3000)
    false, true, _ = roc_curve(member, score, sample_weight=weight, drop_intermediate=False)
    found = numbers(member, score, weight)
    assert found["auc"] == pytest.approx(roc_auc_score(member, score, sample_weight=weight))
    for name, rate in RATES.items():
        assert found[name] == pytest.approx(true[false <= rate].max())
    curve = Attack(member, score, weight).roc()
    assert curve[0] == pytest.approx(false)
    assert curve[1] == pytest.approx(true)


def test_the_rate_itself_is_still_allowed() -> None:
    """One false alarm among a hundred others is 1 %; two are not."""
    member = np.arange(200) < 100
    score = np.zeros(200)
    score[:50], score[100] = 2.0, 2.0
    score[50:60], score[101] = 1.0, 1.0
    assert numbers(member, score) == pytest.approx({"auc": naive_auc(score), "tpr_1": 0.5, "tpr_01": 0.0})
    assert numbers(member, score, np.full(200, 1 / 3))["tpr_1"] == pytest.approx(0.5)  # whatever 1/3 rounds to


def naive_auc(score: np.ndarray) -> float:
    return naive_numbers([True] * 100 + [False] * 100, score.tolist(), [1.0] * 200)["auc"]


def test_counts_are_images_that_occur_several_times() -> None:
    generator = np.random.default_rng(5)
    member, score = generator.random(60) < 0.5, generator.integers(0, 20, 60).astype(float)
    weight, draws = generator.random(60), generator.integers(0, 4, (7, 60))
    attack = Attack(member, score, weight)
    together = attack.numbers(draws)
    for place, counts in enumerate(draws):
        rows = np.repeat(np.arange(60), counts)
        expected = numbers(member[rows], score[rows], weight[rows])
        assert {name: float(value) for name, value in attack.numbers(counts).items()} == pytest.approx(expected)
        assert {name: float(values[place]) for name, values in together.items()} == pytest.approx(expected)


def test_nobody_to_tell_apart_has_no_numbers() -> None:
    attack = Attack(np.array([True, False]), np.array([1.0, 0.0]))
    for found in attack.numbers(np.array([[1, 0], [0, 1], [0, 0]])).values():
        assert np.isnan(found).all()
    assert attack.numbers() == {"auc": 1.0, "tpr_1": 1.0, "tpr_01": 1.0}


def test_attacks_refuse() -> None:
    member, score = np.array([True, False]), np.array([0.0, 1.0])
    for weight in (np.ones(1), np.ones(3)):
        with pytest.raises(ValueError, match="one length"):
            Attack(member, score, weight)
    with pytest.raises(ValueError, match="one length"):
        Attack(member, score[:1])
    with pytest.raises(ValueError, match="one length"):
        Attack(member[:0], score[:0])
    with pytest.raises(ValueError, match="bool"):
        Attack(member.astype(int), score)
    with pytest.raises(ValueError, match="finite scores"):
        Attack(member, np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match="weights of 0"):
        Attack(member, score, np.array([1.0, -1.0]))


# Intervals


def repeated(scores: np.ndarray, member: np.ndarray, draws: np.ndarray) -> Repeats:
    return Repeats([Attack(member, score) for score in scores], draws)


def test_groups_are_drawn_whole() -> None:
    groups = np.array(["a", "b", "a", "c", "b", "b"])
    draws = drawn_images(groups, 300)
    assert draws.shape == (300, 6)
    assert (draws[:, 0] == draws[:, 2]).all()
    assert (draws[:, 1] == draws[:, 4]).all()
    assert (draws[:, 0] + draws[:, 1] + draws[:, 3] == 3).all()
    assert draws.mean() == pytest.approx(1, abs=0.1)
    assert (drawn_images(groups, 300) == draws).all()
    assert (drawn_images(groups, 300, seed=1) != draws).any()


def test_mean_interval_equals_a_naive_loop() -> None:
    generator = np.random.default_rng(6)
    member = np.arange(120) < 60
    seeds, images = generator.normal(size=(4, 1)), generator.normal(size=(1, 120))
    scores = member * (1 + seeds) + images + 0.5 * generator.normal(size=(4, 120))
    found = mean_interval(repeated(scores, member, drawn_images(np.arange(120), 2000)), "auc", level=0.8)
    by_seed = [naive_numbers(member.tolist(), score.tolist(), [1.0] * 120)["auc"] for score in scores]
    centre, other = fmean(by_seed), np.random.default_rng(77)
    of_images = []
    for _ in range(600):
        rows = other.integers(120, size=120)
        inside, outside = rows[member[rows]], rows[~member[rows]]
        aucs = [float((score[inside][:, None] > score[outside]).mean()) for score in scores]
        of_images.append(fmean(aucs) - centre)
    of_seeds = [(fmean(by_seed[other.integers(4)] for _ in range(4)) - centre) * sqrt(4 / 3) for _ in range(600)]
    freedom = 3 * (np.var(of_seeds) + np.var(of_images)) ** 2 / np.var(of_seeds) ** 2
    drawn = [
        centre
        + (of_seeds[other.integers(600)] + of_images[other.integers(600)]) * sqrt(freedom / other.chisquare(freedom))
        for _ in range(6000)
    ]
    low, high = np.quantile(drawn, [0.1, 0.9])
    assert found.value == pytest.approx(centre)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.08 * (high - low))


def test_a_model_that_never_saw_the_images_is_at_chance_within_its_interval() -> None:
    """Of 60 measurements with 3 seeds nearly all intervals hold chance: those of the AUC, and of what is found."""
    held = dict.fromkeys(NUMBERS, 0)
    for number in range(60):
        generator = np.random.default_rng(number)
        member = np.arange(400) < 200
        scores = generator.normal(size=(1, 400)) + generator.normal(size=(3, 400))  # some images are easier
        one = repeated(scores, member, drawn_images(np.arange(400), 100))
        for name, chance in {"auc": 0.5, **RATES}.items():
            found = mean_interval(one, name)
            assert found.low is not None
            assert found.high is not None
            held[name] += found.low <= chance <= found.high
    assert held["auc"] >= 53
    assert held["tpr_1"] >= 50
    assert held["tpr_01"] >= 45


def test_other_seeds_and_other_images_both_widen_it() -> None:
    generator = np.random.default_rng(8)
    member = np.arange(400) < 200
    images = member + generator.normal(size=400)
    seeds = np.stack([images + shift * member for shift in np.linspace(-0.4, 0.4, 8)])
    draws = drawn_images(np.arange(400), 400)

    def width(scores: np.ndarray, draws: np.ndarray) -> float:
        found = mean_interval(repeated(scores, member, draws), "auc")
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    still = np.ones_like(draws)
    one, same = width(images[None], draws), width(np.stack([images] * 3), draws)
    assert same == pytest.approx(one, rel=0.1)
    assert 0.02 < one < 0.3
    assert width(seeds, still) > 0.02
    assert width(seeds, draws) > 1.2 * max(one, width(seeds, still))
    assert width(images[None], still) == 0


def test_a_perfect_attack_stays_within_the_possible() -> None:
    member = np.arange(40) < 20
    scores = np.stack([member + 0.9 * np.random.default_rng(k).random(40) for k in range(2)])
    scores[0, 0] = -1.0  # one seed misses one member
    found = mean_interval(repeated(scores, member, drawn_images(np.arange(40), 200)), "auc")
    assert found.high == 1.0
    assert found.low is not None
    assert found.low > 0


def test_ratio_of_two_attacks_on_the_same_images() -> None:
    generator = np.random.default_rng(9)
    member = np.arange(2000) < 1000
    noise = generator.normal(size=(3, 2000))
    draws = drawn_images(np.arange(2000), 300)
    strong, weak = (repeated(separation * member + noise, member, draws) for separation in (2.0, 1.0))
    same = ratio_interval(strong, strong, "tpr_1")
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    found = ratio_interval(weak, strong, "tpr_1")
    expected = mean_interval(weak, "tpr_1").value, mean_interval(strong, "tpr_1").value
    assert expected[0] is not None
    assert expected[1] is not None
    assert found.value == pytest.approx(expected[0] / expected[1])
    assert found.low is not None
    assert found.high is not None
    assert 0.1 < found.low < found.value < found.high < 0.7  # type: ignore[operator]
    inverse = ratio_interval(strong, weak, "tpr_1")
    assert inverse.high is not None
    assert inverse.high > 2  # nothing is cut off at 1
    nothing = repeated(np.where(member, -1.0, 1.0)[None] * np.ones((3, 1)), member, draws)
    assert ratio_interval(strong, nothing, "tpr_1").value is None


def test_an_undefined_seed_has_no_mean() -> None:
    member = np.array([True, False])
    attacks = [Attack(member, np.array([1.0, 0.0])), Attack(member, np.array([1.0, 0.0]), np.zeros(2))]
    found = mean_interval(Repeats(attacks, np.ones((4, 2), dtype=np.int64)), "auc")
    assert (found.value, found.low, found.high, found.undefined) == (None, None, None, 4)


def test_draws_without_a_number_are_left_out() -> None:
    member = np.array([True, False, False])
    attack = Attack(member, np.array([1.0, 0.0, 2.0]))
    draws = np.array([[1, 1, 1], [0, 2, 1], [1, 2, 0], [2, 0, 1]])
    found = mean_interval(Repeats([attack], draws), "auc")
    assert found.undefined == 1
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile([0.5, 1.0, 0.0], [0.025, 0.975])))
