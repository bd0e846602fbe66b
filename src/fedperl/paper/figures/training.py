"""During training: figure 4, accuracy by round for every client, and how long each method takes."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedperl.paper.content import NONE, FigureContent, Row, TableContent, number
from fedperl.paper.figures.common import client_name, drawn_clients, listed, percent, wanted
from fedperl.paper.figures.style import (
    WIDTH,
    Space,
    client_line,
    drawn,
    method_colour,
    new_figure,
    outer_labels,
    panels,
    place,
)
from fedperl.paper.found import Found, Trained
from fedperl.paper.printed import printed
from fedperl.paper.runs import PA, RAW, SSFL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLLOWED = ("FedMatch", RAW[0], *PA)
TIMED = ("Lower", SSFL, "FedMatch", "FedMatch+", *RAW, *PA, "Upper")
SMOOTHED = 0.05
"""The share of all rounds that a smoothed value is the mean of."""
FEWEST = 20
"""With fewer rounds nothing is smoothed."""

Curves = dict[str, tuple[list[int], list[float]]]


@drawn
def figure4(found: Found) -> FigureContent:
    """Return accuracy on validation images by round, a line a client, a panel a model."""
    every = wanted(found, FOLLOWED)
    whole = {run.name: run.training() for run in every}
    clients, left_out = drawn_clients(client for curves in whole.values() for client in curves)
    curves = {name: {client: one[client] for client in clients if client in one} for name, one in whole.items()}
    shown = [run for run in every if curves[run.name]]
    columns = min(3, max(1, len(shown)))
    figure, axes = panels(max(1, len(shown)), columns, 1.6, Space(bottom=0.65))
    windows = set()
    for one, run in zip(axes, shown, strict=False):
        for client, (rounds, values) in curves[run.name].items():
            style, smooth = client_line(client, found.sources()), window(len(values))
            windows.add(smooth)
            shares = [100 * value for value in values]
            if smooth > 1:
                one.plot(rounds, shares, color=style["color"], alpha=0.25, linewidth=0.5)
            one.plot(rounds, smoothed(shares, smooth), label=client_name(client), **style)
        one.set_title(run.name)
    lowest = min((value for name in curves for _, values in curves[name].values() for value in values), default=0.0)
    for one in axes:
        one.set_ylim(max(0.0, 100 * lowest - 2), 101)
        one.margins(x=0.01)
    outer_labels(axes, columns, "round", "validation accuracy (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=10, columnspacing=0.9)
    silent = [run.name for run in every if run not in shown]
    notes = (
        *_training_notes(found, windows),
        *left_out,
        *([f"No client validates in {listed(silent)}."] if silent else []),
    )
    return FigureContent(figure, _training_alt(shown, whole), _training_values(shown, curves), notes)


def window(points: int) -> int:
    """Return of how many values a smoothed one is the mean: an odd number, 1 where nothing is smoothed."""
    return 1 if points < FEWEST else max(3, 2 * int(SMOOTHED * points / 2) + 1)


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """Return running means over a window around each value; at both ends over what there is."""
    half = width // 2
    return [statistics.fmean(values[max(0, at - half) : at + half + 1]) for at in range(len(values))]


def _training_notes(found: Found, windows: set[int]) -> tuple[str, ...]:
    largest = max(windows, default=1)
    smooth = f"Pale lines: every round. Strong lines: running means over {largest} rounds." if largest > 1 else ""
    theirs = next(iter(printed("figure4").values()))
    ranges = {
        name: " to ".join(f"{end:.0f}" for end in value) for name, value in theirs.items() if isinstance(value, list)
    }
    beside = (
        f"The paper reads {ranges['0_to_4']} % for clients 0 to 4 and {ranges['5_to_7']} % for clients 5 to 7."
        if found.as_printed()
        else ""
    )
    dashes = "Clients of one data set share their dashes." if len(set(found.sources())) > 1 else ""
    seed = "Of the first seed." if found.seeds > 1 else ""
    return tuple(filter(None, (smooth, dashes, seed, beside)))


def _training_alt(shown: Sequence[Trained], curves: dict[str, Curves]) -> str:
    ends = []
    for run in shown:
        last = [values[-1] for _, values in curves[run.name].values()]
        ends.append(f"{run.name} {100 * min(last):.0f} to {100 * max(last):.0f} %")
    return f"Accuracy on validation images by round, a line a client; in the last round {listed(ends)}."


def _training_values(shown: Sequence[Trained], curves: dict[str, Curves]) -> TableContent:
    rows = []
    for run in shown:
        for client, (rounds, values) in curves[run.name].items():
            best = max(range(len(values)), key=lambda at: (values[at], at))  # a tie goes to the later round
            ours = (percent(values[0]), percent(values[-1]), percent(values[best]), str(rounds[best]), str(len(values)))
            rows.append(Row(client_name(client), ours, setting=run.name))
    return TableContent(("first round %", "last round %", "best %", "round of the best", "rounds"), tuple(rows))


@drawn
def time(found: Found) -> FigureContent:
    """Return how long each method trains as a multiple of SSFL's time, ours beside the paper's."""
    runs = wanted(found, TIMED)
    base = next((run for run in runs if run.name == SSFL), runs[0])
    ours = {run.name: run.hours / base.hours if base.hours > 0 else None for run in runs}
    hours = {
        name: value for name, row in printed("training_hours").items() if isinstance(value := row["hours"], float | int)
    }
    paper = {run.name: hours[run.name] / hours[SSFL] for run in runs if run.name in hours and base.name == SSFL}
    rows = [
        Row(
            run.name,
            (number(ours[run.name], 2), f"{3600 * run.hours:.1f}", number(run.hours)),
            (number(paper[run.name], 2), NONE, number(hours[run.name], 2)) if run.name in paper else (),
        )
        for run in runs
    ]
    beside = [f"{name} {number(ours[name], 2)} (paper {paper[name]:.2f})" for name in paper if name != SSFL]
    alt = f"Training time of {len(runs)} methods as a multiple of {base.name}'s: {listed(beside or list(ours))}."
    over = f", the mean over {found.seeds} seeds" if found.seeds > 1 else ""
    notes = (
        f"Time to train and validate{over}. Runs that are trained side by side share a machine: multiples are rough.",
        "The paper gives hours on a Titan Xp; FedPerl's hold for any T and are set beside T = 2.",
    )
    values = TableContent((f"multiple of {base.name}", "seconds", "hours"), tuple(rows))
    return FigureContent(_time_bars(base.name, ours, paper), alt, values, notes)


def _time_bars(base: str, ours: Mapping[str, float | None], paper: Mapping[str, float]) -> "Figure":
    figure = new_figure(0.55 + 0.22 * len(ours))
    axes = place(figure, 1.15, 0.2, WIDTH - 1.35, 0.22 * len(ours))
    most = max([1.0, *(ratio or 0.0 for ratio in ours.values()), *paper.values()])
    for at, (name, ratio) in enumerate(ours.items()):
        axes.barh(at, ratio or 0.0, height=0.7, color=method_colour(name))
        their = paper.get(name)
        if their is not None:
            axes.plot([their] * 2, [at - 0.42, at + 0.42], color="black", linewidth=2.2, label=f"paper {their:.2f}")
        text = number(ratio, 2) + (f"  (paper {their:.2f})" if their is not None else "")
        axes.text(max(ratio or 0.0, their or 0.0) + 0.012 * most, at, text, va="center", fontsize=6)
    if paper:
        figure.legend(axes.lines[:1], ["paper"], loc="upper right", handlelength=1.2)
    axes.set_yticks(range(len(ours)), list(ours))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(ours) - 0.5, -0.5)
    axes.set_xlim(0, 1.17 * most)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"time to train and validate, as a multiple of {base}'s")
    return figure
