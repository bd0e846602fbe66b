"""FedMatch's three tasks (Jeong et al., ICLR 2021): batch IID, batch non-IID, streaming non-IID.

All images are pooled and shuffled (or, with `official_test`, the published test images stay the test set); a share of
`held_out` validates, as many test, at the server. Every client has the same few labels of each class; the non-IID tasks
skew the unlabelled images alone; the streaming task cuts them into ten pieces that arrive one after the other.
"""

import numpy as np
import numpy.typing as npt

from fedperl.data.manifest import Indices, Manifest
from fedperl.data.partition import ClientPart, Partition, ServerPart, no_rows
from fedperl.errors import DataError
from fedperl.settings import Partitioning

CLIENTS = {"fedmatch_iid": 100, "fedmatch_noniid": 100, "fedmatch_streaming": 10}
SERVER_LABELS = 100  # of each class, where the server has them
STEPS = 10
CLASSES = 10


def class_chances(kind: int) -> npt.NDArray[np.float64]:
    """Return how likely each class is among the unlabelled images of a client of a kind 0 ... 9."""
    chances = np.full(CLASSES, 0.03)
    chances[[(kind - 1) % CLASSES, (kind + 1) % CLASSES]] = 0.15
    chances[(kind + 5) % CLASSES] = 0.02
    chances[kind] = 0.5
    return chances


def fedmatch_partition(
    manifest: Manifest, settings: Partitioning, generator: np.random.Generator, *, labels_at_server: bool
) -> Partition:
    """Return one of the three tasks.

    Raises:
        DataError: the store has other than ten classes, an image without label, or too few images.
    """
    if len(manifest.classes) != CLASSES or (manifest.label < 0).any():
        raise DataError(
            f"partition.kind = {settings.kind!r} is for ten classes and labelled images; "
            f"the store has {len(manifest.classes)} and {int((manifest.label < 0).sum())} without label"
        )
    count = settings.clients or CLIENTS[settings.kind]
    held, test, pool = _held_out(manifest, settings, generator)
    by_class = [pool[manifest.label[pool] == label] for label in range(CLASSES)]
    each = SERVER_LABELS if labels_at_server else settings.labels_per_class * count
    short = [manifest.classes[label] for label, rows in enumerate(by_class) if len(rows) <= each]
    if short:
        raise DataError(f"partition.kind = {settings.kind!r} labels {each} images a class; {short[0]!r} has no more")
    given = np.stack([rows[:each] for rows in by_class])  # (classes, each)
    left = [rows[each:] for rows in by_class]
    total = sum(map(len, left)) // count
    skewed = settings.kind != "fedmatch_iid"
    unlabelled = _skewed(left, count, total, generator) if skewed else _alike(left, count, total, generator)
    streams = settings.kind == "fedmatch_streaming"
    clients = []
    for number, rows in enumerate(unlabelled):
        # Class after class, for the number of labels of one client.
        mine = slice(number * settings.labels_per_class, (number + 1) * settings.labels_per_class)
        labelled = no_rows() if labels_at_server else given[:, mine].reshape(-1)
        step = np.arange(len(rows)) * STEPS // max(1, len(rows)) if streams else no_rows()
        source = f"type {number % CLASSES}" if skewed else "iid"
        clients.append(ClientPart(source, labelled, rows, no_rows(), no_rows(), step))
    server = ServerPart(given.reshape(-1) if labels_at_server else no_rows(), held, test)
    made = {"kind": settings.kind, "clients": count, "labels_at_server": labels_at_server}
    made |= {"labels_per_class": settings.labels_per_class, "official_test": settings.official_test}
    return Partition(tuple(clients), server, made)


def _held_out(
    manifest: Manifest, settings: Partitioning, generator: np.random.Generator
) -> tuple[Indices, Indices, Indices]:
    """Return the rows that validate, those that test and those that train, shuffled."""
    n = int(len(manifest) * settings.held_out)
    if not n:
        raise DataError(
            f"partition.held_out = {settings.held_out:g} of {len(manifest)} images is none; wanted at least one to "
            "validate on, and one to test on"
        )
    order = generator.permutation(len(manifest))
    if not settings.official_test:
        return order[:n], order[n : 2 * n], order[2 * n :]
    published = manifest.about.get("split", np.full(len(manifest), ""))
    test = np.flatnonzero(published == "test")
    if not len(test):
        raise DataError("partition.official_test = true: no image of the store is published as a test image")
    train = order[published[order] != "test"]
    return train[:n], test, train[n:]


def _alike(left: list[Indices], count: int, total: int, generator: np.random.Generator) -> list[Indices]:
    every = generator.permutation(np.concatenate(left))
    return [every[k * total : (k + 1) * total] for k in range(count)]


def _skewed(left: list[Indices], count: int, total: int, generator: np.random.Generator) -> list[Indices]:
    """Return `total` rows a client, classes drawn by its type.

    Where all clients together drew more of a class than there is, single images of it are changed for ones of a class
    that is left over, at clients chosen by chance: dealing in turn would leave the last clients with the leavings.
    """
    counts = np.stack([generator.multinomial(total, class_chances(number % CLASSES)) for number in range(count)])
    sizes = np.array([len(rows) for rows in left])
    while ((over := counts.sum(axis=0) - sizes) > 0).any():
        much, little = int(over.argmax()), int(over.argmin())
        number = generator.choice(count, p=counts[:, much] / counts[:, much].sum())
        counts[number, much] -= 1
        counts[number, little] += 1
    starts = np.cumsum(counts, axis=0) - counts
    return [
        generator.permutation(
            np.concatenate([left[c][starts[k, c] : starts[k, c] + counts[k, c]] for c in range(CLASSES)])
        )
        for k in range(count)
    ]
