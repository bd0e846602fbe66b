"""States and images on a device that is told of many tensors as fast as of one."""

import pytest
import torch

from fedperl.federation.aggregate import fedavg
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict, predict_parts
from fedperl.learn.state import State, as_one, load_into, state_of
from fedperl.peers.committee import committee_mean
from fedperl.peers.profiles import _mean_and_std, _means_and_stds


def counter(state: State) -> str:
    return next(name for name, tensor in state.items() if not tensor.is_floating_point())


# What a GPU does with all tensors at once is what the CPU does tensor by tensor


def test_joined_tensors_come_apart_as_they_were() -> None:
    state = {"a": torch.randn(2, 3), "n": torch.tensor(4), "b": torch.randn(5), "c": torch.randn(1, 2, 2)[:, :, ::2]}
    joined, apart = as_one([state])
    assert sorted(tensor.numel() for tensor in joined[0].values()) == [1, 13]
    again = apart(joined[0])
    assert list(again) == list(state)
    assert all(torch.equal(again[name], tensor) and again[name].dtype == tensor.dtype for name, tensor in state.items())
    joined, apart = as_one([state, state], ["b", "a"])
    halves = apart({key: 0.5 * tensor for key, tensor in joined[1].items()})
    assert list(halves) == ["a", "b"]
    assert torch.equal(halves["a"], 0.5 * state["a"])


def test_a_network_is_loaded_and_read_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_net("small_cnn", 3, seed=1)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    expected = state_of(net)
    monkeypatch.setattr("fedperl.learn.state._on_cpu", lambda state: False)
    found = state_of(net)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    other = build_net("small_cnn", 3, seed=2)
    part = {name: tensor for name, tensor in found.items() if "running" not in name}
    load_into(other, part)
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in part.items())
    with pytest.raises(KeyError):
        load_into(other, {"unknown": torch.zeros(1)})


def test_means_of_models_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state_of(build_net("small_cnn", 3, seed=seed)) for seed in range(3)]
    states[1][counter(states[1])] += 5
    average, peer = fedavg(states, [1.0, 2.0, 0.5]), committee_mean(states, "moment_match")
    monkeypatch.setattr("fedperl.learn.state._on_cpu", lambda state: False)
    for expected, found in (
        (average, fedavg(states, [1.0, 2.0, 0.5])),
        (peer, committee_mean(states, "moment_match")),
    ):
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-7, atol=0)


@pytest.mark.parametrize("correction", [0, 1])
def test_moments_of_tensors_all_at_once(correction: int) -> None:
    groups = [torch.randn(4, 3), torch.randn(1), torch.randn(100) * 1e-3 + 5]
    found = _means_and_stds(groups, correction)
    for row, group in zip(found, groups, strict=True):
        assert row.tolist() == pytest.approx([float(v) for v in _mean_and_std(group, correction)], rel=1e-9)


def test_images_of_several_clients_pass_together() -> None:
    net = build_net("small_cnn", 3, seed=1)
    parts = [torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8) for n in (5, 0, 1, 9)]
    found = predict_parts(net, parts, batch=4)
    assert [len(part) for part in found] == [5, 0, 1, 9]
    for part, probabilities in zip(parts, found, strict=True):
        if len(part):
            torch.testing.assert_close(probabilities, predict(net, part))
