"""The attacker's own models, each trained on half of the images: what do models say that never saw an image?"""

from pathlib import Path

import numpy as np

from fedperl.data.manifest import UNLABELLED, Indices
from fedperl.data.partition import ClientPart, Partition, no_rows, split_by_group
from fedperl.evaluate.classification import Floats
from fedperl.federating import steps_of
from fedperl.federation.client import client_of_store
from fedperl.federation.messages import GlobalModel, TrainTask
from fedperl.leakage.bench import Bench
from fedperl.leakage.files import Arrays, keep, kept
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.predict import predict
from fedperl.learn.state import state_of
from fedperl.seeds import seed_for
from fedperl.settings import DP


def reference(bench: Bench, folder: Path, number: int) -> Arrays:
    """Return what one of the models says of the images, and which it was trained without; trains it if need be.

    It takes as many steps as a client does in the federation, on half of every client's images. Of two models that
    follow each other, one has each half.
    """
    path = folder / f"{number}.safetensors"
    arrays = kept(path, bench.origin)
    if arrays is None:
        arrays = _trained(bench, number)
        keep(path, arrays, bench.origin)
    return arrays


def _trained(bench: Bench, number: int) -> Arrays:
    config = bench.config.changed(seed=seed_for(bench.config.data.seed, "reference", number), dp=DP())
    labelled, unlabelled = half(bench, *divmod(number, 2))
    part = ClientPart("reference", labelled, unlabelled, no_rows(), no_rows())
    alone = bench.store.dealt(Partition((part,), straddles=True))
    federation, clients = config.federation, bench.store.partition.clients
    at_once = [clients[k].unlabelled_at_once() for k in bench.clients]
    share = config.cohort / len(bench.clients)
    settings = LocalSettings(
        config.objective,
        config.optimizer,
        config.views,
        max(1, round(steps_of(config, at_once) * federation.rounds * share)),
        federation.batch,
        federation.unlabelled_batch,
        round=federation.rounds,
        rounds=federation.rounds,
    )
    work = bench.workspace(config)
    start = GlobalModel(0, state_of(work.net))
    task = TrainTask("reference", federation.rounds, 0, start, None, settings, seed_for(config.seed, "local round"))
    client_of_store(0, alone, config, work).train(task, {})
    probabilities = predict(work.net, bench.pixels(bench.row)).cpu().numpy()
    return {"probabilities": probabilities, "without": ~np.isin(bench.row, np.concatenate([labelled, unlabelled]))}


def half(bench: Bench, pair: int, side: int) -> tuple[Indices, Indices]:
    """Return rows to train on, with and without labels: half of each client's groups, in its own proportions."""
    manifest, seed = bench.store.manifest, bench.config.data.seed
    with_labels, without = [bench.store.partition.server.labelled], []
    for client in bench.clients:
        generator = np.random.default_rng(seed_for(seed, "halves", pair, client))  # both sides draw the same halves
        own, rows = bench.store.partition.clients[client], bench.row[bench.client == client]
        halves = split_by_group(rows, manifest.label, manifest.group, [len(rows) // 2, -(-len(rows) // 2)], generator)
        known = halves[side][manifest.label[halves[side]] != UNLABELLED]
        trained = len(own.labelled) + len(own.unlabelled)
        wanted = min(len(known), round(len(halves[side]) * len(own.labelled) / max(1, trained)))
        sizes = [wanted, len(known) - wanted]
        labelled, _ = split_by_group(known, manifest.label, manifest.group, sizes, generator)
        with_labels.append(labelled)
        without.append(np.setdiff1d(halves[side], labelled))
    return np.concatenate(with_labels), np.concatenate(without)


def asked_classes(bench: Bench, probabilities: Floats) -> Indices:
    """Return the class that the attacker looks at: the true one, or what its own models say where nobody knows it."""
    truth = bench.store.manifest.label[bench.row]
    return np.where(truth == UNLABELLED, probabilities.mean(axis=0).argmax(axis=1), truth)
