"""From skin to file: clutter, light, lens, film and noise of one shot, in the order light meets them."""

from __future__ import annotations

import numpy as np

from fedperl.data.dermsim.canvas import FOOTPRINT, pixel_axis
from fedperl.data.dermsim.clutter import bubbles, freckles, hairs, noise, relief, ruler, slide_frame
from fedperl.data.dermsim.fields import column, ramp
from fedperl.data.dermsim.styles import Shot
from fedperl.data.dermsim.tape import Array, Tape

SETTINGS_SECTION, SKIN_SECTION, RELIEF_SECTION, HAIR_SECTION, BUBBLE_SECTION, RULER_SECTION, LIGHT_SECTION = range(7)
SECTIONS = 7

LUMINANCE = np.array([0.30, 0.59, 0.11], dtype=np.float32)


def skin_mottling(tape: Tape, size: int) -> Array:
    """Return the uneven colour of the skin photographed, (n, size, size), about 0; freckles stand out of it."""
    skin = tape.section(SKIN_SECTION)
    return np.float32(0.3) * noise(skin, 5, size) + np.float32(0.2) * noise(skin, 11, size) + freckles(skin, size)


def _add_clutter(light: Array, shot: Shot, tape: Tape) -> None:
    """Draw hairs, ruler and bubbles over the skin, in place, where a shot has any."""
    size = light.shape[-1]
    rows = np.flatnonzero(shot["hair"] > 0.0)
    if len(rows):
        part = tape.section(HAIR_SECTION, rows)
        strands = hairs(part, shot["hair"][rows], size)[:, None]
        colour = np.stack([part.uniform(0.10, 0.34), part.uniform(0.07, 0.22), part.uniform(0.05, 0.16)], axis=1)
        light[rows] += strands * (colour[:, :, None, None] - light[rows])
    rows = np.flatnonzero(shot["ruler"] > 0.0)
    if len(rows):
        marks = ruler(tape.section(RULER_SECTION, rows), size) * column(shot["ruler"][rows])
        light[rows] *= 1.0 - np.float32(0.9) * marks[:, None]
    rows = np.flatnonzero(shot["bubbles"] > 0.0)
    if len(rows):
        light[rows] += bubbles(tape.section(BUBBLE_SECTION, rows), shot["bubbles"][rows], size)[:, None]


def _illumination(shot: Shot, tape: Tape, size: int) -> Array:
    """Return the light that falls on every point, 1 where it is full, (n, size, size)."""
    part = tape.section(LIGHT_SECTION)
    axis = pixel_axis(size)
    x, y = axis[None, None, :], axis[None, :, None]
    turn, edge = part.uniform(0.0, 6.2832), part.uniform(-0.5, 0.8)
    towards = column(np.cos(turn)) * x + column(np.sin(turn)) * y
    light: Array = 1.0 + column(shot["slope"]) * towards
    wave = np.float32(0.12) * np.sin(5.0 * (column(np.cos(turn)) * y - column(np.sin(turn)) * x) + column(turn))
    light = light * (1.0 - column(shot["shadow"].clip(0.0)) * ramp(towards + wave, column(edge), column(edge) + 0.35))
    centre = part.spread(2, -0.08, 0.08)
    distance = np.sqrt((x - column(centre[:, 0])) ** 2 + (y - column(centre[:, 1])) ** 2)
    light = light * (1.0 - column(shot["vignette"]) * np.float32(0.5) * distance**2)
    corners = column(shot["corners"])
    light = light * (np.float32(0.03) + np.float32(0.97) * ramp(distance, corners + 0.05, corners - 0.03))
    rows = np.flatnonzero(shot["frame"] > 0.0)
    if len(rows):
        light[rows] *= slide_frame(tape.section(RULER_SECTION, rows), shot["frame"][rows], size)
    return light


def _defocus(light: Array, blur: Array) -> Array:
    """Return the images blurred by a Gaussian lens, blur its standard deviation in half image widths, (n,)."""
    size = light.shape[-1]
    axis = pixel_axis(size)
    sigma = np.sqrt(blur**2 + np.float32((FOOTPRINT * 2.0 / size) ** 2))
    lens = np.exp(np.maximum(-0.5 * ((axis[:, None] - axis) / column(sigma)) ** 2, np.float32(-30.0)))
    lens /= lens.sum(axis=2, keepdims=True)
    lens = lens[:, None]
    blurred: Array = np.matmul(np.matmul(lens, light), lens.transpose(0, 1, 3, 2))
    return blurred


def _film(light: Array, shot: Shot) -> Array:
    """Return the recorded image: colour cast, saturation, exposure and contrast are one matrix and one offset."""
    count, _, size, _ = light.shape
    gains = np.stack([shot["red"], shot["green"], shot["blue"]], axis=1) * shot["exposure"][:, None]
    saturation, contrast = column(shot["saturation"]), column(shot["contrast"])
    mixing = saturation * np.eye(3, dtype=np.float32) + (1.0 - saturation) * LUMINANCE
    matrix = (contrast * gains[:, :, None] * mixing).astype(np.float32, copy=False)
    offset = np.float32(0.55) * (1.0 - contrast) + column(shot["lift"])
    recorded: Array = np.matmul(matrix, light.reshape(count, 3, size * size)) + offset
    return recorded.reshape(count, 3, size, size)


def photograph(light: Array, shot: Shot, tape: Tape, grain: Array) -> Array:
    """Return the photographs of what the skin reflects, (n, 3, size, size), not yet clipped to [0, 1].

    Args:
        light: what the skin sends back under white light, (n, 3, size, size); overwritten.
        grain: standard normal noise, (n, size, size).
    """
    size = light.shape[-1]
    light *= (1.0 + column(shot["texture"]) * relief(tape.section(RELIEF_SECTION), size))[:, None]
    _add_clutter(light, shot, tape)
    light *= _illumination(shot, tape, size)[:, None]
    recorded = _film(_defocus(light, shot["blur"]), shot)
    recorded += (column(shot["grain"]) * grain)[:, None]
    return recorded
