"""One hospital's side: its images, what it keeps from round to round, and answers to the server's questions."""

import contextlib
import fcntl
import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedperl import __version__
from fedperl.data.partition import ClientPart, no_rows
from fedperl.data.scenarios import client_seen_by
from fedperl.data.store import Store
from fedperl.engines.flower.exchange import AFTER, ATTEMPT, CLIENT, HASH, NEEDED, NONCE, RUN
from fedperl.engines.flower.records import ERROR, parcel_of, record_of
from fedperl.errors import DataError, RunError
from fedperl.evaluate import without_few
from fedperl.evaluate.group_counts import LEAST
from fedperl.federation.client import Client, Workspace, client_of_store
from fedperl.federation.handing_out import about_model
from fedperl.federation.members import member_of, told_part
from fedperl.federation.messages import Evaluation
from fedperl.federation.personal import TO_EVALUATE
from fedperl.federation.state_files import StateFiles
from fedperl.federation.wire import (
    Parcel,
    evaluation_parcel,
    model_hash,
    read_evaluate,
    read_train,
    update_parcel,
)
from fedperl.files import sync_folder, write_durably
from fedperl.learn.packing import packed
from fedperl.learn.state import State
from fedperl.learn.weights import write_weights
from fedperl.opening import finish_of, on
from fedperl.settings import Config

REPORTED = {"validation": "validation", "training": "labelled", "none": "labelled"}
"""The part of its images on which a client is asked for its own accuracy."""
KEPT = 4
"""Rounds of its own whose state a site keeps: the server may go back to an earlier one."""

log = logging.getLogger(__name__)

MOST_CLIENTS = 100_000
ROUNDS = r"\d{1,9}(,\d{1,9})*"
"""Rounds on an envelope."""


@dataclass(frozen=True)
class Asking:
    """What stands on the envelope of a question."""

    client: int
    after: int
    """The client's last round that was accepted."""
    run: str
    """The run's name, by which a site keeps its state."""
    needed: frozenset[int] | None = None
    """The client's own rounds whose state models may still be evaluated with; None where all are."""


Do = Callable[[Parcel, Asking], Parcel]
"""Answers a parcel."""


class Site:
    """The client that holds one part of a store."""

    def __init__(self, number: int, store: Store, config: Config, folder: Path, model: Path) -> None:
        """Open a site.

        Args:
            number: as the server counts; the store's partition has the client at this place.
            folder: where it keeps its state; nobody else's.
            model: the file of the model that it uses once the run is over.
        """
        torch.set_num_threads(int(config.threads))
        clients = list(store.partition.clients)
        part = client_seen_by(config.scenario, number, clients[number], store.manifest)
        clients[number] = told_part(part, store.manifest.label)
        self.number, self.config = number, config
        self.store = store.dealt(replace(store.partition, clients=tuple(clients)))
        self.folder, self.model = folder, model

    def about(self, _: Parcel, asked: Asking) -> Parcel:
        """Return what the server is told before the first round."""
        self._kept(asked).images_are(self.store.digest())
        found = asdict(member_of(self.store.partition.clients[self.number], self.config))
        found |= {"classes": list(self.store.classes), "size": self.store.size, "digest": self.store.digest()}
        found["version"] = __version__
        return Parcel(json.dumps(found))

    def train(self, parcel: Parcel, asked: Asking) -> Parcel:
        """Train one local round from the state after an earlier one, and keep the new state."""
        task = read_train(parcel)
        self._check(task.client)
        part = self.store.partition.clients[self.number]
        if task.settings.objective != self.config.objective:
            raise RunError("a task with another objective than the run's")
        kept, started = self._kept(asked), time.perf_counter()
        with kept.alone(), on(self.config.device):
            kept.images_are(self.store.digest())
            update, state = self._client().train(task, kept.after(asked.after))
            kept.put(task.round, state, asked.after, asked.needed)
        log.info("round %d: trained in %.2f s", task.round, time.perf_counter() - started)
        if len(getattr(part, REPORTED[task.settings.report])) < LEAST:
            update = replace(update, numbers={k: v for k, v in update.numbers.items() if k != "accuracy"})
        return update_parcel(update)

    def evaluate(self, parcel: Parcel, asked: Asking) -> Parcel:
        """Evaluate a model with the state after an earlier round, and write the one that the site is to use."""
        task = read_evaluate(parcel)
        self._check(task.client)
        if len(getattr(self.store.partition.clients[self.number], task.part)) < LEAST:
            raise DataError(f"no class has {LEAST} {task.part} images: nothing is told of them")
        kept = self._kept(asked)
        kept.images_are(self.store.digest())
        state = kept.for_model(asked.after)
        if asked.after and not state and self.config.federation.personal:
            log.warning("nothing is left of round %d: the global model is tested and used as it is", asked.after)
        with on(self.config.device):
            client = self._client()
            if task.to_use:
                check_form(task.model.state, client.work.net.state_dict())
            found = client.evaluate(task, state)
            if task.to_use:
                with kept.handing_out():
                    self._hand_out(task.model.round, client.work.deliverable(client.in_use(task.model.state, state)))
        return evaluation_parcel(told(found))

    def _hand_out(self, round: int, state: State) -> None:
        """Write the model that the site uses from now on: the server, which has all evaluations, says which it is.

        Another one that is there is left: a file that a hospital uses does not change under its hands.

        Raises:
            DataError: it cannot be written, and is nowhere else.
        """
        about = about_model(self.config, self.store.classes, self.store.size, round)
        content = packed(state, about)
        try:
            self.model.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = next(path for path in numbered(self.model) if not path.exists() or path.read_bytes() == content)
            write_weights(path, state, about)
        except (DataError, OSError) as error:
            if self.config.federation.personal:
                raise DataError(str(error)) from None
            log.error("the model of round %d is not written here, but the server has it: %s", round, error)
            return
        if path != self.model:
            log.warning("%s is another model of this run: that of round %d is in %s", self.model, round, path)
        log.info("the model of round %d is in %s", round, path)

    def _client(self) -> Client:
        work = Workspace(self.config, len(self.store.classes), finish_of(self.config))
        return client_of_store(self.number, self.store, self.config, work)

    def _kept(self, asked: Asking) -> "KeptStates":
        if not (asked.run.isalnum() and asked.run.isascii() and len(asked.run) <= 64):
            raise RunError("a run's name is none")
        return KeptStates(self.folder / asked.run)

    def _check(self, client: int) -> None:
        if client != self.number:
            raise RunError(f"a task for client {client} came to client {self.number}")


def told(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation whose counts in bins are of ten images or more."""
    if evaluation.sums is None:
        return evaluation
    sums, groups = without_few(evaluation.sums, evaluation.groups)
    return replace(evaluation, sums=sums, groups=groups)


def as_client(store: Store, number: int) -> Store:
    """Return a hospital's own store, of one client, as that of the client with this number: the others hold nothing."""
    if number > MOST_CLIENTS:
        raise DataError(f"client {number}; wanted at most {MOST_CLIENTS}")
    if len(store.partition.clients) != 1:
        raise DataError(f"the store is dealt to {len(store.partition.clients)} clients; wanted one hospital's")
    nobody = ClientPart("", no_rows(), no_rows(), no_rows(), no_rows())
    return store.dealt(replace(store.partition, clients=(nobody,) * number + store.partition.clients))


class KeptStates:
    """What a site keeps after each of its last rounds, by round, with an index that is whole or the old one.

    `past` has what evaluations of earlier models depend on: that of every round, or of those that are still needed.
    """

    def __init__(self, folder: Path) -> None:
        self.files, self.past = StateFiles(folder, "round"), StateFiles(folder / "past", "round")
        self.index = folder.parent / f"{folder.name}.json"
        self._open()

    def _open(self) -> None:
        if self.index.exists():
            found = json.loads(self.index.read_text())
            self.files.look(found["last"])
            self.past.look(found["past"])

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other task of this run is at work here: one may be late, and the next one there."""
        with (self.files.folder / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._open()
            for files in (self.files, self.past):
                files.sweep()
            yield

    @contextlib.contextmanager
    def handing_out(self) -> Iterator[None]:
        """Wait until no other task of this run writes the model; a training that is late is not waited for."""
        with (self.files.folder / "handing_out").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def images_are(self, digest: str) -> None:
        """Refuse images that are others than when the run began.

        Raises:
            DataError: they are.
        """
        path = self.files.folder / "images"
        if not path.exists():
            write_durably(path, digest.encode())
        elif path.read_text() != digest:
            raise DataError("the images, labels or their uses are others than when the run began; wanted the same")

    def after(self, round: int) -> State:
        """Return the state after a round; nothing where the client has not trained or keeps nothing.

        Raises:
            RunError: it kept some, but not this one.
        """
        if round and self.files.records and round not in self.files.records:
            raise RunError(f"the state after round {round} is no longer kept")
        return self.files.get(round) if round in self.files.records else {}

    def for_model(self, round: int) -> State:
        """Return the state after a round as far as an evaluation depends on it, however long ago that was.

        Nothing where it was lost: one site's lost folder does not keep all others from their results.
        """
        for files in (self.files, self.past):
            if round in files.records:
                return files.get(round)
        return {}

    def put(self, round: int, state: State, after: int, needed: frozenset[int] | None = None) -> None:
        """Keep the state after a round durably, with the last few that it may follow; forget all others.

        Args:
            after: the round that it follows; later ones belong to a life that went another way.
            needed: earlier rounds that models may still be evaluated with; None for all.
        """
        if not state:
            return
        before = [kept for kept in sorted(self.files.records) if kept <= after][-KEPT + 1 :]
        self.files.put(round, round, state)
        self.files.keep_only([*before, round])
        own = {name: tensor for name, tensor in state.items() if name.startswith(TO_EVALUATE)}
        if own:
            self.past.put(round, round, own)
        earlier = {kept for kept in self.past.records if kept <= after}
        self.past.keep_only({round, *(earlier if needed is None else earlier & {*needed, *before})})
        content = json.dumps({"last": self.files.to_json(), "past": self.past.to_json()}).encode()
        for files in (self.files, self.past):
            sync_folder(files.folder)
        write_durably(self.index, content)
        sync_folder(self.index.parent)  # or files would be gone that the index of before a power cut names
        for files in (self.files, self.past):
            files.prune()


def check_form(model: State, wanted: Mapping[str, torch.Tensor]) -> None:
    """Refuse a model to use that is not of the run's network.

    Raises:
        RunError: a tensor is missing, too many, or of another shape or type.
    """
    found, right = ({name: (t.shape, t.dtype) for name, t in one.items()} for one in (model, wanted))
    if found != right:
        some = sorted(name for name in found.keys() | right.keys() if found.get(name) != right.get(name))
        raise RunError(f"a model to use is of another form than the network: {', '.join(some[:3])}")


def numbered(path: Path) -> Iterator[Path]:
    """Yield the path, and then others with 2, 3 and so on at the end of the name."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}_{number}{path.suffix}")


def app_of(reply: Callable[[Message, Context, str], Message]) -> ClientApp:
    """Return Flower's application that has each kind of message answered: reply(message, context, method of Site)."""
    app = ClientApp()
    app.query()(lambda message, context: reply(message, context, "about"))
    app.train()(lambda message, context: reply(message, context, "train"))
    app.evaluate()(lambda message, context: reply(message, context, "evaluate"))
    return app


def asking_of(envelope: Mapping[str, str]) -> Asking:
    """Return what an envelope asks; rounds that cannot be read as a list of numbers stand for all."""
    needed = envelope.get(NEEDED, "")
    rounds = frozenset(map(int, needed.split(","))) if re.fullmatch(ROUNDS, needed, re.ASCII) else None
    return Asking(int(envelope[CLIENT]), int(envelope[AFTER]), envelope[RUN], rounds)


def answer(content: RecordDict, do: Do) -> RecordDict:
    """Return an answer. Of an error only its kind leaves the site; the log here has the rest."""
    back: dict[str, str] = {}
    try:
        parcel, envelope = parcel_of(content)
        back |= {key: envelope.get(key, "") for key in (ATTEMPT, NONCE)}
        back[HASH] = model_hash(parcel) if parcel.pieces else ""
        found = do(parcel, asking_of(envelope))
    except Exception as error:
        log.exception("a task failed")
        return record_of(Parcel("{}"), back | {ERROR: type(error).__name__})
    return record_of(found, back)
