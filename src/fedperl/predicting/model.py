"""The model that is asked: a run's safetensors file, which says itself what is needed to show it an image."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast, get_args

from pydantic import ValidationError
from torch import Tensor, nn

from fedperl.data.packed import Fit
from fedperl.data.readers.base import SKIN
from fedperl.data.store import ABOUT, read_about
from fedperl.earlier import check_answers, split_known
from fedperl.errors import ConfigError, RunError
from fedperl.evaluate.malignancy import malignant_classes
from fedperl.evaluate.ranking import Mask
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict
from fedperl.learn.weights import load_model, read_metadata
from fedperl.settings import Data, Model, explain


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
    orientations: int = 1
    """In how many it is to be shown an image."""

    def ask(self, images: Tensor) -> Tensor:
        """Return its probabilities (n, classes) of uint8 images (n, 3, h, w)."""
        return predict(self.net, images, orientations=self.orientations)

    @property
    def name(self) -> str:
        """Which of the run's models it is."""
        return self.path.stem

    @cached_property
    def malignant(self) -> Mask | None:
        """Which classes are malignant; None unless all are the paper's: of others we cannot say."""
        if not set(self.classes) <= set(SKIN):
            return None
        try:
            return malignant_classes(self.classes)
        except ValueError:
            return None


def open_predictor(model: Path, name: str | None = None, *, device: str = "cpu") -> Predictor:
    """Return a run's model, ready to be used.

    Args:
        model: a safetensors file of a run, or the run's folder.
        name: which of the folder's models, by default `last`.
    Raises:
        FedPerlError: there is no such model, or the file is not a run's.
    """
    path = _file_of(model, name)
    about = read_metadata(path)
    try:
        classes, round = _class_names(about["classes"]), int(about["round"])
        size = Data(size=int(about["size"])).size
        asked = {
            "net": about["net"],
            "input_scale": about["input"],
            "norm": about.get("norm", "batch"),
            "orientations": int(about.get("orientations", 1)),
        }
        check_answers(path, split_known({"model": asked})[1])
        settings = Model.model_validate({key: value for key, value in asked.items() if key in Model.model_fields})
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        found = explain(error) if isinstance(error, ValidationError) else repr(error)
        raise RunError(
            f"{path}: does not say its net, classes, size and input ({found}); wanted a run's model"
        ) from None
    folder = path.resolve().parent
    run = folder.parent if folder.name == "models" and (folder.parent / "config.toml").is_file() else None
    if run is not None:
        check_answers(run, RunFolder(run).read_gone())
    net = build_net(settings.net, len(classes), seed=0, input_scale=settings.input_scale, norm=settings.norm)
    load_model(net, path, settings.net)
    return Predictor(path, net.to(device), settings.net, classes, size, round, run, int(settings.orientations))


def _file_of(model: Path, name: str | None) -> Path:
    if name is not None and Path(name).name != name:
        raise RunError(f"--model {name!r}: wanted the name of one of the run's models, such as last")
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
    return path


def _class_names(text: str) -> tuple[str, ...]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) and name.isprintable() for name in names):
        raise ValueError(f"classes {text:.60}; wanted a list of names")
    if not names or "" in names or len(set(names)) < len(names):
        raise ValueError(f"classes {text:.60}; wanted each once")
    return tuple(names)


def fit_of(run: Path | None) -> str | None:
    """Return how a run's own images were made square; None where their store is not at hand or does not say."""
    store = None if run is None else Path(RunFolder(run).read_config().data.source)
    return read_about(store)[1].get("fit") if store is not None and (store / ABOUT).is_file() else None


def check_fit(run: Path | None, fit: str | None = None) -> Fit:
    """Return how images are made square: as asked, else as the run's own were, else cropped.

    Raises:
        ConfigError: no such way, or the run's own images were made in another.
    """
    made = fit_of(run)
    chosen = fit or made or "crop"
    if chosen not in get_args(Fit):
        raise ConfigError(f"--fit {chosen!r}; wanted {' or '.join(get_args(Fit))}")
    if made not in (None, chosen):
        raise ConfigError(f"--fit {chosen!r}: the images of {run} were made with {made!r}; wanted --fit {made}")
    return cast(Fit, chosen)
