"""Counts in bins against the exact metrics: equal where every probability is a bin's own, near elsewhere."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import (
    FULL_NUMBERS,
    auprc,
    auroc,
    calibration,
    classification,
    describe,
    risk_coverage,
    threshold_at_risk,
)
from fedperl.evaluate.binned import BINS, BinnedSums, binned_sums
from fedperl.evaluate.classification import Floats, Labels

CLASSES = 4


def predictions(seed: int, n: int = 300, *, on_grid: bool = False) -> tuple[Labels, Floats]:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, CLASSES, n)
    logits = generator.normal(size=(n, CLASSES)) + 1.5 * np.eye(CLASSES)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if on_grid:  # whole two-hundredths, in the middle of their bins, summing to about 1
        probabilities = (np.floor(probabilities * BINS).clip(0, BINS - 1) + 0.5) / BINS
    return truth, probabilities


def test_equal_to_the_exact_metrics_where_probabilities_lie_on_the_bins() -> None:
    truth, probabilities = predictions(1, on_grid=True)
    sums = binned_sums(truth, probabilities)
    assert sums.images == 300
    assert sums.classification() == classification(truth, probabilities)
    exact = auroc(truth, probabilities).per_class
    precise = auprc(truth, probabilities).per_class
    for label in range(CLASSES):
        assert sums.auroc(label) == pytest.approx(exact[label])
        assert sums.average_precision(label) == pytest.approx(precise[label])
    curve = risk_coverage(truth, probabilities)
    coverages, risks, _ = sums.risk_coverage()
    assert coverages[-1] == 1.0
    assert risks[-1] == pytest.approx(curve.risk)
    for wanted in (0.05, 0.1, 0.2):
        ours, theirs = sums.threshold_at_risk(wanted), threshold_at_risk(truth, probabilities, wanted).threshold
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours == pytest.approx(theirs, abs=1 / BINS)


def test_near_to_the_exact_metrics_elsewhere() -> None:
    truth, probabilities = predictions(2, 2000)
    sums = binned_sums(truth, probabilities)
    for label in range(CLASSES):
        assert sums.auroc(label) == pytest.approx(auroc(truth, probabilities).per_class[label], abs=0.005)
        assert sums.average_precision(label) == pytest.approx(auprc(truth, probabilities).per_class[label], abs=0.02)
    exact = calibration(truth, probabilities, binning="equal_width", bins=10)
    assert sums.ece(10) == pytest.approx(exact.ece, abs=1e-9)  # 200 bins make 10 whole ones
    assert [b["images"] for b in sums.reliability(10)] == [b.images for b in exact.bins if b.images]


@given(st.integers(0, 9999), st.integers(1, 60), st.integers(1, 60))
def test_sums_of_two_clients_are_the_sums_of_all_their_images(seed: int, n: int, m: int) -> None:
    (y1, p1), (y2, p2) = predictions(seed, n), predictions(seed + 1, m)
    together = binned_sums(np.concatenate([y1, y2]), np.concatenate([p1, p2]))
    added = binned_sums(y1, p1) + binned_sums(y2, p2)
    for name in ("confusion", "confidence", "scores"):
        assert np.array_equal(getattr(added, name), getattr(together, name))
    assert np.allclose(added.total_confidence, together.total_confidence)
    again = BinnedSums.from_dict(json.loads(json.dumps(added.to_dict())))
    assert np.array_equal(again.scores, added.scores)
    assert again.ece() == pytest.approx(added.ece(), abs=1e-5)


def test_degenerate_inputs() -> None:
    sure = np.eye(CLASSES)[[0, 0, 1]]
    right, wrong = binned_sums(np.array([0, 0, 1]), sure), binned_sums(np.array([1, 2, 3]), sure)
    assert right.threshold_at_risk(0.0) == pytest.approx(1 - 1 / BINS)
    assert wrong.threshold_at_risk(0.5) is None
    assert right.auroc(3) is None
    assert right.average_precision(3) is None
    assert right.auroc(0) == 1.0
    none = binned_sums(np.array([], dtype=np.int64), np.zeros((0, CLASSES)))
    assert none.images == 0
    assert none.ece() == 0.0
    assert none.threshold_at_risk(0.1) is None


def test_confidences_are_the_means_of_the_bins_the_surest_first() -> None:
    truth, probabilities = predictions(7, 250)
    found = binned_sums(truth, probabilities).confidences()
    bins: dict[int, list[tuple[float, bool]]] = {}
    for label, row in zip(truth.tolist(), probabilities.tolist(), strict=True):
        bins.setdefault(min(int(max(row) * BINS), BINS - 1), []).append((max(row), row.index(max(row)) == label))
    wanted = [bins[b] for b in sorted(bins, reverse=True)]
    assert found.values == pytest.approx([sum(c for c, _ in one) / len(one) for one in wanted])
    assert found.images.tolist() == [len(one) for one in wanted]
    assert found.right.tolist() == [sum(right for _, right in one) for one in wanted]
    assert (np.diff(found.values) < 0).all()


def test_adaptive_bins_are_near_the_exact_ones() -> None:
    """A bin's end moves by a few images where confidences are tied, and now and then a bin is opened or not."""
    differences = []
    for seed in range(60):
        truth, probabilities = predictions(seed, 300 + 20 * seed)
        probabilities = probabilities**1.5 / (probabilities**1.5).sum(axis=1, keepdims=True)
        bins = BinnedSums.from_dict(binned_sums(truth, probabilities).to_dict()).adaptive_bins()
        assert sum(one.images for one in bins) == len(truth)
        ece = sum(one.images * abs(one.gap) for one in bins) / len(truth)
        differences.append(abs(ece - calibration(truth, probabilities).ece))
    assert np.median(differences) < 0.004
    assert max(differences) < 0.015


def test_adaptive_bins_of_degenerate_inputs() -> None:
    none = binned_sums(np.array([], dtype=np.int64), np.zeros((0, CLASSES)))
    assert none.adaptive_bins() == ()
    assert len(none.confidences().values) == 0
    (one,) = binned_sums(np.array([2]), np.full((1, CLASSES), 1 / CLASSES)).adaptive_bins()
    assert (one.images, one.confidence, one.accuracy) == (1, 0.25, 0.0)
    (sure,) = binned_sums(np.zeros(60, dtype=np.int64), np.eye(CLASSES)[[0] * 60]).adaptive_bins()
    assert (sure.images, sure.confidence, sure.accuracy, sure.gap) == (60, 1.0, 1.0, 0.0)


def test_what_is_no_binned_sum_is_refused() -> None:
    truth, probabilities = predictions(3, 10)
    with pytest.raises(ValueError, match="wanted probabilities"):
        binned_sums(truth, probabilities * 2)
    with pytest.raises(ValueError, match=r"wanted \(n,\)"):
        binned_sums(truth[:5], probabilities)
    good = binned_sums(truth, probabilities).to_dict()
    for bad in (good | {"scores": [[1]]}, {}, good | {"confusion": [[-1] * CLASSES] * CLASSES}):
        with pytest.raises(ValueError, match="no binned sums"):
            BinnedSums.from_dict(bad)
    with pytest.raises(ValueError, match="cannot be added"):
        binned_sums(truth, probabilities) + binned_sums(truth, probabilities, bins=10)


def test_describe_says_all_numbers_that_are_defined() -> None:
    truth, probabilities = predictions(5)
    found = describe(truth, probabilities)
    assert found.keys() >= FULL_NUMBERS
    assert found["ece"] == calibration(truth, probabilities).ece
    assert found["equal_width_ece"] == calibration(truth, probabilities, binning="equal_width").ece
    assert found["aurc"] == risk_coverage(truth, probabilities).aurc
    assert found["macro_auroc"] == auroc(truth, probabilities).macro
    assert found["hard_auprc"] == auprc(truth, probabilities, mode="hard").macro
    assert found["coverage_at_20"] == threshold_at_risk(truth, probabilities, 0.2).coverage
    one = describe(np.zeros(5, dtype=np.int64), probabilities[:5])  # one class alone has no ranking
    assert "macro_auroc" not in one
    assert all(np.isfinite(value) for value in one.values())
