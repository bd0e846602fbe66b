"""A backbone from any labelled store: the stand-in for ImageNet weights where they cannot be had."""

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.config import resolve
from fedperl.data.identity import hashed, identities, to_text
from fedperl.data.manifest import UNLABELLED, Indices
from fedperl.data.partition import split_by_group
from fedperl.data.store import Store
from fedperl.errors import DataError, RunError
from fedperl.evaluate import classification
from fedperl.federation.client import Workspace
from fedperl.files import digest
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.predict import predict
from fedperl.learn.schedule import of_round
from fedperl.learn.state import state_of
from fedperl.learn.steps import EagerSteps, MakeSteps
from fedperl.learn.weights import load_model, read_metadata, write_weights
from fedperl.opening import on
from fedperl.seeds import seed_for
from fedperl.settings import Objective, Optimizer, Views

PARTIAL = ".partial"
CHUNK = 256


@dataclass(frozen=True)
class Pretraining:
    """How a backbone is trained: Adam, made anew every epoch, its rate falling over the epochs by half a cosine."""

    net: str = "efficientnet_b0"
    size: int | None = None
    """Enlarge the store's images to this many pixels: a network that halves 32 of them five times sees nothing."""
    epochs: int = 20
    lr: float = 1e-3
    batch: int = 64
    validation: float = 0.05
    seed: int = 1
    device: str = "cpu"


Progress = Callable[[int, int, float], None]
"""Called with the epochs done, all epochs, and the validation accuracy."""


def pretrain(store: Store, out: Path, settings: Pretraining, *, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Train a network on every labelled image of a store, write it, and return what its metadata says.

    After every epoch the weights so far are put beside `out`: a call with the same settings goes on from there.

    Raises:
        RunError: `out` is there already, or what is beside it was begun with other settings or images.
        DataError: the store has too few labelled images.
    """
    if not math.isfinite(settings.lr):
        raise RunError(f"lr {settings.lr}; wanted a finite number")
    if out.exists():
        raise RunError(f"{out}: is there already; wanted a new file")
    training, held = _split(store, settings)
    rows = np.concatenate([training, held])
    images = _resized(torch.from_numpy(store.pixels(rows)), settings)
    labels = torch.from_numpy(store.manifest.label[rows]).to(settings.device)
    every = torch.arange(len(training), device=settings.device)
    data = LocalImages(images, labels, every, every[:0], len(store.classes))
    aside = out.with_name(out.name + PARTIAL)
    settings = replace(settings, batch=min(settings.batch, len(training)))
    recipe = digest(json.dumps(asdict(settings) | {"store": store.digest()}, sort_keys=True).encode())
    done = _begun(aside, recipe, settings.epochs)
    with on(settings.device), _at_work(settings, len(store.classes), images.shape[-1]) as (net, make_steps):
        if done:
            load_model(net, aside, settings.net)
        for epoch in range(done + 1, settings.epochs + 1):
            steps, seed = _epoch(settings, epoch, len(training)), seed_for(settings.seed, "pretrain", epoch)
            local_round(net, data, steps, seed=seed, make_steps=make_steps)
            if not all(torch.isfinite(tensor).all() for tensor in net.state_dict().values()):
                raise RunError(
                    f"epoch {epoch}: the weights are no longer finite; wanted a lower rate than {settings.lr}"
                )
            probabilities = predict(net, images[len(training) :]).cpu().numpy()
            accuracy = classification(store.manifest.label[held], probabilities).accuracy
            metadata = {"net": settings.net, "recipe": recipe, "epoch": str(epoch), "accuracy": f"{accuracy:.4f}"}
            write_weights(aside, state_of(net), metadata)
            progress(epoch, settings.epochs, accuracy)
        trained = state_of(net)
    found = read_metadata(aside)
    about = {
        "net": settings.net,
        "classes": json.dumps(store.classes),
        "from": f"pretrained on {len(training)} images of {', '.join(np.unique(store.manifest.source))}",
        "settings": json.dumps(asdict(settings)),
        "store": store.digest(),
        "seen": to_text(
            hashed({text for row in identities(store.manifest, np.concatenate([training, held])) for text in row})
        ),
        "size": str(images.shape[-1]),
        "validation_images": str(len(held)),
        "accuracy": found["accuracy"],
    }
    write_weights(out, trained, about, mode=0o644)
    aside.unlink()
    return about


def _at_work(settings: Pretraining, classes: int, size: int) -> AbstractContextManager[tuple[nn.Module, MakeSteps]]:
    """Give the network and how its steps are taken: on a GPU in bfloat16, recorded, by kernels of our own."""
    config = resolve(
        {
            "method": "upper",
            "seed": settings.seed,
            "device": settings.device,
            "data": {"size": size},
            "model": {"net": settings.net},
            "federation": {"batch": settings.batch},
        }
    )
    if settings.device == "cpu":
        return nullcontext((Workspace(config, classes).net, EagerSteps))
    from fedperl.engines.cuda.exchange import alone

    return alone(config, classes)()


def _split(store: Store, settings: Pretraining) -> tuple[Indices, Indices]:
    """Return the rows to train on and those to validate on, no group in both: every labelled image once."""
    _, first = np.unique(store.manifest.pixels, return_index=True)
    rows = np.sort(first)
    rows = rows[store.manifest.label[rows] != UNLABELLED]
    held = max(1, round(settings.validation * len(rows)))
    generator = np.random.default_rng(seed_for(settings.seed, "pretrain", "split"))
    parts = split_by_group(
        rows, store.manifest.label, store.manifest.group, [max(0, len(rows) - held), held], generator
    )
    if not all(len(part) for part in parts):
        raise DataError(f"the store has {len(rows)} labelled images; wanted some of two groups or more to train on")
    return parts[0], parts[1]


def _resized(images: Tensor, settings: Pretraining) -> Tensor:
    """Return the images on the device, at the wanted size."""
    if settings.size in (None, images.shape[-1]):
        return images.to(settings.device)
    found = torch.empty(len(images), 3, settings.size, settings.size, dtype=torch.uint8, device=settings.device)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK].to(settings.device).float()
        larger = F.interpolate(part, size=settings.size, mode="bilinear", antialias=True)
        found[start : start + CHUNK] = larger.round().clamp(0, 255).to(torch.uint8)
    return found


def _begun(aside: Path, recipe: str, epochs: int) -> int:
    """Return how many epochs an interrupted call did."""
    if not aside.exists():
        return 0
    found = read_metadata(aside)
    if found.get("recipe") != recipe:
        raise RunError(f"{aside}: was begun with other settings or images; remove it or choose another file")
    return min(int(found["epoch"]), epochs)


def _epoch(settings: Pretraining, epoch: int, images: int) -> LocalSettings:
    optimizer = of_round(Optimizer(lr=settings.lr, schedule="cosine"), epoch, settings.epochs)
    objective = Objective(kind="supervised", class_weights="none")
    return LocalSettings(objective, optimizer, Views(), -(-images // settings.batch), settings.batch)
