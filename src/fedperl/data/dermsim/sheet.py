"""A contact sheet of dermsim: every class in every style, a few lesions each, for a person to look at."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from fedperl.data.dermsim.cues import CLASSES
from fedperl.data.dermsim.draw import draw
from fedperl.data.dermsim.styles import STYLES

MARGIN = 2
BANNER = 14
LABEL_WIDTH = 44


def contact_sheet(size: int = 96, columns: int = 3, seed: int = 0) -> Image.Image:
    """Return a sheet with one row per class and, per style, columns examples; all lesions differ.

    Args:
        size: edge of one picture in pixels, 16 to 224.
        columns: examples of each class in each style.
    Raises:
        ValueError: fewer than one column, or a size that cannot be drawn.
    """
    if columns < 1:
        raise ValueError(f"columns must be at least 1, not {columns}")
    label, style, lesion = (
        axis.ravel() for axis in np.meshgrid(range(len(CLASSES)), range(len(STYLES)), range(columns), indexing="ij")
    )
    pictures = draw(label, style * columns + lesion, np.zeros_like(label), style, size=size, seed=seed)

    step = size + MARGIN
    group = columns * step + 2 * MARGIN
    sheet = Image.new("RGB", (LABEL_WIDTH + len(STYLES) * group, BANNER + len(CLASSES) * step), "white")
    pen = ImageDraw.Draw(sheet)
    for number, name in enumerate(STYLES):
        pen.text((LABEL_WIDTH + number * group, 1), name, fill="black")
    for number, name in enumerate(CLASSES):
        pen.text((4, BANNER + number * step + size // 2 - 5), name, fill="black")
    for picture, row, place, example in zip(pictures, label, style, lesion, strict=True):
        corner = (LABEL_WIDTH + int(place) * group + int(example) * step, BANNER + int(row) * step)
        sheet.paste(Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))), corner)
    return sheet
