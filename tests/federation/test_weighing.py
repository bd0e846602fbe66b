"""The weights of a round's average, as the settings combine them."""

from typing import Any

import numpy as np
import pytest
import torch

from fedperl.errors import ConfigError
from fedperl.federation.aggregate import coarse, consensus_weights, distance_weights, mixed, similarity_weights
from fedperl.federation.known import Known
from fedperl.federation.weighing import LEAST_SHARE, MOST_SHARE, average_weights
from fedperl.peers import similarity_rows
from fedperl.seeds import seed_for
from tests.conftest import small_config

CLIENTS = [4, 0, 2]
SIZES = [10, 20, 30, 40, 50]
GENERATOR = torch.Generator().manual_seed(0)
STATES = {k: {"w": torch.randn(5, generator=GENERATOR)} for k in CLIENTS}
KNOWN = {k: Known(np.random.default_rng(k).normal(size=6)) for k in range(5)}


def weights(labelled: tuple[int, ...] = (0, 1, 2, 3, 4), **federation: Any) -> list[float]:
    privacy = federation.pop("privacy", "recommended")
    config = small_config(federation=federation, privacy=privacy)
    return average_weights(config, STATES, SIZES, [k in labelled for k in range(5)], KNOWN, round=7)


def shares(values: list[float]) -> Any:
    """What comes out where releases are audited."""
    return pytest.approx(coarse(values, MOST_SHARE))


def test_equal_and_by_size() -> None:
    assert weights() == shares([1, 1, 1])
    assert weights(weights="size") == pytest.approx([6 / 12, 2 / 12, 4 / 12])
    assert weights(weights="size", privacy="research") == pytest.approx([50 / 90, 10 / 90, 30 / 90])


def test_similarity_and_distance_multiply_the_sizes() -> None:
    rows = similarity_rows(np.stack([KNOWN[k].profile for k in range(5)]), CLIENTS)[:, CLIENTS]
    similar = similarity_weights(rows)
    assert weights(aggregator="similarity") == shares(similar)
    assert weights(aggregator="similarity", weights="size") == shares(
        [50 * similar[0], 10 * similar[1], 30 * similar[2]]
    )
    near = distance_weights(list(STATES.values()))
    assert weights(aggregator="distance") == shares(near)


def test_consensus_draws_by_seed_and_round() -> None:
    generator = np.random.default_rng(seed_for(1, "subsets", 7))
    expected = consensus_weights(
        list(STATES.values()), [50.0, 10.0, 30.0], subsets=3, members=2, scale=2.0, generator=generator
    )
    assert weights(aggregator="consensus", weights="size", members=2, distance_scale=2.0) == shares(expected)


def test_labelled_clients_count_more_in_research_alone() -> None:
    assert weights((4,), labelled_factor=8.0, privacy="research") == pytest.approx([0.8, 0.1, 0.1])
    with pytest.raises(ConfigError, match="labelled_factor = 8"):
        weights((4,), labelled_factor=8.0)


def test_no_client_is_nearly_the_whole_average() -> None:
    assert mixed([1.0, 1.0, 2.0], most=0.8) == pytest.approx([0.25, 0.25, 0.5])
    assert mixed([96.0, 1.0, 3.0], most=0.8) == pytest.approx([0.8, 0.05, 0.15])
    assert mixed([1.0, 0.0, 0.0], most=0.8) == pytest.approx([0.8, 0.1, 0.1])
    assert mixed([5.0], most=0.8) == [1.0]
    assert mixed([5.0, 5.0, 0.0], most=0.8, least=0.05) == pytest.approx([0.5 / 1.05, 0.5 / 1.05, 0.05 / 1.05])
    many = mixed([1.0] + [0.0] * 39, most=0.8, least=0.05)  # 40 of 0.05 would be 2: at most half goes to the least
    assert many[1] == pytest.approx(0.0125 / (1 + 39 * 0.0125))
    for members in (2, 3):
        alone = weights(aggregator="consensus", distance_scale=1e9, members=members, subsets=1)
        assert max(alone) <= MOST_SHARE + 1e-9
        assert min(alone) > LEAST_SHARE / 2
        assert sum(alone) == pytest.approx(1.0)
    raw = weights(aggregator="consensus", distance_scale=1e9, members=3, subsets=1, privacy="research")
    assert max(raw) > 0.99
