"""Random numbers with an address: each image reads its own tape, so no image depends on the batch it is drawn in.

A tape is a block of uniforms, one row an image, taken from a Philox counter that the image's names select.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
SECTION = 256  # uniforms in one section, enough for any one structure


@dataclass
class Tape:
    """Uniforms in [0, 1), (images, length), handed out from left to right."""

    values: Array
    cursor: int = 0

    def section(self, number: int, rows: Index | None = None) -> Tape:
        """Return the tape of one section, so that one structure's appetite never shifts another's numbers."""
        part = self.values[:, number * SECTION : (number + 1) * SECTION]
        return Tape(part if rows is None else part[rows])

    def take(self, count: int) -> Array:
        """Return the next count uniforms of every image, (images, count)."""
        end = self.cursor + count
        if end > self.values.shape[1]:
            raise IndexError(f"a tape of {self.values.shape[1]} numbers was asked for {end}")
        taken = self.values[:, self.cursor : end]
        self.cursor = end
        return taken

    def uniform(self, low: float | Array, high: float | Array) -> Array:
        """Return one number in [low, high) per image, (images,)."""
        return (low + (high - low) * self.take(1)[:, 0]).astype(np.float32, copy=False)

    def spread(self, count: int, low: float = -1.0, high: float = 1.0) -> Array:
        """Return count numbers in [low, high) per image, (images, count)."""
        return (low + (high - low) * self.take(count)).astype(np.float32, copy=False)

    def bell(self, count: int = 1) -> Array:
        """Return count bell-shaped numbers per image, mean 0 and variance 1, never beyond 3; (images, count)."""
        parts = self.take(3 * count).reshape(len(self.values), count, 3)
        return ((parts[..., 0] + parts[..., 1] + parts[..., 2] - 1.5) * 2.0).astype(np.float32, copy=False)

    def chance(self, probability: float | Array) -> npt.NDArray[np.bool_]:
        """Return whether an event of this probability happens, (images,)."""
        return self.take(1)[:, 0] < probability


def _words(*names: int) -> npt.NDArray[np.uint64]:
    return np.array([name & 0xFFFFFFFFFFFFFFFF for name in names], dtype=np.uint64)


def lesion_tape(seed: int, labels: Index, lesions: Index, sections: int) -> Tape:
    """Return the tape of the lesions themselves: it knows nothing of the photograph."""
    values = np.empty((len(labels), sections * SECTION), dtype=np.float32)
    for row, (label, lesion) in enumerate(zip(labels.tolist(), lesions.tolist(), strict=True)):
        bits = np.random.Philox(key=_words(seed, lesion), counter=_words(0, label, 0, 0))
        np.random.Generator(bits).random(out=values[row], dtype=np.float32)
    return Tape(values)


def shot_tape(
    seed: int, labels: Index, lesions: Index, shots: Index, styles: Index, sections: int, size: int
) -> tuple[Tape, Array]:
    """Return the tape of the photographs, and their pixel noise, (images, size, size), standard normal.

    The noise is read last: it alone depends on the size.
    """
    values = np.empty((len(labels), sections * SECTION), dtype=np.float32)
    grain = np.empty((len(labels), size, size), dtype=np.float32)
    names = zip(labels.tolist(), lesions.tolist(), shots.tolist(), styles.tolist(), strict=True)
    for row, (label, lesion, shot, style) in enumerate(names):
        bits = np.random.Philox(key=_words(seed, lesion), counter=_words(0, label, shot, style + 1))
        generator = np.random.Generator(bits)
        generator.random(out=values[row], dtype=np.float32)
        generator.standard_normal(out=grain[row], dtype=np.float32)
    return Tape(values), grain
