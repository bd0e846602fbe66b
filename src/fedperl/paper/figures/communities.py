"""Who helps whom: figure 3, each client's peers at T = 1 to 5, and the same in early and late rounds (section 3.3)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedperl.errors import RunError
from fedperl.evaluate import HeatMap, Purity, early_and_late, heat_map, peer_counts, purity
from fedperl.evaluate.communities import Help
from fedperl.paper.content import NONE, FigureContent, Row, TableContent
from fedperl.paper.figures.common import client_name, listed, percent, wanted
from fedperl.paper.figures.style import BLUE, GREEN, MOST, PINK, SKY, drawn, new_figure, on_colour, place
from fedperl.paper.found import Found, Trained
from fedperl.paper.printed import printed
from fedperl.paper.runs import PA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMMITTEES = {"FedPerl raw T=1": "T = 1", **{name: f"T = {t}" for t, name in enumerate(PA, start=2)}}
OUTLINES = (BLUE, GREEN, PINK, SKY)
"""Of communities; the first two as in the paper."""
COLUMNS, MAP, GAP, LINE = 3, 1.9, 0.38, 0.12
"""Maps in a row; a map's edge, the gap beside it and a line of text, in inches."""
FAINT = "#b0a090"
SHORT = {"ISIC19": "isic", "HAM10000": "ham"}
"""The paper's communities by their data sets."""


@dataclass(frozen=True)
class Peers:
    """One map: its title, each client's peers, and how often they came from its own community."""

    title: str
    map: HeatMap
    inside: Purity
    printed: Mapping[str, float]
    """The paper's percentages: by client and community."""


@drawn
def figure3(found: Found) -> FigureContent:
    """Return which share of each client's peers each other client was, for T = 1 to 5."""
    shown, without = [], []
    runs = wanted(found, list(COMMITTEES))
    for run in runs:
        helped, kinds = _helped(run), dict(enumerate(run.first.sources))
        if helped and kinds:
            counts, their = peer_counts(helped), _printed(found, run.name)
            shown.append(Peers(COMMITTEES[run.name], heat_map(counts, list(kinds)), purity(counts, kinds), their))
        else:
            without.append(run.name)
    notes = (
        "A row is a client; its cells are the percent of its peers that each other client was, over all rounds"
        f"{' and seeds' if found.seeds > 1 else ''}. Outlines: clients of one data set.",
        "T = 1 has raw peers: the mean of one model would be that client's own. The paper does not say which it drew.",
        *([f"No peers in {listed(without)}."] if without else []),
    )
    return _content(replace(found, runs={run.name: run for run in runs}), shown, notes)


@drawn
def early_late(found: Found) -> FigureContent:
    """Return the same at T = 2, for the first and the second half of the rounds that had peers."""
    run = wanted(found, PA[:1])[0]
    helped, kinds = _helped(run), dict(enumerate(run.first.sources))
    if not helped or not kinds:
        raise RunError(f"{run.name}: no client ever had a peer; nothing to draw")
    halves = early_and_late(helped, kinds)
    titles = (f"Rounds before {halves.late_from}", f"Rounds from {halves.late_from} on")
    shown = [
        Peers(titles[0], halves.early, halves.early_purity, {}),
        Peers(titles[1], halves.late, halves.late_purity, {}),
    ]
    note = "As figure 3 at T = 2. The paper says that communities form as training proceeds; it shows no such picture."
    return _content(replace(found, runs={run.name: run}), shown, (note,))


def _helped(run: Trained) -> list[Help]:
    """Return who helped whom, over all seeds."""
    return [one for seed in run.seeds for one in seed.helped()]


def _printed(found: Found, name: str) -> dict[str, float]:
    theirs = printed("figure3").get(name, {}) if found.as_printed() else {}
    return {key: value for key, value in theirs.items() if not isinstance(value, list)}


def _content(found: Found, shown: Sequence[Peers], notes: tuple[str, ...]) -> FigureContent:
    if not shown:
        raise RunError(f"no client ever had a peer in {listed(list(found.runs))}; nothing to draw")
    communities = found.communities()
    order = [int(client) for clients in communities.values() for client in clients]
    order += [client for client in shown[0].map.clients if client not in order]
    return FigureContent(
        _draw(shown, communities, order), _alt(shown, communities), _values(shown, communities, order), notes
    )


def _draw(shown: Sequence[Peers], communities: Mapping[str, list[str]], order: Sequence[int]) -> "Figure":
    rows = math.ceil(len(shown) / COLUMNS)
    spare = len(shown) % COLUMNS > 0  # a place for the colours' meaning
    below = 0.4 + LINE * len(communities)
    height = rows * (0.3 + MAP + below)
    figure = new_figure(height if spare else height + 0.45)
    darkest = max((share for one in shown for row in one.map.shares for share in row if share is not None), default=1.0)
    corners = [
        (0.42 + column * (MAP + GAP), 0.3 + row * (0.3 + MAP + below))
        for row in range(rows)
        for column in range(COLUMNS)
    ]
    mesh = None
    for number, (one, corner) in enumerate(zip(shown, corners, strict=False)):
        axes = place(figure, *corner, MAP, MAP)
        mesh = _map(axes, one, order, darkest)
        _outline(axes, communities, order)
        axes.set_title(one.title)
        axes.set_xlabel("peer")
        if number % COLUMNS == 0:
            axes.set_ylabel("client", labelpad=4)
        for line, text in enumerate(_inside(one, communities)):
            colour, down = OUTLINES[line % len(OUTLINES)], -0.36 - LINE * line
            axes.text(0.5, down / MAP, text, transform=axes.transAxes, ha="center", va="top", fontsize=6, color=colour)
    left, top = corners[len(shown)] if spare else (corners[1][0], height - MAP / 2 + 0.05)
    scale = place(figure, left + 0.1, top + MAP / 2, MAP - 0.2, 0.1)
    figure.colorbar(mesh, cax=scale, orientation="horizontal", label="% of a client's peers")  # type: ignore[arg-type]
    return figure


def _map(axes: "Axes", one: Peers, order: Sequence[int], darkest: float) -> object:
    places = [one.map.clients.index(client) for client in order]
    shares = np.array([[one.map.shares[m][k] for k in places] for m in places], dtype=float)  # None becomes nan
    axes.set_facecolor("#f4f4f4")
    axes.grid(visible=False)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(100 * shares),
        cmap="Oranges",
        vmin=0,
        vmax=100 * darkest,
        edgecolors="white",
        linewidth=0.4,
    )
    if len(order) <= MOST:
        for row, column in np.ndindex(*shares.shape):
            share = float(shares[row, column])
            if row != column and math.isfinite(share):
                colour = on_colour(share / darkest) if share else FAINT
                text = f"{100 * share:.0f}"
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=5.5)
    step = math.ceil(len(order) / MOST)
    ticks, names = np.arange(len(order))[::step] + 0.5, [str(client) for client in order[::step]]
    axes.set_xticks(ticks, names)
    axes.set_yticks(ticks, names)
    axes.tick_params(length=0)
    axes.set_ylim(len(order), 0)
    axes.spines[:].set_visible(False)
    return mesh


def _outline(axes: "Axes", communities: Mapping[str, list[str]], order: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    for number, clients in enumerate(communities.values()):
        first, size, colour = order.index(int(clients[0])), len(clients), OUTLINES[number % len(OUTLINES)]
        axes.add_patch(
            Rectangle((first, first), size, size, fill=False, edgecolor=colour, linewidth=1.6, clip_on=False, zorder=5)
        )


def _inside(one: Peers, communities: Mapping[str, list[str]]) -> list[str]:
    """Return for each community how often its clients' peers came from inside, chance and the paper's beside it."""
    found = []
    for source, clients in communities.items():
        their = one.printed.get(SHORT.get(source, ""))
        beside = f", paper {their:.2f}" if their is not None else ""
        inside, chance = percent(one.inside.by_community.get(source)), percent(_chance(one, clients))
        found.append(f"{source}: {inside} % inside (chance {chance}{beside})")
    return found


def _chance(one: Peers, community: Sequence[str]) -> float:
    """Return how often peers drawn blindly come from inside a client's community."""
    return (len(community) - 1) / (len(one.map.clients) - 1)


def _alt(shown: Sequence[Peers], communities: Mapping[str, list[str]]) -> str:
    start = f"Heat maps of which clients help which, {listed([one.title for one in shown])}."
    shares = [
        f"{source} {' / '.join(percent(one.inside.by_community.get(source), 0) for one in shown)} %"
        for source in communities
    ]
    return f"{start} Peers from the own community: {listed(shares)}." if shares else start


def _values(shown: Sequence[Peers], communities: Mapping[str, list[str]], order: Sequence[int]) -> TableContent:
    rows = []
    for one in shown:
        for client in order:
            place_of = one.map.clients.index(client)
            shares = [one.map.shares[place_of][one.map.clients.index(peer)] for peer in order]
            own = next((clients for clients in communities.values() if str(client) in clients), [])
            chance = percent(_chance(one, own) if own else None)
            ours = (*map(percent, shares), percent(one.inside.by_client.get(client)), chance)
            rows.append(Row(client_name(str(client)), ours, _beside(one.printed, client, order), one.title))
        for source, own in communities.items():
            inside, chance = percent(one.inside.by_community.get(source)), percent(_chance(one, own))
            ours = (*[NONE] * len(order), inside, chance)
            their = one.printed.get(SHORT.get(source, ""))
            paper = () if their is None else (*[NONE] * len(order), f"{their:.2f}", NONE)
            rows.append(Row(f"{source}, mean", ours, paper, one.title))
    return TableContent((*(f"peer {client}" for client in order), "inside %", "chance %"), tuple(rows))


def _beside(their: Mapping[str, float], client: int, order: Sequence[int]) -> tuple[str, ...]:
    """Return the paper's numbers of a row: few are printed."""
    cells = [their.get(f"{client}_from_{peer}") for peer in order] + [their.get(str(client)), None]
    return tuple(NONE if cell is None else f"{cell:.1f}" for cell in cells) if any(cells) else ()
