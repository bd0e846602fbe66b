"""What tells the classes apart: which lesion bodies and which dermatoscopic structures each of them tends to show.

Every structure is present with a probability and a strength, and some lesions pose as another class outright:
the classes overlap, as they do in the clinic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedperl.data.dermsim.tape import Array, Index, Tape

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")

Range = tuple[float, float]


@dataclass(frozen=True)
class BodyRanges:
    """The ranges a class draws its lesion bodies from; lengths in lesion radii, pigments in optical density."""

    stretch: Range  # long axis over short axis
    lobes: Range  # coarse irregularity of the outline
    notches: Range  # fine irregularity of the outline
    edge: Range  # width of the border
    melanin: Range
    blood: Range
    mottle: Range  # unevenness of the pigment
    tilt: Range  # pigment on one side more than on the other


BODIES = {
    "MEL": BodyRanges(
        stretch=(1.0, 1.5), lobes=(0.08, 0.24), notches=(0.04, 0.14), edge=(0.08, 0.3),
        melanin=(0.55, 1.7), blood=(0.0, 0.3), mottle=(0.2, 0.5), tilt=(0.1, 0.6),
    ),
    "NV": BodyRanges(
        stretch=(1.0, 1.4), lobes=(0.0, 0.1), notches=(0.0, 0.04), edge=(0.12, 0.45),
        melanin=(0.35, 1.5), blood=(0.0, 0.3), mottle=(0.05, 0.25), tilt=(0.0, 0.2),
    ),
    "BCC": BodyRanges(
        stretch=(1.0, 1.5), lobes=(0.04, 0.18), notches=(0.0, 0.08), edge=(0.2, 0.7),
        melanin=(0.0, 0.35), blood=(0.08, 0.45), mottle=(0.2, 0.5), tilt=(0.0, 0.4),
    ),
    "AK": BodyRanges(
        stretch=(1.0, 1.7), lobes=(0.1, 0.25), notches=(0.03, 0.12), edge=(0.4, 0.9),
        melanin=(0.0, 0.35), blood=(0.15, 0.55), mottle=(0.2, 0.5), tilt=(0.0, 0.4),
    ),
    "BKL": BodyRanges(
        stretch=(1.0, 1.6), lobes=(0.04, 0.16), notches=(0.02, 0.1), edge=(0.05, 0.25),
        melanin=(0.25, 1.4), blood=(0.0, 0.25), mottle=(0.15, 0.4), tilt=(0.0, 0.35),
    ),
    "DF": BodyRanges(
        stretch=(1.0, 1.25), lobes=(0.0, 0.1), notches=(0.0, 0.04), edge=(0.3, 0.8),
        melanin=(0.2, 0.8), blood=(0.0, 0.35), mottle=(0.1, 0.3), tilt=(0.0, 0.15),
    ),
    "VASC": BodyRanges(
        stretch=(1.0, 1.4), lobes=(0.02, 0.14), notches=(0.0, 0.05), edge=(0.08, 0.4),
        melanin=(0.0, 0.3), blood=(0.15, 0.7), mottle=(0.15, 0.4), tilt=(0.0, 0.2),
    ),
    "SCC": BodyRanges(
        stretch=(1.0, 1.5), lobes=(0.05, 0.2), notches=(0.02, 0.1), edge=(0.25, 0.7),
        melanin=(0.0, 0.35), blood=(0.2, 0.6), mottle=(0.2, 0.5), tilt=(0.0, 0.35),
    ),
}  # fmt: skip

# (probability, weakest, strongest). The order is that of painting: whitish things last, they lie on top.
CUES: dict[str, dict[str, tuple[float, float, float]]] = {
    "network": {"NV": (0.55, 0.35, 0.95), "MEL": (0.10, 0.4, 0.8), "DF": (0.08, 0.3, 0.6), "BKL": (0.06, 0.3, 0.6)},
    "atypical_network": {"MEL": (0.70, 0.9, 1.7), "NV": (0.06, 0.4, 0.9), "BKL": (0.08, 0.5, 0.9)},
    "peripheral_network": {"DF": (0.85, 0.35, 0.85), "NV": (0.06, 0.4, 0.8)},
    "globules": {"NV": (0.40, 0.7, 1.5), "MEL": (0.08, 0.6, 1.2), "BKL": (0.05, 0.5, 1.0)},
    "clumps": {"MEL": (0.75, 1.2, 2.3), "NV": (0.05, 0.6, 1.2), "BKL": (0.08, 0.6, 1.2), "BCC": (0.10, 0.6, 1.2)},
    "colours": {"MEL": (0.90, 0.7, 1.3), "BKL": (0.12, 0.4, 0.8), "NV": (0.04, 0.4, 0.8)},
    "vessels": {"BCC": (0.90, 1.1, 1.9), "SCC": (0.08, 0.6, 1.1), "AK": (0.06, 0.6, 1.0), "MEL": (0.03, 0.5, 1.0)},
    "nests": {"BCC": (0.70, 0.8, 1.4), "MEL": (0.05, 0.5, 1.0), "VASC": (0.04, 0.5, 1.0)},
    "ulcer": {"BCC": (0.28, 0.6, 1.2), "SCC": (0.22, 0.6, 1.2), "AK": (0.05, 0.4, 0.8), "MEL": (0.03, 0.5, 1.0)},
    "ridges": {"BKL": (0.60, 0.4, 0.95), "NV": (0.03, 0.3, 0.6)},
    "comedones": {"BKL": (0.75, 1.0, 1.9), "NV": (0.03, 0.6, 1.0), "MEL": (0.03, 0.6, 1.0)},
    "lacunae": {"VASC": (0.92, 1.0, 2.0), "BCC": (0.03, 0.6, 1.0)},
    "clots": {"VASC": (0.40, 0.8, 1.6)},
    "strawberry": {"AK": (0.90, 0.6, 1.0), "SCC": (0.10, 0.3, 0.6)},
    "dotted_vessels": {"SCC": (0.80, 1.0, 1.8), "AK": (0.08, 0.5, 1.0), "MEL": (0.04, 0.6, 1.0), "DF": (0.1, 0.4, 0.8)},
    "veil": {"MEL": (0.60, 0.5, 1.0), "BKL": (0.04, 0.3, 0.6), "BCC": (0.05, 0.3, 0.6)},
    "regression": {"MEL": (0.40, 0.5, 0.9), "BKL": (0.08, 0.3, 0.6)},
    "scar": {"DF": (0.88, 0.45, 0.9), "BCC": (0.05, 0.3, 0.6), "MEL": (0.03, 0.3, 0.6)},
    "milia": {"BKL": (0.78, 0.7, 1.0), "NV": (0.03, 0.4, 0.8), "BCC": (0.04, 0.4, 0.8), "SCC": (0.05, 0.4, 0.8)},
    "scale": {"AK": (0.65, 0.4, 0.9), "SCC": (0.50, 0.4, 0.9), "BKL": (0.10, 0.3, 0.6), "BCC": (0.08, 0.3, 0.6)},
    "keratin": {"SCC": (0.85, 0.7, 1.0), "AK": (0.05, 0.4, 0.7), "BKL": (0.05, 0.3, 0.7)},
    "white_circles": {"SCC": (0.60, 0.5, 1.0), "AK": (0.10, 0.4, 0.8)},
    "shine": {"BCC": (0.35, 0.3, 0.6), "DF": (0.15, 0.2, 0.4), "SCC": (0.12, 0.3, 0.5), "VASC": (0.15, 0.3, 0.5)},
}  # fmt: skip

# How often a lesion of the first class looks in every way like one of the second.
POSES = {
    "MEL": {"NV": 0.02, "BKL": 0.01},
    "NV": {"MEL": 0.01, "BKL": 0.01},
    "BCC": {"SCC": 0.02, "AK": 0.01},
    "AK": {"SCC": 0.02, "BCC": 0.01},
    "BKL": {"MEL": 0.02, "NV": 0.01},
    "DF": {"NV": 0.02, "BCC": 0.01},
    "VASC": {"BCC": 0.02},
    "SCC": {"AK": 0.02, "BCC": 0.01},
}


def _pose_table() -> Array:
    """Return the cumulative probabilities of looking like each class, (classes, classes)."""
    table = np.zeros((len(CLASSES), len(CLASSES)))
    for name, others in POSES.items():
        row = CLASSES.index(name)
        for other, probability in others.items():
            table[row, CLASSES.index(other)] = probability
        table[row, row] = 1.0 - table[row].sum()
    return np.cumsum(table, axis=1).astype(np.float32)


def _cue_table() -> Array:
    """Return probability, weakest and strongest of every cue in every class, (classes, cues, 3)."""
    table = np.zeros((len(CLASSES), len(CUES), 3), dtype=np.float32)
    for number, classes in enumerate(CUES.values()):
        for name, entry in classes.items():
            table[CLASSES.index(name), number] = entry
    return table


def _body_table() -> Array:
    """Return the ranges of the body of every class, (classes, properties, 2)."""
    return np.array([[*vars(BODIES[name]).values()] for name in CLASSES], dtype=np.float32)


POSE_TABLE, CUE_TABLE, BODY_TABLE = _pose_table(), _cue_table(), _body_table()


def appearance(labels: Index, tape: Tape) -> Index:
    """Return the class each lesion looks like: mostly its own, (n,)."""
    looks: Index = (tape.take(1) >= POSE_TABLE[labels]).sum(axis=1, dtype=np.int64)
    return np.minimum(looks, len(CLASSES) - 1)


def cue_strengths(looks: Index, tape: Tape) -> Array:
    """Return the strength of every cue in every lesion, 0 where it is absent, (n, cues)."""
    probability, weakest, strongest = np.moveaxis(CUE_TABLE[looks], 2, 0)
    present = tape.take(len(CUES)) < probability
    strength = weakest + (strongest - weakest) * tape.take(len(CUES))
    return np.where(present, strength, np.float32(0.0))


def body_values(looks: Index, tape: Tape) -> dict[str, Array]:
    """Return the properties of every lesion's body by name, each (n,)."""
    low, high = np.moveaxis(BODY_TABLE[looks], 2, 0)
    values = low + (high - low) * tape.take(BODY_TABLE.shape[1])
    return {name: values[:, number] for number, name in enumerate(BodyRanges.__dataclass_fields__)}
