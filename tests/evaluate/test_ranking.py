import json
import warnings

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn import metrics

from fedperl.evaluate import (
    Curve,
    auprc,
    auroc,
    binary_auprc,
    binary_auroc,
    precision_recall_curve,
    precision_recall_curves,
    roc_curve,
    roc_curves,
)
from tests.evaluate.predictions import Floats, Labels, drawn, predictions

Bools = npt.NDArray[np.bool_]


def pairwise(truth: Bools, score: Floats) -> float:
    wins = [float(p > n) + 0.5 * float(p == n) for p in score[truth] for n in score[~truth]]
    return sum(wins) / len(wins)


def hard_scores(truth: Labels, probabilities: Floats) -> Floats:
    return np.asarray(np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)])


def trapezoid(truth: Bools, score: Floats) -> float:
    """The PR area as `auc(recall, precision)` gives it, which is what the paper's tables seem to hold."""
    precision, recall, _ = metrics.precision_recall_curve(truth, score)
    return float(metrics.auc(recall, precision))


def drawn_area(curve: Curve) -> float:
    x, y = np.array(curve.x), np.array(curve.y)
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40))
def test_binary_areas_equal_every_pair_and_scikit_learn(images: list[tuple[bool, int]]) -> None:
    truth, score = np.array([t for t, _ in images]), np.array([s / 7 for _, s in images])
    if truth.all() or not truth.any():
        assert (binary_auroc(truth, score), binary_auprc(truth, score)) == (None, None)
        assert (roc_curve(truth, score), precision_recall_curve(truth, score)) == (None, None)
        return
    assert binary_auroc(truth, score) == pytest.approx(pairwise(truth, score))
    assert binary_auroc(truth, score) == pytest.approx(metrics.roc_auc_score(truth, score))
    assert binary_auprc(truth, score) == pytest.approx(metrics.average_precision_score(truth, score))


def test_one_score_for_all_ranks_by_chance() -> None:
    truth = np.array([True, False, False, False])
    assert binary_auroc(truth, np.full(4, 0.3)) == 0.5
    assert binary_auprc(truth, np.full(4, 0.3)) == 0.25


@given(drawn())
def test_one_vs_rest_equals_scikit_learn(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    n, classes = probabilities.shape
    cells = np.eye(classes, dtype=bool)[truth]
    hard = hard_scores(truth, probabilities)
    references = [
        (auroc(truth, probabilities), metrics.roc_auc_score, probabilities),
        (auprc(truth, probabilities), metrics.average_precision_score, probabilities),
        (auroc(truth, probabilities, "hard"), metrics.roc_auc_score, hard),
        (auprc(truth, probabilities, "hard"), trapezoid, hard),
    ]
    for ours, reference, scores in references:
        defined = [c for c in range(classes) if 0 < cells[:, c].sum() < n]
        expected = {c: reference(cells[:, c], scores[:, c]) for c in defined}
        assert ours.support == tuple(cells.sum(axis=0))
        assert ours.undefined == tuple(c for c in range(classes) if c not in defined)
        assert [ours.per_class[c] for c in defined] == pytest.approx([expected[c] for c in defined])
        assert ours.macro == (pytest.approx(np.mean(list(expected.values()))) if defined else None)
        assert ours.micro == pytest.approx(reference(cells.ravel(), scores.ravel()))
        level = cells.mean(axis=0) if ours.metric == "auprc" else np.full(classes, 0.5)
        assert ours.chance == tuple(float(level[c]) if c in defined else None for c in range(classes))


def test_hard_auroc_is_the_mean_of_sensitivity_and_specificity() -> None:
    truth, probabilities = predictions(1, 200, 4, "random")
    predicted = probabilities.argmax(axis=1)
    for label, value in enumerate(auroc(truth, probabilities, "hard").per_class):
        own = truth == label
        assert value == pytest.approx(((predicted == label)[own].mean() + (predicted != label)[~own].mean()) / 2)


def test_the_papers_scc_row() -> None:
    """Recall .193, precision .526, solved from F1 and AUROC .594, give AUPRC .369; the paper prints .373."""
    positives, right, called, images = 1000, 193, 367, 42_500
    truth = np.zeros(images, dtype=np.int64)
    truth[:positives] = 1
    predicted = np.zeros(images, dtype=np.int64)
    predicted[:right] = 1
    predicted[positives : positives + called - right] = 1
    assert (right / positives, round(right / called, 3)) == (0.193, 0.526)
    assert auroc(truth, np.eye(2)[predicted], "hard").per_class[1] == pytest.approx(0.594, abs=5e-4)
    assert auprc(truth, np.eye(2)[predicted], "hard").per_class[1] == pytest.approx(0.369, abs=5e-4)


@given(drawn(), st.sampled_from(["score", "hard"]))
def test_the_order_of_images_does_not_matter_and_areas_are_shares(images: tuple[Labels, Floats], mode: str) -> None:
    truth, probabilities = images
    assert mode in ("score", "hard")
    shuffle = np.random.default_rng(0).permutation(len(truth))
    for area in (auroc, auprc):
        ours, other = area(truth, probabilities, mode), area(truth[shuffle], probabilities[shuffle], mode)  # type: ignore[arg-type]
        assert ours == other
        assert all(0 <= value <= 1 + 1e-12 for value in (*ours.per_class, ours.macro, ours.micro) if value is not None)


def test_all_right_and_all_wrong_of_two_classes() -> None:
    truth = np.array([0, 1, 1])
    for mode in ("score", "hard"):
        assert auroc(truth, np.eye(2)[truth], mode).macro == 1
        assert auprc(truth, np.eye(2)[truth], mode).macro == 1
        assert auroc(truth, np.eye(2)[1 - truth], mode).macro == 0


@given(drawn(least=3))
def test_curves_equal_scikit_learn(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    curves = zip(roc_curves(truth, probabilities), precision_recall_curves(truth, probabilities), strict=True)
    for label, (roc, precision_recall) in enumerate(curves):
        own, score = truth == label, probabilities[:, label]
        if roc is None or precision_recall is None:
            assert own.all() or not own.any()
            continue
        false, true, thresholds = metrics.roc_curve(own, score, drop_intermediate=False)
        assert roc.x == pytest.approx(false)
        assert roc.y == pytest.approx(true)
        assert roc.threshold[0] is None
        assert roc.threshold[1:] == pytest.approx(thresholds[1:])
        precision, recall, _ = metrics.precision_recall_curve(own, score)
        points = set(zip(recall.round(9).tolist(), precision.round(9).tolist(), strict=True))
        assert points <= {
            (round(x, 9), round(y, 9)) for x, y in zip(precision_recall.x, precision_recall.y, strict=True)
        }
        assert drawn_area(roc) == pytest.approx(roc.area)
        assert drawn_area(precision_recall) == pytest.approx(precision_recall.area)


def some_scores(seed: int) -> tuple[Bools, Floats]:
    """Rare or common positives, well or badly told apart, alone or many in a row, some of one score."""
    generator = np.random.default_rng(seed)
    share, together = generator.choice([0.003, 0.01, 0.05, 0.3, 0.9, 0.99]), generator.choice([1, 1, 2, 5, 20, 60])
    truth = np.repeat(generator.random(generator.integers(100, 3000) // together + 1) < share, together)
    truth[:2] = (True, False)
    score = np.linspace(0, 3, len(truth))
    if generator.random() < 0.6:
        score = generator.normal(size=len(truth)) + 4 * generator.random() * truth
    return truth, score.round(generator.choice([1, 2, 9, 9, 9]))


@given(st.integers(0, 100_000), st.sampled_from([100, 150, 300]))
@example(983, 100)  # long jumps, whose feet must be kept
@example(3326, 100)  # errors of one sign, which must make up for each other
@example(2285, 100)  # the same point twice
def test_thinned_curves_keep_their_area(seed: int, points: int) -> None:
    truth, score = some_scores(seed)
    for curve in (roc_curve, precision_recall_curve):
        found = curve(truth, score, points)
        assert found is not None
        assert len(found.x) <= points
        assert drawn_area(found) == pytest.approx(found.area, abs=1e-3)
        assert (found.x[0], found.x[-1]) == (0, 1)
        assert set(found.threshold[1:]) <= set(score.tolist())


def test_a_regular_staircase_keeps_its_area() -> None:
    """Corners on one side: 400 steps through 200 points would lose 1.25e-3 if errors did not make up for each other."""
    truth = np.tile(np.repeat([True, False], 10), 400)
    found = roc_curve(truth, -np.arange(len(truth), dtype=np.float64), 200)
    assert found is not None
    assert drawn_area(found) == pytest.approx(found.area, abs=1e-4)


def test_to_dict_is_json() -> None:
    found = json.loads(json.dumps(auprc(np.array([0, 1, 1]), np.full((3, 4), 0.25)).to_dict()))
    assert found["undefined"] == [2, 3]
    assert found["per_class"] == [pytest.approx(1 / 3), pytest.approx(2 / 3), None, None]
    curve = roc_curve(np.array([True, False]), np.array([0.3, 0.1]))
    assert curve is not None
    assert json.loads(json.dumps(curve.to_dict()))["threshold"] == [None, 0.3, 0.1]


@pytest.mark.parametrize("rank", [binary_auroc, binary_auprc, roc_curve, precision_recall_curve])
def test_bad_scores(rank: object) -> None:
    assert callable(rank)
    with pytest.raises(ValueError, match="1 values are not finite"):
        rank(np.array([True, False]), np.array([0.5, np.inf]))
    with pytest.raises(ValueError, match="one length > 0"):
        rank(np.array([True, False]), np.array([0.5]))
    with pytest.raises(ValueError, match="wanted bool"):
        rank(np.array([1, 0]), np.array([0.5, 0.1]))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="mode 'soft'; wanted 'score' or 'hard'"):
        auroc(np.array([0, 1]), np.eye(2), "soft")  # type: ignore[arg-type]
    for area in (auroc, auprc, roc_curves, precision_recall_curves):
        assert callable(area)
        with pytest.raises(ValueError, match="row 1 .* are these logits"):
            area(np.array([0, 1]), np.array([[1.0, 0.0], [3.0, -2.0]]))
        with pytest.raises(ValueError, match="truth: labels 0 to 2; wanted 0 to 1"):
            area(np.array([0, 2]), np.eye(2))
        with pytest.raises(ValueError, match="truth: wanted integers, the classes' numbers, found float64"):
            area(np.array([0.0, 1.0]), np.eye(2))
    with pytest.raises(ValueError, match="points 1; wanted at least 2"):
        roc_curve(np.array([True, False]), np.array([0.3, 0.1]), 1)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    warnings.simplefilter("ignore")  # scikit-learn's, of a single class
