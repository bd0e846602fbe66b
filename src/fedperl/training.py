"""One run from its configuration to its results: what `fedperl train` and `fedperl.train` do."""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fedperl.config import config_hash
from fedperl.data.batches import auto_steps
from fedperl.data.manifest import UNLABELLED
from fedperl.data.store import Store
from fedperl.engines.local import LocalExchange
from fedperl.errors import ConfigError, DataError, RunError
from fedperl.evaluate import spread
from fedperl.federation.client import Client, Workspace, client_of_store
from fedperl.federation.ledger import peer_frequency
from fedperl.federation.messages import EvaluateTask, GlobalModel
from fedperl.federation.rounds import Rounds, Watcher
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Score, Server
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.predict import predict
from fedperl.learn.state import State, load_into, state_of
from fedperl.settings import Config

Results = dict[str, Any]


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    store: Store | None = None,
    watchers: Iterable[Watcher] = (),
) -> Results:
    """Train one run into a folder and return what its `results.json` holds.

    Args:
        out: the run folder, by default runs/NAME; one that holds a run already is used only with `resume`.
        resume: go on exactly where the run stopped; a finished run just returns its results.
        store: the images, where they are at hand already; by default those that the configuration names.
        watchers: called after every round.
    Raises:
        FedPerlError: a setting, the data or the folder cannot be used; the message says which and why.
    """
    folder = RunFolder(Path("runs") / config.name if out is None else Path(out))
    config = _settle(config)
    if (folder.path / "config.toml").exists():
        _check_resumable(folder, config, resume)
    folder.open()
    try:
        finished = folder.read_results()
        if finished is not None:
            return finished
        threads = torch.get_num_threads()
        torch.set_num_threads(int(config.threads))
        try:
            return _train(config, folder, store or open_store(config), watchers)
        finally:
            torch.set_num_threads(threads)
    finally:
        folder.close()


def open_store(config: Config) -> Store:
    """Return the images that a configuration names: drawn for it, or those of a store's folder."""
    data = config.data
    if data.source == "dermsim":
        from fedperl.data.dermsim.hospitals import ten_hospitals

        return ten_hospitals(size=data.size, scale=data.scale, seed=data.seed)
    store = Store.open(Path(data.source))
    if store.images.shape[-1] != data.size:
        raise DataError(f"{data.source}: holds images of {store.images.shape[-1]} px; data.size = {data.size}")
    return store


def _train(config: Config, folder: RunFolder, store: Store, watchers: Iterable[Watcher]) -> Results:
    watch, started = Stopwatch(), time.perf_counter()
    _check_trainable(config, store)
    work = Workspace(config, len(store.classes))
    clients = [client_of_store(number, store, config, work) for number in range(len(store.partition.clients))]
    server = Server(
        config,
        [len(c.training.labelled) + len(c.training.unlabelled) for c in clients],
        _steps(config, store),
        state_of(work.net),
        folder.bank,
        folder.ledger,
        _server_score(config, store, work) if config.profile.server_score else None,
    )
    rounds = Rounds(server, LocalExchange(clients, folder.client_states, watch), folder, watch, store.digest())
    folder.write_config(config)
    rounds.restore()
    rounds.run(watchers)
    results = _results(rounds, clients, store)
    results["seconds_this_start"] = round(time.perf_counter() - started, 1)
    folder.write_results(results)
    return results


def _settle(config: Config) -> Config:
    """Return the configuration with what depends on the machine filled in."""
    if config.device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", config.device):
        raise ConfigError(f"device = {config.device!r}; wanted 'cpu', 'cuda' or 'cuda:N'")
    number = int(config.device.partition(":")[2] or 0)
    if config.device != "cpu" and number >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {config.device!r}: this machine has {torch.cuda.device_count()} usable CUDA devices"
        )
    if config.threads == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        config = config.model_copy(update={"threads": cores})
    return config


def _check_resumable(folder: RunFolder, config: Config, resume: bool) -> None:
    if not resume:
        raise RunError(f"{folder.path}: holds a run already; go on with --resume or choose another folder")
    before = folder.read_config()
    if config_hash(before) != config_hash(config):
        old, new = before.model_dump(), config.model_dump()
        differing = [key for key in old if old[key] != new[key] and key not in ("name", "written_by")]
        raise RunError(f"{folder.path}: its run was started with other settings in {', '.join(differing)}")


def _check_trainable(config: Config, store: Store) -> None:
    """Refuse, before the first round, images that some later step could not use."""
    truth = ["labelled", "validation", "test"] + (["unlabelled"] if config.objective.labels == "all" else [])
    places = [
        (f"client {number}, {part}", getattr(client, part))
        for number, client in enumerate(store.partition.clients)
        for part in truth
    ]
    if config.profile.server_score:
        places.append(("the server", store.partition.server))
    for name, rows in places:
        missing = rows[store.manifest.label[rows] == UNLABELLED]
        if len(missing):
            raise DataError(f"{name}: image {str(store.manifest.image[missing[0]])!r} has no label; wanted one")
    for number, client in enumerate(store.partition.clients):
        useful = len(client.labelled)
        if config.objective.kind != "supervised" or config.objective.labels == "all":
            useful += len(client.unlabelled)
        for part, count in (("training", useful), ("validation", len(client.validation)), ("test", len(client.test))):
            if not count:
                raise DataError(
                    f"client {number} has no {part} images for method {config.method!r}; wanted at least one"
                    + (" (a larger data.scale gives more)" if config.data.source == "dermsim" else "")
                )


def _steps(config: Config, store: Store) -> int:
    if config.federation.steps != "auto_min":
        return config.federation.steps
    return auto_steps((len(client.unlabelled) for client in store.partition.clients), config.federation.batch)


def _server_score(config: Config, store: Store, work: Workspace) -> Score:
    """Return a function that gives a model's accuracy and loss on the server's own images."""
    rows = store.partition.server
    if not len(rows):
        raise ConfigError("profile.server_score = true: the partition gives the server no images")
    images = torch.from_numpy(store.images[rows]).to(config.device)
    labels = torch.from_numpy(store.manifest.label[rows]).to(config.device)

    def score(state: State) -> tuple[float, float]:
        load_into(work.net, state)
        probabilities = predict(work.net, images)
        accuracy = (probabilities.argmax(1) == labels).float().mean()
        return float(accuracy), float(F.nll_loss(probabilities.clamp_min(1e-12).log(), labels))

    return score


def _results(rounds: Rounds, clients: list[Client], store: Store) -> Results:
    """Test the reported models on every client and put all final numbers together."""
    server, folder = rounds.server, rounds.folder
    best, last = rounds.selection.best, server.model.round
    per_client = {client.number: best.get(str(client.number), (0.0, last))[1] for client in clients}
    wanted = {
        "last": dict.fromkeys(per_client, last),
        "global_best": dict.fromkeys(per_client, best.get("global", (0.0, last))[1]),
        "per_client_best": per_client,
    }
    tested: dict[tuple[int, int], dict[str, float]] = {}
    for round in sorted({made for choice in wanted.values() for made in choice.values()}):
        model = GlobalModel(round, folder.models.get(round))
        for name, choice in wanted.items():
            if name != "per_client_best" and set(choice.values()) == {round}:
                folder.write_model(name, model.state)
        for client in clients:
            if any(choice[client.number] == round for choice in wanted.values()):
                task = EvaluateTask(server.run, round, client.number, model, "test")
                tested[(round, client.number)] = client.evaluate(task).numbers
            if per_client[client.number] == round:
                folder.write_model(f"client_{client.number}_best", model.state)
    frequency = peer_frequency(folder.ledger.entries())
    return {
        "config": config_hash(server.config),
        "partition": store.partition.hash,
        "method": server.config.method,
        "seed": server.config.seed,
        "rounds": server.config.federation.rounds,
        "test": {
            name: {str(c): {"round": r} | tested[(r, c)] for c, r in choice.items()} for name, choice in wanted.items()
        },
        "over_clients": {name: _over_clients([tested[(r, c)] for c, r in m.items()]) for name, m in wanted.items()},
        "peer_frequency": {str(m): {str(k): n for k, n in row.items()} for m, row in sorted(frequency.items())},
        "totals": dict(sorted(rounds.totals.items())),
        "seconds": _seconds(folder),
    }


def _over_clients(numbers: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {key: asdict(spread([n[key] for n in numbers])) for key in numbers[0] if key != "images"}


def _seconds(folder: RunFolder) -> dict[str, float]:
    totals: dict[str, float] = {}
    for line in folder.read_metrics():
        for name, value in line["seconds"].items():
            totals[name] = totals.get(name, 0.0) + value
    return {name: round(value, 3) for name, value in totals.items()}
