"""A lesion on its skin: the body, the structures on it, and the light that skin, pigment and blood let back.

Pigments absorb (Beer and Lambert): their optical densities add up, and what returns is exp(-density).
"""

from __future__ import annotations

import numpy as np

from fedperl.data.dermsim.canvas import Canvas
from fedperl.data.dermsim.cues import CUES, appearance, body_values, cue_strengths
from fedperl.data.dermsim.fields import column, field, ramp
from fedperl.data.dermsim.structures import PAINTERS, Paint, Site
from fedperl.data.dermsim.tape import Array, Index, Tape

BODY_SECTION, OUTLINE_SECTION, FIRST_CUE_SECTION = 0, 1, 2
SECTIONS = FIRST_CUE_SECTION + len(CUES)

# Optical density per unit of pigment in red, green and blue: rows melanin, blood, deep melanin (seen blue-grey).
ABSORPTION = np.array([[0.52, 1.00, 1.42], [0.13, 1.00, 0.78], [0.95, 0.72, 0.42]], dtype=np.float32)


def _body(canvas: Canvas, tape: Tape, looks: Index, texture: Array) -> tuple[Site, Array, Array]:
    """Return the site the structures are painted on, and the body's own melanin and blood, (n, size, size)."""
    body = {name: column(values) for name, values in body_values(looks, tape).items()}
    x, y = canvas.frame
    stretch = np.sqrt(body["stretch"])
    distance = np.sqrt((x / stretch) ** 2 + (y * stretch) ** 2)
    level = 1.0 - distance + body["lobes"] * field(canvas, tape, 4) + body["notches"] * field(canvas, tape, 10)
    inside = ramp(level, -0.5 * body["edge"], 0.5 * body["edge"])

    rim = column(tape.uniform(-0.35, 0.35)) * (0.5 - level)  # darker towards the rim, or towards the middle
    uneven = 1.0 + body["mottle"] * (field(canvas, tape, 6) + np.float32(0.5) * texture) + body["tilt"] * x + rim
    amount = inside * np.clip(uneven, 0.25, 2.0)
    return Site(canvas, inside, level), body["melanin"] * amount, body["blood"] * amount


def _skin(tape: Tape) -> tuple[Array, Array]:
    """Return the patient's own melanin and blood, (n,): mostly fair, some darker."""
    melanin = 0.06 + 0.62 * tape.uniform(0.0, 1.0) ** 1.8
    return melanin.astype(np.float32), tape.uniform(0.02, 0.16)


def reflectance(canvas: Canvas, labels: Index, tape: Tape, mottling: Array) -> Array:
    """Return the light the lesions and their skin send back under white light, (n, 3, size, size) in [0, 1].

    Args:
        mottling: uneven colour of the skin around, (n, size, size), about 0; belongs to the place photographed.
    """
    body_tape = tape.section(BODY_SECTION)
    looks = appearance(labels, body_tape)
    strengths = cue_strengths(looks, body_tape)
    skin_melanin, skin_blood = _skin(body_tape)
    site, melanin, blood = _body(canvas, tape.section(OUTLINE_SECTION), looks, field(canvas, body_tape, 13))
    deep = np.zeros_like(melanin)
    covers: list[tuple[Index, Paint]] = []
    for number, cue in enumerate(CUES):
        rows = np.flatnonzero(strengths[:, number])
        if len(rows) == 0:
            continue
        part = Site(canvas.rows(rows), site.inside[rows], site.level[rows])
        paint = PAINTERS[cue](part, tape.section(FIRST_CUE_SECTION + number, rows), strengths[rows, number])
        for layer, added in ((melanin, paint.melanin), (blood, paint.blood), (deep, paint.deep)):
            if added is not None:
                layer[rows] += added
        if paint.cover is not None:
            covers.append((rows, paint))

    pigments = np.stack(
        [
            np.maximum(melanin, 0.0) + column(skin_melanin) * (1.0 + 0.6 * mottling),
            np.maximum(blood, 0.0) + column(skin_blood) * (1.0 + mottling),
            np.maximum(deep, 0.0),
        ],
        axis=1,
    ).astype(np.float32, copy=False)
    count, size = len(labels), canvas.size
    density = np.matmul(ABSORPTION.T, pigments.reshape(count, 3, size * size))
    light: Array = np.exp(-density).reshape(count, 3, size, size)
    # Whitish things lie on skin and take some of its tone: pure white on dark skin would look pasted on.
    tone = np.exp(-0.5 * skin_melanin[:, None] * ABSORPTION[0])
    for rows, paint in covers:
        colour = (tone[rows] * np.array(paint.colour, dtype=np.float32))[:, :, None, None]
        below = light[rows]
        light[rows] = below + np.asarray(paint.cover)[:, None] * (colour - below)
    return light
