"""What becomes of a client that has no labels in one local round of FixMatch: a plain loop, none of the engine's code.

    python bench/self_labelling.py

A model that knows something (20 rounds of the labelled clients alone, bench/skin_few_small.toml) is handed to a client
without labels, which labels its own images and learns from the labels that are sure enough. Writes
docs/results/skin/self_labelling.json, which docs/results/skin.md shows; stores as bench/plus_small.toml says.
"""

import copy
import json
import tempfile
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
from fedperl.data.views import apply_strong, apply_weak, draw_strong, draw_weak, to_float
from fedperl.opening import open_store
from fedperl.predicting import open_predictor
from fedperl.settings import Config
from fedperl.training import train

FILE = LINES / "self_labelling.json"
CLIENT, ROUNDS, SEED = 5, 20, 1
STEPS, BATCH, CLASSES = 26, 16, 8
LOOKS = (0, 5, 10, STEPS)
TRIED = {
    "Adam 0.001, tau 0.6": (1e-3, 0.6, False),
    "Adam 0.0001, tau 0.6": (1e-4, 0.6, False),
    "Adam 0.001, tau 0.6, labels by the received model": (1e-3, 0.6, True),
    "Adam 0.001, tau 0.95": (1e-3, 0.95, False),
}
"""Learning rate, threshold, and whether the received model labels, not the one that learns."""


def taught_by_labels(folder: Path) -> tuple[Config, nn.Module]:
    """Return the settings, and the model of both labelled clients after some rounds without anybody else."""
    config = suite_jobs(FEW_SMALL, FEW_SUITE, folder, "cpu", [SEED], ["Lower"])[f"Lower, seed {SEED}"].config
    own = {"rounds": ROUNDS, "cohort": 2, "quorum": 2}
    table = config.model_dump(mode="json", exclude_defaults=True)
    table["federation"] = table["federation"] | own
    config = resolve(table, ())
    train(config, folder / "lower")
    return config, open_predictor(folder / "lower", "last", device="cpu").net


def round_alone(
    received: nn.Module, pixels: Tensor, truth: Tensor, lr: float, tau: float, fixed: bool
) -> list[dict[str, Any]]:
    """Return what the network says of all images at each look while it learns from its own sure labels."""
    net, generator = copy.deepcopy(received), torch.Generator().manual_seed(SEED)
    labeller = received.eval() if fixed else net
    optimizer = torch.optim.Adam(net.parameters(), lr)
    found = [said(net, pixels, truth, tau)]
    for before, after in pairwise(LOOKS):
        net.train()
        for _ in range(before, after):
            images = to_float(pixels[torch.randint(len(pixels), (BATCH,), generator=generator)])
            weak = apply_weak(images, draw_weak(BATCH, generator, "fedperl"))
            strong = apply_strong(images, draw_strong(BATCH, generator, "fedperl"))
            with torch.no_grad():
                sure, labels = torch.softmax(labeller(weak), dim=1).max(1)
            loss = 0.5 * ((sure >= tau) * F.cross_entropy(net(strong), labels, reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append(said(net, pixels, truth, tau))
    return found


@torch.no_grad()
def said(net: nn.Module, pixels: Tensor, truth: Tensor, tau: float) -> dict[str, Any]:
    """Return how many images are called what, how many surely, and how many rightly."""
    net.eval()
    sure, labels = torch.softmax(torch.cat([net(to_float(part)) for part in torch.split(pixels, 256)]), dim=1).max(1)
    return {
        "said": torch.bincount(labels, minlength=CLASSES).tolist(),
        "above": int((sure >= tau).sum()),
        "right": int((labels == truth).sum()),
    }


def main() -> None:
    """Train, look, write."""
    with tempfile.TemporaryDirectory() as folder:
        config, net = taught_by_labels(Path(folder))
    store = open_store(config)
    store = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed))
    part = store.partition.clients[CLIENT]
    assert not len(part.labelled)
    rows = np.asarray(part.unlabelled, dtype=np.int64)
    pixels, truth = torch.from_numpy(store.pixels(rows)), torch.from_numpy(store.manifest.label[rows].astype(np.int64))
    found = {name: round_alone(net, pixels, truth, *how) for name, how in TRIED.items()}
    about = {"date": datetime.now(UTC).date().isoformat(), "client": CLIENT, "rounds": ROUNDS, "seed": SEED}
    about |= {"steps": LOOKS, "images": len(rows), "classes": list(store.classes)}
    FILE.write_text(json.dumps(about | {"tried": found}, indent=1) + "\n")
    for name, looks in found.items():
        print(name, looks)


if __name__ == "__main__":
    main()
