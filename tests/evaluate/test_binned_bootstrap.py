"""Intervals from counts: the numbers of each draw against naive ones, the intervals against those of drawn images."""

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given

from fedperl.evaluate import (
    BinnedSums,
    BootstrapInterval,
    binned_sums,
    bootstrap_interval,
    classification,
    interval_of_difference,
    intervals_of_confidence,
    intervals_of_confusion,
    main_intervals,
    risk_coverage,
)
from tests.evaluate.predictions import Floats, Labels, drawn, predictions


def learned(seed: int, n: int, classes: int = 4) -> tuple[Labels, Floats]:
    """Predictions of a model that knows something, and is too sure."""
    generator = np.random.default_rng(seed)
    truth = generator.choice(classes, size=n, p=generator.dirichlet(np.full(classes, 2.0)))
    logits = 2 * generator.normal(size=(n, classes)) + 2 * np.eye(classes)[truth]
    probabilities = np.exp(logits)
    return truth, probabilities / probabilities.sum(axis=1, keepdims=True)


def bounds(interval: BootstrapInterval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def numbers(confusion: list[list[int]]) -> dict[str, float]:
    """The four numbers of a confusion matrix, with loops."""
    classes, n = range(len(confusion)), sum(map(sum, confusion))
    f1s, recalls, weighted = [], [], 0.0
    for k in classes:
        support, called = sum(confusion[k]), sum(row[k] for row in confusion)
        if support:
            f1s.append(2 * confusion[k][k] / (support + called))
            recalls.append(confusion[k][k] / support)
            weighted += support * f1s[-1] / n
    accuracy = sum(confusion[k][k] for k in classes) / n
    balanced, macro = sum(recalls) / len(recalls), sum(f1s) / len(f1s)
    return {"accuracy": accuracy, "balanced_accuracy": balanced, "weighted_f1": weighted, "macro_f1": macro}


@given(drawn(60))
def test_every_draw_gives_the_numbers_of_its_matrix(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    confusion = binned_sums(truth, probabilities).confusion
    found = intervals_of_confusion(confusion, resamples=30, seed=5, level=0.8)
    cells, n = np.flatnonzero(confusion), len(truth)
    draws = np.random.default_rng(5).multinomial(n, confusion.ravel()[cells] / n, size=30)
    each = []
    for row in draws:
        whole = np.zeros(confusion.size, dtype=int)
        whole[cells] = row
        each.append(numbers(whole.reshape(confusion.shape).tolist()))
    expected = classification(truth, probabilities).to_dict()
    for name, interval in found.items():
        assert bounds(interval) == pytest.approx(tuple(np.quantile([one[name] for one in each], [0.1, 0.9])))
        assert interval.value == pytest.approx(expected[name])
        assert (interval.level, interval.resamples, interval.undefined) == (0.8, 30, 0)


@given(drawn(60))
def test_every_draw_gives_the_ece_and_the_risks_of_its_bins(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    sums = binned_sums(truth, probabilities)
    found = intervals_of_confidence(sums, 7, resamples=20, seed=3, level=0.5)
    cells, n = np.flatnonzero(sums.confidence), len(truth)
    means = sums.total_confidence / np.maximum(1, sums.confidence.sum(axis=1))
    eces, aurcs, coverages = [], [], []
    for row in np.random.default_rng(3).multinomial(n, sums.confidence.ravel()[cells] / n, size=20):
        whole = np.zeros(sums.confidence.size, dtype=np.int64)
        whole[cells] = row
        counts = whole.reshape(-1, 2)
        drawn_sums = BinnedSums(sums.confusion, counts, counts.sum(axis=1) * means, sums.scores)
        eces.append(drawn_sums.ece(7))
        # Written out as images of two classes, each with its bin's mean as confidence.
        sure = np.repeat(means, counts.sum(axis=1))
        right = np.concatenate([[0] * int(w) + [1] * int(r) for w, r in counts])
        fine = np.stack([np.zeros(n), (1 + sure) / 2, (1 - sure) / 2], axis=1)  # above a half, in the same order
        curve = risk_coverage(right.astype(np.int64), fine, at=(0.1,))
        aurcs.append(curve.aurc)
        coverages.append(curve.at_risk[0].coverage)
    for name, values in (("ece", eces), ("aurc", aurcs), ("coverage_at_risk_10", coverages)):
        assert bounds(found[name]) == pytest.approx(tuple(np.quantile(values, [0.25, 0.75])), abs=1e-9), name
    assert found["ece"].value == pytest.approx(sums.ece(7))


def test_the_intervals_are_those_of_drawn_images() -> None:
    """Both are random: an end of either lies off by sqrt(q (1 - q) / R) / f(q), f the density there, about normal."""
    truth, probabilities = learned(1, 300)
    resamples = 1500
    sums = binned_sums(truth, probabilities)
    ours = intervals_of_confusion(sums.confusion, resamples=resamples, seed=1)
    ours |= intervals_of_confidence(sums, resamples=resamples, seed=1)
    theirs = main_intervals(truth, probabilities, resamples=resamples, seed=2)
    theirs["ece"] = bootstrap_interval(  # main_intervals has the adaptive one
        lambda t, p: binned_sums(t, p).ece(), truth, probabilities, resamples=resamples, seed=2
    )
    normal = NormalDist()
    error = sqrt(0.025 * 0.975 / resamples) / normal.pdf(normal.inv_cdf(0.975))  # in standard deviations
    assert set(ours) <= set(theirs)
    for name, interval in ours.items():
        low, high = bounds(theirs[name])
        deviation = (high - low) / (2 * normal.inv_cdf(0.975))
        tolerance = 4 * sqrt(2) * error * deviation + 1 / 300  # and an image more or less
        assert bounds(interval) == pytest.approx((low, high), abs=tolerance), name
        assert interval.value == pytest.approx(theirs[name].value, abs=0.003)
        assert deviation > tolerance / 4  # the test could fail


def test_the_interval_of_a_difference_is_that_of_images_drawn_for_each_alone() -> None:
    """Against the normal one of two proportions, where accuracy differs; and as wide as no difference at all."""
    before, after = np.array([[150, 50], [60, 140]]), np.array([[180, 20], [30, 170]])
    found = interval_of_difference(before, after, "accuracy", resamples=4000)
    shares = [290 / 400, 350 / 400]
    error = 1.96 * sqrt(sum(p * (1 - p) / 400 for p in shares))
    assert found.value == pytest.approx(shares[1] - shares[0])
    assert bounds(found) == pytest.approx((0.15 - error, 0.15 + error), abs=0.005)
    low, high = bounds(interval_of_difference(before, before))
    assert low < 0 < high
    f1 = [numbers(one.tolist())["weighted_f1"] for one in (before, after)]
    assert interval_of_difference(before, after).value == pytest.approx(f1[1] - f1[0])
    low, high = bounds(interval_of_difference(after, before))
    assert low < high < 0
    with pytest.raises(ValueError, match="0 images"):
        interval_of_difference(before, np.zeros((2, 2), dtype=np.int64))


def test_degenerate_counts() -> None:
    for images, kind in ((1, "random"), (20, "all right"), (20, "all wrong")):
        truth, probabilities = predictions(0, images, 3, kind)
        sums = binned_sums(truth, probabilities)
        found = intervals_of_confusion(sums.confusion)["accuracy"]
        assert found.low == found.value == found.high
        assert bounds(intervals_of_confidence(sums, resamples=50)["aurc"]) == (found.value == 0.0, found.value == 0.0)
    one = intervals_of_confusion(np.array([[12, 3], [0, 0]]))  # one class alone
    assert one["balanced_accuracy"] == one["accuracy"]
    assert intervals_of_confusion(np.array([[5]]))["weighted_f1"].low == 1.0


def test_it_is_the_same_every_time_and_narrower_with_more_images() -> None:
    confusion = np.array([[30, 10], [5, 15]])
    few, many = (intervals_of_confusion(confusion * k)["weighted_f1"] for k in (1, 100))
    assert intervals_of_confusion(confusion)["weighted_f1"] == few
    assert intervals_of_confusion(confusion, seed=1)["weighted_f1"] != few
    widths = [high - low for low, high in map(bounds, (few, many))]
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.2)


def test_bad_arguments() -> None:
    for bad, said in (
        (np.zeros((2, 2), dtype=np.int64), "0 images"),
        (np.array([[1, -1], [0, 2]]), "wanted counts, whole and 0 or more"),
        (np.array([[0.5, 0.5], [0.0, 1.0]]), "wanted counts, whole and 0 or more"),
        (np.array([[1, 2, 3], [4, 5, 6]]), r"wanted a confusion matrix \(classes, classes\), found \(2, 3\)"),
    ):
        with pytest.raises(ValueError, match=said):
            intervals_of_confusion(bad)
    good = binned_sums(*predictions(0, 5, 3, "random"))
    with pytest.raises(ValueError, match=r"level 1.0, .* wanted .* 0 < level < 1"):
        intervals_of_confidence(good, level=1.0)
    with pytest.raises(ValueError, match="1 resamples"):
        intervals_of_confidence(good, resamples=1)
    with pytest.raises(ValueError, match="0 images"):
        intervals_of_confidence(binned_sums(np.array([], dtype=np.int64), np.zeros((0, 3))))
