"""What `fedperl leakage` has measured, drawn: members found against the committee's size, F1 on the right."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedperl.errors import ConfigError
from fedperl.evaluate.membership import RATES
from fedperl.paper.content import FigureContent
from fedperl.paper.figures.style import BLUE, GREEN, GREY, LINES, OURS, PINK, VERMILION, Space, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = Mapping[str, Any]

KINDS = {
    "labelled": "labelled images, trained on from the start",
    "unlabelled": "unlabelled images, trained on from the start",
    "new labelled": "labelled images, new in the last round",
    "new unlabelled": "unlabelled images, new in the last round",
}
CHANCE = RATES["tpr_1"]
LOWEST = CHANCE / 4
"""What is less, nothing at all included, is drawn here: the axis is logarithmic."""


def leakage_figure(found: Found, beside: Sequence[Found] = ()) -> FigureContent:
    """Return members found by LiRA at 1 % false alarms against T, a panel a kind of members.

    Args:
        beside: other measurements, such as with DP-SGD, whose anonymized peers are drawn too.
    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
    except ImportError:
        raise ConfigError("figures need matplotlib: pip install '.[paper]'") from None
    there = [
        kind for kind in KINDS if all(kind in one["attacks"]["lira"] for one in (*found["releases"], *_all(beside)))
    ]
    kinds = [kind for kind in there if not kind.endswith("unlabelled")] or there
    with style.context(["default", OURS]):
        space = Space(left=0.55, right=0.55, top=0.3, bottom=0.95, across=0.95)
        figure, axes = panels(len(kinds), len(kinds), 2.4, space)
        for axis, kind in zip(axes, kinds, strict=True):
            _panel(axis, found, kind, beside)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=3)
    return FigureContent(figure, _alt(found, kinds))


def _panel(axis: "Axes", found: Found, kind: str, beside: Sequence[Found]) -> None:
    _curve(axis, _points(found, "static", kind), VERMILION, LINES[0], "anonymized peer; T = 1: raw peer")
    _curve(axis, _points(found, "differenced", kind), BLUE, LINES[1], "two peers of one committee, differenced")
    for other, colour in zip(beside, (PINK, "#882255", "#999933"), strict=False):
        _curve(axis, _points(other, "static", kind), colour, LINES[2], f"anonymized peer, {other['name']}")
    whole = next(one for one in found["releases"] if one["kind"] == "global")
    axis.axhline(
        max(whole["attacks"]["lira"][kind]["tpr_1"]["value"], LOWEST),
        color=GREEN,
        linestyle=LINES[3],
        label="global model",
    )
    axis.axhline(CHANCE, color=GREY, linestyle=LINES[3], label="chance")
    axis.set(yscale="log", title=KINDS[kind], xlabel="T, clients in the committee", ylabel="members found at 1 % FPR")
    _, high = axis.get_ylim()
    axis.set_ylim(LOWEST, max(high, 4 * CHANCE))
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axis.yaxis.set_minor_formatter(lambda value, _: f"{100 * value:g} %" if f"{value:.0e}"[0] in "25" else "")
    static = {T: one["f1"]["mean"] for T, one in _by_size(found, "static").items() if one["f1"]}
    right = axis.twinx()
    right.plot(list(static), list(static.values()), color=GREY, linewidth=0.8, marker="s", markersize=2)
    right.set(ylim=(0, 1), ylabel="weighted F1 (grey squares)")
    right.grid(visible=False)
    right.spines["right"].set_visible(True)


def _all(beside: Sequence[Found]) -> list[Found]:
    return [one for other in beside for one in other["releases"]]


def _by_size(found: Found, sort: str) -> dict[int, Found]:
    """Return releases of a sort by T; the raw peer is where T is 1."""
    return {
        one["T"] or 1: one
        for one in found["releases"]
        if one["kind"] == "raw" or (one["kind"] == sort and one["T"] > 1)
    }


def _points(found: Found, sort: str, kind: str) -> dict[int, Mapping[str, float]]:
    return {T: one["attacks"]["lira"][kind]["tpr_1"] for T, one in _by_size(found, sort).items()}


def _curve(axis: "Axes", points: Mapping[int, Mapping[str, float]], colour: str, line: Any, label: str) -> None:
    x = list(points)
    value, low, high = ([max(one[key], LOWEST) for one in points.values()] for key in ("value", "low", "high"))
    axis.plot(x, value, color=colour, linestyle=line, marker="o", markersize=2.5, label=label)
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_xticks(x)


def _alt(found: Found, kinds: Sequence[str]) -> str:
    told = []
    for kind in kinds:
        static = _points(found, "static", kind)
        rates = ", ".join(f"T = {T} {100 * one['value']:.1f} %" for T, one in static.items())
        told.append(f"of {KINDS[kind]}: {rates}")
    return f"Members found at 1 % false positives, {'; '.join(told)}."
