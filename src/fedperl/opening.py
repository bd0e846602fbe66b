"""What a run needs before it can begin: its images, its machine, a folder that may be used."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedperl.config import ASIDE, config_hash, flat
from fedperl.data.partition import Partition
from fedperl.data.partitions import deal
from fedperl.data.store import Store
from fedperl.earlier import check_trainable
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.federation.run_folder import RunFolder
from fedperl.machine import cores
from fedperl.settings import Config, Partitioning

COUNTED = ("cohort", "quorum")
"""Settings of a federation that follow from the number of its clients where they are not written."""


def open_store(config: Config) -> Store:
    """Return the images that a configuration names, drawn for it or from a store's folder, dealt as it says."""
    data = config.data
    if data.source == "dermsim":
        from fedperl.data.dermsim.hospitals import ten_hospitals

        store = ten_hospitals(size=data.size, scale=data.scale, seed=data.seed)
    else:
        store = Store.open(Path(data.source))
        if store.size != data.size:
            raise DataError(f"{data.source}: holds images of {store.size} px; data.size = {data.size}")
    return dealt(store, config)


def dealt(store: Store, config: Config) -> Store:
    """Return a store dealt to clients as a configuration says."""
    data, dealing = config.data, config.partition
    if dealing.file:
        return store.dealt(Partition.read(Path(dealing.file), store.manifest))
    if store.partition.clients and (dealing.kind == "auto" or (dealing.kind, data.source) == ("paper", "dermsim")):
        ignored = [key for key in dealing.model_fields_set if key != "kind" and getattr(dealing, key) != _plain(key)]
        if ignored:
            raise ConfigError(
                f"partition.{ignored[0]} = {getattr(dealing, ignored[0])!r} has no effect on images that come already "
                "dealt; wanted a partition.kind that deals them anew"
            )
        return store
    at_server = config.scenario.labels == "server"
    return store.dealt(deal(store.manifest, dealing, seed=data.seed, labels_at_server=at_server))


def _plain(key: str) -> Any:
    return Partitioning.model_fields[key].default


def on(device: str) -> AbstractContextManager[None]:
    """Return what surrounds work on a device."""
    if device == "cpu":
        return nullcontext()
    from fedperl.engines.cuda.exchange import on_device

    return on_device(device)


def finish_of(config: Config) -> Callable[[nn.Module], nn.Module]:
    """Return what the engine does to a network."""
    if config.device == "cpu":
        return lambda net: net
    from fedperl.engines.cuda.kernels import finish

    return finish(config)


def settled(config: Config) -> Config:
    """Return the configuration with what depends on the machine filled in."""
    check_device(config.device)
    if config.threads == "auto":
        config = config.changed(threads=cores())
    return config


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Raises:
        ConfigError: the name is no device, or the machine has fewer.
    """
    if device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", device):
        raise ConfigError(f"device = {device!r}; wanted 'cpu', 'cuda' or 'cuda:N'")
    if device != "cpu" and int(device.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device = {device!r}: this machine has {torch.cuda.device_count()} usable CUDA devices")


def check_resumable(folder: RunFolder, config: Config, resume: bool) -> Config:
    """Return the configuration with the numbers that the folder's run has where it leaves them open.

    Raises:
        RunError: the run is not to be gone on with, or was started with other settings.
    """
    if not resume:
        raise RunError(f"{folder.path}: holds a run already; go on with --resume or choose another folder")
    before = folder.read_config()
    if config.written_by != before.written_by or folder.read_results() is None:
        check_trainable(folder.path, before.written_by, folder.read_gone())
    begun = {name: getattr(before.federation, name) for name in COUNTED if getattr(config.federation, name) == "auto"}
    if begun:
        config = config.changed(federation=config.federation.changed(**begun))
    if config_hash(before) != config_hash(config):
        old, new = flat(before.model_dump()), flat(config.model_dump())
        other = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        differing = sorted(key for key in other if key not in ASIDE)
        raise RunError(
            f"{folder.path}: its run was started with other settings: "
            + ", ".join(f"{key} = {old.get(key)!r}, now {new.get(key)!r}" for key in differing[:5])
            + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        )
    return config
