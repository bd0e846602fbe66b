"""Whether confidence is what it claims: reliability diagrams, of federated models (figure 9), of local ones, and on the
unseen client (figure 7).

Bins are the paper's, after Ding et al. 2020: as wide as the confidences in them.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedperl.errors import RunError
from fedperl.evaluate.calibration import Bin
from fedperl.paper.content import NONE, FigureContent, Row, TableContent, number
from fedperl.paper.figures.common import client_name, drawn_clients, listed, wanted
from fedperl.paper.figures.style import (
    BLUE,
    GREY,
    VERMILION,
    WIDTH,
    Space,
    drawn,
    new_figure,
    outer_labels,
    panels,
    place,
)
from fedperl.paper.found import Found, Trained
from fedperl.paper.printed import Value, printed
from fedperl.paper.runs import LOCAL, OUTLIER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEDERATED = OUTLIER
ALL = "all"
"""Of all clients together."""
BAR = "#c3c9cf"
NARROWEST = 0.012
"""A bin of one confidence is still drawn."""
SHARED = (
    "Bins: adaptive ones after Ding et al., as wide as the confidences in them, from counts in steps of 0.005.",
    "Orange: too sure; blue: not sure enough. Dashed: confidence as it should be.",
)


@dataclass(frozen=True)
class Diagram:
    """The bins of one holder's images, with the errors."""

    bins: tuple[Bin, ...]
    ece: float | None
    mce: float | None

    @property
    def images(self) -> int:
        """How many there are."""
        return sum(one.images for one in self.bins)

    def mean(self, what: str) -> float | None:
        """Return the mean accuracy or confidence over all images."""
        total = sum(one.images * float(getattr(one, what)) for one in self.bins)
        return total / self.images if self.images else None


@drawn
def figure9(found: Found) -> FigureContent:
    """Return reliability diagrams of the federated models."""
    return _grid(found, FEDERATED)


@drawn
def reliability_local(found: Found) -> FigureContent:
    """Return reliability diagrams of the local models."""
    return _grid(found, LOCAL)


@drawn
def figure7(found: Found) -> FigureContent:
    """Return reliability diagrams on the unseen client, malignant against benign."""
    runs = [run for run in wanted(found, FEDERATED) if run.unseen_sums("malignancy") is not None]
    if not runs:
        raise RunError(f"no answers on the unseen client; wanted those of {listed(FEDERATED)}")
    diagrams = {run.name: _unseen(run) for run in runs}
    columns = min(4, len(runs))
    figure, axes = panels(len(runs), columns, 1.35, Space(top=0.62, bottom=0.4, down=0.75))
    for one, (name, diagram) in zip(axes, diagrams.items(), strict=True):
        _draw(one, diagram.bins)
        one.set(xlim=(0.5, 1), xticks=[0.5, 0.75, 1], yticks=[0, 0.5, 1])
        one.set_title(f"{name}\nECE {number(diagram.ece)}, MCE {number(diagram.mce)}")
    outer_labels(axes, columns, "confidence", "accuracy")
    _legend(figure)
    errors = listed([f"{name} {number(one.ece)} and {number(one.mce)}" for name, one in diagrams.items()])
    alt = f"Reliability diagrams on the unseen client, malignant against benign. ECE and MCE: {errors}."
    seeds = (f"Errors are means over {found.seeds} seeds; bins are of all seeds together.",) if found.seeds > 1 else ()
    notes = (
        "The probability of malignant is the sum over the malignant classes; of two, no confidence is below 0.5.",
        *SHARED,
        *seeds,
    )
    return FigureContent(figure, alt, _unseen_values(diagrams), notes)


def _unseen_values(diagrams: Mapping[str, Diagram]) -> TableContent:
    """Return each model's errors, and its bins."""
    rows = []
    for name, whole in diagrams.items():
        confidence, accuracy = whole.mean("confidence"), whole.mean("accuracy")
        gap = None if confidence is None or accuracy is None else confidence - accuracy
        numbers = (confidence, accuracy, gap, whole.ece, whole.mce)
        rows.append(Row("all images", (str(whole.images), *map(number, numbers)), (), name))
        for one in whole.bins:
            cells = (str(one.images), *map(number, (one.confidence, one.accuracy, one.gap)), NONE, NONE)
            rows.append(Row(f"confidence {one.low:.3f} to {one.high:.3f}", cells, (), name))
    return TableContent(("images", "mean confidence", "accuracy", "gap", "ECE", "MCE"), tuple(rows))


def _unseen(run: Trained) -> Diagram:
    sums = run.unseen_sums("malignancy")
    bins = sums.adaptive_bins() if sums is not None else ()
    told = [one.get("calibration", {}).get("malignancy", {}) for one in run.unseen]
    errors = [
        statistics.fmean(one[key] for one in told) if told and all(one.get(key) is not None for one in told) else None
        for key in ("ece", "mce")
    ]
    return Diagram(bins, *errors)


def _grid(found: Found, names: Sequence[str]) -> FigureContent:
    """Return a row of diagrams for each model: all clients together, then each client."""
    runs = wanted(found, names)
    clients, left_out = drawn_clients(client for run in runs for client in run.clients)
    rows = {run.name: _diagrams(run, clients) for run in runs}
    means = {run.name: Diagram((), _mean(run, "ece"), _mean(run, "mce")) for run in runs}
    theirs = {name: tuple(row[key] for key in ("ece", "mce")) for name, row in printed("figure9").items()}
    figure = _rows(rows, {name: _row_title(name, mean, theirs.get(name)) for name, mean in means.items()}, clients)
    said = listed([f"{name} {number(one.ece)} and {number(one.mce)}" for name, one in means.items()])
    seeds = (f"Errors are means over {found.seeds} seeds; bins are of all seeds together.",) if found.seeds > 1 else ()
    notes = (
        "Above each diagram: its ECE / MCE; a client's are exact, those of all clients together come from the bins.",
        "Above a row: the means over the clients.",
        *SHARED,
        *seeds,
        *left_out,
    )
    alt = f"Reliability diagrams by model and client. Mean ECE and MCE over clients: {said}."
    return FigureContent(figure, alt, _values(rows, means, theirs), notes)


def _diagrams(run: Trained, clients: Sequence[str]) -> dict[str, Diagram]:
    """Return the diagram of all clients, and of each that has test images."""
    ece, mce = run.numbers("ece"), run.numbers("mce")
    found = {}
    for holder in (ALL, *clients):
        sums = run.sums(None if holder == ALL else holder)
        if sums is not None and (bins := sums.adaptive_bins()):
            gaps = [(abs(one.gap), one.images) for one in bins]
            pooled = (sum(gap * images for gap, images in gaps) / sums.images, max(gap for gap, _ in gaps))
            errors = pooled if holder == ALL else (ece.get(holder), mce.get(holder))
            found[holder] = Diagram(bins, *errors)
    return found


def _mean(run: Trained, metric: str) -> float | None:
    numbers = run.numbers(metric)
    return statistics.fmean(numbers.values()) if numbers else None


def _row_title(name: str, mean: Diagram, their: Sequence[Value] | None) -> str:
    beside = f" (paper {their[0]:.3f}, {their[1]:.3f})" if their else ""
    return f"{name}: mean ECE {number(mean.ece)}, MCE {number(mean.mce)}{beside}"


def _rows(rows: Mapping[str, Mapping[str, Diagram]], titles: Mapping[str, str], clients: Sequence[str]) -> "Figure":
    columns, left, gap, above = (ALL, *clients), 0.38, 0.08, 0.42
    edge = min(0.8, (WIDTH - left - 0.08 - gap * (len(columns) - 1)) / len(columns))
    each = edge + 0.42
    height = above + each * len(rows) + 0.18
    figure = new_figure(height)
    for row, (name, diagrams) in enumerate(rows.items()):
        top = above + row * each + 0.3
        figure.text(left / WIDTH, 1 - (top - 0.15) / height, titles[name], fontsize=7, va="bottom")
        for column, holder in enumerate(columns):
            axes = place(figure, left + column * (edge + gap), top, edge, edge)
            _small(axes, diagrams.get(holder), outer=(row == len(rows) - 1, column == 0))
            if not row:
                head = "all clients" if holder == ALL else client_name(holder)
                middle = left + column * (edge + gap) + edge / 2
                figure.text(middle / WIDTH, 1 - (above - 0.08) / height, head, ha="center", fontsize=6, weight="bold")
    figure.text(0.5, 0.03 / height, "confidence", ha="center", va="bottom")
    figure.text(0.02 / WIDTH, 0.5, "accuracy", rotation=90, va="center")
    _legend(figure)
    return figure


def _small(axes: "Axes", diagram: Diagram | None, outer: tuple[bool, bool]) -> None:
    """Draw one diagram of a grid; numbers on its axes at the grid's foot and left edge alone."""
    axes.set_xticks([0, 0.5, 1], ["0", "", "1"] if outer[0] else ["", "", ""], fontsize=5)
    axes.set_yticks([0, 0.5, 1], ["0", "", "1"] if outer[1] else ["", "", ""], fontsize=5)
    if diagram is None:
        axes.text(0.5, 0.5, "no test\nimage", ha="center", va="center", fontsize=5, color=GREY)
    else:
        axes.set_title(f"{number(diagram.ece, 2)} / {number(diagram.mce, 2)}", fontsize=5.5, pad=1.5)
        _draw(axes, diagram.bins)


def _draw(axes: "Axes", bins: Sequence[Bin]) -> None:
    """Draw bars over the confidences of each bin, as high as its accuracy, and the gap to its confidence."""
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=(0, (3, 2)), zorder=3)
    for one in bins:
        middle, width = (one.low + one.high) / 2, max(NARROWEST, 0.9 * (one.high - one.low))
        axes.bar(middle, one.accuracy, width, color=BAR, linewidth=0)
        colour = VERMILION if one.gap > 0 else BLUE
        axes.bar(middle, one.gap, width, bottom=one.accuracy, color=colour, alpha=0.6, linewidth=0, zorder=2)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _legend(figure: "Figure") -> None:
    from matplotlib.patches import Patch

    colours = {"accuracy": BAR, "too sure": VERMILION, "not sure enough": BLUE}
    handles = [Patch(color=colour, alpha=1.0 if colour == BAR else 0.6, linewidth=0) for colour in colours.values()]
    figure.legend(handles, list(colours), loc="upper center", ncols=3, handlelength=1.2)


def _values(
    rows: Mapping[str, Mapping[str, Diagram]], means: Mapping[str, Diagram], theirs: Mapping[str, Sequence[Value]]
) -> TableContent:
    found = []
    for name, diagrams in rows.items():
        for holder, one in diagrams.items():
            numbers = (one.ece, one.mce, one.mean("accuracy"), one.mean("confidence"))
            label = "all clients together" if holder == ALL else client_name(holder)
            found.append(Row(label, (*map(number, numbers), str(one.images)), (), name))
        their = theirs.get(name)
        paper = (f"{their[0]:.3f}", f"{their[1]:.3f}", NONE, NONE, NONE) if their else ()
        mean = (number(means[name].ece), number(means[name].mce), NONE, NONE, NONE)
        found.append(Row("mean over clients", mean, paper, name))
    return TableContent(("ECE", "MCE", "accuracy", "mean confidence", "images"), tuple(found))
