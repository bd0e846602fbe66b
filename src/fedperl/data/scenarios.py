"""Who has labels (paper, section 3.1): a partition and a scenario in, the partition as that scenario sees it out."""

from dataclasses import replace

import numpy as np

from fedperl.data.manifest import UNLABELLED, Manifest
from fedperl.data.partition import ClientPart, Partition, ServerPart, no_rows, split_by_group
from fedperl.errors import ConfigError, DataError
from fedperl.seeds import seed_for
from fedperl.settings import Scenario


def seen_by(scenario: Scenario, partition: Partition, manifest: Manifest, *, seed: int) -> Partition:
    """Return the partition with labels where the scenario has them; validation and test stay as they are.

    At the server only: clients train on all their images without labels, and the server trains on its own, a share of
    which validates. At few clients: those have labels for all their training images, the others for none.

    Raises:
        ConfigError: a labelled client does not exist.
        DataError: the server has no images to train on.
    """
    if scenario.labels == "clients":
        return partition
    if scenario.labels == "server":
        clients = tuple(client_seen_by(scenario, n, client, manifest) for n, client in enumerate(partition.clients))
        return replace(partition, clients=clients, server=_trains(partition.server, scenario, manifest, seed))
    strangers = [number for number in scenario.labelled_clients if not 0 <= number < len(partition.clients)]
    if strangers or not scenario.labelled_clients:
        raise ConfigError(
            f"scenario.labelled_clients = {list(scenario.labelled_clients)}; "
            f"there are clients 0 to {len(partition.clients) - 1}"
        )
    clients = tuple(client_seen_by(scenario, n, client, manifest) for n, client in enumerate(partition.clients))
    return replace(partition, clients=clients)


def client_seen_by(scenario: Scenario, number: int, client: ClientPart, manifest: Manifest) -> ClientPart:
    """Return one client's part with labels where the scenario has them."""
    if scenario.labels == "clients":
        return client
    if scenario.labels == "few_clients" and number in scenario.labelled_clients:
        return _with_all_labels(client, manifest)
    return _without_labels(client)


def _without_labels(client: ClientPart) -> ClientPart:
    if not len(client.labelled):
        return client
    if len(client.step):
        raise DataError("a partition that streams has labels at clients; wanted one made for labels at the server")
    every = np.sort(np.concatenate([client.labelled, client.unlabelled]))
    return replace(client, labelled=no_rows(), unlabelled=every)


def _with_all_labels(client: ClientPart, manifest: Manifest) -> ClientPart:
    every = np.sort(np.concatenate([client.labelled, client.unlabelled]))
    known = manifest.label[every] != UNLABELLED
    return replace(client, labelled=every[known], unlabelled=every[~known], step=no_rows())


def _trains(server: ServerPart, scenario: Scenario, manifest: Manifest, seed: int) -> ServerPart:
    if len(server.labelled):
        return server
    rows = server.validation
    held = round(scenario.server_validation * len(rows))
    if len(rows) - held < 1 or held < 1:
        raise DataError(
            f"scenario.labels = 'server': the server has {len(rows)} images, {held} of them to validate; "
            "wanted at least one to train on and one to validate"
        )
    generator = np.random.default_rng(seed_for(seed, "server's images"))
    labelled, validation = split_by_group(rows, manifest.label, manifest.group, [len(rows) - held, held], generator)
    if not len(labelled) or not len(validation):
        raise DataError(f"scenario.labels = 'server': the server's {len(rows)} images are of one group")
    return replace(server, labelled=labelled, validation=validation)
