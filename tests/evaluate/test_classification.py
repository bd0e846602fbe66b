import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from fedperl.evaluate import classification, confusion_matrix, one_answer
from tests.evaluate.predictions import Floats, Labels, drawn


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(2, 8))
def test_equals_scikit_learn(seed: int, n: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, generator.integers(1, classes + 1), size=n)
    probabilities = generator.random((n, classes)).round(1)  # rounded: ties occur
    ours = classification(truth, probabilities)
    predicted, present = probabilities.argmax(1), np.unique(truth)
    for average in ("weighted", "macro"):
        for name in ("precision", "recall", "f1"):
            score = getattr(metrics, f"{name}_score")
            expected = score(truth, predicted, labels=present, average=average, zero_division=0)
            assert getattr(ours, f"{average}_{name}") == pytest.approx(expected)
    assert ours.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert ours.weighted_recall == pytest.approx(ours.accuracy)
    recalls = metrics.recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    assert ours.balanced_accuracy == pytest.approx(np.mean(recalls))
    expected_matrix = metrics.confusion_matrix(truth, predicted, labels=range(classes))
    assert (confusion_matrix(truth, predicted, classes) == expected_matrix).all()


def test_all_right_and_all_wrong() -> None:
    truth = np.array([0, 1, 1])
    right = classification(truth, np.eye(2)[truth])
    wrong = classification(truth, np.eye(2)[1 - truth])
    assert (right.weighted_f1, right.macro_f1, wrong.weighted_f1, wrong.balanced_accuracy) == (1, 1, 0, 0)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="n > 0"):
        classification(np.array([], dtype=np.int64), np.empty((0, 3)))
    with pytest.raises(ValueError, match="truth: labels -100 to 1; wanted 0 to 1"):
        classification(np.array([-100, 1]), np.eye(2))


@given(drawn(60))
def test_classes_equal_scikit_learn(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    labels = range(probabilities.shape[1])
    predicted = probabilities.argmax(axis=1)
    found = classification(truth, probabilities)
    references = metrics.precision_recall_fscore_support(truth, predicted, labels=labels, zero_division=0)
    for label, one, precision, recall, f1, support in zip(labels, found.per_class, *references, strict=True):
        assert (one.support, one.predicted) == (support, (predicted == label).sum())
        if not support:
            assert (one.precision, one.recall, one.f1) == (None, None, None)
        else:
            assert (one.precision, one.recall, one.f1) == pytest.approx((precision, recall, f1))
    assert np.array(found.confusion).tolist() == metrics.confusion_matrix(truth, predicted, labels=labels).tolist()
    present = [one.f1 for one in found.per_class if one.f1 is not None]
    assert found.macro_f1 == pytest.approx(np.mean(present))


def test_what_a_client_tells_has_no_single_class() -> None:
    """A client's evaluation may carry these names alone (federation/messages.py); the rest is for where images are."""
    found = classification(np.array([0, 2, 2]), np.eye(3)[[0, 2, 0]])
    averages = {f"{average}_{name}" for average in ("weighted", "macro") for name in ("f1", "precision", "recall")}
    assert set(found.to_dict()) == {"images", "accuracy", "balanced_accuracy"} | averages
    full = json.loads(json.dumps(found.to_full_dict()))
    assert {name: full[name] for name in found.to_dict()} == found.to_dict()
    assert full["confusion"] == [[1, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert full["per_class"][1] == {"support": 0, "predicted": 0, "precision": None, "recall": None, "f1": None}
    assert full["per_class"][2] == {
        "support": 2,
        "predicted": 1,
        "precision": 1,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3),
    }


def test_narrow_labels_do_not_overflow() -> None:
    labels = np.arange(200, dtype=np.uint8)
    assert (confusion_matrix(labels, labels, 200) == np.eye(200)).all()
    with pytest.raises(ValueError, match="truth: wanted integers, the classes' numbers, found float64"):
        confusion_matrix(labels / 2, labels, 200)  # type: ignore[arg-type]


def test_a_model_that_says_one_class_is_known() -> None:
    truth, said = np.array([0] * 60 + [1] * 30 + [2] * 10), np.ones(100, dtype=np.int64)
    assert one_answer(confusion_matrix(truth, said, 3)) == (1, 1.0)
    said[:4] = 0
    assert one_answer(confusion_matrix(truth, said, 3)) == (1, 0.96)
    said[4] = 2
    assert one_answer(confusion_matrix(truth, said, 3)) is None  # 95 of 100
    nearly = np.array([1] * 91 + [0] * 9)
    assert one_answer(confusion_matrix(nearly, np.ones(100, dtype=np.int64), 3)) is None  # it is mostly right
    assert one_answer(np.zeros((3, 3), dtype=np.int64)) is None
