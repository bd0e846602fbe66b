"""A client does with a task what the task says."""

import numpy as np
import pytest
import torch

from fedperl.federation.client import Client, Workspace, client_of_store
from fedperl.federation.messages import EvaluateTask, GlobalModel, TrainTask
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.state import State, load_into, state_of
from fedperl.peers import RawPeers, committee
from fedperl.settings import Config
from tests.conftest import small_config, small_store


def client(config: Config) -> Client:
    return client_of_store(1, small_store(), config, Workspace(config, 3))


def model(seed: int) -> State:
    net = build_net("small_cnn", 3, seed=seed).train()
    net(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
    return state_of(net)


def task(config: Config, peer: object = None) -> TrainTask:
    settings = LocalSettings(config.objective, config.optimizer, config.views, 2, 4)
    return TrainTask("run", 3, 1, GlobalModel(2, model(1)), peer, settings, 77)  # type: ignore[arg-type]


def expected(config: Config, peers: list[State]) -> State:
    """The local round with networks built by hand."""
    net = build_net("small_cnn", 3, seed=9).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    load_into(net, model(1))
    helpers = []
    for state in peers:
        helper = build_net("small_cnn", 3, seed=9).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        load_into(helper, state)
        helpers.append(helper)
    one = client(config)
    local_round(net, one.training, task(config).settings, seed=77, peers=helpers)
    return state_of(net)


def same(a: State, b: State) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_the_anonymized_peer_labels_with_the_receivers_statistics() -> None:
    config = small_config(objective={"tau": 0.34})
    members = {4: model(4), 5: model(5)}
    update, state = client(config).train(task(config, committee(members, "receiver")), {})
    mean = {n: ((members[4][n].double() + members[5][n].double()) / 2).float() for n in model(1) if "num" not in n}
    as_received = {n: model(1)[n] if "running" in n or "num" in n else mean[n] for n in model(1)}
    assert same(update.state, expected(config, [as_received]))
    assert not same(update.state, expected(config, [model(1)]))
    assert not same(update.state, expected(config, []))
    assert (update.run, update.round, update.client, state) == ("run", 3, 1, {})


def test_raw_peers_all_label() -> None:
    config = small_config(objective={"tau": 0.34}, privacy="research", peers={"anonymize": False})
    update, _ = client(config).train(task(config, RawPeers((model(4), model(5)))), {})
    assert same(update.state, expected(config, [model(4), model(5)]))
    assert not same(update.state, expected(config, [model(4)]))


def test_upper_has_every_training_label_and_lower_only_its_own() -> None:
    part = small_store().partition.clients[1]
    lower, upper = (client(small_config(method=method)).training for method in ("lower", "upper"))
    assert len(lower.labelled) == len(part.labelled)
    assert len(upper.labelled) == len(part.labelled) + len(part.unlabelled)
    assert len(upper.unlabelled) == 0
    rows = part.rows()
    assert upper.labels.tolist() == small_store().manifest.label[rows].tolist()


def test_class_weights_and_weight_decay_reach_the_training() -> None:
    base = client(small_config()).train(task(small_config()), {})[0].state
    skewed = small_store()
    label = skewed.manifest.label
    label[skewed.partition.clients[1].labelled[1:]] = 1  # the first one is of class 0
    states = []
    for objective in ({"class_weights": "none"}, {"class_weights": "median_frequency"}):
        config = small_config(objective=objective)
        one = client_of_store(1, skewed, config, Workspace(config, 3))
        states.append(one.train(task(config), {})[0].state)
    assert not same(states[0], states[1])
    decayed = small_config(optimizer={"weight_decay": 0.1})
    assert not same(client(decayed).train(task(decayed), {})[0].state, base)


def test_evaluation_against_naive_with_the_weight_of_an_absent_class() -> None:
    store = small_store()
    part = store.partition.clients[1]
    store.manifest.label[part.labelled] = np.arange(len(part.labelled)) % 2  # class 2 is never labelled
    losses = []
    for absent in (1.0, 100.0):
        config = small_config(objective={"absent_class_weight": absent})
        one = client_of_store(1, store, config, Workspace(config, 3))
        found = one.evaluate(EvaluateTask("run", 0, 1, GlobalModel(0, model(1)), "validation")).numbers
        net = build_net("small_cnn", 3, seed=9).eval()
        load_into(net, model(1))
        truth = store.manifest.label[part.validation].tolist()
        with torch.no_grad():
            logs = torch.log_softmax(net(torch.from_numpy(store.images[part.validation]).float() / 255), 1)
        weight = [1.0, 1.0, absent]
        total = sum(-weight[y] * float(row[y]) for row, y in zip(logs, truth, strict=True))
        assert found["loss"] == pytest.approx(total / sum(weight[y] for y in truth), rel=1e-4)
        assert found["accuracy"] == pytest.approx(
            np.mean([int(r.argmax()) == y for r, y in zip(logs, truth, strict=True)])
        )
        losses.append(found["loss"])
    assert losses[0] != losses[1]
