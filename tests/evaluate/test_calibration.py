import json
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from fedperl.evaluate import calibration
from fedperl.evaluate.calibration import Binning, Repair, adaptive_sizes
from tests.evaluate.predictions import Floats, Labels, drawn, predictions

Triple = tuple[int, float, float]


def shared(confidence: list[float], right: list[bool]) -> list[tuple[float, float]]:
    """Confidences, highest first, each with its share of the right ones among its equals."""
    equals: dict[float, list[bool]] = {}
    for c, r in zip(confidence, right, strict=True):
        equals.setdefault(c, []).append(r)
    return [(c, sum(equals[c]) / len(equals[c])) for c in sorted(confidence, reverse=True)]


def adaptive(ordered: list[tuple[float, float]], own_size: bool = False) -> list[list[tuple[float, float]]]:
    """Ding et al.'s bins, sample by sample."""
    bins: list[list[tuple[float, float]]] = [[]]

    def target(members: list[tuple[float, float]]) -> float:
        width = max(c for c, _ in members) - min(c for c, _ in members)
        return 0.25 * (1.645 / width) ** 2 if width > 0 else float("inf")

    least = ordered[-1][0]
    for place, sample in enumerate(ordered):
        members = bins[-1]
        if members and len(members) > target(members):
            remain = len(ordered) - place
            if remain > 40 and min(c for c, _ in members) - least > 0.05:
                bins.append([])
        bins[-1].append(sample)
    sizes = [len(members) for members in bins]
    needed = target(bins[-1]) - sizes[-1]
    if 0 < needed < float("inf"):
        moved = [int(needed * (size if own_size else sizes[-1]) / len(ordered)) for size in sizes[:-1]]
        if all(m < size for m, size in zip(moved, sizes, strict=False)):
            sizes = [size - m for size, m in zip(sizes, moved, strict=False)] + [sizes[-1] + sum(moved)]
    found, start = [], 0
    for size in sizes:
        found.append(ordered[start : start + size])
        start += size
    return found


def equal_width(ordered: list[tuple[float, float]], bins: int) -> list[list[tuple[float, float]]]:
    edges = np.linspace(0, 1, bins + 1)
    return [
        [(c, r) for c, r in ordered if (edges[b] < c or b == 0) and (c <= edges[b + 1] or b == bins - 1)]
        for b in reversed(range(bins))
    ]


def equal_mass(ordered: list[tuple[float, float]], bins: int) -> list[list[tuple[float, float]]]:
    places = np.array_split(np.arange(len(ordered)), bins)
    return [[ordered[k] for k in part] for part in places]


def summed(bins: list[list[tuple[float, float]]]) -> list[Triple]:
    """Size, mean confidence and accuracy of the bins that hold a sample, the least confident first."""
    full = [members for members in bins if members]
    return [
        (len(members), sum(c for c, _ in members) / len(members), sum(r for _, r in members) / len(members))
        for members in reversed(full)
    ]


def check(truth: Labels, probabilities: Floats, binning: Binning, bins: int, repair: Repair) -> None:
    ours = calibration(truth, probabilities, binning, bins, repair=repair)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    ordered = shared(confidence.tolist(), right.tolist())
    naive = {"adaptive": adaptive(ordered, repair == "proportional"), "equal_width": equal_width(ordered, bins)}
    cut = naive.get(binning, equal_mass(ordered, bins))
    expected = summed(cut)
    assert [b.images for b in ours.bins] == [n for n, _, _ in expected]
    assert [b.confidence for b in ours.bins] == pytest.approx([c for _, c, _ in expected])
    assert [b.accuracy for b in ours.bins] == pytest.approx([a for _, _, a in expected], abs=1e-12)
    assert [b.gap for b in ours.bins] == pytest.approx([c - a for _, c, a in expected], abs=1e-12)
    ends = [(min(members)[0], max(members)[0]) for members in reversed(cut) if members]
    assert [(b.low, b.high) for b in ours.bins] == ends
    n = len(truth)
    assert ours.ece == pytest.approx(sum(size / n * abs(c - a) for size, c, a in expected), abs=1e-12)
    assert ours.mce == pytest.approx(max(abs(c - a) for _, c, a in expected), abs=1e-12)
    assert ours.images == n
    assert ours.accuracy == pytest.approx(right.mean())
    assert ours.confidence == pytest.approx(confidence.mean())


@given(drawn(150), st.sampled_from(["adaptive", "equal_width", "equal_mass"]), st.integers(1, 20))
def test_bins_equal_naive_loops(images: tuple[Labels, Floats], binning: Binning, bins: int) -> None:
    check(*images, binning, bins, "authors_code")


@given(
    st.integers(0, 10_000),
    st.integers(200, 900),
    st.sampled_from(["random", "sharp", "tied", "all right"]),
    st.sampled_from(["authors_code", "proportional"]),
)
def test_adaptive_bins_of_many_images_equal_a_naive_loop(seed: int, n: int, kind: str, repair: Repair) -> None:
    check(*predictions(seed, n, 3, kind), "adaptive", 15, repair)


def test_the_last_bin_opens_early_enough() -> None:
    """Dense samples, where the distance to the least confidence decides; some bins end just about 0.05 above it."""
    for n in range(600, 1400, 40):
        descending = np.linspace(0.75, 0.5, n)
        expected = [len(members) for members in adaptive([(c, 1.0) for c in descending.tolist()])]
        assert adaptive_sizes(descending).tolist() == expected


def test_the_last_bin_is_repaired() -> None:
    """44 samples in 0.09 of confidence, where 83 would be needed: every earlier bin gives some."""
    descending = np.concatenate([np.linspace(1.0, 0.6, 184), np.linspace(0.5, 0.41, 44)])
    ordered = [(c, 1.0) for c in descending.tolist()]
    assert adaptive_sizes(descending).tolist() == [44, 44, 44, 19, 77]
    assert adaptive_sizes(descending, "proportional").tolist() == [41, 41, 41, 22, 83]
    assert [len(members) for members in adaptive(ordered)] == [44, 44, 44, 19, 77]
    assert [len(members) for members in adaptive(ordered, own_size=True)] == [41, 41, 41, 22, 83]


def test_a_last_bin_that_cannot_be_repaired_is_left_alone() -> None:
    """Of one confidence it has no target; where a narrow one asks for more than a bin holds, none is emptied."""
    for last in (np.full(60, 0.3), np.linspace(0.3001, 0.3, 60)):
        descending = np.concatenate([np.linspace(1.0, 0.6, 280), last])
        assert adaptive_sizes(descending).tolist() == [70, 70, 70, 70, 60]


@given(drawn(), st.integers(1, 20))
def test_scores_equal_scikit_learn_and_loops(images: tuple[Labels, Floats], bins: int) -> None:
    truth, probabilities = images
    ours = calibration(truth, probabilities, "equal_width", bins)
    n, classes = probabilities.shape
    clipped = [max(float(row[y]), 1e-12) for y, row in zip(truth, probabilities, strict=True)]
    assert ours.nll == pytest.approx(-sum(log(p) for p in clipped) / n)
    labels = list(range(classes))
    if classes == 2 and 0 < truth.sum() < n:
        assert ours.brier == pytest.approx(2 * metrics.brier_score_loss(truth, probabilities[:, 1]))
    if probabilities.min() > 1e-12:
        assert ours.nll == pytest.approx(metrics.log_loss(truth, probabilities, labels=labels))
    squares = sum((probabilities[i, c] - (truth[i] == c)) ** 2 for i in range(n) for c in range(classes))
    assert ours.brier == pytest.approx(squares / n)
    for label, error in enumerate(ours.per_class_ece):
        ordered = shared(probabilities[:, label].tolist(), (truth == label).tolist())
        expected = summed(equal_width(ordered, bins))
        assert error == pytest.approx(sum(size / n * abs(c - a) for size, c, a in expected), abs=1e-12)
    assert ours.classwise_ece == pytest.approx(np.mean(ours.per_class_ece))


@given(drawn(200), st.sampled_from(["adaptive", "equal_width", "equal_mass"]))
def test_order_does_not_matter_and_errors_are_bounded(images: tuple[Labels, Floats], binning: Binning) -> None:
    truth, probabilities = images
    ours = calibration(truth, probabilities, binning)
    shuffle = np.random.default_rng(1).permutation(len(truth))
    other = calibration(truth[shuffle], probabilities[shuffle], binning)
    assert (other.ece, other.mce, other.brier) == pytest.approx((ours.ece, ours.mce, ours.brier), abs=1e-12)
    assert abs(ours.confidence - ours.accuracy) - 1e-12 <= ours.ece <= ours.mce + 1e-12 <= 1 + 2e-12
    assert 0 <= ours.brier <= 2
    assert sum(b.images for b in ours.bins) == len(truth)


@pytest.mark.parametrize("binning", ["adaptive", "equal_width", "equal_mass"])
def test_confidence_that_holds_in_every_bin_has_no_error(binning: Binning) -> None:
    """1,000 images at each of six confidences; exactly that share of them is right."""
    levels = [0.95, 0.9, 0.8, 0.7, 0.6, 0.55]
    truth = np.concatenate([(np.arange(1000) >= 1000 * level).astype(np.int64) for level in levels])
    probabilities = np.repeat([[level, 1 - level] for level in levels], 1000, axis=0)
    found = calibration(truth, probabilities, binning)
    assert found.ece == pytest.approx(0, abs=1e-9)
    assert found.mce == pytest.approx(0, abs=1e-9)


def test_a_positive_gap_is_over_confidence() -> None:
    sure = np.array([[0.9, 0.1]] * 10)
    assert calibration(np.ones(10, dtype=np.int64), sure).bins[0].gap == pytest.approx(0.9)
    assert calibration(np.zeros(10, dtype=np.int64), sure).bins[0].gap == pytest.approx(-0.1)


def test_one_image_and_certain_images() -> None:
    for binning in ("adaptive", "equal_width", "equal_mass"):
        right = calibration(np.array([1]), np.array([[0.0, 1.0]]), binning)
        assert (right.ece, right.mce, right.brier, right.nll) == (0, 0, 0, 0)
        wrong = calibration(np.array([0]), np.array([[0.0, 1.0]]), binning)
        assert (wrong.ece, wrong.mce, wrong.brier) == (1, 1, 2)
        assert wrong.nll == pytest.approx(-log(1e-12))
        assert len(wrong.bins) == 1


def test_half_precision_is_read_as_it_is() -> None:
    truth, probabilities = predictions(3, 300, 8, "sharp")
    half = probabilities.astype(np.float16)
    assert calibration(truth, half).ece == pytest.approx(calibration(truth, probabilities).ece, abs=0.02)


def test_bins_of_a_hundred_thousand_images_hold_each_once() -> None:
    truth, probabilities = predictions(0, 100_000, 8, "sharp")
    confidence = np.sort(probabilities.max(axis=1))[::-1]
    sizes = adaptive_sizes(confidence)
    assert len(sizes) > 20
    assert truth.size == sizes.sum()


def test_to_dict_is_json() -> None:
    found = json.loads(json.dumps(calibration(*predictions(0, 50, 3, "random")).to_dict()))
    assert found["images"] == 50
    assert set(found["bins"][0]) == {"images", "confidence", "accuracy", "gap", "low", "high"}


def test_bad_arguments() -> None:
    truth, probabilities = np.array([0, 1]), np.eye(2)
    with pytest.raises(ValueError, match="n > 0"):
        calibration(truth[:0], probabilities[:0])
    with pytest.raises(ValueError, match="row 0 .* are these logits"):
        calibration(truth, 4 * probabilities)
    with pytest.raises(ValueError, match="binning 'even'; wanted 'adaptive'"):
        calibration(truth, probabilities, "even")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bins 0; wanted at least 1"):
        calibration(truth, probabilities, bins=0)
    with pytest.raises(ValueError, match="repair 'none'; wanted 'authors_code'"):
        calibration(truth, probabilities, repair="none")  # type: ignore[arg-type]
