"""Classes of images that nobody has labelled, or none where the model is not sure: what `fedperl predict` does.

A threshold for a wanted risk comes from the run's validation images: it is what those showed (paper, 3.6), no promise.
"""

import csv
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import nn

from fedperl.data.journal import FILE_CAP
from fedperl.data.packed import BadImageError, Fit, Images, decode, in_order
from fedperl.data.readers.base import SKIN
from fedperl.data.readers.files import DICOM
from fedperl.data.store import ABOUT, read_about
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.evaluate import BinnedSums
from fedperl.evaluate.malignancy import THRESHOLD, malignant_classes, malignant_score
from fedperl.evaluate.ranking import Mask
from fedperl.federation.run_folder import RunFolder
from fedperl.files import write_durably
from fedperl.learn.nets import NETS, build_net
from fedperl.learn.predict import predict
from fedperl.learn.weights import load_model, read_metadata

BATCH = 64
COLUMNS = ("path", "image")
MACINTOSH = "__MACOSX"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Predictor:
    """A trained network with what is needed to show it an image."""

    path: Path
    net: nn.Module = field(repr=False)
    net_name: str
    classes: tuple[str, ...]
    size: int
    round: int
    run: Path | None
    """The folder of the run that trained it, where the file still lies in one."""

    @property
    def name(self) -> str:
        """Which of the run's models it is."""
        return self.path.stem

    @property
    def malignant(self) -> Mask | None:
        """Which classes are malignant; None unless all are the paper's: of others we cannot say."""
        if not set(self.classes) <= set(SKIN):
            return None
        try:
            return malignant_classes(self.classes)
        except ValueError:
            return None


@dataclass(frozen=True)
class Abstention:
    """The confidence below which no class is given, and what it came from."""

    threshold: float
    risk: float | None = None
    """The risk that was asked for; None where the threshold itself was given, and all below is None then too."""
    validation_images: int | None = None
    validation_holders: tuple[str, ...] | None = None
    """The clients (or the server) whose validation images it was chosen on."""
    validation_coverage: float | None = None
    validation_risk: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What became of one image: a class, or an error that says why there is none."""

    image: str
    label: str | None = None
    confidence: float | None = None
    malignant_probability: float | None = None
    decision: Literal["keeps", "abstains"] | None = None
    """None where nothing was to be abstained from."""
    probabilities: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def malignancy(self) -> Literal["malignant", "benign"] | None:
        """Whether the malignant classes have at least half the probability together, as in `fedperl evaluate`."""
        if self.malignant_probability is None:
            return None
        return "malignant" if self.malignant_probability >= THRESHOLD else "benign"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it by name."""
        found = asdict(self)
        found["class"] = found.pop("label")
        found["malignancy"] = self.malignancy
        order = ("image", "class", "confidence", "malignancy", "malignant_probability", "decision", "error")
        return {name: found[name] for name in (*order, "probabilities")}


@dataclass(frozen=True)
class Entry:
    """One image to be read, or the reason why it cannot be."""

    name: str
    path: Path | None
    error: str = ""


# The model


def open_predictor(model: Path, name: str | None = None, *, device: str = "cpu") -> Predictor:
    """Return a run's model, ready to be used.

    Args:
        model: a safetensors file of a run, or the run's folder.
        name: which of the folder's models, by default `last`.
    Raises:
        FedPerlError: there is no such model, or the file is not a run's.
    """
    if model.is_dir():
        path = model / "models" / f"{name or 'last'}.safetensors"
    elif name is not None:
        raise ConfigError(f"--model {name!r} chooses from a run folder; {model} is a file already, or not there")
    else:
        path = model
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in (model / "models").glob("*.safetensors")))
        hint = f"choose with --model: {there}" if there else "wanted a run's .safetensors file or a finished run"
        raise RunError(f"{path}: no such model; {hint}")
    about = read_metadata(path)
    try:
        classes = tuple(str(one) for one in json.loads(about["classes"]))
        size, net_name, round, scale = int(about["size"]), about["net"], int(about["round"]), about["input"]
        if net_name not in NETS or not classes:
            raise ValueError(f"net {net_name!r}, {len(classes)} classes")
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: does not say its net, classes, size and input ({error!r}); wanted a run's model"
        ) from None
    net = build_net(net_name, len(classes), seed=0, input_scale="imagenet" if scale == "imagenet" else "unit")
    load_model(net, path, net_name)
    folder = path.resolve().parent
    run = folder.parent if folder.name == "models" and (folder.parent / "config.toml").is_file() else None
    return Predictor(path, net.to(device), net_name, classes, size, round, run)


def check_fit(predictor: Predictor, fit: str) -> Fit:
    """Return how images are made square, once it is known not to be another way than the model's own images were.

    Raises:
        ConfigError: no such way, or the run's store, where it is still at hand, was made in another.
    """
    if fit not in get_args(Fit):
        raise ConfigError(f"--fit {fit!r}; wanted {' or '.join(get_args(Fit))}")
    if predictor.run is not None:
        store = Path(RunFolder(predictor.run).read_config().data.source)
        made = read_about(store)[1].get("fit", fit) if (store / ABOUT).is_file() else fit
        if made != fit:
            raise ConfigError(f"--fit {fit!r}: the images of {store} were made with {made!r}; wanted --fit {made}")
    return cast(Fit, fit)


# The threshold


def abstention(predictor: Predictor, *, risk: float | None = None, threshold: float | None = None) -> Abstention | None:
    """Return from which confidence on a class is given; None where neither is asked for: always.

    Args:
        risk: the largest share of wrong ones among the validation images that are kept.
        threshold: the confidence itself.
    Raises:
        ConfigError: both are given, or one is outside 0 to 1.
        RunError: the run has no counts of this model on validation images, or no threshold reaches that risk.
    """
    for option, value in (("--risk", risk), ("--threshold", threshold)):
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{option} {value}; wanted 0 to 1")
    if risk is None:
        return None if threshold is None else Abstention(threshold)
    if threshold is not None:
        raise ConfigError("--risk and --threshold are two ways to say when to abstain; wanted one of them")
    holders, sums = validation_sums(predictor)
    coverages, risks, thresholds = sums.risk_coverage()
    found = sums.threshold_at_risk(risk)
    if found is None:
        least = int(risks.argmin())
        kept = f"at a threshold of {thresholds[least]:g} that keeps {100 * coverages[least]:.1f} %"
        raise RunError(
            f"--risk {risk}: no threshold reaches it on the {sums.images} validation images of {predictor.path}; the "
            f"least is {risks[least]:.3f}, {kept}"
        )
    place = int(np.flatnonzero(thresholds == found)[0])
    return Abstention(found, risk, sums.images, holders, float(coverages[place]), float(risks[place]))


def validation_sums(predictor: Predictor) -> tuple[tuple[str, ...], BinnedSums]:
    """Return on whose validation images a run's model was measured, and the counts of all of them together.

    A client's own best model was measured on that client's; the others on every client's, or on the server's where it
    alone has any.

    Raises:
        RunError: the model lies in no run folder, or the run has no such counts of it.
    """
    if predictor.run is None:
        raise RunError(
            f"{predictor.path}: lies in no run folder, so its validation images are not known; wanted the file in its "
            "run's folder models/, or --threshold instead of --risk"
        )
    config, curves = RunFolder(predictor.run).read_config(), RunFolder(predictor.run).read_curves()
    own = re.fullmatch(r"client_(\d+)_(best|last)", predictor.name)
    if own is None and config.federation.batch_norm == "local":
        raise RunError(
            f"{predictor.path}: with federation.batch_norm = 'local' every client validated this model with batch-norm "
            "layers of its own, which the file does not have; wanted a client_K_best model, or --threshold"
        )
    choice = predictor.name if own is None else "per_client_best" if own[2] == "best" else "last"
    where = predictor.run / "curves.json"
    try:
        keys: dict[str, str] = curves["chosen"].get(choice, {})
        keys = keys if own is None else {client: key for client, key in keys.items() if client == own[1]}
        parts = {
            holder: BinnedSums.from_dict(curves["sums"][key]["validation"])
            for holder, key in keys.items()
            if "validation" in curves["sums"].get(key, {})
        }
        rounds = {int(key.partition("@")[2]) for key in keys.values()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{where}: cannot be used: {error!r}") from None
    if rounds and rounds != {predictor.round}:
        raise RunError(
            f"{predictor.path}: is the model of round {predictor.round}; {where} measured that of round "
            f"{', '.join(map(str, sorted(rounds)))}; wanted the run's own model"
        )
    clients = {holder: sums for holder, sums in parts.items() if holder != "server"} or parts
    total = reduce(add, clients.values()) if clients else None
    if total is None or not total.images:
        raise RunError(f"{where}: has no counts of {predictor.name!r} on validation images; wanted --threshold")
    if len(total.confusion) != len(predictor.classes):
        raise RunError(f"{where}: counts of {len(total.confusion)} classes; the model has {len(predictor.classes)}")
    return tuple(clients), total


# The images


def list_images(given: Iterable[Path], *, out: Path | None = None) -> list[Entry]:
    """Return the images of files, of folders at all levels and of csv files, in the order given, folders sorted.

    What cannot be read is in the list too, with the reason; hidden files of a folder are passed over.

    Args:
        out: a file to be written, perhaps for the second time: not looked at where a folder has it.
    """
    found: list[Entry] = []
    for path in given:
        if os.path.isdir(path):  # unlike Path.is_dir, False where the folder above may not be entered
            found += list(_of_folder(path, out)) or [_missing(path, "a folder without images")]
        elif path.suffix.lower() == ".csv":
            found += _of_csv(path)
        else:
            found.append(Entry(_shown(path), path))
    return found


def _of_folder(folder: Path, out: Path | None) -> Iterator[Entry]:
    errors: list[Entry] = []

    def refuse(error: OSError) -> None:
        errors.append(_missing(Path(str(error.filename)), f"cannot be listed: {error.strerror}"))

    entries = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not _hidden(name)]
        linked = [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
        errors += [_missing(path, "a link to a folder, which is not followed") for path in linked]
        paths = [Path(parent, name) for name in names if not _hidden(name)]
        entries += [Entry(_shown(path), path) for path in paths if out is None or path.absolute() != out.absolute()]
    yield from sorted([*entries, *errors], key=lambda entry: entry.name)


def _of_csv(path: Path) -> list[Entry]:
    """Return the images that the column `path` or `image` of a csv file names, relative to the file's folder."""
    try:
        rows = list(csv.DictReader(io.StringIO(_read(path).decode("utf-8-sig"), newline="")))
    except OSError as error:
        return [_missing(path, error.strerror or str(error))]
    except (BadImageError, UnicodeDecodeError, ValueError, csv.Error) as error:
        return [_missing(path, f"cannot be read as csv: {error}")]
    column = next((name for name in COLUMNS if rows and name in rows[0]), None)
    if column is None:
        there = ", ".join(str(name) for name in rows[0]) if rows else "no row"
        return [_missing(path, f"found {there}; wanted rows with a column {' or '.join(map(repr, COLUMNS))}")]
    found = []
    for number, row in enumerate(rows, start=1):
        if text := (row[column] or "").strip():
            found.append(Entry(_shown(path.parent / text), path.parent / text))
        else:
            found.append(Entry(f"{_shown(path)}, row {number}", None, f"no {column}"))
    return found


def _missing(path: Path, reason: str) -> Entry:
    return Entry(_shown(path), None, reason)


def _shown(path: Path) -> str:
    """Return a path as text that any file and terminal can hold: what is no letter in it is escaped."""
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == MACINTOSH


def _read(path: Path) -> bytes:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise BadImageError("a folder; wanted a file")
    if not stat.S_ISREG(status.st_mode):
        raise BadImageError("not a regular file")  # a pipe would be waited on for ever
    if status.st_size > FILE_CAP:
        raise BadImageError(f"{status.st_size} bytes; at most {FILE_CAP}")
    return path.read_bytes()


def read_image(path: Path, size: int, fit: Fit) -> Images:
    """Return the pixels of a file, (3, size, size), made as `fedperl data prepare` makes them but for its compression.

    Raises:
        BadImageError: the file cannot be read, or is no image that `prepare` would take; the message is the reason.
    """
    if path.suffix.lower() in DICOM:
        raise BadImageError("DICOM, which is not read: its header carries the patient; wanted JPEG or PNG")
    try:
        content = _read(path)
    except (OSError, ValueError) as error:  # ValueError: a name no file can have
        raise BadImageError(getattr(error, "strerror", None) or str(error)) from None
    if not content:
        raise BadImageError("an empty file")
    return np.ascontiguousarray(np.asarray(decode(content, size, fit)).transpose(2, 0, 1))


# The predictions


def predict_images(
    predictor: Predictor,
    entries: Sequence[Entry],
    *,
    abstain: Abstention | None = None,
    fit: Fit = "crop",
    batch: int = BATCH,
    progress: Progress = lambda done, total: None,
) -> list[Prediction]:
    """Return what became of each entry, in order; files are read by all cores while the network works.

    Raises:
        RunError: the model gives probabilities that are not finite.
    """

    def load(entry: Entry) -> Images | str:
        if entry.path is None:
            return entry.error
        try:
            return read_image(entry.path, predictor.size, fit)
        except BadImageError as error:
            return str(error)

    found: list[Prediction] = []
    waiting: list[tuple[Entry, Images | str]] = []
    for pair in zip(entries, in_order(load, entries), strict=True):
        waiting.append(pair)
        if len(waiting) == batch:
            found += _predicted(predictor, waiting, abstain)
            waiting = []
            progress(len(found), len(entries))
    found += _predicted(predictor, waiting, abstain)
    progress(len(found), len(entries))
    return found


def _predicted(
    predictor: Predictor, loaded: Sequence[tuple[Entry, Images | str]], abstain: Abstention | None
) -> list[Prediction]:
    pixels = [image for _, image in loaded if not isinstance(image, str)]
    rows = iter(_probabilities(predictor, pixels) if pixels else ())
    return [
        Prediction(entry.name, error=image)
        if isinstance(image, str)
        else _prediction(entry.name, next(rows), predictor, abstain)
        for entry, image in loaded
    ]


def _probabilities(predictor: Predictor, pixels: Sequence[Images]) -> np.ndarray[Any, np.dtype[np.float64]]:
    images = torch.from_numpy(np.stack(pixels))
    probabilities = predict(predictor.net, images, batch=len(images)).cpu().numpy().astype(np.float64)
    if not np.isfinite(probabilities).all():
        raise RunError(f"{predictor.path}: gives probabilities that are not finite")
    return probabilities


def _prediction(
    name: str,
    probabilities: np.ndarray[Any, np.dtype[np.float64]],
    predictor: Predictor,
    abstain: Abstention | None,
) -> Prediction:
    place, malignant = int(probabilities.argmax()), predictor.malignant
    confidence = float(probabilities[place])
    return Prediction(
        name,
        predictor.classes[place],
        confidence,
        None if malignant is None else float(malignant_score(probabilities[None], malignant)[0]),
        None if abstain is None else "keeps" if confidence >= abstain.threshold else "abstains",
        dict(zip(predictor.classes, probabilities.tolist(), strict=True)),
    )


def summary(predictor: Predictor, abstain: Abstention | None, found: Sequence[Prediction]) -> dict[str, Any]:
    """Return model, threshold and predictions as one object for JSON."""
    return {
        "model": _shown(predictor.path),
        "round": predictor.round,
        "net": predictor.net_name,
        "size": predictor.size,
        "classes": list(predictor.classes),
        "abstention": None if abstain is None else asdict(abstain),
        "images": len(found),
        "failed": sum(one.error is not None for one in found),
        "predictions": [one.to_dict() for one in found],
    }


def check_csv(out: Path, given: Iterable[Path]) -> None:
    """Refuse, before anything is predicted, a file that cannot be written or that is one of those given.

    Raises:
        DataError: naming it.
    """
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DataError(f"{out}: cannot be written: {'a folder' if out.is_dir() else 'its folder is not there'}")
    if any(out.exists() and path.exists() and out.samefile(path) for path in given):
        raise DataError(f"{out}: is one of the files to be read; wanted another to write")


def write_csv(out: Path, predictor: Predictor, found: Sequence[Prediction]) -> None:
    """Write one line an image, with the probability of every class as `p_CLASS`."""
    text = io.StringIO()
    names = [name for name in Prediction("").to_dict() if name != "probabilities"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *(f"p_{name}" for name in predictor.classes)])
    for one in found:
        row = one.to_dict()
        writer.writerow([*(row[name] for name in names), *(one.probabilities.get(name) for name in predictor.classes)])
    try:
        write_durably(out, text.getvalue().encode(), mode=0o644)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from None
