"""The local engine: every client in this process, one after the other."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from fedperl.errors import RunError
from fedperl.evaluate.classification import Probabilities
from fedperl.federation.client import HELD, Client
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.personal import TO_EVALUATE
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.state import State, copied

log = logging.getLogger(__name__)


class LocalExchange:
    """Hands each task to its client at once; the clients' own state is kept in their files."""

    def __init__(self, clients: Mapping[int, Client], states: StateFiles, past: "PastStates", watch: Stopwatch) -> None:
        self.clients, self.states, self.past, self.watch = clients, states, past, watch
        self.left: set[int] = set()

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield the updates in the order of the tasks, each before the next task is asked for.

        A client that raises gives a failure, and the quorum decides on the round; the log has the whole error.
        """
        for task in tasks:
            try:
                with self.watch.measure("training"):
                    update, state = self.clients[task.client].train(task, self.kept_by(task.client))
            except Exception as error:
                yield failure(task, error)
                continue
            self.remember(task, state)
            yield update

    def kept_by(self, client: int) -> State:
        """Return what a client kept from its last round."""
        kept = self.states.get(client) if client in self.states.records else {}
        # Its objective may change them in place, but for the model that it sent.
        return kept | copied({name: tensor for name, tensor in kept.items() if not name.startswith(HELD)})

    def remember(self, task: TrainTask, state: State) -> None:
        """Keep what a client wants to find in its next round."""
        if state:
            self.states.put(task.client, task.round, state)
            self.past.put(task.client, task.round, state)

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations in the order of the tasks, each with what the client kept when the model was made."""
        for task in tasks:
            yield self.evaluated(task, self.past.at(task.client, task.model.round))

    def evaluated(self, task: EvaluateTask, state: State, predicted: Probabilities | None = None) -> Evaluation:
        """Return one client's evaluation, of what the model says or of what it is known to say."""
        with self.watch.measure("validation"):
            try:
                return self.clients[task.client].evaluate(task, state, predicted)
            except ValueError as error:
                raise RunError(
                    f"the global model of round {task.model.round} cannot be evaluated at client {task.client}: "
                    f"{error}; a run that diverges wants a smaller optimizer.lr"
                ) from None

    def in_use(self, client: int, model: GlobalModel) -> State:
        """Return a model as a client uses it, with what it kept when the model was made."""
        return self.clients[client].in_use(model.state, self.past.at(client, model.round))

    def keep(self, rounds: set[int], best: Mapping[int, int]) -> None:
        """Forget what clients kept for models of other rounds than these, their own best and the latest."""
        self.past.keep(rounds, best)


def failure(task: TrainTask, error: Exception) -> Failure:
    """Return what the server is told of an error; the log has the whole of it."""
    log.warning("client %d failed in round %d", task.client, task.round, exc_info=error)
    return Failure(task.run, task.round, task.client, type(error).__name__)


class PastStates:
    """What clients keep for evaluations, by round: a model of an earlier round is tested with what was kept then."""

    ROUNDS = 1_000_000

    def __init__(self, files: StateFiles) -> None:
        self.files = files

    def put(self, client: int, round: int, state: State) -> None:
        """Remember what of a client's state its evaluation depends on."""
        kept = {name: tensor for name, tensor in state.items() if name.startswith(TO_EVALUATE)}
        if kept:
            self.files.put(client * self.ROUNDS + round, round, kept)

    def at(self, client: int, round: int) -> State:
        """Return what the client had after a round: of its last training up to then."""
        rounds = [made for made in self._rounds().get(client, []) if made <= round]
        return self.files.get(client * self.ROUNDS + max(rounds)) if rounds else {}

    def keep(self, rounds: set[int], best: Mapping[int, int]) -> None:
        """Forget all that no model of these rounds is tested with, nor each client's of its own; the latest stays."""
        needed = set()
        for client, made in self._rounds().items():
            for round in rounds | {max(made)} | ({best[client]} if client in best else set()):
                earlier = [one for one in made if one <= round]
                needed |= {client * self.ROUNDS + max(earlier)} if earlier else set()
        self.files.keep_only(needed)

    def _rounds(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for key in self.files.records:
            found.setdefault(key // self.ROUNDS, []).append(key % self.ROUNDS)
        return found
