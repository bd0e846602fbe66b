"""What becomes of a client that has no labels in one local round of FixMatch: a plain loop, without the engine's steps.

    python bench/self_labelling.py

A model that knows something (20 rounds of the labelled clients alone, bench/skin_few_small.toml) is handed to a client
without labels, which labels its own images and learns from the labels that are sure enough. Writes
docs/results/skin/self_labelling.json, which docs/results/skin.md shows; stores as bench/plus_small.toml says.
"""

import copy
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from side_by_side import suite_jobs
from skin import FEW_SMALL, FEW_SUITE, LINES
from torch import Tensor, nn

from fedperl.config import resolve
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.data.views import apply_strong, apply_weak, draw_strong, draw_weak, to_float
from fedperl.learn.class_weights import median_frequency
from fedperl.opening import open_store
from fedperl.predicting import open_predictor
from fedperl.settings import Config
from fedperl.training import train

Images = tuple[Tensor, Tensor]
"""Pixels, and what they show."""
FILE = LINES / "self_labelling.json"
CLIENT, ROUNDS, SEED = 5, 20, 1
STEPS, BATCH, CLASSES = 26, 16, 8
LOOKS = (0, 5, 10, STEPS)


@dataclass(frozen=True)
class Trial:
    """How one client learns in one local round."""

    lr: float = 1e-3
    tau: float = 0.6
    beta: float = 0.5
    seed: int = SEED
    fixed: bool = False
    """The received model labels, in eval mode, not the one that learns."""
    labelled: bool = False
    """Labels of some of its images count too, as in the scenario in which every client has some."""


TRIED = {
    "Adam 0.001, tau 0.6": Trial(),
    "the same, other draws": Trial(seed=2),
    "the same, other draws again": Trial(seed=3),
    "beta 0.005": Trial(beta=0.005),
    "a tenth of the rate": Trial(lr=1e-4),
    "nothing is learnt: batch norm alone": Trial(lr=0.0),
    "tau 0.95": Trial(tau=0.95),
    "labels by the received model": Trial(fixed=True),
    "labelled images too": Trial(labelled=True),
}


def taught_by_labels(folder: Path) -> tuple[Config, nn.Module]:
    """Return the settings, and the model of both labelled clients after some rounds without anybody else."""
    config = suite_jobs(FEW_SMALL, FEW_SUITE, folder, "cpu", [SEED], ["Lower"])[f"Lower, seed {SEED}"].config
    own = {"rounds": ROUNDS, "cohort": 2, "quorum": 2}
    table = config.model_dump(mode="json", exclude_defaults=True)
    table["federation"] = table["federation"] | own
    config = resolve(table, ())
    train(config, folder / "lower")
    return config, open_predictor(folder / "lower", "last", device="cpu").net


def round_alone(received: nn.Module, images: Images, labelled: Images, trial: Trial) -> list[dict[str, Any]]:
    """Return what the network says of all images at each look while it learns from its own sure labels."""
    net, generator = copy.deepcopy(received), torch.Generator().manual_seed(trial.seed)
    labeller = received.eval() if trial.fixed else net
    optimizer = torch.optim.Adam(net.parameters(), trial.lr)
    weights = median_frequency(labelled[1], CLASSES)
    found = [said(net, images, trial.tau)]
    for before, after in pairwise(LOOKS):
        net.train()
        for _ in range(before, after):
            some = to_float(images[0][torch.randint(len(images[0]), (BATCH,), generator=generator)])
            weak = apply_weak(some, draw_weak(BATCH, generator, "fedperl"))
            strong = apply_strong(some, draw_strong(BATCH, generator, "fedperl"))
            with torch.no_grad():
                sure, labels = torch.softmax(labeller(weak), dim=1).max(1)
            accepted = (sure >= trial.tau) * F.cross_entropy(net(strong), labels, reduction="none")
            loss = trial.beta * accepted.mean()
            if trial.labelled:
                rows = torch.randint(len(labelled[0]), (BATCH,), generator=generator)
                view = apply_weak(to_float(labelled[0][rows]), draw_weak(BATCH, generator, "fedperl"))
                loss = loss + F.cross_entropy(net(view), labelled[1][rows], weight=weights)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append(said(net, images, trial.tau))
    return found


@torch.no_grad()
def said(net: nn.Module, images: Images, tau: float) -> dict[str, Any]:
    """Return how many images are called what, how many surely, and how many rightly."""
    net.eval()
    sure, labels = torch.softmax(torch.cat([net(to_float(part)) for part in torch.split(images[0], 256)]), dim=1).max(1)
    return {
        "said": torch.bincount(labels, minlength=CLASSES).tolist(),
        "above": int((sure >= tau).sum()),
        "right": int((labels == images[1]).sum()),
    }


def pixels_and_labels(store: Store, rows: Iterable[int]) -> Images:
    """Return some images of a store, and what they show."""
    some = np.asarray(rows, dtype=np.int64)
    return torch.from_numpy(store.pixels(some)), torch.from_numpy(store.manifest.label[some].astype(np.int64))


def main() -> None:
    """Train, look, write."""
    with tempfile.TemporaryDirectory() as folder:
        config, net = taught_by_labels(Path(folder))
    store = open_store(config)
    seen = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed))
    part = seen.partition.clients[CLIENT]
    assert not len(part.labelled)
    images = pixels_and_labels(seen, part.unlabelled)
    labelled = pixels_and_labels(store, store.partition.clients[CLIENT].labelled)
    found = {name: round_alone(net, images, labelled, trial) for name, trial in TRIED.items()}
    about = {"date": datetime.now(UTC).date().isoformat(), "client": CLIENT, "rounds": ROUNDS, "seed": SEED}
    about |= {"steps": LOOKS, "images": len(images[0]), "labelled": len(labelled[0]), "classes": list(store.classes)}
    FILE.write_text(json.dumps(about | {"tried": found}, indent=1) + "\n")
    for name, looks in found.items():
        print(name, looks[-1])


if __name__ == "__main__":
    main()
