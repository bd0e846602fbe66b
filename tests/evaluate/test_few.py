"""What leaves a site: nothing of a class with few images, and bins of ten or more."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedperl.evaluate import auroc, binned_sums, calibration, group_counts, of_large_classes, without_few
from fedperl.evaluate.binned import BINS, BinnedSums
from fedperl.evaluate.few import joined
from fedperl.evaluate.group_counts import LEAST
from fedperl.federation.messages import Evaluation
from tests.evaluate.predictions import Floats, Labels, drawn, predictions

NAMES = ("confusion", "confidence", "total_confidence", "scores")
counts = st.lists(st.integers(0, 14), min_size=1, max_size=12)


def naive_joined(images: list[int], least: int) -> list[list[int]]:
    """Return the bins with images that are put together: what is too little at the lower end goes to the one above."""
    found: list[list[int]] = [[]]
    for place in reversed(range(len(images))):
        if images[place]:
            found[-1].append(place)
        if sum(images[k] for k in found[-1]) >= least:
            found.append([])
    rest = found.pop()
    if found:
        found[-1] += rest
    return found


@settings(max_examples=300)
@given(counts, st.integers(1, 12))
def test_joined_bins_against_naive(images: list[int], least: int) -> None:
    given = np.array(images)
    found = [bins.tolist() for bins in joined(given, least)]
    assert [[place for place in bins[::-1] if images[place]] for bins in found] == naive_joined(images, least)
    assert all(bins == list(range(bins[0], bins[-1] + 1)) for bins in found)  # neighbours
    places = [place for bins in found for place in bins[::-1]]
    assert places == sorted(set(places), reverse=True)
    assert given.tolist() == images


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-1, 5), max_size=60), st.integers(1, 12))
def test_images_of_large_classes_against_naive(labels: list[int], least: int) -> None:
    found = of_large_classes(np.array(labels, dtype=np.int64), least)
    assert found.tolist() == [label < 0 or labels.count(label) >= least for label in labels]


def test_joined_bins_by_hand() -> None:
    for images, wanted in (
        ([12, 4, 3, 5, 11], [[4], [1, 2, 3], [0]]),
        ([2, 4, 3, 5, 11], [[4], [0, 1, 2, 3]]),
        ([0, 4, 3, 0, 11], [[1, 4, 2]]),
        ([1, 2, 3], []),
        ([0, 0, 0], []),
    ):
        found = [{place for place in bins.tolist() if images[place]} for bins in joined(np.array(images), 10)]
        assert found == [set(bins) for bins in wanted]


def large(truth: Labels, probabilities: Floats) -> tuple[Labels, Floats]:
    kept = of_large_classes(truth)
    return truth[kept], probabilities[kept]


def told(truth: Labels, probabilities: Floats) -> tuple[BinnedSums, BinnedSums]:
    sums = binned_sums(truth, probabilities)
    return sums, without_few(sums, {})[0]


@settings(max_examples=150)
@given(drawn(150))
def test_counts_of_a_few_images_are_refused(images: tuple[Labels, Floats]) -> None:
    truth, _ = images
    if of_large_classes(truth).all():
        told(*images)
        return
    with pytest.raises(ValueError, match="wanted none of fewer than 10"):
        told(*images)


@settings(max_examples=150)
@given(drawn(150))
def test_sums_are_kept_and_no_bin_is_of_a_few_images(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = large(*images)
    if not len(truth):
        return
    before, after = told(truth, probabilities)
    assert after.confidence.sum(axis=0).tolist() == before.confidence.sum(axis=0).tolist()  # so accuracy is exact
    assert after.total_confidence.sum() == pytest.approx(before.total_confidence.sum(), rel=1e-12)
    assert np.array_equal(after.confusion, before.confusion)
    for counts in (after.confidence.sum(axis=1), after.scores.sum(axis=2)):
        assert not ((counts > 0) & (counts < LEAST)).any()
    assert not after.total_confidence[after.confidence.sum(axis=1) == 0].any()
    for label, row in enumerate(before.confusion.tolist()):
        told_of = [len(truth) - sum(row), sum(row)] if sum(row) else [0, 0]
        assert after.scores[label].sum(axis=0).tolist() == told_of
    again = BinnedSums.from_dict(after.to_dict())
    assert again.confidence.tolist() == after.confidence.tolist()
    unchanged = binned_sums(truth, probabilities)  # what was given is not changed
    assert all(np.array_equal(getattr(before, name), getattr(unchanged, name)) for name in NAMES)


@given(drawn(200, least=LEAST))
def test_bins_are_those_of_the_naive_joining_at_their_mean_confidence(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = large(*images)
    if not len(truth):
        return
    before, after = told(truth, probabilities)
    held = before.confidence.sum(axis=1)
    found = np.flatnonzero(after.confidence.sum(axis=1))[::-1]
    wanted = naive_joined(held.tolist(), LEAST)
    assert len(found) == len(wanted)
    for place, bins in zip(found, wanted, strict=True):
        assert after.confidence[place].tolist() == before.confidence[bins].sum(axis=0).tolist()
        assert after.total_confidence[place] == pytest.approx(before.total_confidence[bins].sum())
        assert min(bins) <= place <= max(bins)
        mean = float(before.total_confidence[bins].sum() / held[bins].sum())
        assert place / BINS - 1e-9 <= mean <= (place + 1) / BINS + 1e-9
    for label in np.flatnonzero(after.confusion.any(axis=1)):
        score, coarse = before.scores[label], after.scores[label]
        filled = np.flatnonzero(coarse.sum(axis=1))[::-1]
        wanted = naive_joined(score.sum(axis=1).tolist(), LEAST)
        assert coarse[filled].tolist() == [score[bins].sum(axis=0).tolist() for bins in wanted]


def test_curves_are_near_those_of_all_bins() -> None:
    generator = np.random.default_rng(3)
    truth = generator.integers(0, 4, 8000)
    logits = generator.normal(size=(8000, 4)) + 1.5 * np.eye(4)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    before, after = told(truth, probabilities)
    assert after.ece() == pytest.approx(before.ece(), abs=0.001)
    assert after.ece() == pytest.approx(calibration(truth, probabilities, binning="equal_width").ece, abs=0.005)
    exact = auroc(truth, probabilities).per_class
    for label in range(4):
        assert after.auroc(label) == pytest.approx(before.auroc(label), abs=0.001)
        assert after.auroc(label) == pytest.approx(exact[label], abs=0.005)
        assert after.average_precision(label) == pytest.approx(before.average_precision(label), abs=0.01)
    few, coarse = told(truth[:300], probabilities[:300])
    assert (coarse.confidence.sum(axis=1) > 0).sum() < (few.confidence.sum(axis=1) > 0).sum() / 3
    assert coarse.ece() == pytest.approx(few.ece(), abs=0.02)
    for label in range(4):
        assert coarse.auroc(label) == pytest.approx(few.auroc(label), abs=0.03)


def test_clients_without_a_class_do_not_weigh_in_its_curve() -> None:
    """A site that does not tell a class tells nothing of its scores: the others' curve stays theirs."""
    truth, probabilities = predictions(0, 200, 3, "random")
    _, all_three = told(truth, probabilities)
    few = np.concatenate([np.flatnonzero(truth != 2), np.flatnonzero(truth == 2)[:4]])
    _, without = told(*large(truth[few], probabilities[few]))
    assert not without.scores[2].any()
    assert (all_three + without).auroc(2) == all_three.auroc(2)


@settings(max_examples=150)
@given(drawn(150), st.integers(0, 1000), st.lists(st.floats(0.02, 1), min_size=4, max_size=4))
def test_groups_may_be_told_beside_the_counts(images: tuple[Labels, Floats], seed: int, shares: list[float]) -> None:
    truth, probabilities = large(*images)
    if not len(truth):
        return
    generator = np.random.default_rng(seed)
    names = generator.choice(["", "a", "b", "c"], size=len(truth), p=np.array(shares) / sum(shares))
    whole = group_counts(truth, probabilities.argmax(axis=1), names, probabilities.shape[1])
    after, groups = without_few(binned_sums(truth, probabilities), {"sex": whole})
    Evaluation("run", 1, 2, "test", {}, after, groups)  # refuses what may not be told
    assert groups == ({"sex": whole} if whole.groups else {})
