"""What Flower starts on the server: our own rounds over its grid."""

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedperl import __version__
from fedperl.config import hospital_note
from fedperl.data.manifest import Manifest
from fedperl.data.partition import PARTS, ClientPart, Partition, no_rows
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.engines.flower.about import read_about
from fedperl.engines.flower.exchange import FlowerExchange, Waiting
from fedperl.engines.flower.forgetting import MEMBERS
from fedperl.engines.flower.numbering import Numbers, numbers_of, registered_number
from fedperl.engines.flower.rules import config_of
from fedperl.engines.flower.server_folder import VARIABLE, ServerFolder, Serving, is_alive
from fedperl.errors import BusyError, DataError, FedPerlError, RunError
from fedperl.federating import Ground, federate, load_weights, scoring_setting
from fedperl.federation.client import Workspace
from fedperl.federation.ledger import Ledger
from fedperl.federation.members import Member, counted
from fedperl.federation.own_images import OwnImages
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.stopwatch import Stopwatch
from fedperl.files import digest, write_durably
from fedperl.opening import check_resumable, open_store
from fedperl.settings import Config, loss_note

app = ServerApp()
log = logging.getLogger(__name__)

RECENT = 64 * 2**20
"""Bytes of models that stay in memory: a round across sites takes seconds, so that the rest may be read from disk."""
LOOK = 2.0
"""Seconds between two looks whether the SuperLink is still there."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left of a run."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request, and Flower sends logs by request
    given = context.run_config
    waiting = Waiting(float(given["deadline"]), float(given["patience"]))
    config = config_of(str(given["config"]))
    folder = None if given["simulated"] else ServerFolder(Path(os.environ[VARIABLE]))
    out = Path(str(given["out"])) if folder is None else folder.runs / config.name
    serving = Serving(out / "serving.json")
    try:
        if folder is None:
            sites: Sites = SimulatedSites(grid)
        else:
            sites = RegisteredSites(grid, folder, numbers_of(out))
            threading.Thread(
                target=_end_with, args=(folder.superlink_pid(), serving, given["attempt"]), daemon=True
            ).start()
        began = lambda: serving.say(state="running", attempt=given["attempt"])  # noqa: E731
        serve(grid, config, out, sites, waiting, resume=bool(given["resume"]), began=began)
        serving.say(state="finished", attempt=given["attempt"])
    except BusyError as error:
        write_durably(out / f"refused_{given['attempt']}", str(error).encode())
    except FedPerlError as error:
        serving.say(state="failed", attempt=given["attempt"], why=str(error))
        log.error("%s", error)
    except (KeyboardInterrupt, SystemExit):
        serving.say(state="stopped", attempt=given["attempt"])
        raise
    except BaseException as error:
        serving.say(state="failed", attempt=given["attempt"], why=f"{type(error).__name__}: {error}")
        raise


def _end_with(superlink: int, serving: Serving, attempt: object) -> None:
    """End this process once the SuperLink is gone: the grid would try to reach it for ever."""
    while is_alive(superlink):
        time.sleep(LOOK)
    serving.say(state="failed", attempt=attempt, why="the SuperLink is gone; start it again and go on with --resume")
    os._exit(1)


class RegisteredSites:
    """The clients of a real federation: nodes whose keys were registered, each with its number in the run."""

    def __init__(self, grid: Grid, folder: ServerFolder, numbers: Numbers) -> None:
        self.grid, self.folder, self.numbers = grid, folder, numbers

    def known_as(self, client: int) -> int:
        """Return the number by which the operator knows a client."""
        return registered_number(self.numbers, client)

    def registered(self) -> set[int]:
        """Return every client that may take part."""
        return self._inside(self.folder.roster())

    def online(self) -> dict[int, int]:
        """Return the node of each client that is there."""
        there = set(self.grid.get_node_ids())
        roster = self.folder.roster().items()
        return {self.numbers.get(client, client): entry["node"] for client, entry in roster if entry["node"] in there}

    def removed(self) -> set[int]:
        """Return the clients that the operator has taken out."""
        return self._inside(self.folder.taken_out())

    def _inside(self, clients: Iterable[int]) -> set[int]:
        return {self.numbers.get(client, client) for client in clients}

    def note_left(self, client: int) -> None:
        """Write down that a client has withdrawn."""
        self.folder.note_left(self.known_as(client))

    def let_go(self) -> None:
        """Have every run that is not at work forget those."""
        for line in self.folder.let_go():
            log.warning("%s", line)


class SimulatedSites:
    """The clients of a simulation: nodes in any order, each told its number by us."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.nodes = dict(enumerate(sorted(grid.get_node_ids())))

    def known_as(self, client: int) -> int:
        """Return its number."""
        return client

    def registered(self) -> set[int]:
        """Return every client."""
        return set(self.nodes)

    def online(self) -> dict[int, int]:
        """Return the node of each client."""
        return self.nodes

    def removed(self) -> set[int]:
        """Return nobody."""
        return set()

    def note_left(self, client: int) -> None:
        """Nothing: none leaves."""

    def let_go(self) -> None:
        """Nothing."""


Sites = RegisteredSites | SimulatedSites


def serve(
    grid: Grid,
    config: Config,
    out: Path,
    sites: Sites,
    waiting: Waiting,
    *,
    resume: bool,
    began: Callable[[], None] = lambda: None,
) -> None:
    """Run a federation into a folder.

    Args:
        began: called once the folder is ours.
    """
    started, watch, folder = time.perf_counter(), Stopwatch(), RunFolder(out)
    sites.let_go()
    torch.set_num_threads(int(config.threads))
    if (folder.path / "config.toml").exists():
        config = check_resumable(folder, config, resume)
    folder.open()
    began()
    folder.bank.recent = folder.models.recent = RECENT
    try:
        if folder.read_results() is not None:
            return
        run, found = members(grid, config, folder, sites, waiting)
        config = counted(config, [_member(said) for said in found.values()])
        for what in filter(None, [hospital_note(config), loss_note(config)]):
            log.warning("%s", what)
        first = next(iter(found.values()))
        classes, size = tuple(first["classes"]), int(first["size"])
        own_store = _own_store(config, classes, size)
        work = Workspace(config, len(classes))
        weights = load_weights(config, work)
        ground = Ground(
            {number: _member(said) for number, said in found.items()},
            max(found) + 1,
            classes,
            size,
            digest(json.dumps({str(n): said["digest"] for n, said in found.items()}).encode()) + weights,
            listed := unlisted(max(found) + 1, classes),
            digest(listed.encode()),
        )
        exchange = FlowerExchange(
            grid,
            sites.online,
            waiting,
            watch=watch,
            accepted=last_accepted(folder.ledger),
            removed=lambda: sites.removed() & found.keys(),
            note_left=sites.note_left,
            quorum=config.quorum,
            run=run,
            classes=len(classes),
            personal=bool(config.federation.personal),
        )
        federate(config, folder, ground, OwnImages(config, own_store, work), work, exchange, watch, [], started)
    finally:
        folder.close()
        sites.let_go()


def members(
    grid: Grid, config: Config, folder: RunFolder, sites: Sites, waiting: Waiting
) -> tuple[str, dict[int, dict[str, Any]]]:
    """Return the run's name at the sites, and what each client said of itself when it began: now, or earlier.

    Raises:
        RunError: too few are there, or two do not agree on what they classify.
    """
    path = folder.state / MEMBERS
    if path.exists() and (folder.state / "checkpoint.json").exists():
        content = json.loads(path.read_text())
        return content["run"], {int(number): said for number, said in content["members"].items()}
    run = secrets.token_hex(8)
    wanted = sorted(sites.registered() - sites.removed() - set(config.federation.exclude))
    exchange = FlowerExchange(grid, sites.online, waiting, note_left=sites.note_left, run=run)
    found: dict[int, dict[str, Any]] = {}
    refused: dict[int, str] = {}
    until = time.monotonic() + waiting.patience
    while missing := [number for number in wanted if number not in found]:
        for number, said in exchange.ask_about([n for n in missing if n in sites.online()], read_about).items():
            if isinstance(said, str):
                refused[number] = said
            else:
                found[number] = said
        wanted = [number for number in wanted if number not in exchange.left]
        if len(found) == len(wanted) or time.monotonic() > until:
            break
        away = [sites.known_as(n) for n in wanted if n not in found]
        log.warning("waiting for clients %s; refused: %s", away, list(refused.values()) or "none")
        time.sleep(2.0)
    automatic = config.federation.cohort == "auto"  # then it is all who are there, where they are few
    needed = config.quorum if automatic else max(config.cohort, config.quorum)
    if len(found) < needed:
        lacking = {sites.known_as(n): refused.get(n, "did not answer") for n in wanted if n not in found}
        said = ", ".join(f"{n} ({why})" for n, why in sorted(lacking.items()))
        raise RunError(
            f"{len(found)} of {len(wanted)} registered clients take part; wanted {needed} for a cohort. Missing: {said}"
        )
    _agree({sites.known_as(number): found[number] for number in found}, config)
    content = {"run": run, "members": {str(number): found[number] for number in sorted(found)}}
    write_durably(path, json.dumps(content).encode())
    return run, {number: found[number] for number in sorted(found)}


def _agree(found: Mapping[int, dict[str, Any]], config: Config) -> None:
    first = next(iter(found))
    for number, said in found.items():
        if said["classes"] != found[first]["classes"]:
            raise RunError(
                f"client {number} has the classes {', '.join(said['classes'])}; client {first} has "
                f"{', '.join(found[first]['classes'])}: wanted the same in the same order"
            )
        if said["version"] != __version__:
            raise RunError(f"client {number} runs fedperl {said['version']!r:.40}; the server runs {__version__}")
        if said["size"] != config.data.size:
            raise RunError(f"client {number} has images of {said['size']} px; data.size = {config.data.size}")


def _own_store(config: Config, classes: tuple[str, ...], size: int) -> Store:
    """Return the server's own images, where the run needs some."""
    if not (scoring_setting(config) or config.scenario.labels == "server" or config.federation.server_validation):
        return empty_store(classes, size)
    store = open_store(config)
    if tuple(store.classes) != classes:
        raise DataError(f"the server's images have the classes {', '.join(store.classes)}; its sites have others")
    return store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed))


def last_accepted(ledger: Ledger) -> Callable[[int], dict[int, int]]:
    """Return what says, of a round, each client's last one before it in which its update was accepted."""

    def find(round: int) -> dict[int, int]:
        took: dict[int, list[int]] = {}
        for entry in ledger.entries():
            if entry["kind"] == "receive" and entry["round"] < round:
                took[int(entry["round"])] = entry["accepted"]  # of a round that was repeated, the last time counts
        return {client: made for made in sorted(took) for client in took[made]}

    return find


def _member(said: dict[str, Any]) -> Member:
    return Member(**{name: int(said[name]) for name in Member.__dataclass_fields__})


def unlisted(count: int, classes: tuple[str, ...]) -> str:
    """Return the list of who holds what as the server knows it: the sites, and of their images nothing."""
    sites = tuple(ClientPart(f"site {number}", *(no_rows() for _ in PARTS)) for number in range(count))
    return Partition(sites, made={"kind": "sites"}).to_csv(empty_store(classes, 1).manifest)


def empty_store(classes: tuple[str, ...], size: int) -> Store:
    """Return a store without images, for a server that has none."""
    nothing = np.array([], dtype=np.str_)
    manifest = Manifest(classes, nothing, np.array([], dtype=np.int64), nothing, nothing)
    return Store(np.empty((0, 3, size, size), dtype=np.uint8), manifest, Partition((), made={}))
