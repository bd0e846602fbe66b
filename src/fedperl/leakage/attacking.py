"""What the models that a run releases say of the images of the client that they are made of."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedperl.data.manifest import Indices
from fedperl.evaluate import classification
from fedperl.evaluate.classification import Floats
from fedperl.evaluate.membership import Mask, logit_confidence
from fedperl.federation.client import RECALIBRATION, Workspace
from fedperl.leakage.bench import Bench
from fedperl.leakage.files import Arrays
from fedperl.leakage.releases import Releases
from fedperl.learn.predict import predict, predict_parts
from fedperl.learn.recalibrate import recalibrate
from fedperl.learn.state import State, is_running_statistic, load_into
from fedperl.peers.committee import peer_state
from fedperl.seeds import seed_for

LARGEST = 8
"""Of the committees."""
F1 = "f1 "
"""Before a release's name: its F1."""


def attacked(bench: Bench, releases: Releases, work: Workspace, labels: Indices) -> Arrays:
    """Return by release the confidence in each image, not a number where its client has no model, and the mean F1."""
    prober = _Prober(bench, releases, work, labels)
    found: dict[str, Floats] = {}
    f1: dict[str, list[float]] = {}
    for client in releases.after:
        here = bench.client == client
        for name, state, receiver in _releases(releases, client):
            found.setdefault(name, np.full(len(bench.row), np.nan))[here] = prober.confidence(state, receiver, here)
            f1.setdefault(name, []).append(prober.f1(state, receiver))
    return {**found, **{f"{F1}{name}": np.array([np.mean(values)]) for name, values in f1.items()}}


def _releases(releases: Releases, client: int) -> Iterable[tuple[str, State, int]]:
    """Yield name, model and receiver of all that is attacked of one client."""
    yield "global", releases.model, client
    yield "raw", releases.raw(client), releases.receiver(client, 1)
    yield "static 1", releases.without_statistics(client), releases.receiver(client, 1)
    for T in range(2, min(LARGEST, len(releases.after) - 1) + 1):
        yield f"static {T}", releases.anonymized(client, T), releases.receiver(client, T)
        yield f"differenced {T}", releases.differenced(client, T), releases.receiver(client, T)


@dataclass
class _Prober:
    """Shows images to released models."""

    bench: Bench
    releases: Releases
    work: Workspace
    labels: Indices

    def __post_init__(self) -> None:
        clients = self.bench.store.partition.clients
        self._own = {k: np.concatenate([clients[k].labelled, clients[k].unlabelled]) for k in self.bench.clients}
        tested = [clients[k].test for k in self.bench.clients if len(clients[k].test)]
        self._tests = [(self.bench.pixels(rows), self.bench.store.manifest.label[rows]) for rows in tested]

    def confidence(self, state: State, receiver: int, here: Mask) -> Floats:
        """Return a model's confidence in images; running statistics that it lacks are those of the receiver's images.

        A receiver can always measure them, whatever the method does.
        """
        self._load(state, receiver, measure=not any(map(is_running_statistic, state)))
        said = predict(self.work.net, self.bench.pixels(self.bench.row[here]))
        return logit_confidence(said.cpu().numpy(), self.labels[here])

    def f1(self, state: State, receiver: int) -> float:
        """Return a model's weighted F1 on each client's test images, run as the method runs it; mean over clients."""
        measures = self.bench.config.peers.batch_norm == "recalibrate" and state is not self.releases.model
        self._load(state, receiver, measure=measures)
        said = predict_parts(self.work.net, [images for images, _ in self._tests])
        values = [
            classification(truth, probabilities.cpu().numpy()).weighted_f1
            for (_, truth), probabilities in zip(self._tests, said, strict=True)
        ]
        return float(np.mean(values)) if values else float("nan")

    def _load(self, state: State, receiver: int, *, measure: bool) -> None:
        load_into(self.work.net, peer_state(self.releases.model, state))
        if measure:
            generator = np.random.default_rng(seed_for(self.bench.config.seed, "recalibration", receiver))
            recalibrate(self.work.net, self.bench.pixels(generator.permutation(self._own[receiver])[:RECALIBRATION]))
