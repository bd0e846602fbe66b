"""The ways to deal a store's images to clients: a manifest and settings in, a partition out."""

import numpy as np

from fedperl.data.manifest import Manifest
from fedperl.data.partition import Partition
from fedperl.data.partitions.fedmatch import fedmatch_partition
from fedperl.data.partitions.paper import paper_partition
from fedperl.data.partitions.simple import dirichlet_partition, iid_partition, site_partition
from fedperl.seeds import seed_for
from fedperl.settings import Partitioning

__all__ = ["deal"]


def deal(manifest: Manifest, settings: Partitioning, *, seed: int, labels_at_server: bool = False) -> Partition:
    """Return the partition that the settings describe: the same for the same manifest, settings and seed.

    Args:
        labels_at_server: FedMatch's tasks then give all labels to the server.
    Raises:
        DataError: the manifest has too few images, or not those the kind is about.
    """
    kind = "paper" if settings.kind == "auto" else settings.kind
    generator = np.random.default_rng(seed_for(seed, "partition", kind))
    if kind == "paper":
        return paper_partition(manifest, settings, generator)
    if settings.kind == "iid":
        return iid_partition(manifest, settings, generator)
    if settings.kind == "dirichlet":
        return dirichlet_partition(manifest, settings, generator)
    if settings.kind == "site":
        return site_partition(manifest, settings, generator)
    return fedmatch_partition(manifest, settings, generator, labels_at_server=labels_at_server)
