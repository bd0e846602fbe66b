from math import sqrt
from statistics import NormalDist, mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedperl.evaluate import Interval, paired_interval


def naive(differences: np.ndarray, level: float, resamples: int) -> tuple[float, float]:
    """The same interval with other draws: loops over lists, one seed and one client drawn at a time."""
    generator = np.random.default_rng(99)
    cells = differences.tolist()
    seeds = [mean(row) for row in cells]
    clients = [mean(column) for column in zip(*cells, strict=True)]
    centre = mean(seeds)
    of_seeds, of_clients = stdev(seeds) ** 2 / len(seeds), stdev(clients) ** 2 / len(clients)
    freedom = (of_seeds + of_clients) ** 2 / (
        of_seeds**2 / (len(seeds) - 1) + of_clients**2 / (len(clients) - 1)
    )  # fmt: skip
    found = []
    for _ in range(resamples):
        deviation = 0.0
        for means in (seeds, clients):
            n = len(means)
            drawn = [means[generator.integers(n)] for _ in range(n)]
            deviation += (mean(drawn) - centre) * sqrt(n / (n - 1))
        found.append(centre + deviation * sqrt(freedom / generator.chisquare(freedom)))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def some(seeds: int, clients: int, number: int = 0) -> np.ndarray:
    generator = np.random.default_rng(number)
    effects = generator.normal(size=(seeds, 1)) + generator.normal(size=(1, clients))
    return np.asarray(0.3 + effects + generator.normal(size=(seeds, clients)))


def bounds(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


@pytest.mark.parametrize(("seeds", "clients", "level"), [(3, 10, 0.8), (5, 4, 0.9)])
def test_equals_a_naive_loop(seeds: int, clients: int, level: float) -> None:
    differences = some(seeds, clients)
    low, high = bounds(paired_interval(differences, level=level, resamples=20_000))
    expected = naive(differences, level, 4000)
    assert (low, high) == pytest.approx(expected, abs=0.06 * (high - low))


def test_many_clients_and_one_seed_are_the_textbook_interval() -> None:
    """Over 400 clients Student's t is normal and the bootstrap of a mean is its standard error."""
    differences = some(1, 400)
    low, high = bounds(paired_interval(differences))
    half = NormalDist().inv_cdf(0.975) * stdev(differences[0].tolist()) / sqrt(400)
    assert (low, high) == pytest.approx((differences.mean() - half, differences.mean() + half), abs=0.05 * half)


def test_few_clients_get_students_t() -> None:
    """Ten clients, normal differences: 2.262 standard errors, not 1.96; averaged over draws, as any one may be skew."""
    ratios = []
    for number in range(200):
        differences = np.random.default_rng(number).normal(size=(1, 10))
        low, high = bounds(paired_interval(differences, resamples=2000))
        ratios.append((high - low) / 2 / (np.std(differences, ddof=1) / sqrt(10)))
    assert np.mean(ratios) == pytest.approx(2.262, rel=0.05)


def test_one_seed_or_one_client_is_not_drawn_and_two_ones_have_no_interval() -> None:
    row = some(1, 6)
    over_clients, over_seeds = paired_interval(row), paired_interval(row.T)
    assert bounds(over_clients) == pytest.approx(bounds(over_seeds))
    assert (over_clients.seeds, over_clients.clients) == (1, 6)
    alone = paired_interval([[0.4]])
    assert (alone.mean, alone.low, alone.high, alone.excludes_zero) == (0.4, None, None, False)


def test_constant_differences_have_no_width_and_exclude_zero() -> None:
    assert bounds(paired_interval(np.full((3, 4), 0.25))) == (0.25, 0.25)
    assert paired_interval(np.full((3, 4), -0.1)).excludes_zero
    assert not paired_interval(np.zeros((3, 4))).excludes_zero
    assert not paired_interval([[1.0, -1.0], [1.0, -1.0]]).excludes_zero


@given(st.integers(1, 5), st.integers(2, 8), st.integers(0, 1000))
def test_order_does_not_matter_and_the_sign_mirrors(seeds: int, clients: int, number: int) -> None:
    differences = some(seeds, clients, number)
    generator = np.random.default_rng(number)
    shuffled = differences[generator.permutation(seeds)][:, generator.permutation(clients)]
    low, high = bounds(paired_interval(differences, resamples=400))
    assert bounds(paired_interval(shuffled, resamples=400)) == pytest.approx((low, high))
    assert bounds(paired_interval(-differences, resamples=400)) == pytest.approx((-high, -low))
    scaled = paired_interval(2 * differences + 1, resamples=400)
    assert bounds(scaled) == pytest.approx((2 * low + 1, 2 * high + 1))


def test_more_of_either_narrows_it() -> None:
    def width(seeds: int, clients: int) -> float:
        found = [bounds(paired_interval(some(seeds, clients, n), resamples=1000)) for n in range(20)]
        return float(np.mean([high - low for low, high in found]))

    assert width(10, 10) < width(3, 10) < width(2, 10)
    assert width(5, 40) < width(5, 5)


def test_it_holds_the_truth_about_as_often_as_it_says() -> None:
    """Three seeds, ten clients, all three sources of variance alike: 94 % (bench/interval_coverage.py)."""
    held = [paired_interval(some(3, 10, n) - 0.3, resamples=1000) for n in range(400)]
    assert 0.91 < np.mean([not interval.excludes_zero for interval in held]) < 0.98


def test_bad_arguments() -> None:
    for wrong in ([], [1.0, 2.0], np.empty((0, 3)), np.zeros((1, 2, 3))):
        with pytest.raises(ValueError, match=r"wanted \(seeds, clients\)"):
            paired_interval(wrong)
    with pytest.raises(ValueError, match="1 values are not finite"):
        paired_interval([[0.1, float("nan")]])
    for level, resamples in ((1.0, 100), (0.0, 100), (0.9, 101), (0.9, 0)):
        with pytest.raises(ValueError, match="wanted 0 < level < 1"):
            paired_interval([[0.1, 0.2]], level=level, resamples=resamples)
