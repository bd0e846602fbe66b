"""Who holds what: figure 2, images by use in two scenarios, and by class."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedperl.data.manifest import UNLABELLED, Manifest
from fedperl.data.partition import PARTS, Partition
from fedperl.data.partitions.paper import PAPER, SERVER
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.errors import RunError
from fedperl.paper.content import NONE, FigureContent, Row, TableContent
from fedperl.paper.figures.common import client_name, listed
from fedperl.paper.figures.style import BLUE, GREEN, GREY, ORANGE, WIDTH, drawn, new_figure, on_colour, place
from fedperl.paper.found import Found
from fedperl.paper.runs import SSFL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STANDARD, UNLABELLED_CLIENTS = SSFL, f"server: {SSFL}"
TITLES = {STANDARD: "A  Labels at every client", UNLABELLED_CLIENTS: "B  Labels at the server alone"}
USES = {"test": GREY, "validation": GREEN, "labelled": BLUE, "unlabelled": ORANGE}
"""The paper's colours, told apart by all."""
NAMED = 40
"""More clients than this have no name or number each."""

Held = Mapping[str, Mapping[str, int]]
"""Holder -> use -> images."""


@drawn
def figure2(found: Found) -> FigureContent:
    """Return how images are dealt: by use where clients have labels and where they do not, and by class."""
    seen = {name: _seen(found, name) for name in TITLES if name in found.runs}
    if not seen:
        raise RunError(f"no run to draw; wanted {STANDARD} or {UNLABELLED_CLIENTS}")
    held = {name: _uses(partition) for name, (_, partition) in seen.items()}
    store, partition = next(iter(seen.values()))
    classes = _classes(partition, store.manifest)
    rows = max(len(holders) for holders in (*held.values(), classes))
    step = min(0.18, 7.0 / rows)
    bars, cells = rows * step, len(classes) * step
    figure = new_figure(0.45 + bars + 0.7 + cells + 0.22)
    width = (WIDTH - 0.75 - 0.15 - 0.75 * (len(held) - 1)) / len(held)
    most = max(sum(uses.values()) for holders in held.values() for uses in holders.values())
    for number, (name, holders) in enumerate(held.items()):
        axes = place(figure, 0.75 + number * (width + 0.75), 0.45, width, len(holders) * step)
        _bars(axes, holders, most)
        axes.set_title(TITLES[name], loc="left")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(USES), handlelength=1.2)
    axes = place(figure, 0.75, 0.45 + bars + 0.7, WIDTH - 0.9, cells)
    _cells(axes, classes)
    axes.set_title("C  Images of each class", loc="left")
    return FigureContent(figure, _alt(held, classes), _values(found, held, classes), _notes(found))


def _seen(found: Found, name: str) -> tuple[Store, Partition]:
    store, config = found.open_store(name), found[name].first.config
    return store, seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed)


def _uses(partition: Partition) -> dict[str, dict[str, int]]:
    """Return how many images each holder has for what; the server only where it has some."""
    found = {
        str(number): {use: len(getattr(client, use)) for use in USES} for number, client in enumerate(partition.clients)
    }
    server = {use: len(getattr(partition.server, use, ())) for use in USES}
    return found | ({"server": server} if any(server.values()) else {})


def _classes(partition: Partition, manifest: Manifest) -> dict[str, dict[str, int]]:
    """Return how many images of each class every holder has; those that nobody labelled under `no label`."""
    rows = {str(number): client.rows() for number, client in enumerate(partition.clients)}
    if len(partition.server):
        rows["server"] = partition.server.rows()
    names = [*manifest.classes, "no label"]
    counts = {
        holder: np.bincount(np.where(label == UNLABELLED, len(manifest.classes), label), minlength=len(names)).tolist()
        for holder, label in ((holder, manifest.label[own]) for holder, own in rows.items())
    }
    kept = len(names) if any(own[-1] for own in counts.values()) else len(names) - 1
    return {holder: dict(zip(names[:kept], own[:kept], strict=True)) for holder, own in counts.items()}


def _bars(axes: "Axes", holders: Held, most: int) -> None:
    start = np.zeros(len(holders))
    for use, colour in USES.items():
        lengths = np.array([uses[use] for uses in holders.values()])
        axes.barh(
            range(len(holders)),
            lengths,
            left=start,
            color=colour,
            height=0.75,
            label=use,
            edgecolor="white",
            linewidth=0.4,
        )
        start += lengths
    if len(holders) <= NAMED:
        for at, total in enumerate(start):
            axes.text(total + most * 0.015, at, f"{total:.0f}", va="center", fontsize=5.5)
    _name_rows(axes, list(holders))
    axes.set_ylim(len(holders) - 0.5, -0.5)
    axes.set_xlim(0, most * 1.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("images")


def _cells(axes: "Axes", holders: Held) -> None:
    """Draw a table of counts, the darker the more."""
    names = list(next(iter(holders.values()), {}))
    counts = np.array([[own[name] for name in names] for own in holders.values()])
    shade = np.log1p(counts) / max(1e-9, np.log1p(counts.max(initial=0)))
    axes.pcolormesh(shade, cmap="Blues", vmin=0, vmax=1.15, edgecolors="white", linewidth=0.6)
    for row, column in np.ndindex(*counts.shape) if len(holders) <= NAMED else ():
        count = counts[row, column]
        text = on_colour(shade[row, column] - 0.1) if count else GREY
        axes.text(column + 0.5, row + 0.5, str(count), ha="center", va="center", color=text, fontsize=6)
    _name_rows(axes, list(holders), 0.5)
    axes.set_xticks(np.arange(len(names)) + 0.5, names)
    axes.tick_params(length=0)
    axes.set_ylim(len(holders), 0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _name_rows(axes: "Axes", holders: Sequence[str], shift: float = 0.0) -> None:
    step = -(-len(holders) // NAMED)
    shown = range(0, len(holders), step)
    axes.set_yticks([at + shift for at in shown], [client_name(holders[at]) for at in shown])
    axes.tick_params(axis="y", length=0)


def _alt(held: Mapping[str, Held], classes: Held) -> str:
    uses = next(iter(held.values()))
    clients = {holder: own for holder, own in uses.items() if holder != "server"}
    total = sum(sum(own.values()) for own in clients.values())
    labelled = sum(own["labelled"] for own in clients.values())
    largest = {name: sum(own[name] for holder, own in classes.items() if holder in clients) for name in _names(classes)}
    common = max(largest, key=lambda name: largest[name])
    lacking = [holder for holder in clients if 0 in classes[holder].values()]
    share = f"{100 * labelled / max(1, total):.0f} % of them labelled to train on"
    missing = f"{'client' if len(lacking) == 1 else 'clients'} {listed(lacking)} lack a class" if lacking else ""
    rest = missing or "no client lacks a class"
    frequent = f"{common} is the most frequent class ({100 * largest[common] / max(1, total):.0f} %)"
    return f"{len(clients)} clients hold {total} images, {share}; {frequent}; {rest}."


def _names(classes: Held) -> list[str]:
    return list(next(iter(classes.values()), {}))


def _values(found: Found, held: Mapping[str, Held], classes: Held) -> TableContent:
    names = _names(classes)
    rows = []
    for place_of, (scenario, holders) in enumerate(held.items()):
        for holder, uses in holders.items():
            own = [str(classes[holder][name]) for name in names] if not place_of else [NONE] * len(names)
            paper = _printed(holder) if scenario == STANDARD and found.as_printed() else ()
            ours = (*(str(uses[use]) for use in USES), *own)
            rows.append(
                Row(client_name(holder), ours, (*paper, *[NONE] * len(names)) if paper else (), TITLES[scenario])
            )
    return TableContent((*USES, *names), tuple(rows))


def _printed(holder: str) -> tuple[str, ...]:
    """Return the sizes of the paper's clients, as its figure shows them."""
    if holder == "server":
        return tuple(str(SERVER) if use == "validation" else NONE for use in USES)
    sizes: dict[str, int] = dict(zip(PARTS, PAPER[int(holder)].parts(1.0), strict=True))
    return tuple(str(sizes[use]) for use in USES)


def _notes(found: Found) -> tuple[str, ...]:
    beside = ("The paper's sizes are read off its figure.",) if found.as_printed() else ()
    return (
        "The server's images are those that the paper calls global. Where it alone has labels, it trains on most of "
        "them, and the clients' labelled and unlabelled images are one unlabelled set.",
        *beside,
    )
