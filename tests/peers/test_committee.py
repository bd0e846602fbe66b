import numpy as np
import pytest
import torch

from fedperl.learn.nets import build_net
from fedperl.learn.state import state_of
from fedperl.peers import AnonymizedPeer, committee, committee_mean, random_peers
from fedperl.peers.committee import peer_state


def states(n: int) -> list[dict[str, torch.Tensor]]:
    found = []
    for seed in range(n):
        net = build_net("small_cnn", 4, seed=seed).train()
        net(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))  # moves the batch-norm statistics
        found.append(state_of(net))
    return found


def test_mean_against_naive() -> None:
    members = states(3)
    mean = committee_mean(members)
    for name, tensor in mean.items():
        if tensor.is_floating_point():
            expected = np.mean([m[name].double().numpy() for m in members], axis=0)
            assert tensor.numpy() == pytest.approx(expected, rel=1e-6, abs=1e-9)
        else:
            assert tensor == members[0][name]
    assert mean.keys() == members[0].keys()


def test_identical_models_give_the_model() -> None:
    one = states(1)[0]
    mean = committee_mean([one] * 3)
    assert all(torch.equal(mean[name], tensor) for name, tensor in one.items())


def test_no_running_statistics_reach_the_receiver() -> None:
    members = states(2)
    peer = committee({4: members[0], 7: members[1]}, "receiver")
    assert not [name for name in peer.state if "running" in name or "num_batches" in name]
    received = states(3)[2]
    used = peer_state(received, peer.state)
    assert used.keys() == received.keys()
    for name in received:
        wanted = received if "running" in name or "num_batches" in name else committee_mean(members)
        assert torch.equal(used[name], wanted[name])


def test_moment_match_is_the_variance_of_the_pooled_values() -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(1000, 2, generator=generator) * s + m for s, m in ((1.0, 0.0), (2.0, 5.0))]
    members = [{"n.running_mean": v.mean(0), "n.running_var": v.var(0, correction=0)} for v in values]
    pooled = committee_mean(members, "moment_match")
    every = torch.cat(values)
    assert torch.allclose(pooled["n.running_mean"], every.mean(0), atol=1e-5)
    assert torch.allclose(pooled["n.running_var"], every.var(0, correction=0), atol=1e-4)
    assert (committee_mean(members, "mean")["n.running_var"] < pooled["n.running_var"]).all()


def test_only_a_committee_of_two_makes_an_anonymized_peer() -> None:
    one = states(1)[0]
    with pytest.raises(ValueError, match="fewer than 2"):
        committee({3: one})
    with pytest.raises(TypeError, match="alone"):
        AnonymizedPeer(one, object())


def test_models_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="same tensors"):
        committee_mean([{"w": torch.ones(2)}, {"w": torch.ones(3)}])
    with pytest.raises(ValueError, match="at least one"):
        committee_mean([])


def test_random_peers_are_distinct_others() -> None:
    for seed in range(20):
        drawn = random_peers([0, 1, 2, 3, 4], 2, 3, np.random.default_rng(seed))
        assert len(set(drawn)) == 3
        assert 2 not in drawn
    assert random_peers([2], 2, 3, np.random.default_rng(0)) == []
