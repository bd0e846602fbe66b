"""Smooth random fields and periodic patterns in the lesion frame: what pigment, network and ridges are made of."""

from __future__ import annotations

import numpy as np

from fedperl.data.dermsim.canvas import Canvas
from fedperl.data.dermsim.tape import Array, Tape

TURN = np.float32(2.0 * np.pi)
REACH = 1.35  # fields cover [-REACH, REACH] of the lesion frame and fade to zero outside


def ramp(values: Array, low: float | Array, high: float | Array) -> Array:
    """Return a smooth step from 0 at low to 1 at high (the other way round where high < low)."""
    t = np.clip((values - low) / (high - low), 0.0, 1.0).astype(np.float32, copy=False)
    return t * t * (3.0 - 2.0 * t)


def column(values: Array) -> Array:
    """Return one number per image shaped to multiply maps, (n, 1, 1)."""
    return values[:, None, None]


def field(canvas: Canvas, tape: Tape, cells: int) -> Array:
    """Return smooth noise, mean 0 and variance about 1, with cells x cells independent values over the lesion.

    Gaussian spots on a grid rather than an upsampled grid: the field turns with the lesion.
    """
    cell = 2.0 * REACH / cells
    line = (np.arange(cells, dtype=np.float32) + 0.5) * cell - REACH
    x, y = (axis.reshape(1, -1) for axis in np.meshgrid(line, line))
    # Without this shift every field would have its grid at the same place of every lesion.
    shift = tape.spread(2, -0.5 * cell, 0.5 * cell)
    weight = tape.spread(cells * cells, -1.63, 1.63)
    sigma = np.full((1, 1), 0.6 * cell, dtype=np.float32)
    return canvas.spots(x + shift[:, :1], y + shift[:, 1:], sigma, weight, dimension=0)


def honeycomb(canvas: Canvas, tape: Tape, period: Array, warp: Array) -> Array:
    """Return a bent triangular lattice: 3 at the holes of a mesh, down to -1.5 on its lines; (n, size, size).

    Args:
        period: distance of the lattice lines in the lesion frame, (n,).
        warp: how far a point of the lattice is displaced, in periods, (n,).
    """
    x, y = canvas.frame
    shifts = tape.spread(2, 0.0, 6.28)
    wave, bend = column(TURN / period), column(TURN * warp)
    across = wave * x + bend * field(canvas, tape, 8) + column(shifts[:, 0])
    down = wave * y + bend * field(canvas, tape, 8) + column(shifts[:, 1])
    second = np.float32(0.5) * across + np.float32(0.8660254) * down
    cosine, cosine_second = np.cos(across), np.cos(second)
    # cos(second - across), spelled out: it spares one more cosine per pixel.
    cosine_third: Array = cosine * cosine_second + np.sin(across) * np.sin(second)
    return cosine + cosine_second + cosine_third


def stripes(canvas: Canvas, tape: Tape, period: Array, warp: Array) -> Array:
    """Return winding stripes in [-1, 1], like the folds of a brain, (n, size, size)."""
    x, y = canvas.frame
    bend = field(canvas, tape, 5)
    sway = field(canvas, tape, 5)
    folds = np.sin(column(TURN / period) * (x + column(warp) * bend))
    breaks = np.abs(np.sin(column(TURN / (2.7 * period)) * (y + column(warp) * sway)))
    return folds * ramp(breaks, 0.0, 0.5)


def scattered(tape: Tape, count: int, reach: float = 0.9) -> tuple[Array, Array]:
    """Return count points spread over a disc of radius reach, x and y, (n, count)."""
    radius = np.float32(reach) * np.sqrt(tape.spread(count, 0.0, 1.0))
    angle = tape.spread(count, 0.0, float(TURN))
    return radius * np.cos(angle), radius * np.sin(angle)


def evenly(tape: Tape, count: int, reach: float = 0.95, jitter: float = 0.06) -> tuple[Array, Array]:
    """Return count points that fill a disc evenly, in the order of a sunflower's seeds, x and y, (n, count)."""
    order = np.arange(count, dtype=np.float32) + 0.5
    radius = np.float32(reach) * np.sqrt(order / np.float32(count))
    angle = order * np.float32(2.3999632) + tape.spread(1, 0.0, float(TURN))
    x = radius * np.cos(angle) + tape.spread(count, -jitter, jitter)
    y = radius * np.sin(angle) + tape.spread(count, -jitter, jitter)
    return x, y


def blob(canvas: Canvas, tape: Tape, reach: float, radius: Array, roughness: float = 0.25) -> Array:
    """Return one irregular patch, 1 inside and 0 outside, its centre within reach of the lesion's; (n, size, size)."""
    x, y = canvas.frame
    centre_x, centre_y = scattered(tape, 1, reach)
    distance = np.sqrt((x - column(centre_x[:, 0])) ** 2 + (y - column(centre_y[:, 0])) ** 2)
    level = column(radius) - distance + np.float32(roughness) * column(radius) * field(canvas, tape, 6)
    return ramp(level, -0.08, 0.12)
