"""The search for FedPerl+: every option differs from FedPerl, and is trained as the benchmark is."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedperl.config import config_hash, flat
from fedperl.errors import ConfigError
from fedperl.paper.runs import find_scale
from fedperl.suite import plan_suite

BENCH = Path(__file__).parents[1] / "bench"
ASIDE = {"name", "method", "seed"}


@pytest.fixture(name="plus")
def _plus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("side_by_side", "skin", "plus"):
        sys.modules.pop(name, None)
    return importlib.import_module("plus")


def test_every_option_differs_from_fedperl_and_from_the_others(plus: ModuleType) -> None:
    suite = plan_suite(plus.SUITES["alone"]).suite
    assert suite.settings == find_scale(str(BENCH / "skin.toml")).settings
    assert not set(suite.seeds) & {1, 2, 3}
    every = plus.jobs("alone", Path(), "cpu", [11], [])
    assert len(every) == len(suite.runs)
    assert len({config_hash(job.config.model_copy(update={"method": "any"})) for job in every.values()}) == len(every)
    base = flat(every["FedPerl, seed 11"].config.model_dump())
    for name, job in every.items():
        other = flat(job.config.model_dump())
        changed = {key for key in base.keys() | other.keys() if base.get(key) != other.get(key)} - ASIDE
        assert len(changed) <= (4 if "relations" in name else 2), (name, changed)
        assert bool(changed) == (name != "FedPerl, seed 11"), name


def test_some_runs_of_the_search_can_be_asked_for(plus: ModuleType) -> None:
    assert list(plus.jobs("alone", Path(), "cpu", [12], ["agreement"])) == ["agreement, seed 12"]
    with pytest.raises(ConfigError, match="agrement: not of set 'alone', which has FedPerl, SSFL"):
        plus.jobs("alone", Path(), "cpu", [], ["agrement"])
