"""Every method that ships: it trains end to end on drawn lesions, is repeatable, and resumes bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from fedperl.config import dump, methods, resolve
from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.data.store import Store
from fedperl.errors import ConfigError
from fedperl.federation.rounds import Progress
from fedperl.report.methods_page import methods_page
from fedperl.settings import OBJECTIVES, Config
from fedperl.training import train
from tests.conftest import artefacts

ROUNDS = 3


class Stopped(Exception):
    pass


@pytest.fixture(scope="module", name="dermsim")
def _dermsim() -> Store:
    return ten_hospitals(size=16, scale=0.02, seed=0)


def short(method: str, **sections: Any) -> Config:
    """A run of a second in which all that a method has comes into play: peers and unlabelled images from round 2."""
    own = methods()[method].settings
    table: dict[str, Any] = {
        "method": method,
        "threads": 1,
        "data": {"size": 16, "scale": 0.02},
        "model": {"net": "small_cnn"},
        "objective": {"tau": 0.15},
        "peers": {"warmup": 1, "min_profiles": 2, "every": 1},
        "federation": {"rounds": ROUNDS, "cohort": 4, "steps": 2, "batch": 4},
        "optimizer": {"lr": 1e-3},
    }
    if own.get("objective", {}).get("start"):
        table["objective"]["start"] = 1
    if own.get("federation", {}).get("residual_every"):
        table["federation"]["residual_every"] = 1
    if "gated" in method:
        table["gate"] = {"rho": 0.1}
    for name, value in sections.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return resolve(table)


def go_on_after(rounds: int, config: Config, folder: Path, store: Store) -> None:
    """Stop a run after some rounds and go on to its end."""

    def stop(progress: Progress) -> None:
        if progress.round == rounds:
            raise Stopped

    with pytest.raises(Stopped):
        train(config, folder, store=store, watchers=[stop])
    train(config, folder, store=store, resume=True)


ALIKE = [method for method in methods() if method.removesuffix("_raw").removesuffix("_pa") in {*methods()} - {method}]
"""Methods that differ from another in nothing but whether its peers are anonymized."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in methods()]
)
def test_trains_repeats_and_resumes(method: str, tmp_path: Path, dermsim: Store) -> None:
    config = short(method, federation={"exclude": [6, 7, 8, 9]})  # six are enough for T = 5, and tested sooner
    once = train(config, tmp_path / "once", store=dermsim)
    go_on_after(2, config, tmp_path / "again", dermsim)
    assert artefacts(tmp_path / "once") == artefacts(tmp_path / "again")
    assert once["totals"]["rejected"] == once["totals"]["void"] == 0
    assert all(0 <= numbers["weighted_f1"] <= 1 for numbers in once["test"]["last"].values())
    if config.peer_learning:
        assert sum(once["totals"]["peers"].values()) == 2 * 4  # rounds 2 and 3
        assert once["totals"]["with_peer"] > 0
    else:
        assert once["totals"]["peers"] == {}


def test_every_objective_is_used_by_a_method() -> None:
    assert {short(method).objective.kind for method in methods()} == set(OBJECTIVES)


def test_every_method_has_a_line_a_place_in_the_paper_and_resolves_under_every_preset() -> None:
    found = methods()
    assert len({method.line for method in found.values()}) == len(found)
    for name, method in found.items():
        assert method.line.endswith(".")
        assert method.paper
        for preset in ("recommended", "paper", "authors_code"):
            config = resolve({"method": name, "preset": preset})
            assert resolve({"method": name, "preset": preset}, ["seed=2"]).seed == 2
            assert "written_by" in dump(config)


@pytest.mark.parametrize("T", [1, 3, 5])
def test_committee_sizes_of_the_paper(T: int, tmp_path: Path, dermsim: Store) -> None:
    raw = train(short("fedperl_raw", peers={"T": T}, federation={"rounds": 3}), tmp_path / "raw", store=dermsim)
    assert max(int(size) for size in raw["totals"]["peers"]) == T
    if T == 1:
        with pytest.raises(ConfigError, match="the mean of one model is that model"):
            short("fedperl", peers={"T": T})
        return
    unaudited = short("fedperl", privacy="research", peers={"T": T}, federation={"rounds": 3})
    anonymized = train(unaudited, tmp_path / "pa", store=dermsim)
    assert anonymized["totals"]["peers"] == raw["totals"]["peers"]
    assert anonymized["totals"]["bytes_down"] < raw["totals"]["bytes_down"]


@pytest.mark.parametrize("labels", ["server", "few_clients"])
@pytest.mark.parametrize("method", ["fedmatch", "fedirm", "fedperl_class_aware", "rscfed", "cbafed", "fedirm_fedperl"])
def test_methods_in_the_other_scenarios(method: str, labels: str, tmp_path: Path, dermsim: Store) -> None:
    sections: dict[str, Any] = {"scenario": {"labels": labels}, "federation": {"rounds": 3}}
    if labels == "few_clients":  # two have labels: in the first rounds each could solve for the other
        sections |= {"federation": {"rounds": 3, "quorum": 2}, "privacy": "research"}
    if labels == "server":
        sections["objective"] = {"start": 0}
        if "fedirm" in method:
            with pytest.raises(ConfigError, match="leaves no client a label"):
                short(method, **sections)
            return
    results = train(short(method, **sections), tmp_path, store=dermsim)
    assert results["scenario"] == labels
    assert results["totals"]["rejected"] == results["totals"]["void"] == 0


@pytest.mark.parametrize("preset", ["paper", "authors_code"])
@pytest.mark.parametrize("method", ["fedirm", "fedmatch_lite", "fedperl_gated_similarity", "local_fixmatch", "rscfed"])
def test_methods_under_the_other_presets(method: str, preset: str, tmp_path: Path, dermsim: Store) -> None:
    config = short(method, preset=preset, model={"net": "small_cnn", "weights": "none"}, federation={"rounds": 2})
    results = train(config, tmp_path, store=dermsim)
    assert results["totals"]["rejected"] == results["totals"]["void"] == 0


def test_the_page_of_methods_is_as_printed() -> None:
    page = Path(__file__).parents[1] / "docs" / "methods.md"
    assert page.read_text() == methods_page(), "renew it: fedperl methods --markdown > docs/methods.md"
