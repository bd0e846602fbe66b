"""A trained model on a client it never saw: what `fedperl evaluate` does (paper, the unseen-client scenario)."""

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedperl.data.dermsim.hospitals import unseen_hospital
from fedperl.data.journal import Progress
from fedperl.data.manifest import UNLABELLED, Indices
from fedperl.data.prepare import prepare, recipe_of
from fedperl.data.readers import read
from fedperl.data.store import ABOUT, PARTITION, Store
from fedperl.errors import DataError, RunError
from fedperl.evaluate import classification
from fedperl.evaluate.malignancy import malignancy, malignant_classes
from fedperl.federation.run_folder import RunFolder
from fedperl.files import write_durably
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict
from fedperl.learn.weights import load_model, read_metadata

TWO = ("benign", "malignant")


def open_unseen(run: Path, data: str, progress: Progress = lambda done, total: None) -> Store:
    """Return the images of an unseen client: a store, a published archive prepared for this call, or drawn ones.

    Raises:
        FedPerlError: the folder is neither, or the archive cannot be read.
    """
    size = RunFolder(run).read_config().data.size
    if data == "dermsim":
        return unseen_hospital(size=size)
    if (Path(data) / ABOUT).exists():
        return Store.open(Path(data))
    listing = read(Path(data))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "store"
        prepare([listing], out, recipe_of([listing], size=size, twins=False), progress=progress)
        return Store.open(out)


def evaluate(
    run: Path,
    store: Store,
    *,
    model: str = "last",
    source: str | None = None,
    name: str = "unseen",
    device: str = "cpu",
) -> dict[str, Any]:
    """Return the numbers of a run's model on a store it never saw, and keep them in the run folder.

    A store of the model's classes gives those of all classes; where the classes are the paper's, or the store's are
    benign and malignant, also malignant against benign.

    Args:
        model: which of the run's models, a file of its folder `models`.
        source: only the images of this data set.
        name: of the file in the run folder.
    Raises:
        RunError: the run has no such model.
        DataError: the store's size or classes are not the model's, or the run was trained on some of its images.
    """
    path = run / "models" / f"{model}.safetensors"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in (run / "models").glob("*.safetensors")))
        raise RunError(f"{path}: no such model; {f'there are {there}' if there else 'the run has not finished'}")
    about = read_metadata(path)
    classes = tuple(json.loads(about["classes"]))
    _check_fits(store, classes, int(about["size"]), run)
    rows = _rows(store, source)
    _check_unseen(run, store, rows)
    net = build_net(
        about["net"], len(classes), seed=0, input_scale="imagenet" if about["input"] == "imagenet" else "unit"
    )
    load_model(net, path, about["net"])
    probabilities = predict(net.to(device), torch.from_numpy(store.pixels(rows))).cpu().numpy()
    truth = store.manifest.label[rows]
    found: dict[str, Any] = {"model": model, "round": about["round"], "images": len(rows), "sets": _counts(store, rows)}
    if store.classes == classes:
        found["classes"] = classification(truth, probabilities).to_dict()
    if store.classes == TWO or _grouped(classes):
        sick = truth == 1 if store.classes == TWO else malignant_classes(classes)[truth]
        found["malignancy"] = malignancy(sick, probabilities, malignant_classes(classes)).to_dict()
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    write_durably(folder / f"{name}.json", (json.dumps(found, indent=1) + "\n").encode(), mode=0o644)
    return found


def _check_fits(store: Store, classes: tuple[str, ...], size: int, run: Path) -> None:
    if store.size != size:
        raise DataError(f"the store holds images of {store.size} px; {run} was trained on {size} px")
    if store.classes != classes and not (store.classes == TWO and _grouped(classes)):
        raise DataError(
            f"the store's classes are {', '.join(store.classes)}; {run} knows {', '.join(classes)}; "
            f"wanted the same, or {' and '.join(TWO)} for a model of the paper's classes"
        )


def _grouped(classes: tuple[str, ...]) -> bool:
    try:
        return bool(malignant_classes(classes).any())
    except ValueError:
        return False


def _rows(store: Store, source: str | None) -> Indices:
    """Return a row for each labelled image, of one set where one is asked for."""
    manifest = store.manifest
    wanted = manifest.label != UNLABELLED
    if source is not None:
        wanted &= manifest.source == source
    rows = np.flatnonzero(wanted)
    if not len(rows):
        there = ", ".join(np.unique(manifest.source))
        raise DataError(f"no labelled image{f' of {source!r}' if source else ''} in the store; its sets: {there}")
    _, first = np.unique(manifest.pixels[rows], return_index=True)
    return rows[np.sort(first)]


def _counts(store: Store, rows: Indices) -> dict[str, int]:
    names, counts = np.unique(store.manifest.source[rows], return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _check_unseen(run: Path, store: Store, rows: Indices) -> None:
    """Refuse images that a client or the server of the run held: the client would not be an unseen one."""
    excluded = {str(number) for number in RunFolder(run).read_config().federation.exclude}
    try:
        with (run / PARTITION).open(newline="", encoding="utf-8") as file:
            file.readline()
            held = {(line["source"], line["image"]) for line in csv.DictReader(file) if line["holder"] not in excluded}
    except (OSError, KeyError, csv.Error) as error:
        raise RunError(f"{run / PARTITION}: cannot be read: {error!r}") from None
    keys = store.manifest.names()
    seen = [keys[row] for row in rows.tolist() if keys[row] in held]
    if seen:
        raise DataError(
            f"{len(seen)} of {len(rows)} images were dealt to the clients of {run}, the first: {' '.join(seen[0])}; "
            "wanted a client it never saw"
        )
