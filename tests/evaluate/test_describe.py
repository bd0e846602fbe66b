"""What may be told of a reported model: with a temperature, and by group."""

from math import log

import numpy as np
import pytest
from hypothesis import given

from fedperl.evaluate import (
    SCALED_NUMBERS,
    binned_sums,
    calibration,
    describe,
    describe_fully,
    describe_scaled,
    fit_temperature,
    group_counts,
    temperature_scaling,
)
from tests.evaluate.predictions import Floats, Labels, drawn, predictions


@given(drawn(60), drawn(60))
def test_scaled_numbers_against_naive(validation: tuple[Labels, Floats], test: tuple[Labels, Floats]) -> None:
    truth, probabilities = test
    classes = probabilities.shape[1]
    fitted_on = validation[0] % classes, np.resize(validation[1], (len(validation[0]), classes)) + 1e-3
    fitted_on[1][:] /= fitted_on[1].sum(axis=1, keepdims=True)
    found = describe_scaled(*fitted_on, truth, probabilities)
    assert found.keys() == SCALED_NUMBERS
    temperature = fit_temperature(*fitted_on)
    assert found["temperature"] == temperature
    losses, squares, rows = [], [], []
    for label, row in zip(truth.tolist(), probabilities.tolist(), strict=True):
        powers = [max(p, 1e-12) ** (1 / temperature) for p in row]
        if temperature != 1 and sum(powers) > 0:
            row = [power / sum(powers) for power in powers]
        rows.append(row)
        losses.append(-log(max(row[label], 1e-12)))
        squares.append(sum((p - (k == label)) ** 2 for k, p in enumerate(row)))
    if temperature > 0.05:  # else powers of small numbers vanish in the naive form
        assert found["nll_scaled"] == pytest.approx(np.mean(losses), abs=1e-6)
        assert found["brier_scaled"] == pytest.approx(np.mean(squares), abs=1e-6)
    whole = temperature_scaling(*fitted_on, truth, probabilities).test
    assert (found["ece_scaled"], found["nll_scaled"]) == (whole.ece_after, whole.nll_after)


def test_a_full_description_is_its_parts() -> None:
    truth, probabilities = predictions(0, 80, 3, "random")
    fit_on = predictions(1, 40, 3, "random")
    sexes, nothing = np.array(["female", "male"] * 40), np.array([""] * 80)
    found = describe_fully(truth, probabilities, groups={"sex": sexes, "age": nothing}, fit_on=fit_on)
    assert found.numbers == describe(truth, probabilities) | describe_scaled(*fit_on, truth, probabilities)
    assert found.sums.to_dict() == binned_sums(truth, probabilities).to_dict()
    assert list(found.groups) == ["sex"]
    by_hand = group_counts(truth, probabilities.argmax(axis=1), sexes, 3)
    assert found.groups["sex"].to_dict() == by_hand.to_dict()


def test_without_validation_images_there_is_no_temperature() -> None:
    truth, probabilities = predictions(0, 30, 3, "random")
    found = describe_fully(truth, probabilities, groups={}, fit_on=None)
    assert found.numbers == describe(truth, probabilities)
    assert not SCALED_NUMBERS & found.numbers.keys()


@pytest.mark.parametrize("kind", ["all right", "all wrong", "one class", "constant"])
def test_degenerate_validation_images_give_finite_numbers(kind: str) -> None:
    truth, probabilities = predictions(0, 30, 3, "random")
    for n in (1, 30):
        found = describe_scaled(*predictions(2, n, 3, kind), truth, probabilities)
        assert all(np.isfinite(value) for value in found.values())
        assert 0.01 <= found["temperature"] <= 100
        assert 0 <= found["ece_scaled"] <= 1
        assert 0 <= found["brier_scaled"] <= 2
        if found["temperature"] == 1.0:
            assert found["ece_scaled"] == calibration(truth, probabilities).ece


def test_bad_arguments() -> None:
    truth, probabilities = predictions(0, 30, 3, "random")
    with pytest.raises(ValueError, match="n > 0"):
        describe_scaled(truth[:0], probabilities[:0], truth, probabilities)
    with pytest.raises(ValueError, match="are these logits"):
        describe_scaled(truth, probabilities * 3, truth, probabilities)
    with pytest.raises(ValueError, match="wanted one group an image"):
        describe_fully(truth, probabilities, groups={"sex": np.array(["male"])}, fit_on=None)
