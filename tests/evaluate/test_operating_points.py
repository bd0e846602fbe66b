import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import (
    OperatingPoint,
    at_threshold,
    operating_points,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
)

Images = list[tuple[bool, int]]


def arrays(images: Images) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    return np.array([t for t, _ in images]), np.array([s / 8 for _, s in images])


def every_point(images: Images) -> list[tuple[float, float]]:
    """Sensitivity and specificity of every threshold, and of calling none."""
    positives = [s for t, s in images if t]
    negatives = [s for t, s in images if not t]
    return [
        (sum(s >= cut for s in positives) / len(positives), sum(s < cut for s in negatives) / len(negatives))
        for cut in {*positives, *negatives, 99}
    ]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=40), st.sampled_from([0, 0.5, 0.8, 1])
)
def test_equals_every_threshold(images: Images, level: float) -> None:
    truth, score = arrays(images)
    at_specificity = sensitivity_at_specificity(truth, score, level)
    at_sensitivity = specificity_at_sensitivity(truth, score, level)
    if truth.all() or not truth.any():
        assert (at_specificity, at_sensitivity, at_threshold(truth, score, 0.5)) == (None, None, None)
        return
    points = every_point(images)
    assert at_specificity is not None
    assert at_sensitivity is not None
    found = max((sensitivity, specificity) for sensitivity, specificity in points if specificity >= level)
    assert (at_specificity.sensitivity, at_specificity.specificity) == found
    reverse = max((specificity, sensitivity) for sensitivity, specificity in points if sensitivity >= level)
    assert (at_sensitivity.specificity, at_sensitivity.sensitivity) == reverse
    for point in (at_specificity, at_sensitivity):
        assert at_threshold(truth, score, point.threshold) == point


def test_a_threshold_that_no_image_has() -> None:
    truth, score = np.array([True, True, False, False]), np.array([0.9, 0.4, 0.5, 0.1])
    assert at_threshold(truth, score, 0.45) == OperatingPoint(0.5, 0.5, 0.45)
    assert at_threshold(truth, score, 0.9) == OperatingPoint(0.5, 1.0, 0.9)
    assert at_threshold(truth, score, None) == OperatingPoint(0.0, 1.0, None)


def test_perfect_and_hopeless_scores() -> None:
    truth = np.array([True, True, False])
    assert sensitivity_at_specificity(truth, np.array([0.9, 0.8, 0.1]), 1.0) == OperatingPoint(1.0, 1.0, 0.8)
    # The negative scores highest: whoever must spare it calls none.
    assert sensitivity_at_specificity(truth, np.array([0.1, 0.2, 0.9]), 0.95) == OperatingPoint(0.0, 1.0, None)
    assert specificity_at_sensitivity(truth, np.array([0.1, 0.2, 0.9]), 0.95) == OperatingPoint(1.0, 0.0, 0.1)


def test_all_levels_and_json() -> None:
    truth, score = np.array([True, True, False, False]), np.array([0.9, 0.4, 0.5, 0.1])
    found = operating_points(truth, score)
    assert found.levels == (0.8, 0.9, 0.95)
    assert found.at_specificity[1] == sensitivity_at_specificity(truth, score, 0.9)
    assert found.at_sensitivity[2] == specificity_at_sensitivity(truth, score, 0.95)
    assert json.loads(json.dumps(found.to_dict()))["at_specificity"][0]["threshold"] == 0.9
    assert operating_points(truth[:2], score[:2]).to_dict()["at_specificity"] == (None, None, None)


def test_bad_arguments() -> None:
    truth, score = np.array([True, False]), np.array([0.9, 0.4])
    with pytest.raises(ValueError, match="specificity 90; wanted 0 to 1"):
        sensitivity_at_specificity(truth, score, 90)
    with pytest.raises(ValueError, match="sensitivity -1; wanted 0 to 1"):
        specificity_at_sensitivity(truth, score, -1)
    with pytest.raises(ValueError, match="wanted bool"):
        operating_points(truth.astype(np.int64), score)
