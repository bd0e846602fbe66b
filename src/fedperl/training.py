"""One run from its configuration to its results: what `fedperl train` and `fedperl.train` do."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedperl.data.identity import from_text, hashed, identities
from fedperl.data.manifest import UNLABELLED
from fedperl.data.partition import SERVER_PARTS, ClientPart
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.engines.local import LocalExchange, PastStates
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.federating import Ground, federate, load_weights, steps_of
from fedperl.federation.client import Client, Workspace, client_of_store
from fedperl.federation.members import counted, member_of
from fedperl.federation.own_images import OwnImages
from fedperl.federation.rounds import Watcher
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.stopwatch import Stopwatch
from fedperl.files import write_durably
from fedperl.learn.objectives import find_objective
from fedperl.learn.steps import AtWork
from fedperl.learn.weights import read_metadata, resolve_weights
from fedperl.opening import check_resumable, finish_of, on, open_store, settled
from fedperl.plugins import digest_of
from fedperl.report.model_card import holdings, write_model_card
from fedperl.results import Results, curves_of_clients_alone, of_clients_alone
from fedperl.settings import OBJECTIVES, Config, loss_note

Say = Callable[[str], None]


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    store: Store | None = None,
    watchers: Iterable[Watcher] = (),
    say: Say = lambda _: None,
) -> Results:
    """Train one run into a folder and return what its `results.json` holds.

    Args:
        out: the run folder, by default runs/NAME; one that holds a run already is used only with `resume`.
        resume: go on exactly where the run stopped; a finished run just returns its results.
        store: the images, where they are at hand already; by default those that the configuration names.
        watchers: called after every round.
        say: called before the first round with what should be known of the run.
    Raises:
        FedPerlError: a setting, the data or the folder cannot be used; the message says which and why.
    """
    folder = RunFolder(Path("runs") / config.name if out is None else Path(out))
    if config.engine == "flower-simulation":
        from fedperl.engines.flower.simulation import simulate

        if store is not None:
            raise ConfigError("engine = 'flower-simulation' with images in memory; wanted data.source")
        if what := loss_note(config):
            say(what)
        return simulate(config, folder.path, resume=resume, watchers=watchers)
    config = settled(config)
    if (folder.path / "config.toml").exists():
        config = check_resumable(folder, config, resume)
    folder.open()
    try:
        finished = folder.read_results()
        if finished is not None:
            check_finished(folder, config)
            return finished
        threads = torch.get_num_threads()
        torch.set_num_threads(int(config.threads))
        try:
            work = _train_alone if config.federation.alone else _train
            with on(config.device):
                return work(config, folder, store or open_store(config), watchers, say)
        finally:
            torch.set_num_threads(threads)
    finally:
        folder.close()


def _train(config: Config, folder: RunFolder, store: Store, watchers: Iterable[Watcher], say: Say) -> Results:
    watch, started = Stopwatch(), time.perf_counter()
    folder.models.device = config.device
    for files in (folder.bank, folder.client_states, folder.past_states):
        files.device = config.device
        if config.device != "cpu":
            from fedperl.engines.cuda.exchange import memory_for_states

            files.recent = memory_for_states(config)
    if config.checkpoint_every > 1:
        folder.write_later()
    partition, dealt_as = store.partition.hash(store.manifest), store.partition.to_csv(store.manifest)
    store = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed))
    _check(config, store)
    config = _counted(config, store, say)
    work = Workspace(config, len(store.classes), finish_of(config))
    origin = store.digest() + _load_weights(config, work, store)
    if config.objective.kind not in OBJECTIVES:
        origin += digest_of(config.objective.kind)
    resident, numbers = _resident(config, store), _members(config, store)
    clients = {
        number: client_of_store(number, store, config, work, resident=resident, counts=folder.private_steps)
        for number in numbers
    }
    own = OwnImages(config, store, work, resident=resident, at_work=_at_work(config, len(store.classes)))
    ground = Ground(
        {number: member_of(store.partition.clients[number], config) for number in numbers},
        len(store.partition.clients),
        tuple(store.classes),
        store.size,
        origin,
        dealt_as,
        partition,
        holdings(store, config),
    )
    exchange = _exchange(config, len(store.classes), clients, folder, watch)
    del store  # the clients have their own copies
    return federate(config, folder, ground, own, work, exchange, watch, watchers, started)


def _counted(config: Config, store: Store, say: Say) -> Config:
    """Return the configuration with cohort and quorum in numbers."""
    parts = [store.partition.clients[number] for number in _members(config, store)]
    config = counted(config, [member_of(part, config) for part in parts])
    if what := loss_note(config):
        say(what)
    return config


def _resident(config: Config, store: Store) -> bool:
    """Return whether the images are to lie on the device."""
    if config.device == "cpu":
        return True
    from fedperl.engines.cuda.exchange import resident

    return resident(config, sum(len(rows) for _, rows in store.partition.places()) * store.images[0].nbytes)


def _at_work(config: Config, classes: int) -> AtWork | None:
    """Return where the server trains on images of its own, on a GPU by the same recorded steps as clients."""
    if config.device == "cpu":
        return None
    from fedperl.engines.cuda.exchange import alone

    return alone(config, classes)


def _exchange(
    config: Config, classes: int, clients: dict[int, Client], folder: RunFolder, watch: Stopwatch
) -> LocalExchange:
    """Return the engine of the device."""
    states, past = folder.client_states, PastStates(folder.past_states)
    if config.device == "cpu":
        return LocalExchange(clients, states, past, watch)
    from fedperl.engines.cuda.exchange import CudaExchange, places

    return CudaExchange(clients, states, past, watch, *places(config, classes))


def _train_alone(config: Config, folder: RunFolder, store: Store, watchers: Iterable[Watcher], say: Say) -> Results:
    """Train each client by itself, a federation of one in a folder of its own, and put their results together.

    A client takes as many steps as it would on average in the federation: rounds x cohort / clients rounds.
    """
    _check(config, store)
    config = _counted(config, store, say)
    members, federation, watchers = _members(config, store), config.federation, list(watchers)
    steps = steps_of(config, [store.partition.clients[number].unlabelled_at_once() for number in members])
    rounds = math.ceil(federation.rounds * min(config.cohort, len(members)) / len(members))
    alone = {}
    for number in members:
        others = tuple(one for one in range(len(store.partition.clients)) if one != number)
        own = federation.changed(rounds=rounds, cohort=1, quorum=1, exclude=others, steps=steps)
        alone[number] = config.changed(federation=own, privacy="research")
    folder.write_start(config, store.partition.to_csv(store.manifest))
    found: dict[int, Results] = {}
    for place, (number, one) in enumerate(alone.items()):
        shifted = [_shifted(watcher, place * rounds, len(members) * rounds) for watcher in watchers]
        place_of = RunFolder(folder.path / "clients" / str(number))
        if (place_of.path / "config.toml").exists():
            check_resumable(place_of, one, resume=True)
        place_of.open()
        try:
            found[number] = place_of.read_results() or _train(one, place_of, store, shifted, say)
        finally:
            place_of.close()
        best = place_of.path / "models" / f"client_{number}_best.safetensors"
        kept = best if best.exists() else place_of.path / "models" / "last.safetensors"  # none where the server tests
        write_durably(
            folder.path / "models" / f"client_{number}_{kept.stem.split('_')[-1]}.safetensors",
            kept.read_bytes(),
            mode=0o644,
        )
    results = of_clients_alone(config, found)
    every = {number: RunFolder(folder.path / "clients" / str(number)).read_curves() for number in members}
    folder.write_curves(curves_of_clients_alone(every, list(results["test"])))
    write_model_card(folder, config, results, holdings(store, config))
    folder.write_results(results)
    return results


def _shifted(watcher: Watcher, done: int, rounds: int) -> Watcher:
    return lambda progress: watcher(replace(progress, round=done + progress.round, rounds=rounds))


def check_finished(folder: RunFolder, config: Config) -> None:
    """Refuse a finished run whose objective came from a file that is another now: its numbers are not this one's."""
    if config.objective.kind in OBJECTIVES:
        return
    if (folder.read_results() or {}).get("objective_file") != digest_of(config.objective.kind):
        raise RunError(
            f"{folder.path}: was trained with another content of {config.objective.kind.rpartition(':')[0]}; "
            "wanted the same file, or another folder"
        )


def _members(config: Config, store: Store) -> list[int]:
    """Return the clients that take part."""
    every = range(len(store.partition.clients))
    strangers = [number for number in config.federation.exclude if number not in every]
    if strangers:
        raise ConfigError(f"federation.exclude names client {strangers[0]}; there are clients 0 to {len(every) - 1}")
    return [number for number in every if number not in config.federation.exclude]


def _check(config: Config, store: Store) -> None:
    """Refuse, before anything is written, an objective's file or images that some later step could not use."""
    find_objective(config.objective.kind)
    parts = [(number, store.partition.clients[number]) for number in _members(config, store)]
    server = store.partition.server
    every = config.objective.labels == "all"
    truth = ("labelled", "validation", "test", *(["unlabelled"] if every else []))
    places = [(f"client {number}, {part}", getattr(client, part)) for number, client in parts for part in truth]
    places += [(f"the server, {part}", getattr(server, part)) for part in SERVER_PARTS]
    for name, rows in places:
        missing = rows[store.manifest.label[rows] == UNLABELLED]
        if len(missing):
            raise DataError(f"{name}: image {str(store.manifest.image[missing[0]])!r} has no label; wanted one")
    if config.dp.unit != "none":
        _check_dealt_once(store, parts)
    strangers = {k for group in config.federation.organisations for k in group if k >= len(store.partition.clients)}
    if strangers:
        raise ConfigError(
            f"federation.organisations names client {min(strangers)}; there are {len(store.partition.clients)} clients"
        )
    few = config.scenario.labels == "few_clients"
    if few and (out := [n for n in config.scenario.labelled_clients if n in config.federation.exclude]):
        raise ConfigError(f"scenario.labelled_clients names client {out[0]}, which federation.exclude leaves out")
    if not len(server.labelled) and not any(len(client.labelled) for _, client in parts):
        raise DataError("nobody has a label to train on, neither a client nor the server")
    hint = " (a larger data.scale gives more)" if config.data.source == "dermsim" else ""
    for part in ("validation", "test"):
        without = [number for number, client in parts if not len(getattr(client, part))]
        if without and (len(without) < len(parts) or not len(getattr(server, part))):
            raise DataError(
                f"client {without[0]} has no {part} images for method {config.method!r}; wanted at least one at every "
                f"client, or at none and at the server{hint}"
            )
    for number, client in parts:
        useful = len(client.labelled)
        if config.objective.kind != "supervised" or every:
            useful += len(client.unlabelled)
        if not useful and not few:  # with few labelled clients, the others sit out a supervised method
            raise DataError(
                f"client {number} has no training images for method {config.method!r}; wanted at least one{hint}"
            )


def _check_dealt_once(store: Store, parts: Iterable[tuple[int, ClientPart]]) -> None:
    """Refuse an image that two clients train on: what both spend on it adds up, and neither's epsilon is its.

    Raises:
        DataError: naming it.
    """
    holder: dict[str, int] = {}
    for number, client in parts:
        rows = np.concatenate([client.labelled, client.unlabelled])
        for name, *_ in identities(store.manifest, rows):
            if holder.setdefault(name, number) != number:
                raise DataError(
                    f"image {name!r} is at clients {holder[name]} and {number}: with differential privacy what both "
                    "spend on it would add up; wanted it at one"
                )


def _load_weights(config: Config, work: Workspace, store: Store) -> str:
    """Put the starting weights into the network and return their hash; nothing where they are drawn.

    Raises:
        DataError: the file cannot be used, or was trained on images, lesions or patients of this run.
    """
    path = resolve_weights(config.model.weights)
    if path is not None and config.model.weights != "imagenet" and not path.exists():
        raise DataError(
            f"model.weights: {path} is not there; wanted a file of `fedperl pretrain`, 'imagenet' or 'none'"
        )
    found = load_weights(config, work)
    if path is None:
        return ""
    if config.dp.unit != "none" and config.model.weights != "imagenet" and "seen" not in read_metadata(path):
        raise DataError(
            f"{path}: does not say which images it was trained on; with dp.unit = {config.dp.unit!r} they might be "
            "this run's, and epsilon would not be theirs; wanted none, imagenet, or a file of `fedperl pretrain`"
        )
    held = np.concatenate([rows for _, rows in store.partition.places()])
    ours = hashed({text for row in identities(store.manifest, held) for text in row})
    try:
        seen = np.isin(ours, from_text(read_metadata(path).get("seen", "")))
    except ValueError as error:
        raise DataError(f"{path}: metadata: seen: {error}") from None
    if seen.any():
        raise DataError(
            f"{path}: was trained on images, lesions or patients that this run's clients hold, with their labels: the "
            "run would be tested on what it has seen; wanted weights from other images"
        )
    return found
