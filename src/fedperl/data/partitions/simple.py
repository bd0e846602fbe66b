"""Partitions of any store: alike, skewed by class (Dirichlet), or by the institution that took the images."""

from collections.abc import Sequence

import numpy as np

from fedperl.data.manifest import UNLABELLED, Indices, Manifest
from fedperl.data.partition import ClientPart, Partition, ServerPart, no_rows, split_by_group
from fedperl.errors import DataError
from fedperl.settings import Partitioning

TRIES = 100
FEWEST = 8  # images a client, so that each of its four parts can have one


def iid_partition(manifest: Manifest, settings: Partitioning, generator: np.random.Generator) -> Partition:
    """Return clients of about equal size and the same class mix."""
    server, rows = _server(manifest, settings, generator)
    count = settings.clients or 10
    sizes = [len(rows) // count + (k < len(rows) % count) for k in range(count)]
    dealt = split_by_group(rows, manifest.label, manifest.group, sizes, generator)
    return _partition(manifest, settings, server, ["iid"] * count, dealt, generator)


def dirichlet_partition(manifest: Manifest, settings: Partitioning, generator: np.random.Generator) -> Partition:
    """Return clients whose share of each class is drawn from Dirichlet(alpha): the smaller, the more skewed.

    Raises:
        DataError: a hundred draws all left a client with fewer than eight images.
    """
    server, rows = _server(manifest, settings, generator)
    count = settings.clients or 10
    names, first, inverse, sizes = np.unique(
        manifest.group[rows], return_index=True, return_inverse=True, return_counts=True
    )
    classes = manifest.label[rows][first]
    for _ in range(TRIES):
        holder = np.empty(len(names), dtype=np.int64)
        for label in np.unique(classes):
            members = generator.permutation(np.flatnonzero(classes == label))
            middle = np.cumsum(sizes[members]) - sizes[members] / 2
            shares = generator.dirichlet(np.full(count, settings.alpha))
            edges = np.cumsum(shares)[:-1] * sizes[members].sum()
            holder[members] = np.searchsorted(edges, middle, side="right")
        if np.bincount(holder, weights=sizes, minlength=count).min() >= FEWEST:
            dealt = [rows[holder[inverse] == k] for k in range(count)]
            return _partition(manifest, settings, server, [f"Dir({settings.alpha})"] * count, dealt, generator)
    raise DataError(
        f"partition.kind = 'dirichlet', alpha = {settings.alpha}, {count} clients: in {TRIES} draws some client always "
        f"had fewer than {FEWEST} of the {len(rows)} images; wanted fewer clients or a larger alpha"
    )


def site_partition(manifest: Manifest, settings: Partitioning, generator: np.random.Generator) -> Partition:
    """Return one client for each institution (where the set names it) or else data set.

    A group seen at two institutions stays at the first.

    Raises:
        DataError: only one institution, or one with fewer than eight images.
    """
    server, rows = _server(manifest, settings, generator)
    institution = manifest.about.get("institution", np.full(len(manifest), ""))
    site = np.where(institution != "", institution, manifest.source)
    home: dict[str, str] = {}
    for group, name in zip(manifest.group[rows].tolist(), site[rows].tolist(), strict=True):
        home.setdefault(group, name)
    of_row = np.array([home[group] for group in manifest.group[rows].tolist()])
    names, counts = np.unique(of_row, return_counts=True)
    if len(names) < 2 or counts.min() < FEWEST:
        found = ", ".join(f"{name} ({n} images)" for name, n in zip(names.tolist(), counts.tolist(), strict=True))
        raise DataError(f"partition.kind = 'site': found {found}; wanted two or more with {FEWEST} images or more")
    dealt = [rows[of_row == name] for name in names]
    return _partition(manifest, settings, server, names.tolist(), dealt, generator)


def _server(manifest: Manifest, settings: Partitioning, generator: np.random.Generator) -> tuple[ServerPart, Indices]:
    """Return the server's share, and the rows left for clients: one for each stored image, its first set's."""
    _, first = np.unique(manifest.pixels, return_index=True)
    rows = np.sort(first)
    labelled = rows[~np.isin(manifest.group[rows], manifest.group[rows][manifest.label[rows] == UNLABELLED])]
    share = round(settings.server * len(rows))
    if not share:
        return ServerPart(), rows
    own, _ = split_by_group(labelled, manifest.label, manifest.group, [share, max(0, len(labelled) - share)], generator)
    return ServerPart(validation=own), rows[~np.isin(rows, own)]


def _partition(
    manifest: Manifest,
    settings: Partitioning,
    server: ServerPart,
    sources: Sequence[str],
    dealt: Sequence[Indices],
    generator: np.random.Generator,
) -> Partition:
    clients = [
        ClientPart(source, *_parts(rows, manifest, settings.shares, generator))
        for source, rows in zip(sources, dealt, strict=True)
    ]
    made = {"kind": settings.kind, "clients": len(clients), "shares": list(settings.shares), "server": settings.server}
    if settings.kind == "dirichlet":
        made["alpha"] = settings.alpha
    return Partition(tuple(clients), server, made)


def _parts(rows: Indices, manifest: Manifest, shares: Sequence[float], generator: np.random.Generator) -> list[Indices]:
    """Split one client's rows; a group with an image that has no label can only be unlabelled."""
    without = np.isin(manifest.group[rows], manifest.group[rows][manifest.label[rows] == UNLABELLED])
    known, unknown = rows[~without], rows[without]
    # Images without labels fill the unlabelled part first; those with labels keep the proportions of the others.
    wanted = np.array(shares) * len(rows) / sum(shares)
    wanted[1] = max(0.0, wanted[1] - len(unknown))
    if not len(known):
        return [no_rows(), np.sort(unknown), no_rows(), no_rows()]
    sizes = np.round(wanted * len(known) / wanted.sum()).astype(np.int64).tolist()
    parts = split_by_group(known, manifest.label, manifest.group, sizes, generator)
    parts[1] = np.sort(np.concatenate([parts[1], unknown]))
    return parts
