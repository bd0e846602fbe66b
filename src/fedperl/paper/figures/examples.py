"""Single images: figure 6, test images that two models answer differently, and how many of each sort there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fedperl.data.manifest import UNLABELLED, Indices
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.opening import check_device
from fedperl.paper.content import NONE, FigureContent, Row, TableContent
from fedperl.paper.figures.style import GREY, WIDTH, drawn, new_figure, place
from fedperl.paper.found import CHOICE, Found, Trained
from fedperl.paper.printed import printed
from fedperl.paper.runs import SSFL
from fedperl.predicting import open_predictor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, THEIRS = "FedPerl T=2", SSFL
SHORT = "FedPerl"
COLUMNS = 10
"""At most so many classes are shown."""

SHOWN = ("only FedPerl right", "both right, FedPerl surer", "only SSFL right")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Answers:
    """Every test image: where it is, its class, and both models' probabilities."""

    rows: Indices
    clients: Indices
    truth: Indices
    ours: npt.NDArray[np.float64]
    theirs: npt.NDArray[np.float64]

    @property
    def margin(self) -> npt.NDArray[np.float64]:
        """How much surer FedPerl is of the true class."""
        at = np.arange(len(self.truth))
        return np.asarray(self.ours[at, self.truth] - self.theirs[at, self.truth])

    def kinds(self) -> dict[str, Mask]:
        """Return which images are of which sort: by who is right, and of those that both have right, who is surer."""
        ours, theirs = (found.argmax(axis=1) == self.truth for found in (self.ours, self.theirs))
        return {
            "only FedPerl right": ours & ~theirs,
            "both right, FedPerl surer": ours & theirs & (self.margin > 0),
            "only SSFL right": theirs & ~ours,
            "both right, SSFL as sure or surer": ours & theirs & (self.margin <= 0),
            "both wrong": ~ours & ~theirs,
        }


@drawn
def figure6(found: Found) -> FigureContent:
    """Return images that only FedPerl has right, that both have right with FedPerl surer, and that only SSFL has right.

    For each class the image on which the two differ most. The paper shows no image that only SSFL has right.
    """
    missing = [name for name in (OURS, THEIRS) if name not in found.runs]
    if missing:
        raise RunError(f"no run {missing[0]} to ask; wanted {OURS} and {THEIRS}")
    store = found.open_store(OURS)
    answers = ask(found, store)
    kinds = answers.kinds()
    surer, as_sure = (int(kinds[f"both right, {who}"].sum()) for who in ("FedPerl surer", "SSFL as sure or surer"))
    counted = (
        f"Of {len(answers.truth)} test images, {kinds['only FedPerl right'].sum()} are right only with FedPerl and "
        f"{kinds['only SSFL right'].sum()} only with SSFL; of the {surer + as_sure} that both have right, FedPerl is "
        f"surer of {surer}."
    )
    how = (
        f"{OURS} and {THEIRS}, first seed, each client's best model. Below an image: its class and client, and how "
        "sure each model is of what it answers, with that class where it is wrong. For each class the image on which "
        "the two differ most. The third row is ours."
    )
    return FigureContent(
        _draw(store, answers, {kind: kinds[kind] for kind in SHOWN}),
        f"Test images with two models' confidences. {counted}",
        _values(found, store.classes, answers, kinds),
        (counted, how),
        private=not found.drawn,
    )


def ask(found: Found, store: Store) -> Answers:
    """Return what both runs' models answer on the test images of every client, those of the first seed."""
    parts = [
        (number, client.test[store.manifest.label[client.test] != UNLABELLED])
        for number, client in enumerate(store.partition.clients)
    ]
    parts = [
        (number, rows)
        for number, rows in parts
        if len(rows) and all(str(number) in found[n].clients for n in (OURS, THEIRS))
    ]
    if not parts:
        raise RunError(f"no client has test images that {OURS} and {THEIRS} were both asked about")
    rows = np.concatenate([own for _, own in parts])
    clients = np.concatenate([np.full(len(own), number) for number, own in parts])
    ours, theirs = (
        np.concatenate([_probabilities(found[name], number, store, own) for number, own in parts])
        for name in (OURS, THEIRS)
    )
    return Answers(rows, clients, store.manifest.label[rows], ours, theirs)


def _probabilities(run: Trained, client: int, store: Store, rows: Indices) -> npt.NDArray[np.float64]:
    name = f"client_{client}_best" if run.choice == CHOICE else run.choice
    predictor = open_predictor(run.first.folder, name, device=_device(run))
    if predictor.classes != store.classes:
        raise RunError(f"{predictor.path}: its classes are not those of the images of {OURS}")
    return predictor.ask(torch.from_numpy(store.pixels(rows))).cpu().numpy().astype(np.float64)


def _device(run: Trained) -> str:
    """Return where the run was trained, if that is here."""
    try:
        check_device(run.first.config.device)
    except ConfigError:
        return "cpu"
    return run.first.config.device


def _largest(answers: Answers, which: Mask, classes: int) -> dict[int, int]:
    """Return class -> the image of this sort on which the two models differ most, the first of equals."""
    found = {}
    for label in range(classes):
        there = np.flatnonzero(which & (answers.truth == label))
        if len(there):
            found[label] = int(there[np.abs(answers.margin[there]).argmax()])
    return found


def _draw(store: Store, answers: Answers, kinds: Mapping[str, Mask]) -> "Figure":
    shown = {kind: _largest(answers, which, len(store.classes)) for kind, which in kinds.items()}
    labels = sorted({label for images in shown.values() for label in images})[:COLUMNS] or [0]
    gap = 0.1
    edge = min(1.15, (WIDTH - 0.2 + gap) / len(labels) - gap)
    left = (WIDTH + gap - len(labels) * (edge + gap)) / 2
    each = edge + 0.64
    figure = new_figure(each * len(shown))
    height = figure.get_size_inches()[1]
    for row, (kind, images) in enumerate(shown.items()):
        top = row * each + 0.2
        title = f"{kind.capitalize().replace('fedperl', 'FedPerl').replace('ssfl', 'SSFL')}: {kinds[kind].sum()} images"
        figure.text(left / WIDTH, 1 - (top - 0.06) / height, title, weight="bold", va="bottom")
        for column, label in enumerate(labels):
            axes = place(figure, left + column * (edge + gap), top, edge, edge)
            axes.set(xticks=[], yticks=[], facecolor="#f4f4f4")
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            if label in images:
                _show(axes, store, answers, images[label])
            else:
                axes.text(0.5, 0.5, f"{store.classes[label]}:\nnone", ha="center", va="center", color=GREY)
    return figure


def _show(axes: "Axes", store: Store, answers: Answers, at: int) -> None:
    axes.imshow(store.pixels(answers.rows[at : at + 1])[0].transpose(1, 2, 0), interpolation="nearest")
    text = _caption(answers, at, store.classes)
    axes.text(0.5, -0.04, text, transform=axes.transAxes, ha="center", va="top", fontsize=5.5, linespacing=1.25)


def _caption(answers: Answers, at: int, classes: Sequence[str]) -> str:
    lines = [f"{classes[answers.truth[at]]}, client {answers.clients[at]}"]
    for name, found in ((SHORT, answers.ours[at]), (THEIRS, answers.theirs[at])):
        called = int(found.argmax())
        wrong = f" ({classes[called]})" if called != answers.truth[at] else ""
        lines.append(f"{name} {100 * found[called]:.0f} %{wrong}")
    return "\n".join(lines)


def _values(found: Found, classes: Sequence[str], answers: Answers, kinds: Mapping[str, Mask]) -> TableContent:
    """Return how many images of each class are of each sort, and the largest margin where both are right."""
    theirs = printed("figure6")[OURS]
    rows = []
    for label, name in (*enumerate(classes), (None, "all")):
        own = np.ones(len(answers.truth), bool) if label is None else answers.truth == label
        counts = [int((which & own).sum()) for which in kinds.values()]
        surer = answers.margin[kinds["both right, FedPerl surer"] & own]
        margin = f"{100 * surer.max():.1f}" if len(surer) else NONE
        their = theirs.get(name) if found.as_printed() else None
        paper = (*[NONE] * (len(counts) + 1), f"{their:.1f}") if isinstance(their, float | int) else ()
        rows.append(Row(name, (str(int(own.sum())), *map(str, counts), margin), paper))
    return TableContent(("images", *kinds, "largest margin where both are right, points"), tuple(rows))
