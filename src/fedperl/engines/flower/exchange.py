"""Tasks to sites and answers back, over a Flower grid: what is late, foreign or comes twice is not read."""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedperl.engines.flower.records import ERROR, parcel_of, record_of
from fedperl.errors import RunError
from fedperl.evaluate import BINS
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.stopwatch import Stopwatch
from fedperl.federation.wire import (
    Parcel,
    WireError,
    evaluate_parcel,
    model_hash,
    read_evaluation,
    read_update,
    train_parcel,
)
from fedperl.learn.packing import packed
from fedperl.learn.state import State

SPARE = 2**16
"""Bytes that an answer may have beyond its question's, and a relation matrix: headers."""
POLL = 0.2
"""Seconds between two looks for answers."""
ATTEMPT, NONCE, AFTER, CLIENT, RUN, HASH, NEEDED = "attempt", "nonce", "after", "client", "run", "hash", "needed"
"""The envelope: which start of the server asks, a number used once, the client's last accepted round, its number, the
run's name at the sites, the model's hash, and with a training task the client's own rounds whose state is still needed
for evaluations; where it says none, all are."""
LONGEST, MOST_SAID = 60, 200
"""Characters of an error's kind, and of what is wrong with an answer, that are written down."""
AWAY = (3, 4, 5)
"""Flower's codes for a message or an answer that is no longer there, and for a node that is not."""
WITHDRAWN = "Withdrawn"
"""The kind of error by which a site says that it has left."""

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Question:
    """What a client is asked, the round after which it starts, and those of its own rounds that are still needed."""

    client: int
    parcel: Parcel
    after: int = 0
    needed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Asked:
    """One question that is out: its place in the list, and what the answer must bring back."""

    place: int
    client: int
    envelope: dict[str, str]
    hash: str
    most: int
    """Bytes that the pieces of an answer may have: those of the question, and some."""


@dataclass(frozen=True)
class Waiting:
    """How long the server waits, in seconds."""

    deadline: float
    """For an answer."""
    patience: float
    """For enough clients to be online."""


class FlowerExchange:
    """Carries the messages of a run; the server decides what to do without those that do not come."""

    def __init__(
        self,
        grid: Grid,
        online: Callable[[], Mapping[int, int]],
        waiting: Waiting,
        *,
        watch: Stopwatch | None = None,
        accepted: Callable[[int], Mapping[int, int]] = lambda _: {},
        removed: Callable[[], set[int]] = set,
        note_left: Callable[[int], None] = lambda _: None,
        quorum: int = 1,
        run: str = "",
        classes: int | None = None,
        personal: bool = False,
    ) -> None:
        """Carry the messages of one start of the server.

        Args:
            online: the node of each client that is there.
            accepted: of a round, each client's last one before it whose update was accepted.
            removed: clients that the server's operator has taken out.
            note_left: writes down that a client has left, before anything else is done.
            quorum: how many of a cohort must be online for a round to begin at once.
            run: the run's name at the sites, which keep their state by it.
            classes: how many; counts of a reported model have to be of so many.
            personal: whether clients evaluate and use models with something of their own, which stays with them.
        """
        self.note_left, self.run, self.classes = note_left, run, classes
        self.grid, self.online, self.waiting, self.quorum = grid, online, waiting, quorum
        self.watch, self.accepted, self.removed = watch or Stopwatch(), accepted, removed
        self.personal = personal
        self._of_all, self._of_one = set[int](), dict[int, int]()
        self.attempt = secrets.token_hex(8)
        self.left: set[int] = set()

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield the updates in the order of the tasks; those that are not there at the deadline are missing."""
        tasks = list(tasks)
        self.left |= self.removed()
        if not tasks:
            return
        with self.watch.measure("waiting"):
            there = self._wait_for([task.client for task in tasks], min(self.quorum, len(tasks)))
        if not there:
            return
        with self.watch.measure("training"):
            after = self.accepted(tasks[0].round)
            model = packed(tasks[0].model.state)  # every task of a round starts from the same one
            needed = self._needed([task.client for task in tasks])
            questions = [
                Question(t.client, train_parcel(t, model), after.get(t.client, 0), needed[t.client]) for t in tasks
            ]
            found = self._ask(MessageType.TRAIN, questions, read_update)
        for task, answer in zip(tasks, found, strict=True):
            if isinstance(answer, Update) and answer.client != task.client:
                answer = "an answer for another client"
            if isinstance(answer, str):
                yield Failure(task.run, task.round, task.client, answer)
            elif answer is not None:
                yield answer

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations that came, in the order of the tasks.

        A model that is reported is evaluated by all: clients that are away are waited for.

        Raises:
            RunError: one of those did not come back.
        """
        tasks, until = list(tasks), time.monotonic() + self.waiting.patience
        after = self.accepted(tasks[0].model.round + 1) if tasks else {}
        model = packed(tasks[0].model.state) if tasks else b""
        questions = [Question(t.client, evaluate_parcel(t, model), after.get(t.client, 0)) for t in tasks]
        found: list[Evaluation | str | None] = [None] * len(tasks)
        while missing := [n for n, t in enumerate(tasks) if not isinstance(found[n], Evaluation) and self._stays(t)]:
            with self.watch.measure("validation"):
                answers = self._ask(MessageType.EVALUATE, [questions[n] for n in missing], read_evaluation)
            for place, answer in zip(missing, answers, strict=True):
                fits = not isinstance(answer, Evaluation) or self._fits(answer, tasks[place])
                found[place] = answer if fits else "an answer to another question"
            self.left |= self.removed()
            if not tasks[0].full:
                break
            self._go_on(tasks, found, until)
        yield from (answer for answer in found if isinstance(answer, Evaluation))

    def _fits(self, answer: Evaluation, task: EvaluateTask) -> bool:
        """Return whether an evaluation is that of a task, with what is needed of it."""
        if any(getattr(answer, name) != getattr(task, name) for name in ("run", "round", "client", "part")):
            return False
        if not {"images", "accuracy", "weighted_f1"} <= answer.numbers.keys():
            return False
        if not task.full:
            return answer.sums is None
        return answer.sums is not None and answer.sums.scores.shape == (self.classes, BINS, 2)

    def _stays(self, task: EvaluateTask) -> bool:
        return task.client not in self.left

    def _go_on(self, tasks: Sequence[EvaluateTask], found: Sequence[Evaluation | str | None], until: float) -> None:
        """Wait for clients that have not tested a model yet, or give up.

        Raises:
            RunError: patience is at an end.
        """
        missing = {
            task.client: answer or "it did not answer"
            for task, answer in zip(tasks, found, strict=True)
            if not isinstance(answer, Evaluation) and self._stays(task)
        }
        if not missing:
            return
        if time.monotonic() > until:
            said = ", ".join(f"client {client} ({why})" for client, why in sorted(missing.items()))
            raise RunError(
                f"all rounds are done, but the model of round {tasks[0].model.round} was not tested by {said}; "
                "go on with --resume once they are back, or take them out with `fedperl server remove`"
            )
        with self.watch.measure("waiting"):
            time.sleep(5 * POLL)
            self._wait_for(sorted(missing), 1, until)

    def in_use(self, client: int, model: GlobalModel) -> State | None:
        """Return the model, or None where the client has mixed something of its own in."""
        return None if self.personal else model.state

    def keep(self, rounds: set[int], best: Mapping[int, int]) -> None:
        """Remember of which models sites are to keep what belongs to them; each is told with its next task.

        By then there is a checkpoint: across sites each round has one.
        """
        self._of_all, self._of_one = rounds, dict(best)

    def _needed(self, clients: Sequence[int]) -> dict[int, frozenset[int]]:
        """Return each client's own rounds whose state a model may still be evaluated with; none where all may be."""
        if not self.personal:
            return dict.fromkeys(clients, frozenset())
        own = self._of_one
        models = {client: self._of_all | ({own[client]} if client in own else set()) for client in clients}
        trained = {made: self.accepted(made + 1) for made in set().union(*models.values())}
        return {
            client: frozenset(trained[made][client] for made in models[client] if client in trained[made])
            for client in clients
        }

    def ask_about(self, clients: Iterable[int], read: Callable[[Parcel], Answer]) -> dict[int, Answer | str]:
        """Return what clients say of themselves, or the kind of their error; those that do not answer are missing."""
        clients = list(clients)
        found = self._ask(MessageType.QUERY, [Question(client, Parcel("{}")) for client in clients], read)
        return {client: said for client, said in zip(clients, found, strict=True) if said is not None}

    def _wait_for(self, clients: list[int], enough: int, until: float | None = None) -> bool:
        """Return whether enough of the clients are online, having waited for them."""
        until, told = until or time.monotonic() + self.waiting.patience, False
        while (there := len(set(clients) & self.online().keys())) < enough:
            if time.monotonic() > until:
                log.warning("%d of %d clients are online, %d wanted: going on without", there, len(clients), enough)
                return False
            if not told:
                log.warning("waiting for clients: %d of %d online, %d wanted", there, len(clients), enough)
                told = True
            time.sleep(1.0)
        return True

    def _ask(
        self, kind: str, questions: Sequence[Question], read: Callable[[Parcel], Answer]
    ) -> list[Answer | str | None]:
        """Return the answer to each question, or the kind of an error; None where the client is offline or late."""
        nodes, made = self.online(), dict[int, ArrayRecord]()
        asked, messages = [], []
        for place, question in enumerate(questions):
            if question.client not in nodes or question.client in self.left:
                log.warning("client %d is not online", question.client)
                continue
            parcel = question.parcel
            envelope = {ATTEMPT: self.attempt, NONCE: secrets.token_hex(16)}
            envelope |= {AFTER: str(question.after), CLIENT: str(question.client), RUN: self.run}
            if question.needed:
                envelope[NEEDED] = ",".join(map(str, sorted(question.needed)))
            most = sum(map(len, parcel.pieces.values())) + 8 * (self.classes or 0) ** 2 + SPARE
            asked.append(Asked(place, question.client, envelope, model_hash(parcel) if parcel.pieces else "", most))
            content = record_of(parcel, envelope, made)
            messages.append(Message(content, nodes[question.client], kind, ttl=self.waiting.deadline))
        found: list[Answer | str | None] = [None] * len(questions)
        if not messages:
            return found
        names = list(self.grid.push_messages(messages))
        if len(names) != len(asked):
            raise RunError(f"Flower took {len(names)} of {len(asked)} messages; its log says why")
        waiting = dict(zip(names, asked, strict=True))
        del messages, made
        until = time.monotonic() + self.waiting.deadline
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                out = waiting.pop(reply.metadata.reply_to_message_id, None)
                if out is not None and reply.has_error() and reply.error.code in AWAY:
                    log.warning("client %d is late or gone", out.client)
                elif out is not None:
                    found[out.place] = answer = answered(reply, out, read)
                    if answer == WITHDRAWN:
                        log.warning("client %d has withdrawn", out.client)
                        self.note_left(out.client)
                        self.left.add(out.client)
            if waiting:
                time.sleep(POLL)
        for out in waiting.values():
            log.warning("client %d did not answer in time", out.client)
        return found


def answered(reply: Message, asked: Asked, read: Callable[[Parcel], Answer]) -> Answer | str:
    """Return what a reply says, or the kind of its error; a reply to another question is an error too."""
    if reply.has_error():
        return f"code {reply.error.code}"  # its text may name files; it is not read
    try:
        parcel, envelope = parcel_of(reply.content, asked.most)
        wanted = {ATTEMPT: asked.envelope[ATTEMPT], NONCE: asked.envelope[NONCE], HASH: asked.hash}
        if {key: envelope.get(key) for key in wanted} != wanted:
            return "an answer to another question"
        if ERROR in envelope:
            kind = envelope[ERROR]
            return kind if kind.isidentifier() and len(kind) <= LONGEST else "an error"
        return read(parcel)
    except WireError as error:
        said = "".join(letter if letter.isprintable() else "?" for letter in str(error)[:MOST_SAID])
        return f"an answer that cannot be read: {said}"
    except Exception as error:  # whatever a site sends, the run goes on
        return f"an answer that cannot be read: {type(error).__name__}"
