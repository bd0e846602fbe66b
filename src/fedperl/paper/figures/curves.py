"""One class against the rest: ROC and precision-recall curves of all clients' test images together (section 3.6)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedperl.evaluate import BinnedSums
from fedperl.paper.content import FigureContent, Row, TableContent, number
from fedperl.paper.figures.common import listed, wanted
from fedperl.paper.figures.style import GREY, LINES, Space, drawn, method_colour, outer_labels, panels
from fedperl.paper.found import Found
from fedperl.paper.runs import SSFL

MODELS = ("Lower", SSFL, "FedMatch", "FedPerl T=2", "Upper")

Curve = tuple[Any, Any]


@dataclass(frozen=True)
class Kind:
    """A sort of curve: how it and its area come from counts, and the name of both axes."""

    curve: Callable[[BinnedSums, int], Curve | None]
    area: Callable[[BinnedSums, int], float | None]
    name: str
    short: str
    x: str
    y: str


ROC = Kind(BinnedSums.roc, BinnedSums.auroc, "ROC curves", "AUROC", "false positive rate", "true positive rate")
PRECISION_RECALL = Kind(
    BinnedSums.precision_recall,
    BinnedSums.average_precision,
    "Precision-recall curves",
    "average precision",
    "recall",
    "precision",
)


@drawn
def roc(found: Found) -> FigureContent:
    """Return ROC curves, a panel a class, a line a model."""
    return _content(found, ROC)


@drawn
def precision_recall(found: Found) -> FigureContent:
    """Return precision-recall curves, a panel a class, a line a model."""
    return _content(found, PRECISION_RECALL)


def _content(found: Found, kind: Kind) -> FigureContent:
    runs = wanted(found, MODELS)
    classes = [str(name) for name in (runs[0].first.results or {}).get("classes", [])]
    counts = {
        run.name: sums for run in runs if (sums := run.sums()) is not None and len(sums.confusion) == len(classes)
    }
    areas = {name: [kind.area(sums, label) for label in range(len(classes))] for name, sums in counts.items()}
    columns = min(4, max(1, len(classes)))
    below = 0.35 + 0.115 * len(counts)
    figure, axes = panels(len(classes), columns, 1.4, Space(across=0.32, down=below + 0.3, bottom=below + 0.05))
    for label, (one, name) in enumerate(zip(axes, classes, strict=True)):
        images = next((int(sums.confusion[label].sum()) for sums in counts.values()), 0) // len(runs[0].seeds)
        one.set_title(f"{name} ({images})")
        share = _share(counts, label)
        if kind is ROC:
            one.plot([0, 1], [0, 1], color=GREY, linewidth=0.6, linestyle=LINES[3])
        else:
            one.axhline(share, color=GREY, linewidth=0.6, linestyle=LINES[3])
        for run, sums in counts.items():
            curve = kind.curve(sums, label)
            if curve is not None:
                text = f"{run}  {number(areas[run][label])}"
                style = LINES[1] if run in ("Lower", "Upper") else LINES[0]
                one.plot(*_closed(kind, curve), color=method_colour(run), linestyle=style, linewidth=1.0, label=text)
        one.set(xlim=(-0.01, 1.01), ylim=(0, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        if one.get_legend_handles_labels()[1]:
            one.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.2), fontsize=5.8)
        else:
            one.text(0.5, 0.5, "no test image", ha="center", va="center", color=GREY)
    for one in axes:
        one.set_xlabel(kind.x)
    outer_labels(axes, columns, kind.x, kind.y)
    return FigureContent(figure, _alt(kind, areas), _values(classes, counts, areas), _notes(found, kind))


def _share(counts: Mapping[str, BinnedSums], label: int) -> float:
    """Return the share of images of a class: the precision of guessing."""
    sums = next(iter(counts.values()), None)
    return 0.0 if sums is None or not sums.images else float(sums.confusion[label].sum() / sums.images)


def _closed(kind: Kind, curve: Curve) -> Curve:
    """Return a curve as it is drawn: precision holds from one recall back to the last, as its average counts it."""
    if kind is ROC:
        return curve
    adds = np.diff(curve[0], prepend=0.0) > 0
    x, y = curve[0][adds], curve[1][adds]
    return np.repeat(np.concatenate([[0.0], x]), 2)[1:-1], np.repeat(y, 2)


def _alt(kind: Kind, areas: Mapping[str, Sequence[float | None]]) -> str:
    means = []
    for name, of_classes in areas.items():
        known = [area for area in of_classes if area is not None]
        if known:
            means.append(f"{name} {sum(known) / len(known):.3f}")
    return f"{kind.name} of each class against the rest. Mean {kind.short} over classes: {listed(means)}."


def _values(
    classes: Sequence[str], counts: Mapping[str, BinnedSums], areas: Mapping[str, Sequence[float | None]]
) -> TableContent:
    first = next(iter(counts.values()), None)
    rows = [
        Row(name, (*(number(of_classes[label]) for of_classes in areas.values()), images))
        for label, name in enumerate(classes)
        for images in ["0" if first is None else str(int(first.confusion[label].sum()))]
    ]
    return TableContent((*areas, "images"), tuple(rows))


def _notes(found: Found, kind: Kind) -> tuple[str, ...]:
    table = "6" if kind is ROC else "7"
    return (
        f"All clients' test images together{', of all seeds' if found.seeds > 1 else ''}; in brackets how many of the "
        f"class. Beside each model its {kind.short}; dotted: chance.",
        f"Table {table} is not the same: it averages over clients.",
    )
