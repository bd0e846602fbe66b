import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import age_bands, auroc, calibration, classification, subgroups
from tests.evaluate.predictions import Floats, Labels, drawn, predictions


@given(drawn(100), st.integers(1, 30), st.integers(0, 1000))
def test_equals_the_metrics_of_each_group(images: tuple[Labels, Floats], smallest: int, seed: int) -> None:
    truth, probabilities = images
    values = np.random.default_rng(seed).choice(["female", "male", "", "unknown"], size=len(truth))
    found = subgroups(truth, probabilities, values, smallest=smallest)
    assert found.unknown == sum(v in ("", "unknown") for v in values)
    assert [group.value for group in found.groups] == sorted(set(values) - {"", "unknown"})
    assert found.unknown + sum(group.images for group in found.groups) == found.images == len(truth)
    for group in found.groups:
        own = [k for k in range(len(truth)) if values[k] == group.value]
        assert group.images == len(own)
        assert group.too_small == (len(own) < smallest)
        if group.too_small:
            assert (group.accuracy, group.weighted_f1, group.auroc, group.ece) == (None, None, None, None)
            continue
        expected = classification(truth[own], probabilities[own])
        assert (group.accuracy, group.balanced_accuracy) == (expected.accuracy, expected.balanced_accuracy)
        assert (group.weighted_f1, group.macro_f1) == (expected.weighted_f1, expected.macro_f1)
        assert group.auroc == auroc(truth[own], probabilities[own]).macro
        assert group.ece == calibration(truth[own], probabilities[own]).ece


def test_the_gap_is_between_groups_that_are_large_enough() -> None:
    truth = np.array([0] * 30)
    probabilities = np.eye(2)[[0] * 10 + [0] * 5 + [1] * 5 + [1] * 10]
    values = ["I"] * 10 + ["II"] * 10 + ["III"] * 9 + [None]
    found = subgroups(truth, probabilities, values, smallest=10)
    assert [group.too_small for group in found.groups] == [False, False, True]
    assert found.gap("accuracy") == pytest.approx(0.5)
    assert found.gap("auroc") is None  # one class: undefined everywhere
    assert subgroups(truth, probabilities, values, smallest=30).gap("accuracy") is None
    assert found.unknown == 1


def test_numbers_sort_as_numbers_and_missing_ones_are_unknown() -> None:
    truth, probabilities = predictions(0, 6, 3, "random")
    found = subgroups(truth, probabilities, np.array([10.0, 2.0, np.nan, 2.0, 10.0, 10.0]), smallest=2)
    assert [(group.value, group.images) for group in found.groups] == [("2.0", 2), ("10.0", 3)]
    assert found.unknown == 1
    empty = subgroups(truth, probabilities, [""] * 6)
    assert (empty.groups, empty.unknown, empty.gap("accuracy")) == ((), 6, None)


def test_age_bands() -> None:
    written = ["", "0", "29.5", "30", "44", "45.0", "59", "60", "75", "90", "nan", "unknown"]
    bands = ["", "0-29", "0-29", "30-44", "30-44", "45-59", "45-59", "60-74", "75+", "75+", "", ""]
    assert age_bands(written).tolist() == bands
    assert age_bands(np.array([np.nan, 50.0])).tolist() == ["", "45-59"]
    assert age_bands([None, 4, 5, 12], edges=[5, 10]).tolist() == ["", "0-4", "5-9", "10+"]
    assert age_bands([]).tolist() == []
    truth, probabilities = predictions(0, 3, 2, "random")
    found = subgroups(truth, probabilities, age_bands([12, 7, 3], edges=[5, 10]), smallest=1)
    assert [group.value for group in found.groups] == ["0-4", "5-9", "10+"]


def test_to_dict_is_json() -> None:
    truth, probabilities = predictions(0, 60, 3, "random")
    found = json.loads(json.dumps(subgroups(truth, probabilities, ["a"] * 40 + ["b"] * 20).to_dict()))
    assert [group["too_small"] for group in found["groups"]] == [False, True]
    assert found["groups"][1]["accuracy"] is None


def test_bad_arguments() -> None:
    truth, probabilities = predictions(0, 5, 3, "random")
    with pytest.raises(ValueError, match=r"wanted one value an image, \(5,\), found \(4,\)"):
        subgroups(truth, probabilities, ["a"] * 4)
    with pytest.raises(ValueError, match="smallest 0; wanted at least 1"):
        subgroups(truth, probabilities, ["a"] * 5, smallest=0)
    for age in ("old", "-3", "1e9"):
        with pytest.raises(ValueError, match=f"age '{age}'; wanted years, 0 to 130"):
            age_bands(["40", age])
    for edges in ([], [0, 10], [20, 10]):
        with pytest.raises(ValueError, match="edges .*; wanted at least one, above 0 and ascending"):
            age_bands(["40"], edges)
