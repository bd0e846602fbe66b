"""The paper's ten clients and server, filled with drawn lesions: sizes, class mixes and missing classes."""

import numpy as np

from fedperl.data.dermsim.draw import CLASSES, STYLES, draw
from fedperl.data.manifest import Indices, Manifest
from fedperl.data.partition import ClientPart, Partition, ServerPart, split_by_group
from fedperl.data.partitions.paper import PAPER, SERVER
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
    server = ServerPart(validation=np.flatnonzero(holder == 0))
    return Store(images, manifest, Partition(tuple(clients), server, made), made)


def unseen_hospital(*, size: int, images: int = 2000, seed: int = 0) -> Store:
    """Return a store drawn like ISIC 2020: lesions of a style no client has, malignant (1.8 %, melanomas) or benign."""
    sick = max(1, round(images * 584 / 33126))
    kinds = [CLASSES.index("MEL"), CLASSES.index("NV"), CLASSES.index("BKL")]
    keratoses = round(0.05 * images)
    labels = np.repeat(kinds, [sick, images - sick - keratoses, keratoses])
    shot = np.arange(images)
    style = np.full(images, STYLES.index("ISIC20"))
    names = np.array([f"unseen_{i:06d}" for i in shot], dtype=np.str_)
    manifest = Manifest(
        ("benign", "malignant"), names, (labels == kinds[0]).astype(np.int64), names, np.full(images, "ISIC20")
    )
    # Another seed than the hospitals': other patients.
    drawn = draw(labels, shot, shot, style, size=size, seed=seed_for(seed, "unseen hospital") % 2**31)
    return Store(drawn, manifest, made={"source": "dermsim, unseen", "size": size, "images": images, "seed": seed})


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
