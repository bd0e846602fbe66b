"""The sum of two parameter sets behaves as the plain network with the summed weights."""

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fedperl.federation.aggregate import fedavg
from fedperl.learn.average import follow
from fedperl.learn.nets import build_net
from fedperl.learn.nets.decomposed import Decomposed, is_decomposed, merged
from fedperl.learn.state import load_into, state_of

CLASSES = 4
NETS: list[tuple[str, Literal["unit", "imagenet"]]] = [
    ("small_cnn", "unit"),
    ("small_cnn", "imagenet"),
    ("resnet9", "unit"),
]


def plain(name: str = "small_cnn", scale: Literal["unit", "imagenet"] = "unit", seed: int = 1) -> nn.Module:
    return build_net(name, CLASSES, seed=seed, input_scale=scale)


def images(n: int = 6) -> Tensor:
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def shaken(seed: int = 1, zero: float = 0.01) -> Decomposed:
    """A network that has left its start: psi of random sizes around the cut, batch-norm statistics of some images."""
    net = Decomposed(plain(seed=seed), zero=zero)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, psi in net.pairs():
            psi.copy_(0.02 * torch.randn(psi.shape, generator=generator))
        net.train()(images())
    return net


@pytest.mark.parametrize(("name", "scale"), NETS)
def test_starts_as_the_plain_network_and_passes_as_it(name: str, scale: Literal["unit", "imagenet"]) -> None:
    net, reference = Decomposed(plain(name, scale), zero=0.0), plain(name, scale)
    for key, value in reference.named_parameters():
        assert torch.equal(net.theta()[key], value)
    for sigma, psi in net.pairs():
        assert torch.allclose(psi, 0.2 * sigma, rtol=1e-5, atol=0)
    for training in (True, False, True):  # statistics moved by the first pass are used by the second
        net.train(training)
        reference.train(training)
        assert torch.equal(net(images()), reference(images()))
    for key, buffer in reference.named_buffers():
        assert torch.equal(net.get_buffer(f"sigma.{key}"), buffer)


def test_input_scale_is_applied() -> None:
    unit, scaled = Decomposed(plain()), Decomposed(plain(scale="imagenet"))
    assert unit.state_dict().keys() == scaled.state_dict().keys()
    assert not torch.allclose(unit(images()), scaled(images()))


def test_state_names_both_sets_and_buffers_once() -> None:
    reference = plain()
    parameters = [name for name, _ in reference.named_parameters()]
    expected = [f"sigma.{name}" for name in reference.state_dict()] + [f"psi.{name}" for name in parameters]
    assert list(Decomposed(plain()).state_dict()) == expected
    assert "sigma.features.1.running_mean" in expected


def test_share_of_psi_and_refusals() -> None:
    net = Decomposed(plain(), share=0.0)
    assert all(psi.count_nonzero() == 0 for _, psi in net.pairs())
    for sigma, psi in Decomposed(plain(), share=3.0).pairs():
        assert torch.allclose(psi, 3 * sigma, rtol=1e-5, atol=0)
    for wrong in ({"share": -0.1}, {"zero": -1.0}, {"share": float("nan")}):
        with pytest.raises(ValueError, match="at least 0"):
            Decomposed(plain(), **wrong)


def test_small_entries_of_psi_count_in_training_only() -> None:
    net = shaken(zero=0.01)
    pairs = [(sigma.detach().flatten()[:50], psi.detach().flatten()[:50]) for sigma, psi in net.pairs()]
    small = [abs(float(p)) <= 0.01 for _, psi in pairs for p in psi]
    assert 0 < sum(small) < len(small)
    for mode in (True, False):
        net.train(mode)
        for theta, (sigma, psi) in zip(net.theta().values(), pairs, strict=True):
            for whole, s, p in zip(theta.detach().flatten()[:50], sigma, psi, strict=True):
                assert whole == (s if not mode and abs(float(p)) <= 0.01 else s + p)


def test_merged_predicts_as_the_decomposed_network_does() -> None:
    net = shaken(zero=0.01)
    state = merged(state_of(net), 0.01)
    reference = plain(seed=9)
    assert list(state) == list(reference.state_dict())
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in state.values())
    reference.load_state_dict(state)
    assert torch.equal(reference.eval()(images()), net.eval()(images()))
    with_all = plain(seed=9)
    with_all.load_state_dict(merged(state_of(net), 0.0))
    assert not torch.allclose(with_all.eval()(images()), net(images()))


def test_merged_copies_and_refuses_a_plain_state() -> None:
    net = shaken().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    own = net.state_dict()
    state = merged(own, 0.0)
    assert state["features.0.weight"].is_contiguous()
    state["features.1.running_mean"].zero_()
    assert own["sigma.features.1.running_mean"].count_nonzero() > 0
    assert is_decomposed(own)
    assert not is_decomposed(state)
    assert not is_decomposed({})
    assert not is_decomposed(own | {"head.bias": torch.zeros(1)})
    with pytest.raises(ValueError, match="found features.0.weight"):
        merged(state, 0.0)


def test_only_the_chosen_set_has_gradients() -> None:
    net = Decomposed(plain())

    def with_gradient() -> list[str]:
        net.zero_grad(set_to_none=True)
        net(images()).square().sum().backward()
        return [name for name, p in net.named_parameters() if p.grad is not None]

    names = [name for name, _ in net.named_parameters()]
    net.train_only("sigma")
    assert with_gradient() == [name for name in names if name.startswith("sigma.")]
    net.train_only("psi")
    assert with_gradient() == [name for name in names if name.startswith("psi.")]
    net.train_both()
    assert with_gradient() == names
    for sigma, psi in net.pairs():
        assert sigma.grad is not None
        assert psi.grad is not None
        assert torch.equal(sigma.grad, psi.grad)


def test_memory_format_and_type_reach_both_sets() -> None:
    net, moved = Decomposed(plain()), Decomposed(plain())
    moved.to(torch.float64)
    moved.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    four = [(sigma, psi) for sigma, psi in moved.pairs() if sigma.ndim == 4]
    assert four
    for sigma, psi in four:
        assert sigma.is_contiguous(memory_format=torch.channels_last)
        assert psi.is_contiguous(memory_format=torch.channels_last)
    assert all(t.dtype == torch.float64 for t in moved.theta().values())
    assert moved.theta()["features.3.weight"].is_contiguous(memory_format=torch.channels_last)
    out = moved(images().double().contiguous(memory_format=torch.channels_last))
    assert torch.allclose(out, net(images()).double(), atol=1e-4)


def test_average_and_running_average_of_decomposed_networks() -> None:
    a, b = shaken(1), shaken(2)
    mean = fedavg([state_of(a), state_of(b)], [1.0, 3.0])
    net = Decomposed(plain(seed=9))
    load_into(net, mean)
    for (name, value), x, y in zip(
        net.named_parameters(), dict(a.named_parameters()).values(), dict(b.named_parameters()).values(), strict=True
    ):
        assert torch.allclose(value, 0.25 * x + 0.75 * y, atol=1e-6), name
    net.load_state_dict(mean, strict=True)
    follow(net, a, 0.0)
    assert all(torch.equal(x, y) for x, y in zip(state_of(net).values(), state_of(a).values(), strict=True))


def test_a_copy_is_independent() -> None:
    net = shaken()
    twin = copy.deepcopy(net)
    load_into(twin, {name: torch.zeros_like(t) for name, t in state_of(twin).items()})
    assert net.eval()(images()).count_nonzero() > 0
    assert twin.eval()(images()).count_nonzero() == 0
