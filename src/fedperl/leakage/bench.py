"""The images that are asked about: who trained on them, who did not, and which are new."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedperl.config import config_hash
from fedperl.data.manifest import Indices
from fedperl.data.partition import PARTS, split_by_group
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.evaluate.membership import Mask
from fedperl.federating import load_weights
from fedperl.federation.client import Workspace
from fedperl.federation.members import counted, member_of
from fedperl.files import digest
from fedperl.opening import finish_of, open_store
from fedperl.seeds import seed_for
from fedperl.settings import Config, Partitioning

NEW = 3
"""One in so many training images comes with the last round."""


class Bench:
    """The images that are asked about, and networks to show them to."""

    def __init__(self, config: Config) -> None:
        """Open the images.

        Raises:
            FedPerlError: they cannot be used.
        """
        self._dealt = store = open_store(config)
        self.store = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed))
        self.classes = self.store.classes
        self.clients = [k for k in range(len(store.partition.clients)) if k not in config.federation.exclude]
        unused = config.objective.kind == "supervised" and config.objective.labels == "labelled"
        parts = [part for part in PARTS if not (unused and part == "unlabelled")]
        members = [member_of(self.store.partition.clients[client], config) for client in self.clients]
        self.config = config = counted(config, members)
        places = [
            (client, PARTS.index(part), getattr(self.store.partition.clients[client], part))
            for client in self.clients
            for part in parts
        ]
        self.row: Indices = np.concatenate([rows for _, _, rows in places])
        self.client: Indices = np.concatenate([np.full(len(rows), client) for client, _, rows in places])
        self.part: Indices = np.concatenate([np.full(len(rows), part) for _, part, rows in places])
        if config.objective.labels == "all":
            self.part[self.part == PARTS.index("unlabelled")] = PARTS.index("labelled")
        self.new = np.isin(self.row, np.concatenate([_new(self.store, client) for client in self.clients]))
        self.origin = digest(self.store.digest().encode() + config_hash(config.changed(seed=0)).encode())

    def for_runs(self, path: Path) -> Config:
        """Return the configuration of runs without the new images; who holds the others is written into a file."""
        clients = list(self._dealt.partition.clients)
        gone = self.row[self.new]
        for number in self.clients:
            part = clients[number]
            kept = ~np.isin(part.unlabelled, gone)
            clients[number] = replace(
                part,
                labelled=part.labelled[~np.isin(part.labelled, gone)],
                unlabelled=part.unlabelled[kept],
                step=part.step[kept] if len(part.step) else part.step,
            )
        replace(self._dealt.partition, clients=tuple(clients)).write(path, self.store.manifest)
        return self.config.changed(partition=Partitioning(file=str(path.resolve())))

    @property
    def member(self) -> Mask:
        """Which images a client trained on."""
        return np.asarray(self.part < PARTS.index("validation"))

    def pixels(self, rows: Indices) -> torch.Tensor:
        """Return images on the device."""
        return torch.from_numpy(self.store.pixels(rows)).to(self.config.device)

    def workspace(self, config: Config) -> Workspace:
        """Return networks that hold the starting weights."""
        work = Workspace(config, len(self.classes), finish_of(config))
        load_weights(config, work)
        return work


def _new(store: Store, client: int) -> Indices:
    """Return the training images of a client that come with the last round: whole groups, classes in proportion."""
    found, manifest = [], store.manifest
    for part in ("labelled", "unlabelled"):
        rows = getattr(store.partition.clients[client], part)
        generator = np.random.default_rng(seed_for(0, "new images", client, part))
        sizes = [len(rows) - len(rows) // NEW, len(rows) // NEW]
        found.append(split_by_group(rows, manifest.label, manifest.group, sizes, generator)[1])
    return np.concatenate(found)
