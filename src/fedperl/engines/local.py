"""The local engine: every client in this process, one after the other."""

from collections.abc import Iterable, Iterator

from fedperl.federation.client import Client
from fedperl.federation.messages import EvaluateTask, Evaluation, TrainTask, Update
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch


class LocalExchange:
    """Hands each task to its client at once; the clients' own state is kept in their files."""

    def __init__(self, clients: list[Client], states: StateFiles, watch: Stopwatch) -> None:
        self.clients, self.states, self.watch = clients, states, watch

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update]:
        """Yield the updates in the order of the tasks, each before the next task is asked for."""
        for task in tasks:
            state = self.states.get(task.client) if task.client in self.states.records else {}
            with self.watch.measure("training"):
                update, state = self.clients[task.client].train(task, state)
            if state:
                self.states.put(task.client, task.round, state)
            yield update

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations in the order of the tasks."""
        for task in tasks:
            with self.watch.measure("validation"):
                evaluation = self.clients[task.client].evaluate(task)
            yield evaluation
