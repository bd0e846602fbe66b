import json

import pytest

from fedperl.evaluate import extremes, spread, spread_without

F1 = {0: 0.72, 1: 0.75, 2: 0.69, 8: 0.567, 9: 0.74}


def test_spread_is_the_populations() -> None:
    found = spread([0.1, 0.2, 0.6])
    assert [found.mean, found.median] == pytest.approx([0.3, 0.2])
    assert found.std == pytest.approx((((0.2) ** 2 + 0.1**2 + 0.3**2) / 3) ** 0.5)
    assert str(found) == "0.300 (0.200) ± 0.216"
    assert found.to_dict() == {"mean": found.mean, "median": found.median, "std": found.std}


def test_without_a_client() -> None:
    assert spread_without(F1, [8]) == spread([0.72, 0.75, 0.69, 0.74])
    assert spread_without(F1, []) == spread(list(F1.values()))
    with pytest.raises(ValueError, match=r"without \[7\]: no such clients; found \[0, 1, 2, 8, 9\]"):
        spread_without(F1, [7])
    with pytest.raises(ValueError, match="at least one value"):
        spread_without({"8": 0.5}, ["8"])


def test_best_and_worst() -> None:
    found = extremes(F1)
    assert (found.best, found.best_value, found.worst, found.worst_value) == (1, 0.75, 8, 0.567)
    assert found.gap == pytest.approx(0.183)
    assert json.loads(json.dumps(found.to_dict()))["worst"] == 8
    alone = extremes({"3": 0.5})
    assert (alone.best, alone.worst, alone.gap) == ("3", "3", 0)
    equal = extremes({5: 0.5, 2: 0.5})
    assert (equal.best, equal.worst) == (5, 5)
    for wrong in ({}, {1: float("nan")}):
        with pytest.raises(ValueError, match="at least one client and finite values"):
            extremes(wrong)
