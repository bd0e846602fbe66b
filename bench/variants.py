"""What one training is worth however its models are handed out: running means, shares of clients' own, orientations.

None of the three changes how a run trains, so one run tells of all their combinations at once, each as the settings
`federation.running_average`, `federation.own_share` and `model.orientations` would have it: of the model after some
rounds, on the validation images of every client. It becomes `variants.json` in the run's folder.
"""

import json
from itertools import product
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedperl.evaluate import calibration, classification, confusion_matrix
from fedperl.evaluate.classification import Labels
from fedperl.federation.aggregate import running_mean
from fedperl.federation.client import Workspace
from fedperl.federation.known import model_of
from fedperl.federation.personal import as_used, own_mean
from fedperl.federation.rounds import Progress
from fedperl.files import write_durably
from fedperl.learn.predict import oriented, predict
from fedperl.learn.state import State, load_into
from fedperl.opening import finish_of, open_store
from fedperl.parallel import Job
from fedperl.settings import Config

FILE = "variants.json"

Variant = tuple[float, float, int]
"""A decay of the running mean, a share of the client's own models, a number of orientations."""
Chosen = tuple[float, Literal["validation"], int]
"""The same where each client chooses its share."""


def named(variant: Variant) -> str:
    """Return a variant as lines name it."""
    return " ".join(f"{part:g}" for part in variant)


class Variants:
    """Follows a run, and writes down what its last model is worth in every variant, and the means over clients before.

    A run that is resumed is not followed: nothing is written of it. Rounds in which a client's update does not count,
    and clipped updates, would be told otherwise than the client has them; the suites here have neither.
    """

    DECAYS: ClassVar[tuple[float, ...]] = (0.0, 0.9, 0.97)
    SHARES: ClassVar[tuple[float, ...]] = (0.0, 0.25, 0.5)
    ORIENTATIONS: ClassVar[tuple[int, ...]] = (1, 4, 8)
    EVERY: ClassVar = 100
    """Rounds from one look to the next; the last one is always looked at."""

    def __init__(self, job: Job) -> None:
        self.config, self.file, self.seen = job.config, job.out / FILE, 0
        self.work: Workspace | None = None
        self.images: dict[int, Tensor] = {}
        self.labels: dict[int, Labels] = {}
        self.means: dict[float, State] = {}
        self.averaged = 0
        self.own: dict[int, State] = {}
        self.course: dict[int, dict[str, float]] = {}

    def _open(self) -> Workspace:
        """Return where models are asked, and have the images there: by now the run has set its device up."""
        store, left_out = open_store(self.config), self.config.federation.exclude
        for client, part in enumerate(store.partition.clients):
            if len(part.validation) and client not in left_out:
                self.images[client] = torch.from_numpy(store.pixels(part.validation)).to(self.config.device)
                self.labels[client] = store.manifest.label[part.validation]
        return Workspace(self.config, len(store.classes), finish_of(self.config))

    def __call__(self, progress: Progress) -> None:
        """Take a round in, and look at its model where it is time to."""
        server, summary = progress.server, progress.summary
        self.seen += 1
        if server is None or summary is None or self.seen != progress.round:
            return
        if server.model.round == progress.round:  # else it is the old one: nothing came of the round
            self.averaged += 1
            for decay in self.DECAYS:
                before = self.means.get(decay, server.model.state)
                self.means[decay] = running_mean(before, server.model.state, decay, self.averaged)
        for client in summary.accepted:
            if client in server.bank.records and server.bank.records[client].round == progress.round:
                self.own[client] = own_mean(self.own.get(client, {}), model_of(server.bank.get(client)))
        if self.means and (progress.round % self.EVERY == 0 or progress.round == progress.rounds):
            found = self.look()
            self.course[progress.round] = {
                name: round(fmean(one["macro_f1"].values()), 4) for name, one in found.items()
            }
            if progress.round == progress.rounds:
                write_durably(self.file, json.dumps({"last": found, "macro_f1": self.course}).encode())

    def look(self) -> dict[str, dict[str, Any]]:
        """Return the numbers of every variant of the model as it is now, by client, and all clients' matrix."""
        work = self.work = self.work or self._open()
        found: dict[str, dict[str, Any]] = {}
        for decay, share in product(self.DECAYS, self.SHARES):
            for client, images in self.images.items():
                load_into(work.net, as_used(self.means[decay], self.own.get(client, {}), share))
                said = torch.stack([predict(work.net, view) for view in oriented(images, max(self.ORIENTATIONS))])
                for count in self.ORIENTATIONS:
                    told = found.setdefault(
                        named((decay, share, count)), {"macro_f1": {}, "weighted_f1": {}, "ece": {}, "nll": {}}
                    )
                    self._add(told, client, said[:count].mean(0).cpu().numpy())
        return found

    def _add(self, told: dict[str, Any], client: int, probabilities: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        truth, name = self.labels[client], str(client)
        numbers = classification(truth, probabilities)
        told["macro_f1"][name] = round(numbers.macro_f1, 4)
        told["weighted_f1"][name] = round(numbers.weighted_f1, 4)
        calibrated = calibration(truth, probabilities)
        told["nll"][name], told["ece"][name] = round(calibrated.nll, 4), round(calibrated.ece, 4)
        matrix = confusion_matrix(truth, probabilities.argmax(1), probabilities.shape[1])
        told["confusion"] = (np.array(told.get("confusion", 0)) + matrix).tolist()


class Few(Variants):
    """The same with fewer passes, and one more share: for a large network."""

    DECAYS: ClassVar = (0.0, 0.9)
    SHARES: ClassVar = (0.0, 0.25, 0.5, 0.75)
    ORIENTATIONS: ClassVar = (1, 4)
    EVERY: ClassVar = 10_000


def apply(config: Config) -> bool:
    """Return whether a run's models can be handed out so: not where clients keep layers of their own, or alone."""
    federation = config.federation
    return federation.batch_norm == "average" and not federation.alone and not config.objective.decomposed
