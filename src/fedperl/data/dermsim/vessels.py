"""Arborizing vessels: winding stems from the rim inwards, each with branches that leave at an acute angle."""

from __future__ import annotations

import numpy as np

from fedperl.data.dermsim.canvas import Canvas
from fedperl.data.dermsim.tape import Array, Tape

STEMS = 3
BRANCHES = 3  # of each stem
STEM_STEPS = 36
BRANCH_STEPS = 21
STEP = 0.036  # in lesion radii; close enough that spots join to a line


def _wander(tape: Tape, x: Array, y: Array, heading: Array, steps: int, bend: float) -> tuple[Array, Array, Array]:
    """Return the points of n x k winding walks and their headings, each (n, k, steps); a few turns bend each walk."""
    walks = heading.shape[1]
    phase = tape.spread(walks, 0.0, 6.28)[:, :, None]
    slow = tape.spread(walks, -bend, bend)[:, :, None]
    t = np.arange(steps, dtype=np.float32)
    heading = heading[:, :, None] + slow * t * 0.043 + 0.5 * (np.sin(0.32 * t + phase) - np.sin(phase))
    return (
        x[:, :, None] + np.cumsum(STEP * np.cos(heading), axis=2, dtype=np.float32),
        y[:, :, None] + np.cumsum(STEP * np.sin(heading), axis=2, dtype=np.float32),
        heading,
    )


def branching_tree(canvas: Canvas, tape: Tape) -> Array:
    """Return the presence of a lesion's vessels, about 1 on their middle line, (n, size, size)."""
    rim = tape.spread(STEMS, 0.0, 6.28)
    aim = rim + np.float32(np.pi) + tape.spread(STEMS, -0.6, 0.6)
    reach = np.float32(0.95)
    x, y, heading = _wander(tape, reach * np.cos(rim), reach * np.sin(rim), aim, STEM_STEPS, 1.0)
    present = np.concatenate([np.ones((len(rim), 1)), tape.spread(STEMS - 1) > -0.3], axis=1).astype(np.float32)

    joints = [7, 15, 24]
    side = np.where(tape.take(STEMS * BRANCHES) < 0.5, -1.0, 1.0) * tape.spread(STEMS * BRANCHES, 0.5, 0.95)
    branch_x, branch_y, _ = _wander(
        tape,
        x[:, :, joints].reshape(len(rim), -1),
        y[:, :, joints].reshape(len(rim), -1),
        (heading[:, :, joints].reshape(len(rim), -1) + side).astype(np.float32),
        BRANCH_STEPS,
        1.5,
    )
    width = tape.uniform(0.75, 1.25)[:, None, None]
    stem_width = width * np.linspace(0.040, 0.018, STEM_STEPS, dtype=np.float32)
    branch_width = width * np.linspace(0.026, 0.012, BRANCH_STEPS, dtype=np.float32)

    def flat(stem: Array, branch: Array) -> Array:
        parts = [part.reshape(len(rim), -1) for part in (stem, branch)]
        return np.concatenate(parts, axis=1).astype(np.float32, copy=False)

    sigma = flat(np.broadcast_to(stem_width, x.shape), np.broadcast_to(branch_width, branch_x.shape))
    weight = flat(
        np.broadcast_to(present[:, :, None], x.shape),
        np.broadcast_to(np.repeat(present, BRANCHES, axis=1)[:, :, None], branch_x.shape),
    )
    # Spots a step apart add up to a line of this height.
    weight = weight * np.float32(1.1 * STEP / 2.5066) / sigma
    return canvas.spots(flat(x, branch_x), flat(y, branch_y), sigma, weight, dimension=1)
