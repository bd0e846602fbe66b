"""Labels at a few clients: figure 8, F1 of FedPerl and FedIRM by the share of clients that take part."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedperl.paper.content import FigureContent, Row, TableContent
from fedperl.paper.figures.common import listed, wanted
from fedperl.paper.figures.style import DARK, GREY, WIDTH, drawn, method_colour, new_figure, place
from fedperl.paper.found import Found
from fedperl.paper.parts import collapsed
from fedperl.paper.printed import printed
from fedperl.paper.runs import FEW, PARTICIPATION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = {share: {f"few: {name} {share}": name for name in FEW} for share in PARTICIPATION}
BAR = 0.4


@drawn
def figure8(found: Found) -> FigureContent:
    """Return mean F1 over the clients in percent, ours beside the paper's."""
    runs = {run.name: run for run in wanted(found, [name for names in BARS.values() for name in names])}
    ours = {name: [100 * one for one in run.by_seed()] for name, run in runs.items()}
    ours = {name: by_seed for name, by_seed in ours.items() if by_seed}
    theirs = {name: row["f1"] for name, row in printed("figure8").items()}
    paper = {name: float(value) for name in ours if isinstance(value := theirs.get(name), float | int)}
    means = {name: sum(by_seed) / len(by_seed) for name, by_seed in ours.items()}
    rows = [
        Row(
            names[name], (f"{means[name]:.1f}",), (f"{paper[name]:.1f}",) if name in paper else (), f"{share} take part"
        )
        for share, names in BARS.items()
        for name in names
        if name in means
    ]
    said = [f"{name.removeprefix('few: ')} {mean:.1f}" for name, mean in means.items()]
    seeds = (f"Thin lines: the least and the largest of {found.seeds} seeds.",) if found.seeds > 1 else ()
    notes = (
        "The paper's FedAvg is read as our Lower, labelled images alone: one of the two labelled clients takes part in "
        "a round for 30%, both for 100%. The paper has no SSFL in this figure.",
        "The legend of the paper's figure gives its seventh bar 30 %; its place and the text 100 %.",
        *seeds,
        *collapsed(runs.values()),
    )
    alt = f"Weighted F1 in percent where few clients have labels: {listed(said)}."
    return FigureContent(_draw(ours, means, paper), alt, TableContent(("F1 %",), tuple(rows)), notes)


def _draw(ours: Mapping[str, list[float]], means: Mapping[str, float], paper: Mapping[str, float]) -> "Figure":
    figure = new_figure(2.45)
    axes = place(figure, 0.45, 0.3, WIDTH - 0.55, 1.7)
    at, ticks, groups = 0.0, {}, {}
    for share, names in BARS.items():
        start = at
        for name, method in names.items():
            if name not in means:
                continue
            shift = BAR / 2 + 0.02 if name in paper else 0.0
            _bar(axes, at - shift, means[name], ours[name], color=method_colour(name))
            if name in paper:
                style = {"color": method_colour(name), "alpha": 0.45, "hatch": "////", "edgecolor": "white"}
                _bar(axes, at + shift, paper[name], [], **style)
            ticks[at] = method
            at += 1.0
        if at > start:
            groups[(start + at - 1) / 2] = f"{share} of the clients take part"
            at += 0.6
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    for middle, text in groups.items():
        axes.annotate(
            text,
            (middle, 0),
            (0, -17),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="top",
        )
    axes.set_ylim(0, 1.12 * max([1.0, *(one for of_run in ours.values() for one in of_run), *paper.values()]))
    axes.set_ylabel("weighted F1 (%)")
    _legend(figure, with_paper=bool(paper))
    return figure


def _bar(axes: "Axes", at: float, height: float, by_seed: list[float], **style: object) -> None:
    axes.bar(at, height, BAR, **style)  # type: ignore[arg-type]
    top = max([height, *by_seed])
    if len(by_seed) > 1:
        axes.plot([at, at], [min(by_seed), top], color=DARK, linewidth=0.8)
    axes.text(at, top + 0.6, f"{height:.1f}", ha="center", va="bottom", fontsize=5.5)


def _legend(figure: "Figure", *, with_paper: bool) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=GREY)]
    if with_paper:
        handles.append(Patch(facecolor=GREY, alpha=0.45, hatch="////", edgecolor="white"))
        figure.legend(handles, ["ours", "paper"], loc="upper right", ncols=2)
