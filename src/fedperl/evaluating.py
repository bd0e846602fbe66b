"""A trained model on a client it never saw: what `fedperl evaluate` does (paper, the unseen-client scenario)."""

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedperl.data.dermsim.hospitals import unseen_hospital
from fedperl.data.identity import archive_name, identities
from fedperl.data.journal import Progress
from fedperl.data.manifest import UNLABELLED, Indices
from fedperl.data.prepare import prepare, recipe_of
from fedperl.data.readers import read_named
from fedperl.data.store import ABOUT, PARTITION, Store
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.evaluate import binned_sums, calibration, classification
from fedperl.evaluate.classification import Labels, Probabilities
from fedperl.evaluate.malignancy import malignancy, malignant_classes, malignant_score
from fedperl.federation.run_folder import RunFolder
from fedperl.files import write_durably
from fedperl.predicting import check_fit, fit_of, open_predictor

TWO = ("benign", "malignant")


def open_unseen(
    run: Path,
    data: str,
    *,
    fit: str | None = None,
    allow_missing: bool = False,
    allow_bad: bool = False,
    progress: Progress = lambda done, total: None,
) -> Store:
    """Return the images of an unseen client: a store, a published archive prepared for this call, or drawn ones.

    Args:
        data: a store's folder, an archive's (or kind=FOLDER), or `dermsim`.
        fit: how an archive's images are made square; by default as the run's own, or cropped where their store is gone.
    Raises:
        FedPerlError: the folder is neither, the archive cannot be read, its classes are not the run's, or it would be
            made square in another way than the run's own images.
    """
    config = RunFolder(run).read_config()
    if data == "dermsim" or (Path(data) / ABOUT).exists():
        if fit is not None:
            raise ConfigError(
                f"--fit {fit!r}: the images of {data} are prepared already; wanted it with archives alone"
            )
        return unseen_hospital(size=config.data.size) if data == "dermsim" else Store.open(Path(data))
    square = check_fit(run, fit)
    listing = read_named(data)
    results = RunFolder(run).read_results()
    if results is not None:
        _check_classes(listing.classes, tuple(results["classes"]), run)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "store"
        recipe = recipe_of([listing], size=config.data.size, fit=square, twins=False)
        prepare([listing], out, recipe, allow_missing=allow_missing, allow_bad=allow_bad, progress=progress)
        return Store.open(out)


def evaluate(
    run: Path,
    store: Store,
    *,
    model: str = "last",
    source: str | None = None,
    name: str | None = None,
    trust_unseen: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Return the numbers of a run's model on images it never saw, and keep them in the run folder.

    A store of the model's classes gives those of all classes; where the classes are the paper's, or the store's are
    benign and malignant, also malignant against benign. Of both views there is the calibration, and the counts in bins
    that diagrams and curves are drawn from. Images, lesions and patients that the run's clients or server held are left
    out, and counted.

    Args:
        model: which of the run's models, a file of its folder `models`.
        source: only the images of this data set.
        name: of the images, for the file in the run folder; by default `name_of` them.
        trust_unseen: the word of whoever asks that nobody of a run across sites held these images.
    Raises:
        RunError: the run has no such model, it gives no probabilities, or does not know who held which image.
        ConfigError: `trust_unseen` of a run that knows.
        DataError: the store's size or classes are not the model's, or nothing of it is unseen.
    """
    predictor = open_predictor(run, model, device=device)
    classes, size = predictor.classes, predictor.size
    _check_classes(store.classes, classes, run)
    if store.size != size:
        raise DataError(f"the store holds images of {store.size} px; {run} was trained on {size} px")
    held = held_by(run, trust_unseen=trust_unseen)
    rows, seen = _rows(store, source), None
    if held is not None:
        rows, seen = _unseen(run, held, store, rows)
    probabilities = predictor.ask(torch.from_numpy(store.pixels(rows))).cpu().numpy()
    if not np.isfinite(probabilities).all():
        raise RunError(f"{predictor.path}: gives probabilities that are not finite")
    truth = store.manifest.label[rows]
    found: dict[str, Any] = {
        "model": model,
        "round": str(predictor.round),
        "images": len(rows),
        "left_out_as_seen": seen,  # null: not checked
        "fit": store.made.get("fit"),
        "fit_of_run": fit_of(run),
    }
    found |= {"sets": _counts(store, rows)}
    views: dict[str, tuple[Labels, Probabilities]] = {}
    if store.classes == classes:
        found["classes"] = classification(truth, probabilities).to_dict()
        views["classes"] = truth, probabilities
    if _grouped(classes):
        sick = truth == 1 if store.classes == TWO else malignant_classes(classes)[truth]
        found["malignancy"] = malignancy(sick, probabilities, malignant_classes(classes)).to_dict()
        score = malignant_score(probabilities, malignant_classes(classes)).clip(0.0, 1.0)
        views["malignancy"] = sick.astype(np.int64), np.stack([1 - score, score], axis=1)
    found["calibration"] = {view: _calibration(*images) for view, images in views.items()}
    found["sums"] = {view: binned_sums(*images).to_dict() for view, images in views.items()}
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    file = folder / f"{'-'.join(filter(None, (name or name_of(store), source, model)))}.json"
    write_durably(file, (json.dumps(found, indent=1) + "\n").encode(), mode=0o644)
    return found


def name_of(store: Store, data: str = "unseen") -> str:
    """Return what an evaluation on a store's images is called: another for other images in a folder of one name."""
    return f"{Path(data.partition('=')[2] or data).name or 'unseen'}-{store.digest()[:8]}"


def _calibration(truth: Labels, probabilities: Probabilities) -> dict[str, float]:
    """Return how far its confidence can be believed; ECE and MCE are over adaptive bins, as in the paper."""
    exact = calibration(truth, probabilities)
    return {"ece": exact.ece, "mce": exact.mce, "brier": exact.brier, "nll": exact.nll}


def _check_classes(theirs: tuple[str, ...], classes: tuple[str, ...], run: Path) -> None:
    if theirs != classes and not (theirs == TWO and _grouped(classes)):
        raise DataError(
            f"the classes of the images are {', '.join(theirs)}; {run} knows {', '.join(classes)}; "
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


def _unseen(run: Path, held: set[str], store: Store, rows: Indices) -> tuple[Indices, int]:
    """Return the rows of which a client or the server of the run held nothing, and how many others there are.

    By the image's name over all sets, its lesion or patient, and, where the store is the run's own, its pixels and
    twins.
    """
    manifest = store.manifest
    every = identities(manifest, np.arange(len(manifest)))
    ours = np.array([name in held or published in held for name, published, _ in every])
    groups = {every[row][2] for row in np.flatnonzero(ours)}
    pixels = set(manifest.pixels[ours].tolist())
    seen = np.array([bool(ours[r]) or every[r][2] in groups or int(manifest.pixels[r]) in pixels for r in rows])
    if seen.all():
        raise DataError(
            f"all {len(rows)} images, or others of the same lesion or patient, were held by the clients or the server "
            f"of {run}; wanted a client it never saw"
        )
    return rows[~seen], int(seen.sum())


def held_by(run: Path, *, trust_unseen: bool = False) -> set[str] | None:
    """Return the names and groups of all images that those who took part in a run held.

    None of a run across sites, whose server knows of no image, where whoever asks vouches for the images.

    Raises:
        RunError: the run does not know who held which image, and nobody vouches.
        ConfigError: it knows, and is not to be asked.
    """
    excluded = {str(number) for number in RunFolder(run).read_config().federation.exclude}
    path = run / PARTITION
    try:
        with path.open(newline="", encoding="utf-8") as file:
            file.readline()
            every = list(csv.DictReader(file))
        lines = [line for line in every if line["holder"] not in excluded]
        held = {archive_name(line["source"], line["image"]) for line in lines}
        held |= {f"group {line['group']}" for line in lines}
    except (OSError, KeyError, csv.Error) as error:
        raise RunError(f"{path}: cannot be read: {error!r}") from None
    if every and trust_unseen:
        raise ConfigError(
            f"--trust-unseen: {path} lists who held which image, and these are left out; leave the option out"
        )
    if not every and not trust_unseen:
        raise RunError(
            f"{path}: lists no image, as after a run across sites, so what its clients saw cannot be left out; if you "
            "know that no site and not the server held any of these images, or others of the same lesion or patient, "
            "say so with --trust-unseen"
        )
    return held if every else None
