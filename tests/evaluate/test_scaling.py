import json
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import (
    apply_temperature,
    calibration,
    fit_temperature,
    fit_temperature_to_logits,
    softmax,
    temperature_scaling,
)
from tests.evaluate.predictions import Floats, Labels, drawn, predictions


def naive_nll(truth: Labels, logits: Floats, temperature: float) -> float:
    total = 0.0
    for label, row in zip(truth.tolist(), logits.tolist(), strict=True):
        largest = max(row)
        total += log(sum(exp((z - largest) / temperature) for z in row)) - (row[label] - largest) / temperature
    return total / len(truth)


def over_confident(seed: int, n: int, temperature: float) -> tuple[Labels, Floats]:
    """Labels drawn from softmax(z), logits given as temperature * z: the right answer is known."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(n, 5))
    probabilities = softmax(logits)
    truth = (probabilities.cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    return truth, temperature * logits


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_finds_the_temperature_that_made_the_logits(temperature: float) -> None:
    truth, logits = over_confident(0, 20_000, temperature)
    assert fit_temperature_to_logits(truth, logits) == pytest.approx(temperature, rel=0.03)
    assert fit_temperature(truth, softmax(logits)) == pytest.approx(temperature, rel=0.03)


@given(st.integers(0, 10_000), st.integers(20, 60), st.floats(0.3, 3.0))
def test_no_temperature_of_a_grid_is_likelier(seed: int, n: int, temperature: float) -> None:
    truth, logits = over_confident(seed, n, temperature)
    found = fit_temperature_to_logits(truth, logits)
    best = naive_nll(truth, logits, found)
    assert all(best <= naive_nll(truth, logits, t) + 1e-9 for t in np.geomspace(0.01, 100, 80))
    assert all(best <= naive_nll(truth, logits, found * t) + 1e-12 for t in (0.999, 1.001) if 0.01 <= found * t <= 100)


@given(drawn())
def test_the_likelihood_of_the_validation_images_never_falls(images: tuple[Labels, Floats]) -> None:
    truth, probabilities = images
    found = temperature_scaling(truth, probabilities, truth, probabilities)
    assert found.validation.nll_after <= found.validation.nll_before
    assert found.test == found.validation
    assert 0.01 <= found.temperature <= 100
    after = apply_temperature(probabilities, found.temperature)
    assert found.validation.nll_before == pytest.approx(calibration(truth, probabilities).nll)
    assert found.validation.nll_after == pytest.approx(calibration(truth, after).nll)
    assert found.validation.ece_after == pytest.approx(calibration(truth, after).ece)
    assert found.validation.ece_before == pytest.approx(calibration(truth, probabilities).ece)


@given(drawn(), st.floats(0.05, 20))
def test_applying_it_keeps_the_order_and_sums_to_one(images: tuple[Labels, Floats], temperature: float) -> None:
    _, probabilities = images
    after = apply_temperature(probabilities, temperature)
    assert after.sum(axis=1) == pytest.approx(np.ones(len(after)))
    assert (after[np.arange(len(after)), probabilities.argmax(axis=1)] == after.max(axis=1)).all()
    back = apply_temperature(after, 1 / temperature)
    if after.min() > 1e-12 and probabilities.min() > 1e-12:
        assert back == pytest.approx(probabilities, abs=1e-6)
    assert (apply_temperature(probabilities, 1.0) == probabilities).all()


def test_calibration_improves_on_other_images() -> None:
    truth, logits = over_confident(1, 6000, 3.0)
    found = temperature_scaling(truth[:2000], softmax(logits[:2000]), truth[2000:], softmax(logits[2000:]))
    assert not found.at_end
    assert found.test.images == 4000
    assert found.test.ece_after < 0.03 < 0.15 < found.test.ece_before
    assert found.test.nll_after < found.test.nll_before


def test_ends_and_nothing_to_fit() -> None:
    truth, probabilities = predictions(0, 30, 3, "all right")
    right = temperature_scaling(truth, probabilities, truth, probabilities)
    assert (right.temperature, right.at_end) == (0.01, True)
    truth, probabilities = predictions(0, 30, 3, "all wrong")
    assert temperature_scaling(truth, probabilities, truth, probabilities).temperature == 100
    truth, probabilities = predictions(0, 30, 4, "constant")
    assert fit_temperature(truth, probabilities) == 1
    assert fit_temperature(np.array([1]), np.array([[0.0, 1.0]])) == 1  # certain and right: nothing to win


@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0.5, 8.0))
def test_where_all_images_are_right_the_end_is_named_however_sure_they_are(seed: int, n: int, sharp: float) -> None:
    """Likelihood grows to the end, though far out by less than a number can hold."""
    logits = sharp * np.random.default_rng(seed).normal(size=(n, 3))
    assert fit_temperature_to_logits(logits.argmax(axis=1), logits) == 0.01
    assert fit_temperature_to_logits(logits.argmin(axis=1), logits) == 100
    assert fit_temperature_to_logits(np.array([1]), np.zeros((1, 3))) == 1  # nothing to win on either side


def test_it_is_the_same_every_time_and_whatever_the_order() -> None:
    truth, logits = over_confident(2, 500, 2.0)
    shuffle = np.random.default_rng(0).permutation(500)
    found = fit_temperature_to_logits(truth, logits)
    assert fit_temperature_to_logits(truth, logits) == found
    assert fit_temperature_to_logits(truth[shuffle], logits[shuffle]) == pytest.approx(found, rel=1e-9)
    assert fit_temperature_to_logits(truth, logits + 1000.0) == pytest.approx(found, rel=1e-6)


def test_to_dict_is_json() -> None:
    truth, logits = over_confident(0, 50, 2.0)
    found = temperature_scaling(truth, softmax(logits), truth, softmax(logits)).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert set(found["test"]) == {"images", "nll_before", "nll_after", "ece_before", "ece_after"}


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="temperature 0; wanted more than 0"):
        apply_temperature(np.eye(2), 0)
    with pytest.raises(ValueError, match="logits: not finite in row 1"):
        fit_temperature_to_logits(np.array([0, 1]), np.array([[1.0, 0.0], [np.inf, 0.0]]))
    with pytest.raises(ValueError, match="are these logits"):
        fit_temperature(np.array([0, 1]), np.array([[2.0, 0.0], [5.0, 0.0]]))
    with pytest.raises(ValueError, match="n > 0"):
        fit_temperature_to_logits(np.array([0]), np.eye(2))
