"""How five archives photograph: framing, light, lens, film and clutter of each, drawn anew for every shot."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedperl.data.dermsim.canvas import Canvas
from fedperl.data.dermsim.tape import Array, Index, Tape

STYLES = ("ISIC19", "HAM10000", "PAD-UFES", "Derm7pt", "ISIC20")

Range = tuple[float, float]


@dataclass(frozen=True)
class StyleRanges:
    """The ranges a style draws its shots from; lengths in half image widths."""

    radius: Range  # of the lesion
    offset: Range  # of the lesion from the middle of the frame
    red: Range  # colour gains
    green: Range
    blue: Range
    exposure: Range
    contrast: Range
    saturation: Range
    lift: Range  # stray light, added everywhere
    slope: Range  # uneven light across the frame
    shadow: Range  # darkness of a cast shadow
    vignette: Range  # darkening towards the corners
    corners: Range  # radius at which the round field of view ends in black; beyond 1.5 it is out of sight
    blur: Range
    grain: Range
    texture: Range  # visible relief of the skin
    hair: Range  # number of hairs, negative for none
    bubbles: Range  # likewise
    ruler: Range  # opacity, negative for none
    frame: Range  # width of the black slide frame, negative for none


STYLE_RANGES = {
    "ISIC19": StyleRanges(
        radius=(0.46, 0.92), offset=(0.0, 0.26), red=(0.86, 1.06), green=(0.86, 1.06), blue=(0.84, 1.14),
        exposure=(0.66, 0.92), contrast=(0.95, 1.25), saturation=(0.75, 1.2), lift=(-0.04, 0.03), slope=(0.0, 0.12),
        shadow=(0.0, 0.0), vignette=(0.05, 0.40), corners=(1.02, 1.9), blur=(0.004, 0.018), grain=(0.006, 0.02),
        texture=(0.01, 0.04), hair=(-6.0, 5.0), bubbles=(-12.0, 3.0), ruler=(-4.0, 0.8), frame=(-1.0, -0.5),
    ),
    "HAM10000": StyleRanges(
        radius=(0.48, 0.82), offset=(0.0, 0.14), red=(1.02, 1.10), green=(0.86, 0.95), blue=(0.90, 1.02),
        exposure=(0.95, 1.08), contrast=(0.80, 1.00), saturation=(0.80, 1.0), lift=(0.02, 0.07), slope=(0.0, 0.05),
        shadow=(0.0, 0.0), vignette=(0.0, 0.10), corners=(1.6, 2.0), blur=(0.006, 0.016), grain=(0.004, 0.012),
        texture=(0.01, 0.03), hair=(-8.0, 5.0), bubbles=(-9.0, 3.0), ruler=(-9.0, 0.6), frame=(-1.0, -0.5),
    ),
    "PAD-UFES": StyleRanges(
        radius=(0.40, 0.66), offset=(0.0, 0.32), red=(0.88, 1.12), green=(0.84, 1.00), blue=(0.66, 1.00),
        exposure=(0.66, 1.00), contrast=(0.70, 0.95), saturation=(0.65, 1.0), lift=(0.0, 0.10), slope=(0.08, 0.40),
        shadow=(-0.4, 0.40), vignette=(0.0, 0.15), corners=(2.0, 3.0), blur=(0.014, 0.036), grain=(0.010, 0.028),
        texture=(0.05, 0.13), hair=(-8.0, 4.0), bubbles=(-1.0, -0.5), ruler=(-1.0, -0.5), frame=(-1.0, -0.5),
    ),
    "Derm7pt": StyleRanges(
        radius=(0.46, 0.90), offset=(0.0, 0.24), red=(0.98, 1.10), green=(0.88, 1.00), blue=(0.64, 0.82),
        exposure=(0.76, 1.02), contrast=(1.05, 1.30), saturation=(0.85, 1.15), lift=(-0.02, 0.03), slope=(0.0, 0.18),
        shadow=(0.0, 0.0), vignette=(0.05, 0.35), corners=(1.3, 2.6), blur=(0.006, 0.022), grain=(0.012, 0.030),
        texture=(0.01, 0.05), hair=(-5.0, 6.0), bubbles=(-4.0, 7.0), ruler=(-0.8, 0.9), frame=(-0.14, 0.16),
    ),
    "ISIC20": StyleRanges(
        radius=(0.42, 0.84), offset=(0.0, 0.22), red=(0.80, 0.94), green=(0.84, 0.98), blue=(0.98, 1.16),
        exposure=(0.76, 1.00), contrast=(1.10, 1.35), saturation=(0.85, 1.2), lift=(-0.04, 0.02), slope=(0.0, 0.08),
        shadow=(0.0, 0.0), vignette=(0.05, 0.30), corners=(0.95, 1.35), blur=(0.004, 0.012), grain=(0.004, 0.014),
        texture=(0.01, 0.04), hair=(-4.0, 7.0), bubbles=(-14.0, 2.0), ruler=(-6.0, 0.6), frame=(-1.0, -0.5),
    ),
}  # fmt: skip

STYLE_TABLE = np.array([[*vars(STYLE_RANGES[name]).values()] for name in STYLES], dtype=np.float32)


@dataclass(frozen=True)
class Shot:
    """The settings of n photographs, each (n,): the fields of StyleRanges with one value an image."""

    values: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.values[name]


def shots_of(styles: Index, tape: Tape) -> Shot:
    """Return the settings of every photograph, drawn from the ranges of its style."""
    low, high = np.moveaxis(STYLE_TABLE[styles], 2, 0)
    values = low + (high - low) * tape.take(STYLE_TABLE.shape[1])
    return Shot({entry.name: values[:, number] for number, entry in enumerate(fields(StyleRanges))})


def frame_lesions(shot: Shot, tape: Tape, size: int) -> Canvas:
    """Return where the lesions lie in their photographs."""
    towards = tape.uniform(0.0, 6.2832)
    return Canvas(
        size=size,
        centre_x=shot["offset"] * np.cos(towards),
        centre_y=shot["offset"] * np.sin(towards),
        angle=tape.uniform(0.0, 6.2832),
        mirror=np.where(tape.chance(0.5), np.float32(-1.0), np.float32(1.0)),
        radius=shot["radius"],
    )
