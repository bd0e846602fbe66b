import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from fedperl.evaluate import classification, confusion_matrix, peer_share, spread


@settings(max_examples=100, deadline=None)
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


def test_spread_is_the_populations() -> None:
    found = spread([0.1, 0.2, 0.6])
    assert [found.mean, found.median] == pytest.approx([0.3, 0.2])
    assert found.std == pytest.approx((((0.2) ** 2 + 0.1**2 + 0.3**2) / 3) ** 0.5)
    assert str(found) == "0.300 (0.200) ± 0.216"


def test_peer_share() -> None:
    frequency = {0: {1: 3, 2: 1}, 1: {0: 2}, 2: {0: 9}}
    assert peer_share(frequency, [0, 1]) == pytest.approx(5 / 6)
    assert peer_share(frequency, [5]) is None
