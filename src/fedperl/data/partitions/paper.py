"""The paper's ten clients and server, dealt from the published sets; sizes as its figures show them.

ISIC 2019 contains HAM10000, so the paper's clients 0 to 4 share images with 5 to 7, and its random split puts
photographs of one lesion on both sides. Here a lesion or patient, twins included, is in one place only; the leak is
available as `ham_in_isic19 = "overlap"`, to measure what it is worth.
"""

from dataclasses import dataclass

import numpy as np

from fedperl.data.manifest import Indices, Manifest, Names
from fedperl.data.partition import ClientPart, Partition, ServerPart, split_by_group
from fedperl.errors import DataError
from fedperl.settings import Partitioning

ISIC19, HAM = "ISIC19", "HAM10000"


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
    *[Hospital(ISIC19, 500, 1500, 500, 1500)] * 4,
    Hospital(ISIC19, 398, 1202, 400, 1255),
    *[Hospital(HAM, 500, 1500, 500, 1500)] * 2,
    Hospital(HAM, 281, 737, 251, 746),
    Hospital("PAD-UFES", 319, 835, 284, 860),
    Hospital("Derm7pt", 85, 414, 115, 373),
)
SERVER = 1000


def has_paper_sets(manifest: Manifest) -> bool:
    """Whether any image comes from one of the paper's four sets."""
    return bool(np.isin(manifest.source, [hospital.source for hospital in PAPER]).any())


def paper_partition(manifest: Manifest, settings: Partitioning, generator: np.random.Generator) -> Partition:
    """Return the ten clients, sizes scaled down where a pool is too small; those of an absent set are left out.

    Raises:
        DataError: none of the paper's sets is there, or an image of them has no label.
    """
    groups = manifest.image if settings.group_by == "image" else manifest.group
    pools = _pools(manifest, settings, groups, generator)
    if not any(len(pool) for pool in pools.values()):
        found = ", ".join(np.unique(manifest.source)) or "none"
        raise DataError(
            f"the paper's partition wants images of {', '.join(pools)}; the store has {found} "
            "(another way to deal them: partition.kind = 'iid', 'dirichlet' or 'site')"
        )
    clients: list[ClientPart] = []
    server = ServerPart()
    scales: dict[str, float] = {}
    for source, pool in pools.items():
        hospitals = [hospital for hospital in PAPER if hospital.source == source]
        own = SERVER if source == ISIC19 else 0
        if not len(pool):
            continue
        scale = min(1.0, len(pool) / (own + sum(sum(hospital.parts(1.0)) for hospital in hospitals)))
        scales[source] = round(scale, 4)
        sizes = [round(scale * own), *(sum(hospital.parts(scale)) for hospital in hospitals)]
        # What is over goes to nobody.
        dealt = split_by_group(pool, manifest.label, groups, [*sizes, max(0, len(pool) - sum(sizes))], generator)
        if own:
            server = ServerPart(validation=dealt[0])
        for hospital, rows in zip(hospitals, dealt[1:-1], strict=True):
            parts = split_by_group(rows, manifest.label, groups, hospital.parts(scale), generator)
            clients.append(ClientPart(source, *parts))
    made = {
        "kind": "paper",
        "ham_in_isic19": settings.ham_in_isic19,
        "ham_share": settings.ham_share,
        "group_by": settings.group_by,
        "scale": scales,
        "left_out": [source for source, pool in pools.items() if not len(pool)],
    }
    straddles = settings.ham_in_isic19 == "overlap" or settings.group_by == "image"
    return Partition(tuple(clients), server, made, straddles)


def _pools(
    manifest: Manifest, settings: Partitioning, groups: Names, generator: np.random.Generator
) -> dict[str, Indices]:
    """Return the rows of each of the four sets; unless `overlap`, no group is in two of them."""
    sources = dict.fromkeys(hospital.source for hospital in PAPER)
    pools = {source: np.flatnonzero((manifest.source == source) & (manifest.label >= 0)) for source in sources}
    if settings.ham_in_isic19 == "overlap":
        return pools
    ham = pools[HAM]
    shared = ham[np.isin(groups[ham], groups[pools[ISIC19]])]
    if settings.ham_in_isic19 == "share":
        share = round(settings.ham_share * len(shared))
        _, shared = split_by_group(shared, manifest.label, groups, [share, len(shared) - share], generator)
    # These lesions are HAM10000's; all others that both have stay in the first pool that has them.
    pools[ISIC19] = pools[ISIC19][~np.isin(groups[pools[ISIC19]], groups[shared])]
    taken: set[str] = set()
    for source, pool in pools.items():
        pools[source] = pool[~np.isin(groups[pool], list(taken))] if taken else pool
        taken |= set(groups[pools[source]].tolist())
    return pools
