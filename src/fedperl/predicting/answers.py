"""What the model says of each image, batch by batch, and how that is written for programs: JSON and csv."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedperl.data.packed import BadImageError, Fit, Images, in_order
from fedperl.errors import DataError, RunError
from fedperl.evaluate.classification import Floats
from fedperl.evaluate.malignancy import THRESHOLD, malignant_score
from fedperl.files import write_durably
from fedperl.predicting.abstaining import Abstention
from fedperl.predicting.images import FORMULA, Entry, read_image, shown
from fedperl.predicting.model import Predictor

BATCH = 64
COLUMNS = ("image", "class", "confidence", "malignancy", "malignant_probability", "decision", "error")
"""Of the csv file, before the probabilities."""

Progress = Callable[[int, int], None]


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
        found = asdict(self) | {"class": self.label, "malignancy": self.malignancy}
        return {name: found[name] for name in (*COLUMNS, "probabilities")}


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


def _probabilities(predictor: Predictor, pixels: Sequence[Images]) -> Floats:
    images = torch.from_numpy(np.stack(pixels))
    probabilities: Floats = predictor.ask(images).cpu().numpy().astype(np.float64)
    if not np.isfinite(probabilities).all():
        raise RunError(f"{predictor.path}: gives probabilities that are not finite")
    return probabilities


def _prediction(name: str, probabilities: Floats, predictor: Predictor, abstain: Abstention | None) -> Prediction:
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
        "model": shown(predictor.path),
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
    """Refuse, before anything is predicted, a file that cannot be written or that would be lost by it.

    Only an empty file or answers of an earlier call are written over: never an image, a run's file or a device.

    Raises:
        DataError: naming it.
    """
    folder = out.absolute().parent
    if out.is_dir() or not folder.is_dir():
        raise DataError(f"{out}: cannot be written: {'a folder' if out.is_dir() else 'its folder is not there'}")
    if not os.access(folder, os.W_OK):
        raise DataError(f"{out}: cannot be written: its folder may not be written to")
    if any(os.path.exists(out) and os.path.exists(path) and out.samefile(path) for path in given):
        raise DataError(f"{out}: is one of the files to be read; wanted another to write")
    if os.path.lexists(out) and not _may_be_replaced(out):
        raise DataError(f"{out}: is there already and holds no answers of an earlier call; wanted another file")


def _may_be_replaced(path: Path) -> bool:
    if not path.is_file():
        return False
    first = ",".join(COLUMNS).encode()
    with path.open("rb") as file:
        return file.read(len(first)) in (b"", first)


def write_csv(out: Path, predictor: Predictor, found: Sequence[Prediction]) -> None:
    """Write one line an image, with the probability of every class as `p_CLASS`.

    Raises:
        DataError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"p_{name}" for name in predictor.classes)])
    for one in found:
        row = one.to_dict()
        numbers = (one.probabilities.get(name) for name in predictor.classes)
        writer.writerow([*(_cell(row[name]) for name in COLUMNS), *numbers])
    try:
        write_durably(out, text.getvalue().encode(), mode=0o644)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from None


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: a class may be called anything."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
