"""The preset `authors_code` against a naive re-statement of what the released code computes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedperl.config import load_config
from fedperl.federation.known import PROFILE
from fedperl.federation.ledger import Ledger
from fedperl.federation.messages import TrainTask, Update
from fedperl.federation.server import Server
from fedperl.federation.state_files import StateFiles
from fedperl.learn.class_weights import median_frequency
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Batch, FixMatch
from fedperl.learn.state import State, state_of
from fedperl.peers import AnonymizedPeer
from tests.conftest import context

CONFIG = load_config(None, ["preset=authors_code", "federation.cohort=4"])


def accuracy_and_loss(state: State) -> tuple[float, float]:
    return float(state["_fc.bias"].mean()), float(state["_fc.weight"].std())


def answer(task: TrainTask) -> Update:
    """A client that moves every tensor a little, each client in its own direction."""
    generator = torch.Generator().manual_seed(100 * task.round + task.client)
    state = {
        name: t + 0.01 * torch.randn(t.shape, generator=generator) if t.is_floating_point() else t
        for name, t in task.model.state.items()
    }
    return Update(task.run, task.round, task.client, state, {})


def naive_features(state: State) -> list[float]:
    features = []
    for name, tensor in state.items():
        if "num_batches_tracked" not in name:
            features += [tensor.double().mean().item(), tensor.double().std().item()]  # torch's std: unbiased
    return [*features, *accuracy_and_loss(state)]


def naive_similarity(features: list[list[float]]) -> list[list[float]]:
    scaled_columns = []
    for column in zip(*features, strict=True):
        low, high = min(column), max(column)
        scaled_columns.append([1.0 if high == low else (v - low) / (high - low) for v in column])
    rows = list(zip(*scaled_columns, strict=True))
    norms = [math.sqrt(sum(v * v for v in row)) for row in rows]
    return [
        [sum(x * y for x, y in zip(a, b, strict=True)) / (m * n) for b, n in zip(rows, norms, strict=True)]
        for a, m in zip(rows, norms, strict=True)
    ]


def test_profiles_similarity_and_peer_of_efficientnet(tmp_path: Path) -> None:
    initial = state_of(build_net("efficientnet_b0", 8, seed=1))
    ledger = Ledger(tmp_path / "ledger")
    ledger.open()
    server = Server(CONFIG, [9] * 5, 2, initial, StateFiles(tmp_path / "bank", "c"), ledger, accuracy_and_loss)
    updates = {task.client: answer(task) for task in server.plan(1)}
    server.absorb(updates.values())
    known = sorted(updates)
    expected = [naive_features(updates[k].state) for k in known]
    assert [len(features) for features in expected] == [624] * 4
    for k, features in zip(known, expected, strict=True):
        assert server.known[k].profile == pytest.approx(features, rel=1e-9, abs=1e-12)
    matrix = naive_similarity(expected)
    cohort = server._draw_cohort(2)
    first = next(iter(server.plan(2)))  # one at a time: nobody of this round has answered yet
    assert first.client == cohort[0]
    members = server._summary.committees[first.client]
    if first.client in known:
        row = matrix[known.index(first.client)]
        ranked = sorted((k for k in known if k != first.client), key=lambda k: (-row[known.index(k)], k))
        assert members == ranked[:2]
    else:  # never seen: random peers
        assert len(set(members)) == 2
    assert isinstance(first.peer, AnonymizedPeer)
    for name, tensor in first.peer.state.items():  # everything is averaged, running statistics too
        a, b = (updates[k].state[name] for k in members)
        if tensor.is_floating_point():
            assert torch.allclose(tensor, 0.5 * a + 0.5 * b, atol=1e-6)
    assert first.peer.state.keys() == initial.keys()
    assert PROFILE not in first.peer.state


def test_mean_of_probabilities_and_accepted_only_loss() -> None:
    torch.manual_seed(0)
    net, peer = (torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8)) for _ in range(2))
    weak, strong, labelled = (3 * torch.randn(6, 3, 2, 2) for _ in range(3))
    labels = torch.tensor([0, 1, 1, 4, 4, 4])
    settings = CONFIG.objective.model_copy(update={"tau": 0.3})
    weights = median_frequency(labels, 8, settings.absent_class_weight)
    assert weights.tolist() == pytest.approx([2 / 1, 2 / 2, 100, 100, 2 / 3, 100, 100, 100])
    losses = FixMatch(settings, context(8, class_weights=weights, peers=[peer]))(
        net, Batch(labelled, labels, weak, strong)
    )

    own, other = (np.asarray(torch.softmax(model(weak), 1).tolist()) for model in (net, peer))
    mean = (own + other) / 2
    accepted = [i for i in range(6) if mean[i].max() >= 0.3]
    assert 2 <= len(accepted) < 6
    log_strong = torch.log_softmax(net(strong), 1)
    unlabelled = sum(-log_strong[i, mean[i].argmax()].item() for i in accepted) / len(accepted)
    consistency = ((own - other) ** 2).mean()
    log_labelled = torch.log_softmax(net(labelled), 1)
    terms = [(weights[y].item(), -log_labelled[i, y].item()) for i, y in enumerate(labels.tolist())]
    supervised = sum(w * term for w, term in terms) / sum(w for w, _ in terms)
    expected = supervised + 0.5 * unlabelled + 0.01 * consistency
    assert losses.total.item() == pytest.approx(expected, rel=1e-5)
    detached = FixMatch(settings.model_copy(update={"gamma": 0.0}), context(8, class_weights=weights, peers=[peer]))(
        net, Batch(labelled, labels, weak, strong)
    )
    parameters = list(net.parameters())
    with_term = torch.autograd.grad(losses.total, parameters)
    without = torch.autograd.grad(detached.total, parameters)
    assert all(torch.equal(a, b) for a, b in zip(with_term, without, strict=True))
