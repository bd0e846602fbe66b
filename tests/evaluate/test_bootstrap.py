import json
from math import sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import (
    BootstrapInterval,
    auprc,
    auroc,
    bootstrap_counts,
    bootstrap_interval,
    calibration,
    classification,
    main_intervals,
    main_statistics,
    risk_coverage,
)
from tests.evaluate.predictions import Floats, Labels, drawn, predictions


def bounds(interval: BootstrapInterval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def accuracy(truth: Labels, probabilities: Floats) -> float:
    return classification(truth, probabilities).accuracy


@given(drawn(90), st.integers(0, 1000))
def test_weighing_equals_repeating(images: tuple[Labels, Floats], seed: int) -> None:
    """The numbers of a resample by counts are those of the images written out."""
    truth, probabilities = images
    n = len(truth)
    counts = np.bincount(np.random.default_rng(seed).integers(n, size=n), minlength=n)
    ours = main_statistics(truth, probabilities)(counts)
    truth, probabilities = np.repeat(truth, counts), np.repeat(probabilities, counts, axis=0)
    every, certain = classification(truth, probabilities), calibration(truth, probabilities)
    curve = risk_coverage(truth, probabilities)
    expected = {
        "accuracy": every.accuracy,
        "balanced_accuracy": every.balanced_accuracy,
        "weighted_f1": every.weighted_f1,
        "macro_f1": every.macro_f1,
        "auroc": auroc(truth, probabilities).macro,
        "auprc": auprc(truth, probabilities).macro,
        "ece": certain.ece,
        "mce": certain.mce,
        "brier": certain.brier,
        "nll": certain.nll,
        "aurc": curve.aurc,
        "e_aurc": curve.e_aurc,
        "coverage_at_risk_10": curve.at_risk[1].coverage,
    }
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name] == (None if value is None else pytest.approx(value, abs=1e-9)), name


def test_equals_a_naive_loop() -> None:
    truth, probabilities = predictions(0, 60, 3, "random")
    found = bootstrap_interval(accuracy, truth, probabilities, resamples=100, seed=7, level=0.8)
    generator = np.random.default_rng(7)
    drawn_values = []
    for _ in range(100):
        rows = [int(row) for row in generator.integers(60, size=60)]
        drawn_values.append(sum(probabilities[row].argmax() == truth[row] for row in rows) / 60)
    low, high = np.quantile(drawn_values, [0.1, 0.9])
    assert bounds(found) == pytest.approx((low, high))
    assert (found.value, found.level, found.resamples, found.undefined) == (accuracy(truth, probabilities), 0.8, 100, 0)
    quick = main_intervals(truth, probabilities, resamples=100, seed=7, level=0.8)["accuracy"]
    assert bounds(quick) == pytest.approx((low, high))


def test_many_images_have_the_textbook_interval() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    low, high = bounds(bootstrap_interval(lambda v: float(v.mean()), values, resamples=2000))
    half = NormalDist().inv_cdf(0.975) * values.std() / sqrt(1000)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_images_of_one_lesion_count_as_one() -> None:
    """Four copies of each image: their interval is that of the images, by lesion; singly it is half as wide."""
    values = np.random.default_rng(0).normal(size=250)
    copies, lesion = np.repeat(values, 4), np.repeat([f"lesion {k}" for k in range(250)], 4)

    def mean(v: Floats) -> float:
        return float(v.mean())

    def width(interval: BootstrapInterval) -> float:
        low, high = bounds(interval)
        return high - low

    once = width(bootstrap_interval(mean, values, resamples=1000))
    assert width(bootstrap_interval(mean, copies, resamples=1000, groups=lesion)) == pytest.approx(once, rel=0.1)
    assert width(bootstrap_interval(mean, copies, resamples=1000)) == pytest.approx(once / 2, rel=0.1)


def test_whole_groups_are_drawn() -> None:
    group = np.array([2, 0, 0, 1, 2, 2])

    def statistic(counts: npt.NDArray[np.int64]) -> dict[str, float | None]:
        assert all(len(set(counts[group == g].tolist())) == 1 for g in range(3))
        assert counts[[0, 1, 3]].sum() == 3
        return {"images": float(counts.sum())}

    found = bootstrap_counts(statistic, 6, groups=group)["images"]
    assert (found.value, found.low, found.high) == (6, 3, 9)


def test_undefined_resamples_are_left_out_and_counted() -> None:
    truth = np.array([0, 0, 0, 0, 1])
    probabilities = predictions(0, 5, 2, "random")[1]
    found = main_intervals(truth, probabilities)["auroc"]
    assert found.value is not None
    assert found.low is not None
    assert 40 < found.undefined < 95  # (4/5)^5 = 33 %
    never = main_intervals(truth[:4], probabilities[:4])["auroc"]
    assert (never.value, never.low, never.high, never.undefined) == (None, None, None, 200)


def test_all_right_all_wrong_and_one_image() -> None:
    for kind, value in (("all right", 1.0), ("all wrong", 0.0)):
        found = main_intervals(*predictions(0, 20, 3, kind))["accuracy"]
        assert (found.value, found.low, found.high) == (value, value, value)
    one = main_intervals(np.array([1]), np.array([[0.2, 0.8]]))
    assert bounds(one["ece"]) == pytest.approx((0.2, 0.2))
    assert one["auroc"].value is None


def test_the_seed_decides() -> None:
    truth, probabilities = predictions(0, 80, 3, "random")
    first, again = (main_intervals(truth, probabilities, resamples=20) for _ in range(2))
    assert first == again
    assert main_intervals(truth, probabilities, resamples=20, seed=1)["nll"] != first["nll"]


def test_it_holds_the_truth_about_as_often_as_it_says() -> None:
    held = []
    for number in range(200):
        truth, probabilities = predictions(number, 150, 2, "random")  # labels drawn blindly: half are right
        right = probabilities.argmax(axis=1) == truth
        low, high = bounds(bootstrap_interval(lambda r: float(r.mean()), right, resamples=100))
        held.append(low <= 0.5 <= high)
    assert 0.88 < np.mean(held) < 0.99


def confident(number: int, gap: float) -> tuple[Labels, Floats]:
    """400 images of two classes, right as often as their confidence less the gap."""
    generator = np.random.default_rng(number)
    confidence = 0.6 + 0.4 * generator.random(400)
    right = generator.random(400) < confidence - gap
    return (~right).astype(np.int64), np.stack([confidence, 1 - confidence], axis=1)


def test_what_the_interval_of_an_ece_is_worth() -> None:
    """It holds a real error nearly as often as it says, and no error never: the bins' own noise is above 0."""
    held, lows = [], []
    for number in range(50):
        low, high = bounds(main_intervals(*confident(number, 0.15), resamples=60)["ece"])
        held.append(low <= 0.15 <= high)
        lows.append(bounds(main_intervals(*confident(number, 0.0), resamples=60)["ece"])[0])
    assert np.mean(held) > 0.85
    assert min(lows) > 0


def test_to_dict_is_json() -> None:
    found = main_intervals(*predictions(0, 20, 3, "random"), resamples=4)["ece"].to_dict()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"value", "low", "high", "level", "resamples", "undefined"}


def test_bad_arguments() -> None:
    truth, probabilities = predictions(0, 5, 3, "random")
    for arrays in ((), (truth[:0],), (truth, probabilities[:4])):
        with pytest.raises(ValueError, match="wanted arrays of one length > 0"):
            bootstrap_interval(accuracy, *arrays)
    for level, resamples in ((1.0, 10), (0.0, 10), (0.9, 1)):
        with pytest.raises(ValueError, match="wanted at least 1, 0 < level < 1, at least 2"):
            main_intervals(truth, probabilities, level=level, resamples=resamples)
    with pytest.raises(ValueError, match=r"groups: wanted one an image, \(5,\), found \(4,\)"):
        main_intervals(truth, probabilities, groups=["a"] * 4)
