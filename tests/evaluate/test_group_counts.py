"""Counts of patients' groups: what is told of whom, and that nothing can be told of a few."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedperl.evaluate import GroupCounts, classification, group_counts, group_names, subgroups
from fedperl.evaluate.group_counts import LEAST
from tests.evaluate.predictions import Floats, Labels, drawn, predictions

WHOLE = np.array([[20, 5], [4, 11]])


def counts(truth: Labels, probabilities: Floats, names: list[str]) -> GroupCounts:
    return group_counts(truth, probabilities.argmax(axis=1), np.array(names, dtype=np.str_), probabilities.shape[1])


def whole(truth: Labels, probabilities: Floats) -> Labels:
    return np.array(classification(truth, probabilities).confusion)


@settings(max_examples=100)
@given(drawn(120), st.integers(0, 1000), st.lists(st.floats(0.02, 1), min_size=4, max_size=4))
def test_nothing_is_told_of_fewer_than_ten(images: tuple[Labels, Floats], seed: int, shares: list[float]) -> None:
    truth, probabilities = images
    generator = np.random.default_rng(seed)
    names = generator.choice(["", "a", "b", "c"], size=len(truth), p=np.array(shares) / sum(shares)).tolist()
    found = counts(truth, probabilities, names)
    found.check(whole(truth, probabilities))
    for name, matrix in found.groups.items():
        own = [k for k in range(len(truth)) if names[k] == name]
        assert len(own) >= LEAST
        assert np.array_equal(matrix, whole(truth[own], probabilities[own]))
    assert found.images == sum(name != "" for name in names)
    # What can be had as a difference: the images outside of all groups told.
    rest = whole(truth, probabilities) - sum(found.groups.values(), np.zeros_like(whole(truth, probabilities)))
    assert not found.groups or not found.too_few or rest.sum() >= LEAST
    large = {name for name in "abc" if names.count(name) >= LEAST}
    small = {name for name in "abc" if 0 < names.count(name) < LEAST}
    assert found.groups.keys() <= large
    if not small:
        assert found.groups.keys() == large


def test_a_small_group_hides_behind_another() -> None:
    truth, probabilities = predictions(0, 60, 3, "random")
    two = counts(truth, probabilities, ["male"] * 57 + ["female"] * 3)
    assert (two.groups, two.too_few) == ({}, 60)
    three = counts(truth, probabilities, ["trunk"] * 40 + ["face"] * 15 + ["hand"] * 5)
    assert (list(three.groups), three.too_few) == (["trunk"], 20)
    unknown = counts(truth, probabilities, ["trunk"] * 40 + ["face"] * 10 + ["hand"] * 3 + [""] * 7)
    assert (list(unknown.groups), unknown.too_few) == (["face", "trunk"], 3)
    few_unknown = counts(truth, probabilities, ["trunk"] * 40 + ["face"] * 18 + [""] * 2)  # of whom nothing is known
    assert (list(few_unknown.groups), few_unknown.too_few) == (["face", "trunk"], 0)
    remarks = counts(truth, probabilities, ["trunk"] * 30 + ["x" * 41] * 15 + ["a\nb"] * 15)
    assert (list(remarks.groups), remarks.too_few) == (["trunk"], 30)
    none = counts(truth[:1], probabilities[:1], ["male"])
    assert (none.groups, none.too_few) == ({}, 1)


def test_they_add_up_to_the_numbers_of_all_images_together() -> None:
    truth, probabilities = predictions(1, 90, 3, "random")
    names = ["female", "male", ""] * 30
    halves = [slice(0, 45), slice(45, 90)]
    first, second = (counts(truth[half], probabilities[half], names[half]) for half in halves)
    both = first + second
    assert both.to_dict() == counts(truth, probabilities, names).to_dict()
    for group in subgroups(truth, probabilities, names, smallest=1).groups:
        matrix = both.groups[group.value]
        assert np.diag(matrix).sum() / matrix.sum() == group.accuracy
    assert (first + GroupCounts({}, 3)).too_few == first.too_few + 3
    other = counts(*predictions(0, 20, 4, "random"), ["male"] * 20)
    with pytest.raises(ValueError, match="cannot be added"):
        first + other


def test_to_dict_is_json_and_comes_back() -> None:
    truth, probabilities = predictions(0, 40, 3, "random")
    found = counts(truth, probabilities, ["b"] * 15 + ["a"] * 15 + ["c"] * 9 + [""])
    again = GroupCounts.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.to_dict() == found.to_dict()
    assert (list(found.groups), found.too_few) == (["a", "b"], 9)
    for bad in ({}, {"groups": {"a": [[1.5]]}, "too_few": 0}, {"groups": {"a": "x"}, "too_few": 0}, {"groups": 3}):
        with pytest.raises(ValueError, match="no groups' counts"):
            GroupCounts.from_dict(bad)
    for few in (True, 1.0, None):
        with pytest.raises(ValueError, match="no groups' counts"):
            GroupCounts.from_dict({"groups": {}, "too_few": few})


def test_what_may_not_be_told_is_refused() -> None:
    good = np.array([[10, 0], [0, 5]])
    GroupCounts({"male": good}, 0).check(WHOLE)
    GroupCounts({"male": good}, 25).check(WHOLE)
    for bad, said in (
        (GroupCounts({"male": np.array([[9, 0], [0, 0]])}, 0), "'male': 9 images; wanted at least 10"),
        (GroupCounts({"male": good * -1}, 0), "0 or more"),
        (GroupCounts({"male": good * 0.5}, 0), "0 or more"),  # type: ignore[dict-item]
        (GroupCounts({"male": np.array([[15]])}, 0), r"wanted counts \(2, 2\)"),
        (GroupCounts({"male": np.array([[0, 10], [0, 0]])}, 0), "hold more than there are"),
        (GroupCounts({"male": good, "female": good + np.diag([1, 7])}, 0), "hold more than there are"),
        (GroupCounts({"male": good}, 26), "hold more than there are"),
        (GroupCounts({}, -1), "hold more than there are"),
        (GroupCounts({"male": WHOLE - [[0, 4], [0, 0]]}, 4), "4 images are outside the groups"),
        (GroupCounts({"": good}, 0), "wanted a name of 1 to 40 characters"),
        (GroupCounts({"Mr X\n": good}, 0), "wanted a name"),
        (GroupCounts({"x" * 41: good}, 0), "wanted a name"),
    ):
        with pytest.raises(ValueError, match=said):
            bad.check(WHOLE)


def test_group_names() -> None:
    assert group_names("age", ["", "44.0", "80", "unknown"]).tolist() == ["", "30-44", "75+", ""]
    assert group_names("sex", ["FEMALE", " male ", "nan", ""]).tolist() == ["female", "male", "", ""]
    assert group_names("body_site", np.array(["Lower  Extremity", "back"])).tolist() == ["lower extremity", "back"]
    assert group_names("skin_type", ["3", "iv", "VI", ""]).tolist() == ["III", "IV", "VI", ""]
    assert group_names("sex", []).tolist() == []
    with pytest.raises(ValueError, match="attribute 'name'; wanted one of age, sex"):
        group_names("name", ["x"])
    with pytest.raises(ValueError, match="age 'old'; wanted years"):
        group_names("age", ["old"])
    with pytest.raises(ValueError, match="wanted one group an image"):
        group_counts(np.array([0, 1]), np.array([0, 1]), np.array(["a"]), 2)
