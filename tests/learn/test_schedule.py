import math

import pytest

from fedperl.learn.schedule import of_round
from fedperl.settings import Optimizer


def test_constant_stays_and_cosine_falls_to_nearly_nothing() -> None:
    constant, cosine = Optimizer(lr=0.1), Optimizer(lr=0.1, schedule="cosine")
    assert all(of_round(constant, r, 10) == constant for r in range(1, 11))
    rates = [of_round(cosine, r, 10).lr for r in range(1, 11)]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * k / 10)) for k in range(10)])
    assert rates[0] == 0.1
    assert 0 < rates[-1] < 0.005
    assert rates == sorted(rates, reverse=True)
