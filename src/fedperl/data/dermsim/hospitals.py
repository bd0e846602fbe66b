"""The paper's ten clients and server, filled with drawn lesions: sizes, class mixes and missing classes."""

from dataclasses import dataclass

import numpy as np

from fedperl.data.dermsim.draw import CLASSES, STYLES, draw
from fedperl.data.manifest import Indices, Manifest
from fedperl.data.partition import ClientPart, Partition, split_by_group
from fedperl.data.store import Store
from fedperl.seeds import seed_for

# Images of each class in the published sets, in the order of CLASSES; Derm7pt and PAD-UFES-20 mapped as the paper does.
PUBLISHED = {
    "ISIC19": (4522, 12875, 3323, 867, 2624, 239, 253, 628),
    "HAM10000": (1113, 6705, 514, 327, 1099, 115, 142, 0),
    "PAD-UFES": (52, 244, 845, 730, 235, 0, 0, 192),
    "Derm7pt": (252, 575, 42, 0, 69, 20, 29, 0),
}
IMAGES_PER_LESION = {"ISIC19": 1.5, "HAM10000": 1.34, "PAD-UFES": 1.67, "Derm7pt": 1.0}


@dataclass(frozen=True)
class Hospital:
    """One client of the paper: where its images come from and how many are for what."""

    source: str
    labelled: int
    unlabelled: int
    validation: int
    test: int

    def parts(self, scale: float) -> list[int]:
        """Return the sizes of labelled, unlabelled, validation and test at a scale, never fewer than two."""
        return [max(2, round(scale * n)) for n in (self.labelled, self.unlabelled, self.validation, self.test)]


PAPER = (
    *[Hospital("ISIC19", 500, 1500, 500, 1500)] * 4,
    Hospital("ISIC19", 398, 1202, 400, 1255),
    *[Hospital("HAM10000", 500, 1500, 500, 1500)] * 2,
    Hospital("HAM10000", 281, 737, 251, 746),
    Hospital("PAD-UFES", 319, 835, 284, 860),
    Hospital("Derm7pt", 85, 414, 115, 373),
)
SERVER = 1000


def ten_hospitals(*, size: int, scale: float, seed: int) -> Store:
    """Return a store with the paper's ten clients at a share `scale` of their sizes, drawn at `size` pixels.

    Lesions are photographed once or more, as in the published sets, and never straddle two uses or clients.
    """
    generator = np.random.default_rng(seed_for(seed, "dermsim", "hospitals"))
    totals = [max(2, round(scale * SERVER))] + [sum(hospital.parts(scale)) for hospital in PAPER]
    sources = ["ISIC19"] + [hospital.source for hospital in PAPER]
    labels = np.concatenate([_labels(s, n, generator) for s, n in zip(sources, totals, strict=True)])
    holder = np.repeat(np.arange(len(totals)), totals)
    lesion = _lesions(labels, holder, sources, generator)
    style = np.array([STYLES.index(source) for source in sources])[holder]
    shot = np.arange(len(labels))
    manifest = Manifest(
        CLASSES,
        np.array([f"dermsim_{i:06d}" for i in shot], dtype=np.str_),
        labels,
        np.array([f"lesion_{i:06d}" for i in lesion], dtype=np.str_),
        np.array([STYLES[i] for i in style], dtype=np.str_),
    )
    clients = []
    for number, hospital in enumerate(PAPER, start=1):
        rows = np.flatnonzero(holder == number)
        parts = split_by_group(rows, labels, manifest.group, hospital.parts(scale), generator)
        clients.append(ClientPart(hospital.source, *parts))
    images = draw(labels, lesion, shot, style, size=size, seed=seed)
    made = {"source": "dermsim", "size": size, "scale": scale, "seed": seed}
    return Store(images, manifest, Partition(tuple(clients), np.flatnonzero(holder == 0)), made)


def _labels(source: str, n: int, generator: np.random.Generator) -> Indices:
    """Return n labels in the source's proportions, rounded by largest remainder, in random order."""
    exact = n * np.array(PUBLISHED[source]) / sum(PUBLISHED[source])
    counts = np.floor(exact).astype(np.int64)
    remainder = np.argsort(counts - exact, kind="stable")[: n - counts.sum()]
    counts[remainder] += 1
    return generator.permutation(np.repeat(np.arange(len(counts)), counts))


def _lesions(labels: Indices, holder: Indices, sources: list[str], generator: np.random.Generator) -> Indices:
    """Return a lesion for every image: consecutive images of one holder and class share one now and then."""
    order = np.lexsort((labels, holder))
    repeat_chance = np.array([1 - 1 / IMAGES_PER_LESION[source] for source in sources])[holder[order]]
    same = (np.diff(holder[order], prepend=-1) == 0) & (np.diff(labels[order], prepend=-1) == 0)
    new = ~same | (generator.random(len(order)) >= repeat_chance)
    lesion = np.empty(len(order), dtype=np.int64)
    lesion[order] = np.cumsum(new) - 1
    return lesion
