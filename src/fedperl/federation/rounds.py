"""The rounds of a run, whatever carries the messages: plan, train, absorb, validate, record, commit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fedperl.errors import RunError
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, GlobalModel, TrainTask, Update
from fedperl.federation.round_summary import RoundSummary
from fedperl.federation.run_folder import UNAVERAGED, RunFolder
from fedperl.federation.selection import Selection
from fedperl.federation.server import NOTHING_CAME, Server
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.state import State, size_in_bytes


class Exchange(Protocol):
    """Carries tasks to clients and answers back: an engine. Answers may come in any order, or not at all."""

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield the updates of the tasks."""
        ...

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations of the tasks."""
        ...

    def in_use(self, client: int, model: GlobalModel) -> State | None:
        """Return a model as a client uses it; None where the client alone can tell, and writes it down itself."""
        ...

    left: set[int]
    """Clients that have withdrawn: their models are to be forgotten."""

    def keep(self, rounds: set[int], best: Mapping[int, int]) -> None:
        """Let clients forget what belongs to models of other rounds: those are never asked for again.

        Args:
            rounds: of models that all may be asked for.
            best: of the one that a client alone may be asked for.
        """
        ...


WHO_HELPED = frozenset({"committees", "kept", "similarity", "swapped", "weights"})
"""Of a round: what tells which hospitals resemble each other."""
FRUITLESS = 10
"""Rounds in a row without any update that could be used: nothing will come of waiting for more."""


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each round."""

    round: int
    rounds: int
    accuracy: float | None
    """Of the model that was validated last; None where none was since the start."""
    summary: RoundSummary | None
    server: Server | None = None
    """To look at, not to change: its models. None where it is another process."""


Watcher = Callable[[Progress], None]

Measure = Callable[[Server], dict[str, dict[str, float]]]
"""What the server measures itself after a round, by name: `server`, the global model on its own validation images;
`local`, the clients' last models on its test images."""


class Rounds:
    """Runs the rounds that are left and commits each: after a crash the next start repeats at most one.

    With `checkpoint_every`, every so many of them, and as many are repeated.
    """

    def __init__(
        self,
        server: Server,
        exchange: Exchange,
        folder: RunFolder,
        watch: Stopwatch,
        data: str = "",
        measure: Measure = lambda _: {},
    ) -> None:
        """Start before the first round.

        Args:
            data: a digest of images, labels and starting weights; a run is resumed on the same ones only.
        """
        self.server, self.exchange, self.folder, self.watch = server, exchange, folder, watch
        self.measure = measure
        self._origin = {"run": server.run, "data": data}
        self.selection = Selection()
        self.round = 0
        self._accuracy: float | None = None
        self.totals: dict[str, Any] = {"bytes_down": 0, "bytes_up": 0, "bytes_evaluation": 0, "void": 0}
        self.totals |= {"rejected": 0, "accepted": 0, "client_rounds": 0, "with_peer": 0, "peers": {}}

    def restore(self) -> None:
        """Go back to the last committed round, or commit the start."""
        content = self.folder.restore()
        if content is None:
            self.server.begin()
            self.folder.models.put(0, 0, self.server.model.state)
            self._commit()
            return
        for what, value in self._origin.items():
            if content.get(what) != value:
                other = (
                    "its configuration is another"
                    if what == "run"
                    else "its images, labels, partition, starting weights or objective's file are others"
                )
                raise RunError(f"{self.folder.path}: cannot go on: {other} than when the run was started")
        try:
            self._take_over(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{self.folder.state / 'checkpoint.json'}: cannot be gone on with: {error!r}") from None
        self.exchange.left |= self.server.withdrawn

    def _take_over(self, content: dict[str, Any]) -> None:
        if type(content["round"]) is not int:
            raise TypeError(f"round {content['round']!r}; wanted a number")
        self.round = content["round"]
        if content["totals"].keys() != self.totals.keys():
            raise ValueError(f"totals of {', '.join(sorted(content['totals'])) or 'nothing'}")
        self.totals = content["totals"]
        self.selection.restore(content["selection"])
        current, before, models = content["model"], content["predecessor"], self.folder.models
        self.server.restore(
            GlobalModel(current, self.folder.trained_on(current)),
            None if before is None else GlobalModel(before, models.get(before)),
            GlobalModel(current, models.get(current)),
            content.get("averaged", 0),
        )
        for client in content.get("withdrawn", ()):
            self.server.withdraw(client)

    def run(self, watchers: Iterable[Watcher] = ()) -> None:
        """Run every round that is left."""
        watchers, rounds, without = list(watchers), self.server.config.federation.rounds, 0
        while self.round < rounds:
            accuracy, summary = self._one(self.round + 1)
            without = 0 if summary.accepted else without + 1
            answered = any(reason != NOTHING_CAME for reason in summary.rejected.values())
            if (not self.totals["accepted"] and answered) or without == FRUITLESS:
                reasons = "; ".join(f"client {c}: {reason}" for c, reason in sorted(summary.rejected.items()))
                since = "" if not self.totals["accepted"] else f" for {without} rounds"
                raise RunError(
                    f"round {summary.round}: no client has sent an update that could be used{since} ({reasons})"
                )
            for watcher in watchers:
                watcher(Progress(self.round, rounds, accuracy, summary, self.server))

    def _one(self, round: int) -> tuple[float | None, RoundSummary]:
        with self.watch.measure("server"):
            summary = self.server.absorb(self.exchange.train(self.server.plan(round)))
            self._let_go()
            validates = self.server.config.validates(round)
            evaluations = self._validate() if validates else []
            self._let_go()
            accuracy = {e.client: e.numbers["accuracy"] for e in evaluations if "accuracy" in e.numbers}
            with self.watch.measure("validation"):
                measured = self.measure(self.server)
            own = measured.get("server", {}).get("accuracy")
            whole = accuracy.keys() >= set(self.server.evaluators)
            if validates:
                self.selection.observe(self.server.model.round, accuracy, own, whole=whole)
                self._accuracy = sum(accuracy.values()) / len(accuracy) if accuracy else own or 0.0
            self._count(summary, len(evaluations))
            self.round = round
        with self.watch.measure("checkpoint"):
            self._keep_models()
            seconds = self.watch.take()
            line = _line(summary, evaluations, seconds) | measured
            if self.server.config.privacy == "hospital":  # who helped whom stays in `state`
                line = {key: value for key, value in line.items() if key not in WHO_HELPED}
            self.folder.append_metrics(line)
            every, rounds = self.server.config.checkpoint_every, self.server.config.federation.rounds
            if round % every == 0 or (round == rounds and every <= rounds):
                self._commit()
        return self._accuracy, summary

    def finish(self) -> None:
        """Forget those that have withdrawn since the last round, too."""
        if self.exchange.left - self.server.withdrawn:
            self._let_go()
            self._commit()

    def _let_go(self) -> None:
        """Forget the clients that have withdrawn; what is on disk of them goes with the next commit."""
        for client in sorted(self.exchange.left - self.server.withdrawn):
            self.server.withdraw(client)
            self.folder.ledger.append([{"kind": "withdraw", "round": self.server.round, "client": client}])

    def _validate(self) -> list[Evaluation]:
        """Return the validation of the global model by client; what answers something else does not count."""
        tasks = {task.client: task for task in self.server.evaluation_tasks()}
        found = {}
        for evaluation in self.exchange.evaluate(tasks.values()):
            task = tasks.get(evaluation.client)
            if task is not None and (evaluation.run, evaluation.round) == (task.run, task.round):
                found[evaluation.client] = evaluation
        return [found[client] for client in sorted(found)]

    def _count(self, summary: RoundSummary, evaluations: int) -> None:
        totals, model = self.totals, size_in_bytes(self.server.model.state)
        totals["bytes_down"] += summary.bytes_down
        totals["bytes_up"] += summary.bytes_up
        totals["bytes_evaluation"] += evaluations * model
        totals["void"] += summary.void
        totals["rejected"] += len(summary.rejected)
        totals["accepted"] += len(summary.accepted)
        totals["client_rounds"] += len(summary.cohort)
        totals["with_peer"] += sum(bool(members) for members in summary.committees.values())
        for client in summary.kept:  # where peers could help
            size = str(len(summary.committees[client]))
            totals["peers"][size] = totals["peers"].get(size, 0) + 1

    def _keep_models(self) -> None:
        current, shown, models = self.server.model, self.server.shown, self.folder.models
        if current.round not in models.records:
            models.put(current.round, current.round, shown.state)
            if shown is not current:
                models.put(UNAVERAGED, current.round, current.state)
        before = self.server.predecessor
        shared = {current.round} | (set() if before is None else {before.round})
        models.keep_only(self.selection.rounds() | shared | {UNAVERAGED})
        best = {key: round for key, (_, round) in self.selection.best.items()}
        of_clients = {int(key): best.pop(key) for key in list(best) if key.isdecimal()}
        self.exchange.keep(shared | set(best.values()), of_clients)

    def _commit(self) -> None:
        self.folder.commit(
            self._origin
            | {
                "round": self.round,
                "model": self.server.model.round,
                "predecessor": None if self.server.predecessor is None else self.server.predecessor.round,
                "selection": self.selection.to_json(),
                "totals": self.totals,
            }
            | ({"averaged": self.server.averaged} if self.server.averaged else {})
            | ({"withdrawn": sorted(self.server.withdrawn)} if self.server.withdrawn else {})
        )


def _line(summary: RoundSummary, evaluations: list[Evaluation], seconds: dict[str, float]) -> dict[str, Any]:
    return asdict(summary) | {
        "validation": {str(e.client): e.numbers for e in evaluations},
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }
