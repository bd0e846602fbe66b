"""How all figures look: page width, fonts, one colour for each client and each method, panels placed in inches."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedperl.errors import ConfigError
from fedperl.paper.content import FigureContent
from fedperl.paper.found import Found

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.2
"""Of a page's text, in inches."""
MOST = 12
"""More clients than this are not drawn one by one."""
DARK, GREY, PALE = "#333333", "#8c8c8c", "#e4e4e4"
BLUE, SKY, GREEN, ORANGE, VERMILION, PINK = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
CLIENTS = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#555555"),
)
"""By number; Paul Tol's set that all can tell apart."""
LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (5, 1.2, 1, 1.2)), (0, (1.2, 1.2)))
"""By data set: the second way in which clients differ."""
METHODS = {
    "Lower": GREY,
    "SSFL": BLUE,
    "FedMatch": ORANGE,
    "FedMatch+": VERMILION,
    "FedPerl raw": "#7CCBAF",
    "FedPerl": GREEN,
    "FedIRM": PINK,
    "Random peers": "#882255",
    "Upper": "#111111",
    "Local lower": "#BBBBBB",
    "Local FixMatch": "#999933",
    "Local upper": "#555555",
}
OURS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 7,
    "text.color": DARK,
    "text.parse_math": False,  # a class may have dollars in its name
    "axes.titlesize": 7.5,
    "axes.titlepad": 4,
    "axes.labelsize": 7,
    "axes.labelpad": 2,
    "axes.labelcolor": DARK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "lines.linewidth": 1.1,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.handletextpad": 0.5,
    "legend.borderpad": 0.2,
    "legend.labelspacing": 0.35,
    "legend.columnspacing": 1.2,
}


@dataclass(frozen=True)
class Space:
    """Margins of a figure and gaps between its panels, in inches."""

    left: float = 0.45
    right: float = 0.1
    top: float = 0.25
    bottom: float = 0.4
    across: float = 0.4
    down: float = 0.5


def drawn(make: Callable[[Found], FigureContent]) -> Callable[[Found], FigureContent]:
    """Return the function with our style around it, whatever this machine's settings of matplotlib are.

    Raises:
        ConfigError: matplotlib is not installed; when the function is called.
    """

    @functools.wraps(make)
    def styled(found: Found) -> FigureContent:
        try:
            from matplotlib import style
        except ImportError:
            raise ConfigError("figures need matplotlib: pip install '.[paper]'") from None
        with style.context(["default", OURS]):
            return make(found)

    return styled


def new_figure(height: float) -> "Figure":
    """Return an empty figure of page width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=200)


def place(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Return new axes, from the figure's upper left corner in inches."""
    _, whole = figure.get_size_inches()
    return figure.add_axes((left / WIDTH, 1 - (top + height) / whole, width / WIDTH, height / whole))


def panels(count: int, columns: int, height: float, space: Space | None = None) -> "tuple[Figure, list[Axes]]":
    """Return a figure and its panels, row by row, each of that height; a last row may be short."""
    space = space or Space()
    rows = math.ceil(count / columns)
    figure = new_figure(space.top + rows * height + (rows - 1) * space.down + space.bottom)
    width = (WIDTH - space.left - space.right - (columns - 1) * space.across) / columns
    found = []
    for number in range(count):
        row, column = divmod(number, columns)
        left, top = space.left + column * (width + space.across), space.top + row * (height + space.down)
        found.append(place(figure, left, top, width, height))
    return figure, found


def outer_labels(axes: "Sequence[Axes]", columns: int, x: str, y: str) -> None:
    """Name the axes of panels once: x where no panel is below, y where none is to the left."""
    for number, one in enumerate(axes):
        if number + columns >= len(axes):
            one.set_xlabel(x)
        if number % columns == 0:
            one.set_ylabel(y)


def client_colour(client: str) -> str:
    """Return the colour of a client; black for the server."""
    return CLIENTS[int(client) % len(CLIENTS)] if client.isdigit() else "#000000"


def client_line(client: str, sources: Sequence[str]) -> dict[str, Any]:
    """Return colour and dashes of a client's line; clients of one data set share the dashes."""
    if not client.isdigit() or int(client) >= len(sources):
        return {"color": client_colour(client), "linestyle": LINES[0]}
    kind = list(dict.fromkeys(sources)).index(sources[int(client)]) + int(client) // len(CLIENTS)
    return {"color": client_colour(client), "linestyle": LINES[kind % len(LINES)]}


def method_colour(run: str) -> str:
    """Return the colour of a run's method, whatever its scenario, T or share of clients."""
    name = run.rpartition(": ")[2].split(" T=")[0]
    name = name.rpartition(" ")[0] if name.endswith("%") else name
    return METHODS.get(name, GREY)


def on_colour(share: float) -> str:
    """Return the colour of text on a cell that is as dark as this share of the darkest."""
    return "white" if share > 0.6 else DARK
