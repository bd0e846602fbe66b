"""What crosses the wire comes back as it was, and nothing else is read."""

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedperl.config import load_config, methods
from fedperl.evaluate import describe_fully
from fedperl.federation.messages import EvaluateTask, Evaluation, GlobalModel, ReceivedPeer, TrainTask, Update
from fedperl.federation.wire import (
    Parcel,
    WireError,
    evaluate_parcel,
    evaluation_parcel,
    model_hash,
    read_evaluate,
    read_evaluation,
    read_train,
    read_update,
    train_parcel,
    update_parcel,
)
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.packing import packed
from fedperl.peers import RawPeers, committee

STATE = {"b.weight": torch.randn(3, 2), "a.counter": torch.tensor(4)}
OTHER = {"b.weight": torch.randn(3, 2), "a.counter": torch.tensor(5)}


def task(**changes: Any) -> TrainTask:
    config = load_config(None, [])
    settings = LocalSettings(config.objective, config.optimizer, config.views, 3, 8, round=4, rounds=9)
    made = TrainTask("abc", 4, 2, GlobalModel(3, STATE), None, settings, 2**63 - 1)
    return replace(made, **changes)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one
    )


@pytest.mark.parametrize("method", sorted(methods()))
def test_a_task_comes_back_as_it_was_for_every_method(method: str) -> None:
    config = load_config(None, [f"method={method}", "privacy=research"])
    settings = LocalSettings(config.objective, config.optimizer, config.views, 5, 16, sparse=config.federation.sparse)
    given = task(settings=settings)
    found = read_train(train_parcel(given))
    assert found.settings == settings
    assert [getattr(found, f.name) for f in fields(found) if f.name not in ("model", "settings")] == [
        getattr(given, f.name) for f in fields(given) if f.name not in ("model", "settings")
    ]
    assert found.model.round == 3
    assert same(found.model.state, STATE)


def test_peers_and_relations_are_carried_and_raw_peers_never() -> None:
    peer = committee({0: STATE, 1: OTHER}, "mean")
    found = read_train(train_parcel(task(peer=peer, relation=torch.eye(3))))
    assert isinstance(found.peer, ReceivedPeer)
    assert same(found.peer.state, peer.state)
    assert found.relation is not None
    assert torch.equal(found.relation, torch.eye(3))
    for other in (RawPeers((STATE,)), found.peer):
        with pytest.raises(ValueError, match="only anonymized peers are sent to other machines"):
            train_parcel(task(peer=other))


def test_an_update_comes_back_as_it_was() -> None:
    given = Update("abc", 4, 2, STATE, {"loss": 0.5, "accepted": 1.0}, torch.eye(3))
    found = read_update(update_parcel(given))
    assert (found.run, found.round, found.client, found.numbers) == ("abc", 4, 2, given.numbers)
    assert same(found.state, STATE)
    assert found.relation is not None
    assert torch.equal(found.relation, torch.eye(3))
    assert model_hash(update_parcel(given)) == model_hash(Parcel("", {"model": packed(STATE)}))


def test_an_evaluation_comes_back_as_it_was() -> None:
    asked = EvaluateTask("abc", 3, 2, GlobalModel(3, STATE), "test", full=True, to_use=True)
    found = read_evaluate(evaluate_parcel(asked))
    assert replace(found, model=asked.model) == asked
    assert same(found.model.state, STATE)
    generator = np.random.default_rng(0)
    truth, probabilities = generator.integers(0, 3, 60), generator.dirichlet([1, 1, 1], 60)
    groups = {"sex": np.array(["female", "male"] * 30)}
    described = describe_fully(truth, probabilities, groups=groups, fit_on=None)
    given = Evaluation("abc", 3, 2, "test", described.numbers | {"loss": 1.0}, described.sums, described.groups)
    back = read_evaluation(evaluation_parcel(given))
    assert back.numbers == given.numbers
    assert given.sums is not None
    assert back.sums is not None
    assert back.sums.to_dict() == given.sums.to_dict()
    assert {k: v.to_dict() for k, v in back.groups.items()} == {k: v.to_dict() for k, v in given.groups.items()}


GOOD = update_parcel(Update("abc", 4, 2, STATE, {"loss": 0.5}))


@pytest.mark.parametrize(
    ("parcel", "message"),
    [
        (replace(GOOD, text="no"), "no JSON"),
        (replace(GOOD, text="[]"), "wanted an object"),
        (replace(GOOD, text=" " * (2**20 + 1)), "characters"),
        (replace(GOOD, pieces={}), "piece 'model' is missing"),
        (replace(GOOD, pieces={"model": b"\x80\x04."}), "no safetensors"),
        (replace(GOOD, pieces={"model": GOOD.pieces["model"][:-1]}), "no safetensors"),
        (replace(GOOD, text=json.dumps(json.loads(GOOD.text) | {"file": "patient 7"})), "'file' is not part of it"),
        (replace(GOOD, text=json.dumps(json.loads(GOOD.text) | {"round": True})), "'round' is missing or no int"),
        (replace(GOOD, text=json.dumps(json.loads(GOOD.text) | {"round": "4"})), "'round' is missing or no int"),
        (replace(GOOD, text=json.dumps(json.loads(GOOD.text) | {"numbers": {"name": 1.0}})), "may not carry name"),
        (replace(GOOD, text=json.dumps(json.loads(GOOD.text) | {"numbers": {"loss": "7"}})), "finite numbers alone"),
        (replace(GOOD, text=GOOD.text.replace("0.5", "NaN")), "finite numbers alone"),
    ],
)
def test_what_is_no_update_is_refused(parcel: Parcel, message: str) -> None:
    with pytest.raises(WireError, match=message):
        read_update(parcel)


def test_what_is_no_task_is_refused() -> None:
    good = train_parcel(task())
    for text in (good.text.replace('"steps"', '"stepz"'), good.text.replace('"run"', '"ran"'), "{}"):
        with pytest.raises(WireError, match="cannot be read"):
            read_train(replace(good, text=text))
    asked = evaluate_parcel(EvaluateTask("abc", 3, 2, GlobalModel(3, STATE), "test"))
    with pytest.raises(WireError, match="part 'training'"):
        read_evaluate(replace(asked, text=asked.text.replace('"test"', '"training"')))
