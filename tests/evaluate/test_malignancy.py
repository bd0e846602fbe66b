import json
import warnings

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from fedperl.evaluate.malignancy import MALIGNANT, Reading, malignancy, malignant_classes, malignant_score

EIGHT = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
MASK = malignant_classes(EIGHT)

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def check_reading(reading: Reading, truth: Bools, predicted: Bools) -> None:
    assert reading.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
    present = np.unique(truth)
    recalls = metrics.recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    assert reading.balanced_accuracy == pytest.approx(np.mean(recalls))
    for label, kind in ((True, "malignant"), (False, "benign")):
        for name in ("precision", "recall", "f1"):
            score = getattr(metrics, f"{name}_score")
            expected = score(truth, predicted, pos_label=label, zero_division=0)
            assert getattr(reading, f"{kind}_{name}") == pytest.approx(expected)
    weighted = metrics.f1_score(truth, predicted, average="weighted", zero_division=0)
    assert reading.weighted_f1 == pytest.approx(weighted)


def check(truth: Bools, probabilities: Floats) -> None:
    ours = malignancy(truth, probabilities, MASK)
    score = probabilities[:, MASK].sum(axis=1)
    assert (ours.images, ours.malignant) == (len(truth), truth.sum())
    check_reading(ours.argmax_then_group, truth, np.isin(np.array(EIGHT)[probabilities.argmax(1)], MALIGNANT))
    check_reading(ours.sum_then_threshold, truth, score >= 0.5)
    if truth.all() or not truth.any():
        assert ours.auroc is None
        assert ours.auprc is None
    else:
        assert ours.auroc == pytest.approx(metrics.roc_auc_score(truth, score))
        assert ours.auprc == pytest.approx(metrics.average_precision_score(truth, score))


@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.booleans())
def test_equals_scikit_learn(seed: int, n: int, share: float, tied: bool) -> None:
    generator = np.random.default_rng(seed)
    truth = generator.random(n) < share
    if tied:  # eighths: exact sums, many of them equal, some exactly at the threshold
        probabilities = generator.multinomial(8, np.full(8, 1 / 8), size=n) / 8
    else:
        probabilities = generator.dirichlet(np.ones(8), size=n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of a single class
        check(truth, probabilities)


def test_the_readings_differ() -> None:
    # NV is the most probable class, yet the malignant ones hold 0.6 together.
    row = dict(zip(EIGHT, [0.2, 0.4, 0.15, 0.15, 0.0, 0.0, 0.0, 0.1], strict=True))
    found = malignancy(np.array([True]), np.array([list(row.values())]), MASK)
    assert (found.argmax_then_group.malignant_recall, found.sum_then_threshold.malignant_recall) == (0, 1)
    assert (found.argmax_then_group.accuracy, found.sum_then_threshold.accuracy) == (0, 1)


def test_half_is_malignant() -> None:
    found = malignancy(np.array([True]), np.array([[0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]]), MASK)
    assert found.sum_then_threshold.accuracy == 1
    assert found.argmax_then_group.accuracy == 0  # the first of two equal classes


def test_all_right_and_all_wrong() -> None:
    truth = np.array([True, False, True])
    certain = np.eye(8)[[0, 1, 7]]
    right, wrong = malignancy(truth, certain, MASK), malignancy(~truth, certain, MASK)
    for reading in (right.argmax_then_group, right.sum_then_threshold):
        assert set(vars(reading).values()) == {1.0}
    for reading in (wrong.argmax_then_group, wrong.sum_then_threshold):
        assert set(vars(reading).values()) == {0.0}
    assert (right.auroc, right.auprc, wrong.auroc) == (1, 1, 0)
    assert wrong.auprc == pytest.approx(1 / 3)


def test_the_score_is_the_malignant_classes_together() -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(8), size=5).astype(np.float32)
    expected = [sum(float(row[k]) for k in range(8) if EIGHT[k] in MALIGNANT) for row in probabilities]
    assert malignant_score(probabilities, MASK) == pytest.approx(expected)


def test_to_dict_is_json() -> None:
    found = malignancy(np.array([True]), np.eye(8, dtype=np.float32)[:1], MASK).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["auroc"] is None
    assert found["sum_then_threshold"]["malignant_f1"] == 1
    assert list(found) == ["images", "malignant", "argmax_then_group", "sum_then_threshold", "auroc", "auprc"]


def test_malignant_classes() -> None:
    assert MASK.tolist() == [True, False, True, True, False, False, False, True]
    assert malignant_classes(["NV", "MEL"]).tolist() == [False, True]
    for classes, message in ((["NV", "DF"], "classes NV, DF: none is malignant"), (["MEL", "AK"], "all are malignant")):
        with pytest.raises(ValueError, match=message):
            malignant_classes(classes)


@pytest.mark.parametrize(
    ("truth", "probabilities", "malignant", "message"),
    [
        (np.zeros(0, bool), np.zeros((0, 8)), MASK, "n > 0"),
        (np.zeros(2, bool), np.eye(8)[:3], MASK, "found \\(2,\\) and \\(3, 8\\)"),
        (np.zeros(2, bool), np.zeros(2), MASK, "found \\(2,\\) and \\(2,\\)"),
        (np.array([0, 3]), np.eye(8)[:2], MASK, "truth: wanted bool .* found int64"),
        (np.zeros(2, bool), np.eye(8)[:2], MASK[:7], "malignant: wanted bool \\(8,\\), found bool \\(7,\\)"),
        (np.zeros(2, bool), np.eye(8)[:2], MASK.astype(int), "malignant: wanted bool \\(8,\\), found int64"),
        (np.zeros(2, bool), np.eye(8)[:2], np.ones(8, bool), "one kind only"),
        (np.zeros(2, bool), np.eye(8)[:2] * [[1], [np.nan]], MASK, "not finite in row 1"),
        (np.zeros(2, bool), np.eye(8)[:2] * [[1], [3]], MASK, "row 1 .* are these logits"),
        (np.zeros(1, bool), np.array([[2.0, -1.0, 0, 0, 0, 0, 0, 0]]), MASK, "row 0 .* are these logits"),
    ],
)
def test_bad_arguments(truth: Bools, probabilities: Floats, malignant: Bools, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        malignancy(truth, probabilities, malignant)
