"""What becomes of pseudo labels and of clients over the rounds of a run: how right labels are, what peers add, drift.

A run of the set `course` (bench/plus.py) is followed by this; every 25 rounds it writes down, of the unlabelled images
themselves in eval mode, what their labels would be, by the global model alone and with the peer of its client's last
committee, of these members' last models: near what training has, where weak views pass networks in train mode and
committees are chosen anew. And how far a round carries its clients, and how much of that the average keeps. It becomes
`course.json` in the run's folder. Labels that are hidden from training are read here.
"""

import json
from itertools import combinations
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from variants import Few

from fedperl.data.scenarios import seen_by
from fedperl.federation.client import Workspace
from fedperl.federation.known import model_of
from fedperl.federation.rounds import Progress
from fedperl.files import write_durably
from fedperl.learn.predict import predict
from fedperl.learn.pseudo_labels import combine_probabilities, pseudo_labels
from fedperl.learn.state import RUNNING, State, load_into
from fedperl.opening import open_store
from fedperl.parallel import Job
from fedperl.peers.committee import committee_mean, peer_state

FILE = "course.json"
KINDS = ("images", "above", "right", "said")

Counts = npt.NDArray[np.int64]


class Course(Few):
    """Follows a run as `Few` does, and its labels and clients as well; neither of a run that is resumed."""

    LOOK: ClassVar = 25
    """Rounds from one look at the labels to the next, and those over which drift is averaged."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.course_file = job.out / FILE
        self.hidden: dict[int, tuple[Tensor, Tensor]] = {}
        self.committees: dict[int, list[int]] = {}
        self.start: State = {}
        self.drifts: list[dict[str, float]] = []
        self.told: dict[int, dict[str, Any]] = {}

    def __call__(self, progress: Progress) -> None:
        """Take a round in, and look at its labels where it is time to."""
        super().__call__(progress)
        server, summary = progress.server, progress.summary
        if server is None or summary is None or self.seen != progress.round:
            return
        self.committees |= summary.committees
        records = server.bank.records
        fresh = [client for client in summary.accepted if client in records and records[client].round == progress.round]
        sent = {client: model_of(server.bank.get(client)) for client in fresh}
        if self.start and len(sent) > 1:
            self.drifts.append(drift(self.start, list(sent.values())))
        self.start = dict(server.model.state)
        if progress.round % self.LOOK:
            return
        models = {client: model_of(server.bank.get(client)) for client in records}
        mean = {key: round(fmean(one[key] for one in self.drifts), 4) for key in (self.drifts or [{}])[0]}
        self.told[progress.round] = self.labels_now(server.model.state, models) | {"drift": mean}
        self.drifts = []
        if progress.round == progress.rounds:
            write_durably(self.course_file, json.dumps(self.told).encode())

    def labels_now(self, model: State, models: dict[int, State]) -> dict[str, dict[str, list[int]]]:
        """Return the labels of all clients' unlabelled images by class, of the model alone and with peers."""
        work = self.work = self.work or self._open()
        if not self.hidden:
            self._reveal()
        found = dict[str, Counts]()
        for client, (images, truth) in self.hidden.items():
            own = self._said(work, model, images)
            members = [models[one] for one in self.committees.get(client, ()) if one in models]
            peer = [peer_state(model, committee_mean(members, "receiver"))] if members else []
            peers = [self._said(work, state, images) for state in peer]
            combine = self.config.objective.combine
            for name, scores in (("own", own), ("with_peer", combine_probabilities(own, peers, combine))):
                counts = counted(scores, truth, self.config.objective.tau)
                found[name] = found[name] + counts if name in found else counts
        return {name: dict(zip(KINDS, counts.tolist(), strict=True)) for name, counts in found.items()}

    def _said(self, work: Workspace, state: State, images: Tensor) -> Tensor:
        load_into(work.net, state)
        return predict(work.net, images)

    def _reveal(self) -> None:
        store = open_store(self.config)
        store = store.dealt(seen_by(self.config.scenario, store.partition, store.manifest, seed=self.config.data.seed))
        for client, part in enumerate(store.partition.clients):
            rows = np.asarray(part.unlabelled, dtype=np.int64)
            if len(rows):
                truth = torch.from_numpy(store.manifest.label[rows]).to(self.config.device)
                self.hidden[client] = torch.from_numpy(store.pixels(rows)).to(self.config.device), truth


def counted(scores: Tensor, truth: Tensor, tau: float) -> Counts:
    """Return (4, classes): images of each class, those above tau, those of them that are right, and said to be it."""
    said, sure = pseudo_labels(scores, tau)
    some = (truth, truth[sure], truth[sure & (said == truth)], said[sure])
    return np.stack([np.bincount(one.cpu().numpy(), minlength=scores.shape[1]) for one in some])


def drift(start: State, trained: list[State]) -> dict[str, float]:
    """Return how far the clients of a round moved, beside the length of what they began with; and how much they agree.

    `moved`: the mean length of a client's change. `cosine`: of two clients' changes, the mean over pairs. `kept`: the
    length of the mean change beside the mean length. Of all that is trained: statistics of batch norm are left out.
    """
    names = [name for name, tensor in start.items() if tensor.is_floating_point() and not name.endswith(RUNNING)]
    began, *ended = [torch.cat([state[name].double().flatten().cpu() for name in names]) for state in (start, *trained)]
    changes = [end - began for end in ended]
    lengths = [float(change.norm()) for change in changes]
    pairs = combinations(range(len(changes)), 2)
    return {
        "moved": fmean(lengths) / float(began.norm()),
        "cosine": fmean(float(changes[a] @ changes[b]) / (lengths[a] * lengths[b]) for a, b in pairs),
        "kept": float(torch.stack(changes).mean(0).norm()) / fmean(lengths),
    }
