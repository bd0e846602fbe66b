"""What leaves a site: nothing of a few images, and of the others as much as before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedperl.evaluate import GroupCounts, auroc, binned_sums, calibration, group_counts, without_few
from fedperl.evaluate.binned import BINS, BinnedSums
from fedperl.evaluate.few import joined, small_classes
from fedperl.evaluate.group_counts import LEAST
from fedperl.federation.messages import Evaluation
from tests.evaluate.predictions import Floats, Labels, drawn, predictions

NAMES = ("confusion", "confidence", "total_confidence", "scores")
counts = st.lists(st.integers(0, 14), min_size=1, max_size=12)


def naive_small(images: list[int], least: int) -> set[int]:
    small = {label for label, n in enumerate(images) if n < least}
    while 0 < sum(images[label] for label in small) < least and len(small) < len(images):
        small.add(min(set(range(len(images))) - small, key=lambda label: (images[label], label)))
    return small


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
def test_small_classes_and_joined_bins_against_naive(images: list[int], least: int) -> None:
    given = np.array(images)
    assert set(np.flatnonzero(small_classes(given, least)).tolist()) == naive_small(images, least)
    found = [bins.tolist() for bins in joined(given, least)]
    assert [[place for place in bins[::-1] if images[place]] for bins in found] == naive_joined(images, least)
    assert all(bins == list(range(bins[0], bins[-1] + 1)) for bins in found)  # neighbours
    places = [place for bins in found for place in bins[::-1]]
    assert places == sorted(set(places), reverse=True)
    assert given.tolist() == images


def test_small_classes_by_hand() -> None:
    for images, small in (
        ([30, 3, 12, 20], [1, 2]),  # three could be had as a difference: the next larger class goes too
        ([30, 3, 7, 20], [1, 2]),
        ([30, 12, 10, 20], []),
        ([30, 0, 12, 20], [1]),  # of a class without images there is nothing to hide
        ([30, 12, 12, 9], [1, 3]),  # of two alike, the first
        ([4, 5], [0, 1]),
        ([4, 50], [0, 1]),
    ):
        assert np.flatnonzero(small_classes(np.array(images), 10)).tolist() == small


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


def told(truth: Labels, probabilities: Floats) -> tuple[BinnedSums, BinnedSums]:
    sums = binned_sums(truth, probabilities)
    return sums, without_few(sums, {})[0]


@settings(max_examples=150)
@given(drawn(150))
def test_nothing_is_told_of_a_few_images(images: tuple[Labels, Floats]) -> None:
    before, after = told(*images)
    rows, left_out = after.confusion.sum(axis=1), before.images - after.confusion.sum()
    assert all(n == 0 or n >= LEAST for n in rows.tolist())
    assert left_out == 0 or left_out >= LEAST or left_out == before.images
    for n in (after.confidence.sum(axis=1), after.scores.sum(axis=2)):
        assert not ((n > 0) & (n < LEAST)).any()
    assert not after.total_confidence[after.confidence.sum(axis=1) == 0].any()
    assert not after.scores[rows == 0].any()
    again = binned_sums(*images)  # what was given is not changed
    assert all(np.array_equal(getattr(before, name), getattr(again, name)) for name in NAMES)


@settings(max_examples=150)
@given(drawn(150))
def test_sums_are_kept(images: tuple[Labels, Floats]) -> None:
    truth, _ = images
    before, after = told(*images)
    if len(truth) < LEAST:
        assert not any(getattr(after, name).any() for name in NAMES)
        return
    assert after.confidence.sum(axis=0).tolist() == before.confidence.sum(axis=0).tolist()  # so accuracy is exact
    assert after.total_confidence.sum() == pytest.approx(before.total_confidence.sum(), rel=1e-12)
    small = naive_small([int((truth == label).sum()) for label in range(len(before.confusion))], LEAST)
    for label, row in enumerate(before.confusion.tolist()):
        if label in small:
            assert not after.confusion[label].any()
            continue
        assert after.confusion[label].tolist() == row
        assert after.scores[label].sum(axis=0).tolist() == [len(truth) - sum(row), sum(row)]
    again = BinnedSums.from_dict(after.to_dict())
    assert again.confidence.tolist() == after.confidence.tolist()


@given(drawn(200, least=LEAST))
def test_bins_are_those_of_the_naive_joining_at_their_mean_confidence(images: tuple[Labels, Floats]) -> None:
    before, after = told(*images)
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
    few = np.concatenate([np.flatnonzero(truth != 2), np.flatnonzero(truth == 2)[:12]])
    _, without = told(truth[few][: -12 + 4], probabilities[few][: -12 + 4])
    assert not without.scores[2].any()
    assert (all_three + without).auroc(2) == all_three.auroc(2)


@settings(max_examples=150)
@given(drawn(150), st.integers(0, 1000), st.lists(st.floats(0.02, 1), min_size=4, max_size=4))
def test_groups_may_be_told_beside_the_counts(images: tuple[Labels, Floats], seed: int, shares: list[float]) -> None:
    truth, probabilities = images
    generator = np.random.default_rng(seed)
    names = generator.choice(["", "a", "b", "c"], size=len(truth), p=np.array(shares) / sum(shares))
    predicted, classes = probabilities.argmax(axis=1), probabilities.shape[1]
    whole = group_counts(truth, predicted, names, classes)
    sums = binned_sums(truth, probabilities)
    after, groups = without_few(sums, {"sex": whole})
    Evaluation("run", 1, 2, "test", {}, after, groups)  # refuses what may not be told
    kept = np.flatnonzero(after.confusion.any(axis=1)).tolist()
    if not groups:
        least = all(np.isin(truth[names == name], kept).sum() < LEAST for name in whole.groups)
        outside = after.confusion.sum() - sum(int(np.isin(truth[names == n], kept).sum()) for n in whole.groups)
        assert least or outside < LEAST
        return
    found = groups["sex"]
    found.check(after.confusion)
    for name, matrix in found.groups.items():
        naive = np.zeros((classes, classes), dtype=np.int64)
        for label, said, own in zip(truth.tolist(), predicted.tolist(), names.tolist(), strict=True):
            naive[label, said] += own == name and label in kept
        assert np.array_equal(matrix, naive)
        assert matrix.sum() >= LEAST
    rest = after.confusion.sum() - sum(matrix.sum() for matrix in found.groups.values())
    assert 0 <= found.too_few <= rest
    assert not found.too_few or rest >= LEAST
    if after.confusion.sum() == len(truth):
        assert found.to_dict() == whole.to_dict()


def test_groups_by_hand() -> None:
    sure = np.eye(3)
    truth = np.array([0] * 30 + [1] * 24 + [2] * 4)

    def groups_of(names: list[str]) -> dict[str, GroupCounts]:
        given = {"sex": group_counts(truth, truth, np.array(names), 3)}
        return without_few(binned_sums(truth, sure[truth]), given)[1]

    # Class 2 has four images; with it class 1 goes, so that 28 are left out.
    (found,) = groups_of(["a"] * 15 + ["b"] * 15 + ["a", "b"] * 12 + ["a"] * 4).values()
    assert {name: matrix.tolist() for name, matrix in found.groups.items()} == {
        "a": [[15, 0, 0], [0, 0, 0], [0, 0, 0]],
        "b": [[15, 0, 0], [0, 0, 0], [0, 0, 0]],
    }
    assert found.too_few == 0
    # A group that is large by its left-out classes alone is not told, nor one that gives it away as a difference.
    assert groups_of(["a"] * 27 + ["b"] * 31) == {}
    (one,) = groups_of(["a"] * 18 + ["b"] * 40).values()
    assert set(one.groups) == {"a", "b"}
    assert groups_of(["a"] * 21 + ["b"] * 37) == {}
    assert groups_of([""] * 58) == {}
    # A group that gets small is left out alone where enough others are outside.
    (rest,) = groups_of(["a"] * 18 + ["b"] * 4 + [""] * 8 + ["b"] * 28).values()
    assert {name: matrix.tolist()[0] for name, matrix in rest.groups.items()} == {"a": [18, 0, 0]}
    assert 4 <= rest.too_few <= 12
