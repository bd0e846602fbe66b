"""A client does with a task what the task says."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedperl.data.manifest import Indices
from fedperl.data.partition import ServerPart
from fedperl.data.store import Store
from fedperl.engines.local import PastStates
from fedperl.errors import DataError
from fedperl.evaluate import confusion_matrix, describe_scaled, fit_temperature
from fedperl.evaluate.classification import Labels, Probabilities
from fedperl.federation import client as client_module
from fedperl.federation.client import HELD, Client, Workspace, client_of_store
from fedperl.federation.messages import EVALUATION_NUMBERS, EvaluateTask, GlobalModel, TrainTask
from fedperl.federation.own_images import OwnImages
from fedperl.federation.personal import BATCH_NORM, OWN, SHARES, as_used, own_mean
from fedperl.federation.state_files import StateFiles
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict
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


# What a client keeps, and what it is told to do with it


def asked(config: Config, peer: object = None, **settings: object) -> TrainTask:
    plain = task(config, peer)
    return replace(plain, settings=replace(plain.settings, **settings))  # type: ignore[arg-type]


def test_own_batch_norm_is_kept_used_and_evaluated_with() -> None:
    config = small_config()
    one = client(config)
    first, kept = one.train(asked(config, own_batch_norm=True), {})
    norms = {name for name in first.state if "features.1." in name or "features.4." in name}
    assert norms
    assert {name for name in kept if name.startswith(BATCH_NORM)} >= {BATCH_NORM + name for name in norms}
    assert not any("head" in name or name.endswith("features.0.weight") for name in kept)
    # The next round starts from the received model, save the batch-norm layers.
    mixed = model(1) | {name.removeprefix(BATCH_NORM): tensor for name, tensor in kept.items()}
    again, _ = one.train(asked(config, own_batch_norm=True), kept)
    by_hand, _ = one.train(replace(task(config), model=GlobalModel(2, mixed)), {})
    assert same(again.state, by_hand.state)
    evaluation = EvaluateTask("run", 2, 1, GlobalModel(2, model(1)), "validation")
    assert (
        one.evaluate(evaluation, kept).numbers == one.evaluate(replace(evaluation, model=GlobalModel(2, mixed))).numbers
    )
    assert one.evaluate(evaluation, kept).numbers["loss"] != one.evaluate(evaluation).numbers["loss"]


def test_a_model_is_tested_with_the_batch_norm_of_its_time(tmp_path: Path) -> None:
    past = PastStates(StateFiles(tmp_path, "client"))
    for made in (2, 5, 9):
        past.put(3, made, {BATCH_NORM + "x": torch.tensor([float(made)]), "memory.y": torch.zeros(1)})
    past.put(4, 5, {"memory.y": torch.zeros(1)})

    def at(round: int) -> float | None:
        found = past.at(3, round)
        return float(found[BATCH_NORM + "x"]) if found else None

    assert [at(round) for round in (1, 2, 4, 5, 8, 9, 50)] == [None, 2, 2, 5, 5, 9, 9]
    assert past.at(4, 9) == {}
    past.keep({6}, {3: 3, 4: 5})
    assert [at(round) for round in (2, 6, 9)] == [2, 5, 9]
    past.keep({6}, {4: 5})  # of another client's best model nothing is needed
    assert [at(round) for round in (2, 6, 9)] == [None, 5, 9]


def test_the_mean_of_a_clients_own_models_is_plain_then_running() -> None:
    generator = torch.Generator().manual_seed(1)
    kept: State = {}
    naive, count = torch.zeros(3, dtype=torch.float64), 0
    for n in range(40):
        trained = {"w": torch.randn(3, generator=generator), "n": torch.tensor(n)}
        if n in (0, 7, 25):  # diverged
            trained["w"][1] = float("nan") if n else float("inf")
        else:
            count += 1
            share = max(1 / count, 0.1)
            naive = (1 - share) * naive + share * trained["w"].double()
        kept = own_mean(kept, trained)
        if count:
            assert torch.allclose(kept["own.w"].double(), naive, atol=1e-6)
            used = as_used({"w": torch.ones(3), "n": torch.tensor(99)}, kept, 0.25)
            assert torch.allclose(used["w"].double(), 0.75 + 0.25 * naive, atol=1e-6)
            assert int(used["n"]) == 99
        else:
            assert as_used({"w": torch.ones(3)}, kept, 0.25)["w"].tolist() == [1, 1, 1]
    assert count == 37


def log_loss(one: Client, model: State, part: str) -> float:
    """Image by image, without the client's own way to predict."""
    net = build_net("small_cnn", 3, seed=5).eval()
    load_into(net, model)
    images, labels = one.evaluation[part].images, one.evaluation[part].labels
    with torch.no_grad():
        chances = [torch.softmax(net(image[None].float() / 255), dim=1)[0] for image in images]
    return -float(np.mean([math.log(chance[label]) for chance, label in zip(chances, labels.tolist(), strict=True)]))


def test_a_client_takes_of_its_own_what_its_validation_images_want(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every pair of models the better of half and nothing, and so does its evaluation; both are chosen."""
    config = small_config(federation={"own_share": "validation"})
    one, chosen = client(config), []
    images = len(one.evaluation["validation"].labels)
    monkeypatch.setattr(client_module, "LEAST", images)
    for seed in range(8):
        received = GlobalModel(2, model(seed))
        kept = own_mean({}, model(seed + 20))
        used = one.in_use(received.state, kept)
        both = {share: as_used(received.state, kept, share) for share in SHARES}
        losses = {share: log_loss(one, state, "validation") for share, state in both.items()}
        assert abs(losses[0.0] - losses[0.5]) > 1e-5
        chosen.append(min(losses, key=lambda share: losses[share]))
        assert same(used, both[chosen[-1]])
        for part in ("validation", "test"):
            fixed = client(small_config(federation={"own_share": chosen[-1]}))
            wanted = EvaluateTask("run", 2, 1, received, part, full=True)
            assert one.evaluate(wanted, kept).numbers == fixed.evaluate(wanted, kept).numbers
    assert set(chosen) == {0.0, 0.5}
    assert same(one.in_use(model(1), {}), model(1))  # it never trained: there is nothing to mix in
    half = next(seed for seed, share in enumerate(chosen) if share)
    monkeypatch.setattr(client_module, "LEAST", images + 1)  # too few to choose by
    assert same(one.in_use(model(half), own_mean({}, model(half + 20))), model(half))


@pytest.mark.parametrize("shares", [SHARES, (0.0, 0.5, 0.9)])
@pytest.mark.parametrize("orientations", [1, 4])
def test_a_client_that_chooses_shows_no_image_twice_alike(
    orientations: int, shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers as the model that it uses does, and asks that one alone in further orientations."""
    monkeypatch.setattr(client_module, "LEAST", 1)
    monkeypatch.setattr(client_module, "SHARES", shares)
    config = small_config(federation={"own_share": "validation"}, model={"orientations": orientations})
    one, other = client(config), client(config)
    images, used = one.evaluation["validation"].images, set[float]()
    for seed in range(8):
        received, kept = GlobalModel(2, model(seed)), own_mean({}, model(seed + 20))
        asked_for = EvaluateTask("run", 2, 1, received, "validation")
        state = other.in_use(received.state, kept)
        share = next(share for share in shares if same(state, as_used(received.state, kept, share)))
        load_into(other.work.net, state)
        wanted = other.evaluate(asked_for, kept, other.work.predict(images).numpy())
        load_into(one.work.net, received.state)
        mixed = one.own_answers(received.state, kept, predict(one.work.net, images))
        assert (mixed is None) == (share == 0.0)
        if mixed is not None:
            torch.testing.assert_close(mixed, other.work.predict(images))
        passes: list[int] = []
        with one.work.net.register_forward_pre_hook(lambda _, given, passes=passes: passes.append(len(given[0]))):
            found = one.evaluate(asked_for, kept)
        assert found.numbers == pytest.approx(wanted.numbers)
        assert passes == [len(images)] * (len(shares) + orientations - 1)
        used.add(share)
    assert used >= {0.0, 0.5}


def test_a_client_that_chooses_keeps_the_mean_of_its_models() -> None:
    _, kept = client(small_config(federation={"own_share": "validation"})).train(asked(small_config()), {})
    _, fixed = client(small_config(federation={"own_share": 0.5})).train(asked(small_config()), {})
    assert any(name.startswith(OWN) for name in kept)
    assert same(kept, fixed)


def test_sparse_exchange_keeps_what_hardly_moved() -> None:
    config = small_config()
    one = client(config)
    dense, _ = one.train(task(config), {})
    sparse, kept = one.train(asked(config, sparse=1e-3), {})
    received = model(1)
    stayed = moved = 0
    for name, tensor in sparse.state.items():
        if not tensor.is_floating_point():
            continue
        small = (dense.state[name] - received[name]).abs() <= 1e-3
        assert torch.equal(tensor[small], received[name][small])
        assert torch.equal(tensor[~small], dense.state[name][~small])
        stayed, moved = stayed + int(small.sum()), moved + int((~small).sum())
    assert stayed
    assert moved
    assert same({name.removeprefix(HELD): t for name, t in kept.items() if name.startswith(HELD)}, sparse.state)
    # Next time it starts from its own copy where the new global model is near to that.
    start = one._start(asked(config, sparse=10.0), kept)
    assert same({n: t for n, t in start.items() if t.is_floating_point()}, sparse.state)
    assert same(one._start(asked(config, sparse=1e-9), kept), received)


def test_peers_are_recalibrated_on_the_receivers_images() -> None:
    config = small_config(objective={"tau": 0.34})
    one = client(config)
    peer = committee({4: model(4), 5: model(5)}, "receiver")
    data = one.training
    fresh, plain = (
        state_of(one._peers(one.work, asked(config, peer, recalibrate=wanted), model(1), data)[0])
        for wanted in (True, False)
    )
    for name, tensor in plain.items():
        assert torch.equal(tensor, fresh[name]) != ("running" in name)
    net = build_net("small_cnn", 3, seed=9).eval()
    load_into(net, plain)
    rows = torch.cat([data.labelled, data.unlabelled])
    with torch.no_grad():
        inputs = net.features[0](data.images[rows].float() / 255)  # type: ignore[operator, index]
    assert torch.allclose(fresh["features.1.running_mean"], inputs.mean((0, 2, 3)), atol=1e-4)


def test_memory_moments_and_teacher_are_kept_under_their_names() -> None:
    config = small_config(method="fedirm", objective={"start": 0}, optimizer={"carry": True})
    _, kept = client(config).train(task(config), {})
    kinds = {name.partition(".")[0] for name in kept}
    assert kinds == {"memory", "teacher"}
    assert any(name.startswith("memory.optimizer.0.exp_avg") for name in kept)
    assert int(kept["memory.mean_teacher.steps"]) == 2
    again, later = client(config).train(task(config), kept)
    anew, _ = client(config).train(task(config), {})
    assert int(later["memory.mean_teacher.steps"]) == 4
    assert not same(again.state, anew.state)


def test_the_reported_accuracy_is_of_the_sent_model_on_the_part_asked_for() -> None:
    config = small_config()
    store = small_store()
    part = store.partition.clients[1]
    for report, rows in (("validation", part.validation), ("training", part.labelled)):
        update, _ = client(config).train(asked(config, report=report), {})
        net = build_net("small_cnn", 3, seed=9).eval()
        load_into(net, update.state)
        with torch.no_grad():
            right = (
                net(torch.from_numpy(store.images[rows]).float() / 255).argmax(1).numpy() == store.manifest.label[rows]
            )
        assert update.numbers["accuracy"] == pytest.approx(right.mean())
    assert "accuracy" not in client(config).train(task(config), {})[0].numbers


def test_clients_that_share_networks_do_not_see_each_other() -> None:
    """One workspace serves all clients: whoever came before must not matter."""
    for method in ("fedmatch_pa", "fedirm", "fixmatch", "fedperl_ema", "fedperl_recalibrated"):
        config = small_config(method="fedperl" if method == "fixmatch" else method, objective={"start": 0})
        work, store = Workspace(config, 3), small_store()
        initial = state_of(work.net)
        clients = {n: client_of_store(n, store, config, work) for n in (1, 2)}
        settings = replace(task(config).settings, recalibrate=method == "fedperl_recalibrated")
        plain = config.peer_learning and not config.objective.decomposed
        peer = committee({4: model(4), 5: model(5)}, "receiver") if plain else None
        first = TrainTask("run", 3, 1, GlobalModel(2, initial), peer, settings, 77)
        alone, _ = clients[1].train(first, {})
        clients[2].train(replace(first, client=2, seed=5), {})
        after, _ = clients[1].train(first, {})
        assert same(alone.state, after.state)
        assert alone.numbers == after.numbers


def test_a_full_evaluation_adds_numbers_and_counts_and_nothing_of_one_image() -> None:
    one = client(small_config())
    task = EvaluateTask("run", 0, 1, GlobalModel(0, model(1)), "test")
    plain, full = one.evaluate(task), one.evaluate(replace(task, full=True))
    assert plain.sums is None
    assert plain.numbers.items() <= full.numbers.items()
    assert {"ece", "mce", "aurc", "brier", "coverage_at_10"} <= full.numbers.keys() <= EVALUATION_NUMBERS
    assert full.sums is not None
    assert full.sums.images == full.numbers["images"]
    assert full.sums.classification().weighted_f1 == pytest.approx(full.numbers["weighted_f1"])


def predicted(store: Store, rows: Indices) -> tuple[Labels, Probabilities]:
    net = build_net("small_cnn", 3, seed=9)
    load_into(net, model(1))
    return store.manifest.label[rows], predict(net, torch.from_numpy(store.images[rows])).numpy()


def half_right(store: Store) -> Store:
    """The model of the tests is right on all validation images but one in five, and on one test image in two."""
    for part in store.partition.clients:
        for rows, wrong in ((part.validation, 5), (part.test, 2)):
            right = predicted(store, rows)[1].argmax(axis=1)
            store.manifest.label[rows] = np.where(np.arange(len(rows)) % wrong, right, (right + 1) % 3)
    return store


FULL = EvaluateTask("run", 0, 1, GlobalModel(0, model(1)), "test", full=True)


def test_the_temperature_is_fitted_on_the_clients_own_validation_images() -> None:
    store = half_right(small_store(images=80))
    part, config = store.partition.clients[1], small_config()
    found = client_of_store(1, store, config, Workspace(config, 3)).evaluate(FULL).numbers
    validation, test = predicted(store, part.validation), predicted(store, part.test)
    wanted = describe_scaled(*validation, *test)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-3)
    assert 0.011 < wanted["temperature"] < 0.9 * fit_temperature(*test)
    validated = client_of_store(1, store, config, Workspace(config, 3)).evaluate(replace(FULL, part="validation"))
    assert "temperature" not in validated.numbers
    none = store.dealt(
        replace(store.partition, clients=tuple(replace(c, validation=c.test[:0]) for c in store.partition.clients))
    )
    without = client_of_store(1, none, config, Workspace(config, 3)).evaluate(FULL).numbers
    assert without == {name: value for name, value in found.items() if name not in wanted}


def described(store: Store, **about: list[str]) -> Store:
    columns = {name: np.resize(np.array(values), len(store.manifest)) for name, values in about.items()}
    return replace(store, manifest=replace(store.manifest, about=columns))


def test_groups_are_told_where_the_manifest_knows_them_and_they_are_large_enough() -> None:
    config = small_config()
    sites = ["back"] * 3 + ["face"]
    store = described(small_store(images=80), sex=["FEMALE", "male"], age=["50"], body_site=sites, institution=["x"])
    rows = store.partition.clients[1].test
    one = client_of_store(1, store, config, Workspace(config, 3))
    found = one.evaluate(FULL)
    truth, probabilities = predicted(store, rows)
    assert list(found.groups) == ["age", "sex", "body_site"]
    for place, name in enumerate(("female", "male")):
        own = rows % 2 == place
        matrix = confusion_matrix(truth[own], probabilities[own].argmax(axis=1), 3)
        assert np.array_equal(found.groups["sex"].groups[name], matrix)
    assert found.sums is not None
    assert np.array_equal(found.groups["age"].groups["45-59"], found.sums.confusion)
    assert (found.groups["body_site"].groups, found.groups["body_site"].too_few) == ({}, 20)  # five faces, so no back
    assert one.evaluate(replace(FULL, full=False)).groups == {}
    assert one.evaluate(replace(FULL, part="validation")).groups == {}
    assert client(config).evaluate(FULL).groups == {}
    odd = described(store, age=["old"])
    with pytest.raises(DataError, match="client 1, test images: age 'old'; wanted years, 0 to 130, or nothing where"):
        client_of_store(1, odd, config, Workspace(config, 3))


def test_the_servers_own_test_images_are_described_alike() -> None:
    store = described(half_right(small_store(images=80)), sex=["female", "male"])
    config, validation, rows = small_config(), store.partition.clients[0].validation, store.partition.clients[0].test
    found = {}
    for name, given in (("with", validation), ("without", validation[:0])):
        server = ServerPart(validation=given, test=rows)
        dealt = store.dealt(replace(store.partition, clients=store.partition.clients[1:], server=server))
        found[name] = OwnImages(config, dealt, Workspace(config, 3)).evaluate_fully(model(1), "test")
        assert (found[name].groups["sex"].images, found[name].sums.images) == (20, 20)
    wanted = describe_scaled(*predicted(store, validation), *predicted(store, rows))
    assert {name: found["with"].numbers[name] for name in wanted} == pytest.approx(wanted, rel=1e-3)
    assert found["without"].numbers.keys() == found["with"].numbers.keys() - wanted.keys()
    turning = small_config(model={"orientations": 2})
    told = OwnImages(turning, dealt, Workspace(turning, 3)).evaluate_fully(model(1), "test").numbers["nll"]
    net, images = build_net("small_cnn", 3, seed=9), torch.from_numpy(store.images[rows])
    load_into(net, model(1))
    both = [predict(net, view.contiguous()) for view in (images, images.flip(3))]
    truth = torch.from_numpy(store.manifest.label[rows])
    nll = torch.nn.functional.nll_loss(torch.stack(both).mean(0).log(), truth)
    assert told == pytest.approx(float(nll), rel=1e-4)
    assert found["without"].numbers["nll"] != pytest.approx(float(nll), rel=1e-4)
