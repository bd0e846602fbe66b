"""Methods that must be each other exactly where an option has no effect: same bytes in the global model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedperl.data.store import Store
from fedperl.settings import Config
from fedperl.training import train
from tests.conftest import small_config

Model = Callable[..., bytes]


@pytest.fixture(name="model")
def _model(tmp_path: Path, store: Store) -> Model:
    """Trains a configuration and returns the bytes of its last global model."""

    def trained(**sections: object) -> bytes:
        config: Config = small_config(**sections)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        train(config, folder, store=store)
        return (folder / "models" / "last.safetensors").read_bytes()

    return trained


def test_no_peers_are_ssfl(model: Model) -> None:
    ssfl = model(method="ssfl")
    assert model(method="fedperl", peers={"T": 0}) == ssfl
    assert model(method="fedperl", peers={"warmup": 99}) == ssfl
    assert model(method="fedperl") != ssfl


def test_a_gate_all_pass_is_static_and_one_nobody_passes_is_ssfl(model: Model) -> None:
    static, ssfl = model(method="fedperl"), model(method="ssfl")
    assert model(method="fedperl_gated_similarity", gate={"rho": 0.0}) == static
    assert model(method="fedperl_gated_validation", gate={"rho": 0.0}) == static
    assert model(method="fedperl_gated_similarity", gate={"rho": 1.0}) == ssfl
    assert model(method="fedperl_gated_validation", gate={"rho": 1.0}) == ssfl


def test_fedprox_without_mu_is_fedavg(model: Model) -> None:
    assert model(method="fedprox_ssfl", objective={"mu": 0.0}) == model(method="ssfl")
    assert model(method="fedprox_ssfl", objective={"mu": 0.5}) != model(method="ssfl")
    assert model(method="fedprox_upper", objective={"mu": 0.0}) == model(method="upper")


def test_options_without_effect_are_fedperl(model: Model) -> None:
    plain = model(method="fedperl")
    assert model(method="fedirm_fedperl", model={"dropout": None}, objective={"teacher": {"weight": 0.0}}) == plain
    off = {"prior_correction": 0.0, "labelled_loss": "cross_entropy", "class_weights": "median_frequency"}
    assert model(method="fedperl_prior", objective=off) == plain
    assert model(method="fedperl", federation={"unlabelled_batch": 4}) == plain
    assert model(method="fedperl", federation={"sparse": 1e-30}) == plain


def test_options_with_an_effect_are_not_fedperl(model: Model) -> None:
    models = [
        model(method="fedperl"),
        model(method="fedperl_class_aware", objective={"tau": 0.4}),
        model(method="fedperl", objective={"tau": 0.4}),
        model(method="fedperl_prior"),
        model(method="fedperl_agreement", objective={"tau": 0.4}),
        model(method="fedperl_recalibrated"),
        model(method="fedperl_local_norm"),
        model(method="fedperl_similarity_average", privacy="research"),  # audited shares are coarse: here, equal
        model(method="fedperl_distance_average", privacy="research"),
        model(method="fedperl_ema", objective={"tau": 0.4}),
        model(method="fedperl_round_start", objective={"tau": 0.4}),
        model(method="random_peers"),
        model(method="fedperl", federation={"sparse": 1e-3}),
        model(method="fedperl", optimizer={"carry": True}),
    ]
    assert len(set(models)) == len(models)
