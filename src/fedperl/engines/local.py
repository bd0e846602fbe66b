"""The local engine: every client in this process, one after the other."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from fedperl.federation.client import Client
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, TrainTask, Update
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch

log = logging.getLogger(__name__)


class LocalExchange:
    """Hands each task to its client at once; the clients' own state is kept in their files."""

    def __init__(self, clients: Mapping[int, Client], states: StateFiles, watch: Stopwatch) -> None:
        self.clients, self.states, self.watch = clients, states, watch

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield the updates in the order of the tasks, each before the next task is asked for.

        A client that raises gives a failure, and the quorum decides on the round; the log has the whole error.
        """
        for task in tasks:
            state = self.states.get(task.client) if task.client in self.states.records else {}
            try:
                with self.watch.measure("training"):
                    update, state = self.clients[task.client].train(task, state)
            except Exception as error:
                log.warning("client %d failed in round %d", task.client, task.round, exc_info=error)
                yield Failure(task.run, task.round, task.client, type(error).__name__)
                continue
            if state:
                self.states.put(task.client, task.round, state)
            yield update

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations in the order of the tasks."""
        for task in tasks:
            with self.watch.measure("validation"):
                evaluation = self.clients[task.client].evaluate(task)
            yield evaluation
