"""What else gets into the picture: relief of the skin, freckles, hairs, gel bubbles, a ruler, a slide's frame."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedperl.data.dermsim.canvas import pixel_axis, splat
from fedperl.data.dermsim.fields import ramp
from fedperl.data.dermsim.tape import Array, Tape

HAIRS = 6
HAIR_POINTS = 96  # close enough that the spots of the thinnest hair join to a line
BUBBLES = 7


@lru_cache(maxsize=32)
def _upsampling(size: int, cells: int) -> Array:
    """Return the matrix that spreads cells values over size pixels by smooth bumps, (size, cells); rows sum to 1."""
    knots = np.linspace(-1.0, 1.0, cells, dtype=np.float32)
    width = 2.0 / (cells - 1)
    bumps = np.exp(np.maximum(-0.5 * ((pixel_axis(size)[:, None] - knots) / (0.6 * width)) ** 2, -30.0))
    weights: Array = (bumps / bumps.sum(axis=1, keepdims=True)).astype(np.float32)
    return weights


def noise(tape: Tape, cells: int, size: int) -> Array:
    """Return smooth noise that belongs to the frame, not to the lesion; mean 0, variance about 1, (n, size, size)."""
    grid = tape.spread(cells * cells, -3.6, 3.6).reshape(-1, cells, cells)
    spread = _upsampling(size, cells)
    smooth: Array = np.matmul(np.matmul(spread, grid), spread.T)
    return smooth


def relief(tape: Tape, size: int) -> Array:
    """Return the relief of skin: furrows where smooth noise crosses zero, around plateaus; about 0, (n, size, size)."""
    furrows = np.abs(noise(tape, 15, size))
    return ramp(furrows, 0.0, 0.9) - np.float32(0.6)


def freckles(tape: Tape, size: int) -> Array:
    """Return melanin of a few freckles anywhere in the frame, (n, size, size)."""
    weight = tape.spread(6, -1.6, 0.5).clip(0.0)
    return splat(tape.spread(6), tape.spread(6), tape.spread(6, 0.02, 0.07), weight, size, 2)


def hairs(tape: Tape, number: Array, size: int) -> Array:
    """Return the opacity of thin curved hairs, (n, size, size); number of them (n,)."""
    middle_x, middle_y = tape.spread(HAIRS, -0.9, 0.9), tape.spread(HAIRS, -0.9, 0.9)
    comb = tape.uniform(0.0, 6.28)[:, None]  # hair grows in one direction, more or less
    angle, bend = comb + 0.5 * tape.bell(HAIRS), tape.spread(HAIRS, -0.5, 0.5)
    length = tape.spread(HAIRS, 0.4, 1.1)
    t = np.linspace(-1.0, 1.0, HAIR_POINTS, dtype=np.float32)
    along, aside = length[:, :, None] * t, bend[:, :, None] * t * t
    cosine, sine = np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
    x = (middle_x[:, :, None] + cosine * along - sine * aside).reshape(len(comb), -1)
    y = (middle_y[:, :, None] + sine * along + cosine * aside).reshape(len(comb), -1)
    sigma = np.repeat(tape.spread(HAIRS, 0.008, 0.014), HAIR_POINTS, axis=1)
    present = (np.arange(HAIRS, dtype=np.float32) < number[:, None]) * tape.spread(HAIRS, 0.5, 1.1)
    step = np.repeat(2.0 * length / HAIR_POINTS, HAIR_POINTS, axis=1)
    weight = np.repeat(present, HAIR_POINTS, axis=1) * step / (2.5066 * sigma)
    return np.minimum(splat(x, y, sigma, weight.astype(np.float32), size, 1), np.float32(0.92))


def bubbles(tape: Tape, number: Array, size: int) -> Array:
    """Return how far gel bubbles brighten the image: a ring and a spark in each, (n, size, size)."""
    x, y = tape.spread(BUBBLES), tape.spread(BUBBLES)
    sigma = np.float32(0.03) + np.float32(0.09) * np.square(tape.spread(BUBBLES, 0.0, 1.0))
    present = (np.arange(BUBBLES, dtype=np.float32) < number[:, None]).astype(np.float32)
    domes: Array = np.minimum(splat(x, y, sigma, present, size), np.float32(1.0))
    sparks = splat(x - 0.5 * sigma, y - 0.5 * sigma, 0.2 * sigma, present, size, 2)
    brightness: Array = np.square(np.square(4.0 * domes * (1.0 - domes)))
    brightness *= 0.28
    brightness += 0.3 * np.minimum(sparks, np.float32(1.0))
    return brightness


def ruler(tape: Tape, size: int) -> Array:
    """Return the opacity of the ticks of a ruler along one edge, (n, size, size)."""
    axis = pixel_axis(size)
    period, phase = tape.uniform(0.12, 0.2)[:, None], tape.uniform(0.0, 1.0)[:, None]
    place = axis / period + phase
    thickness = np.maximum(0.022 / period, 1.2 * (2.0 / size) / period)
    ticks = ramp(np.abs(place - np.round(place)), thickness, 0.45 * thickness)
    fifth = np.round(place) % 5 == 0
    depth = tape.uniform(0.08, 0.14)[:, None]
    edge = 1.0 - axis
    short, long = ramp(edge, depth + 0.03, depth), ramp(edge, 2.0 * depth + 0.03, 2.0 * depth)
    marks = np.where(fifth, np.float32(0.0), ticks)[:, None, :] * short[:, :, None]
    marks += np.where(fifth, ticks, np.float32(0.0))[:, None, :] * long[:, :, None]
    upright, flipped = tape.chance(0.5)[:, None, None], tape.chance(0.5)[:, None, None]
    marks = np.where(flipped, marks[:, ::-1], marks)
    return np.where(upright, marks, marks.transpose(0, 2, 1))


def slide_frame(tape: Tape, width: Array, size: int) -> Array:
    """Return the light a slide's black frame lets through on two opposite sides, (n, size, size)."""
    axis = np.abs(pixel_axis(size) - tape.spread(1, -0.06, 0.06))
    window = ramp(axis, (1.0 - width)[:, None] + 0.02, (1.0 - width)[:, None] - 0.02)
    upright = tape.chance(0.5)[:, None, None]
    return np.where(upright, window[:, None, :], window[:, :, None]) * np.ones((1, size, size), np.float32)
