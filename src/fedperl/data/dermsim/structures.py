"""The dermatoscopic structures, one painter each, in the words of a dermatologist's report.

A painter turns a tape of random numbers into pigment (optical density of melanin, blood, or deep, bluish melanin)
and, for whitish things that lie on top, a cover with its colour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedperl.data.dermsim.canvas import Canvas
from fedperl.data.dermsim.fields import blob, column, evenly, field, honeycomb, ramp, scattered, stripes
from fedperl.data.dermsim.tape import Array, Tape
from fedperl.data.dermsim.vessels import branching_tree

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Site:
    """What a painter paints on: the canvas, the lesion's inside (0 to 1) and level (1 at its middle, 0 at its rim)."""

    canvas: Canvas
    inside: Array
    level: Array


@dataclass(frozen=True)
class Paint:
    """What a structure adds, each map (n, size, size); a cover hides what is below it by its opacity, 0 to 1."""

    melanin: Array | None = None
    blood: Array | None = None
    deep: Array | None = None
    cover: Array | None = None
    colour: Colour = (1.0, 1.0, 1.0)


Painter = Callable[[Site, Tape, Array], Paint]


def _saturate(values: Array) -> Array:
    """Return sums of spots as presence: overlapping spots do not add up for ever."""
    return np.minimum(values, np.float32(1.0))


def _network(site: Site, tape: Tape, strength: Array) -> Paint:
    lattice = honeycomb(site.canvas, tape, tape.uniform(0.16, 0.25), tape.uniform(0.14, 0.26))
    lines = (ramp(lattice, 0.3, -1.1) - np.float32(0.3)) * (1.0 + np.float32(0.4) * field(site.canvas, tape, 4))
    return Paint(melanin=column(strength) * lines * site.inside * ramp(site.level, -0.1, 0.4))


def _atypical_network(site: Site, tape: Tape, strength: Array) -> Paint:
    lattice = honeycomb(site.canvas, tape, tape.uniform(0.22, 0.36), tape.uniform(0.25, 0.45))
    thickness = np.float32(0.7) * field(site.canvas, tape, 4)
    patches = ramp(field(site.canvas, tape, 3), -0.3, 0.6)
    lines = ramp(lattice + thickness, 0.5, -1.0) - np.float32(0.3)
    return Paint(melanin=column(strength) * lines * patches * site.inside)


def _peripheral_network(site: Site, tape: Tape, strength: Array) -> Paint:
    lattice = honeycomb(site.canvas, tape, tape.uniform(0.15, 0.23), tape.uniform(0.14, 0.26))
    ring = ramp(site.level, 0.75, 0.4) * ramp(site.level, -0.15, 0.2)
    return Paint(melanin=column(strength) * (ramp(lattice, 0.3, -1.1) - np.float32(0.25)) * ring)


def _globules(site: Site, tape: Tape, strength: Array) -> Paint:
    x, y = evenly(tape, 44)
    sigma = tape.uniform(0.04, 0.065)[:, None] * tape.spread(44, 0.7, 1.2)
    spots = site.canvas.spots(x, y, sigma, tape.spread(44, 0.3, 1.1))
    return Paint(melanin=column(strength) * _saturate(spots) * site.inside)


def _clumps(site: Site, tape: Tape, strength: Array) -> Paint:
    """Irregular dots and globules: of all sizes, crowded on one side."""
    x, y = scattered(tape, 22, 0.6)
    side = tape.spread(2, -0.45, 0.45)
    sigma = 0.025 + 0.075 * tape.spread(22, 0.0, 1.0) ** 2
    spots = site.canvas.spots(x + side[:, :1], y + side[:, 1:], sigma, tape.spread(22, 0.3, 1.3))
    return Paint(melanin=column(strength) * _saturate(spots) * ramp(site.level, -0.2, 0.1))


def _colours(site: Site, tape: Tape, strength: Array) -> Paint:
    """Several colours in one lesion: dark brown to black, red, and blue-grey areas."""
    dark, red, blue = (ramp(field(site.canvas, tape, 4), 0.1, 0.9) * site.inside for _ in range(3))
    amounts = tape.spread(3, 0.1, 1.0) * strength[:, None]
    darkness, redness, blueness = (column(amounts[:, part]) for part in range(3))
    return Paint(
        melanin=darkness * 1.4 * dark - redness * 0.5 * red - blueness * 0.3 * blue,
        blood=redness * 0.6 * red,
        deep=blueness * 0.9 * blue,
    )


def _vessels(site: Site, tape: Tape, strength: Array) -> Paint:
    """Arborizing vessels: in focus, thick stems that branch into fine ones."""
    tree = _saturate(branching_tree(site.canvas, tape))
    return Paint(blood=column(strength) * tree * ramp(site.level, -0.35, 0.05), melanin=column(strength) * 0.15 * tree)


def _nests(site: Site, tape: Tape, strength: Array) -> Paint:
    """Blue-grey ovoid nests: each made of two spots that melt into an oval."""
    count = 9
    x, y = scattered(tape, count, 0.75)
    turn, sigma = tape.spread(count, 0.0, 6.28), tape.spread(count, 0.05, 0.13)
    weight = tape.spread(count, -0.6, 1.0) > 0.0  # so that some lesions have two nests and others seven
    along_x, along_y = 0.8 * sigma * np.cos(turn), 0.8 * sigma * np.sin(turn)
    spots = site.canvas.spots(
        np.concatenate([x - along_x, x + along_x], axis=1),
        np.concatenate([y - along_y, y + along_y], axis=1),
        np.concatenate([sigma, sigma], axis=1),
        np.concatenate([weight, weight], axis=1).astype(np.float32),
    )
    ovals = ramp(spots, 0.15, 1.1) * (0.8 + 0.25 * field(site.canvas, tape, 7))
    return Paint(deep=column(strength) * 0.9 * ovals, melanin=column(strength) * 0.25 * ovals)


def _ulcer(site: Site, tape: Tape, strength: Array) -> Paint:
    wound = blob(site.canvas, tape, 0.4, tape.uniform(0.18, 0.4), 0.4)
    crust = 0.6 + 0.4 * field(site.canvas, tape, 12)
    return Paint(blood=column(strength) * 1.1 * wound * crust, melanin=column(strength) * 0.6 * wound)


def _ridges(site: Site, tape: Tape, strength: Array) -> Paint:
    """Fissures and ridges, as on the surface of a brain."""
    folds = stripes(site.canvas, tape, tape.uniform(0.28, 0.45), tape.uniform(0.12, 0.3))
    return Paint(melanin=column(strength) * (ramp(folds, -0.1, 1.0) - np.float32(0.35)) * site.inside)


def _comedones(site: Site, tape: Tape, strength: Array) -> Paint:
    x, y = scattered(tape, 14, 0.85)
    spots = site.canvas.spots(x, y, tape.spread(14, 0.045, 0.09), tape.spread(14, 0.2, 1.6))
    return Paint(melanin=column(strength) * ramp(spots, 0.2, 0.8) * site.inside)


def _lacunae(site: Site, tape: Tape, strength: Array) -> Paint:
    """Red to purple lagoons, well demarcated, with paler walls between them."""
    x, y = evenly(tape, 18, 0.85, 0.12)
    sigma = tape.spread(18, 0.08, 0.14)
    lagoons = ramp(site.canvas.spots(x, y, sigma, tape.spread(18, 0.3, 1.1)), 0.2, 0.8)
    lagoons = lagoons * (0.85 + 0.25 * field(site.canvas, tape, 6))
    purple = column(tape.uniform(-0.4, 0.6).clip(0.0))
    return Paint(blood=column(strength) * lagoons, deep=column(strength) * purple * lagoons)


def _clots(site: Site, tape: Tape, strength: Array) -> Paint:
    x, y = scattered(tape, 4, 0.6)
    spots = site.canvas.spots(x, y, tape.spread(4, 0.07, 0.15), tape.spread(4, 0.0, 1.4))
    clots = column(strength) * ramp(spots, 0.2, 1.0)
    return Paint(blood=clots, deep=0.6 * clots, melanin=0.3 * clots)


def _strawberry(site: Site, tape: Tape, strength: Array) -> Paint:
    """A red pseudo-network around whitish, wide follicles."""
    lattice = honeycomb(site.canvas, tape, tape.uniform(0.24, 0.36), tape.uniform(0.12, 0.25))
    presence = column(strength) * site.inside
    patches = ramp(field(site.canvas, tape, 4), -1.2, 0.2)
    follicles = ramp(lattice, 1.2, 2.8) * presence * patches * np.float32(0.7)
    return Paint(blood=ramp(lattice, 1.3, -1.0) * presence * patches, cover=follicles, colour=(0.95, 0.86, 0.74))


def _dotted_vessels(site: Site, tape: Tape, strength: Array) -> Paint:
    """Dots and small loops near the rim: a loop is a pair of dots."""
    count = 28
    angle, radius = tape.spread(count, 0.0, 6.28), tape.spread(count, 0.55, 0.98)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    near = tape.spread(2 * count, -0.07, 0.07)
    spots = site.canvas.spots(
        np.concatenate([x, x + near[:, :count]], axis=1),
        np.concatenate([y, y + near[:, count:]], axis=1),
        tape.uniform(0.026, 0.042)[:, None],
        tape.spread(2 * count, 0.2, 1.0),
    )
    return Paint(blood=column(strength) * _saturate(spots), melanin=column(strength) * 0.1 * _saturate(spots))


def _veil(site: Site, tape: Tape, strength: Array) -> Paint:
    """A blue-white veil: structureless, over part of the lesion."""
    patch = blob(site.canvas, tape, 0.45, tape.uniform(0.35, 0.65)) * site.inside * column(strength)
    patch = patch * (0.85 + 0.2 * field(site.canvas, tape, 9))
    return Paint(deep=0.7 * patch, cover=0.55 * patch, colour=(0.50, 0.57, 0.70))


def _regression(site: Site, tape: Tape, strength: Array) -> Paint:
    patch = blob(site.canvas, tape, 0.6, tape.uniform(0.25, 0.5), 0.35) * site.inside * column(strength)
    x, y = scattered(tape, 24, 0.9)
    pepper = _saturate(site.canvas.spots(x, y, tape.uniform(0.02, 0.035)[:, None], tape.spread(24, 0.3, 1.0)))
    return Paint(cover=0.8 * patch * (1.0 - 0.7 * pepper), colour=(0.90, 0.81, 0.79))


def _scar(site: Site, tape: Tape, strength: Array) -> Paint:
    patch = blob(site.canvas, tape, 0.12, tape.uniform(0.3, 0.5), 0.3)
    fibres = 0.85 + 0.15 * field(site.canvas, tape, 12)
    return Paint(cover=np.clip(column(strength) * patch * fibres, 0.0, 1.0), colour=(0.95, 0.86, 0.83))


def _milia(site: Site, tape: Tape, strength: Array) -> Paint:
    x, y = scattered(tape, 20, 0.85)
    spots = site.canvas.spots(x, y, tape.spread(20, 0.04, 0.075), tape.spread(20, -0.2, 1.3).clip(0.0))
    return Paint(cover=column(strength) * ramp(spots, 0.15, 0.8) * site.inside, colour=(1.0, 0.96, 0.86))


def _scale(site: Site, tape: Tape, strength: Array) -> Paint:
    """Flakes: small, angular, in drifts."""
    flakes = field(site.canvas, tape, 13) + np.float32(0.8) * field(site.canvas, tape, 4)
    cover = ramp(flakes, 0.5, 1.2) * column(strength) * ramp(site.level, -0.3, 0.2)
    return Paint(cover=np.float32(0.85) * cover, colour=(0.97, 0.93, 0.86))


def _keratin(site: Site, tape: Tape, strength: Array) -> Paint:
    mass = blob(site.canvas, tape, 0.2, tape.uniform(0.25, 0.5), 0.4)
    crumbs = np.clip(0.8 + 0.25 * field(site.canvas, tape, 12), 0.0, 1.0)
    return Paint(cover=column(strength) * mass * crumbs, colour=(0.94, 0.84, 0.62), blood=0.2 * mass)


def _white_circles(site: Site, tape: Tape, strength: Array) -> Paint:
    x, y = evenly(tape, 12, 0.85, 0.15)
    spots = _saturate(site.canvas.spots(x, y, tape.spread(12, 0.08, 0.12), tape.spread(12, 0.7, 1.1)))
    rings = np.square(np.square(4.0 * spots * (1.0 - spots)))
    return Paint(cover=column(strength) * rings * site.inside, colour=(1.0, 0.97, 0.93))


def _shine(site: Site, tape: Tape, strength: Array) -> Paint:
    """Shiny white streaks of polarised light: a few short strokes in one direction."""
    x, y = scattered(tape, 7, 0.6)
    turn = tape.uniform(0.0, 3.14)[:, None] + tape.spread(7, -0.25, 0.25)
    steps = np.linspace(-0.16, 0.16, 9, dtype=np.float32)
    along_x = (x[:, :, None] + steps * np.cos(turn)[:, :, None]).reshape(len(x), -1)
    along_y = (y[:, :, None] + steps * np.sin(turn)[:, :, None]).reshape(len(x), -1)
    streaks = site.canvas.spots(along_x, along_y, tape.uniform(0.02, 0.03)[:, None], np.ones_like(along_x), 1)
    return Paint(cover=column(strength) * _saturate(streaks), colour=(1.0, 0.95, 0.95))


PAINTERS: dict[str, Painter] = {
    "network": _network,
    "atypical_network": _atypical_network,
    "peripheral_network": _peripheral_network,
    "globules": _globules,
    "clumps": _clumps,
    "colours": _colours,
    "vessels": _vessels,
    "nests": _nests,
    "ulcer": _ulcer,
    "ridges": _ridges,
    "comedones": _comedones,
    "lacunae": _lacunae,
    "clots": _clots,
    "strawberry": _strawberry,
    "dotted_vessels": _dotted_vessels,
    "veil": _veil,
    "regression": _regression,
    "scar": _scar,
    "milia": _milia,
    "scale": _scale,
    "keratin": _keratin,
    "white_circles": _white_circles,
    "shine": _shine,
}
