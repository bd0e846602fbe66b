"""A run's numbers for TensorBoard or MLflow, as a watcher: below RUN/tracking, off unless asked for, nothing sent.

`metrics.jsonl` is what a run says of its rounds; a tracker copies its lines, each once, however often the run is
resumed. The packages are extras: `pip install '.[tensorboard]'`, `pip install '.[mlflow]'`.
"""

import importlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from fedperl.config import flat
from fedperl.errors import ConfigError, RunError
from fedperl.federation.rounds import Progress
from fedperl.federation.run_folder import RunFolder

TRACKERS = ("tensorboard", "mlflow")
FOLDER = "tracking"
BY_CLIENT = ("accuracy", "balanced_accuracy", "weighted_f1", "macro_auroc", "ece", "aurc")
"""Of the test numbers, those that are also written by client; of all others the mean."""
MOST_METRICS, MOST_PARAMS = 1000, 100
"""That MLflow takes at a time."""

Values = dict[str, float]


class Sink(Protocol):
    """Where numbers go."""

    def written(self) -> set[tuple[str, int]]:
        """Return the series and rounds that are there already."""
        ...

    def write(self, series: str, round: int, values: Values) -> None:
        """Write one round's numbers."""
        ...

    def finish(self, round: int, values: Values) -> None:
        """Write the final numbers, unless they are there."""
        ...

    def close(self) -> None:
        """Write out what is left."""
        ...


class Tracker:
    """A watcher that copies a run's rounds to a sink, and its test numbers at the end."""

    def __init__(self, kind: str, folder: Path) -> None:
        """Check that the package is there; nothing is written before the first round.

        Raises:
            ConfigError: the kind is unknown, or its package is not installed; the message says how to install it.
        """
        if kind not in TRACKERS:
            raise ConfigError(f"--tracker {kind!r}; wanted {' or '.join(TRACKERS)}")
        self._module = _tensorboard() if kind == "tensorboard" else _mlflow()
        self._open = TensorBoardSink if kind == "tensorboard" else MlflowSink
        self._folder = RunFolder(folder)
        self._sink: Sink | None = None
        self._written: set[tuple[str, int]] = set()
        self._read: dict[Path, int] = {}  # bytes of each file that were copied

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sink is not None:
            self._sink.close()

    def __call__(self, progress: Progress) -> None:
        """Copy the rounds that are not there yet: after a resume also those of before."""
        if self._sink is None:
            where = self._folder.path / FOLDER
            where.mkdir(parents=True, exist_ok=True)
            self._sink = self._open(self._module, where, self._folder)
            self._written = self._sink.written()
        for series, line in self._new_lines():
            if (series, line["round"]) not in self._written:
                self._sink.write(series, line["round"], round_values(line, alone=bool(series)))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Copy what is left and the final test numbers; a run that was finished before is copied as a whole."""
        rounds = int(results["rounds"])
        self(Progress(rounds, rounds, 0.0, None))
        assert self._sink is not None
        self._sink.finish(rounds, final_values(results))

    def _new_lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the lines since the last call; those of clients that trained by themselves under their numbers.

        A line is there once its round is committed: no later start takes it back, but with `checkpoint_every`, after
        which a repeated round gives the same numbers again.
        """
        alone = sorted((self._folder.path / "clients").glob("*/metrics.jsonl"))
        for series, path in [("", self._folder.metrics), *((path.parent.name, path) for path in alone)]:
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    content = file.read()
                whole = content[: content.rfind(b"\n") + 1]
                self._read[path] = self._read.get(path, 0) + len(whole)
                for text in whole.splitlines():
                    yield series, json.loads(text)


def round_values(line: Mapping[str, Any], *, alone: bool = False) -> Values:
    """Return the numbers of one line of `metrics.jsonl` by name.

    Args:
        alone: the line is of a client that trained by itself, whose rounds are its own: no means over clients.
    """
    found: Values = {}
    validation: dict[str, dict[str, float]] = line["validation"]
    accuracies = {client: numbers["accuracy"] for client, numbers in validation.items() if "accuracy" in numbers}
    found |= {f"validation/accuracy/client_{client}": value for client, value in accuracies.items()}
    if "accuracy" in line.get("server", {}):
        found["validation/accuracy/server"] = line["server"]["accuracy"]
    trained: dict[str, dict[str, float]] = line["numbers"]
    found |= {f"training/loss/client_{client}": one["loss"] for client, one in trained.items() if "loss" in one}
    if alone:
        return {name: float(value) for name, value in found.items()}
    if accuracies:
        found["validation/accuracy"] = sum(accuracies.values()) / len(accuracies)
    for name in sorted({name for one in trained.values() for name in one}):
        values = [one[name] for one in trained.values() if name in one]
        found[f"training/{name}"] = sum(values) / len(values)
    found["cohort/size"] = len(line["cohort"])
    found["cohort/accepted"] = len(line["accepted"])
    found["cohort/rejected"] = len(line["rejected"])
    if "committees" in line:
        found["cohort/with_peer"] = sum(bool(members) for members in line["committees"].values())
    found |= {f"seconds/{name}": value for name, value in line["seconds"].items()}
    return {name: float(value) for name, value in found.items()}


def final_values(results: Mapping[str, Any]) -> Values:
    """Return a run's test numbers by name: of each choice of models all means, and the main ones by client."""
    found: Values = {}
    for choice, numbers in results["over_clients"].items():
        found |= {f"test/{choice}/{name}": float(over["mean"]) for name, over in numbers.items()}
    for choice, holders in results["test"].items():
        for holder, numbers in holders.items():
            who = holder if holder == "server" else f"client_{holder}"
            found |= {f"test/{choice}/{name}/{who}": float(numbers[name]) for name in BY_CLIENT if name in numbers}
    return found


def _tensorboard() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise _not_installed("tensorboard", error) from None


def _mlflow() -> Any:
    # MLflow would report its use to its makers: nothing may leave a hospital that nobody asked for.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # not a line for each table of a new database
    try:
        importlib.import_module("sqlalchemy")  # the small package, mlflow-skinny, comes without a database
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise _not_installed("mlflow", error) from None


def _not_installed(extra: str, error: ImportError) -> ConfigError:
    return ConfigError(f"--tracker {extra}: not installed ({error}); pip install '.[{extra}]'")


class TensorBoardSink:
    """Event files in tracking/tensorboard, written anew from the first round at every start.

    Event files can only be appended to: rounds after a crash would be there twice. What `metrics.jsonl` has is quickly
    written again.
    """

    def __init__(self, module: Any, folder: Path, run: RunFolder) -> None:
        where = folder / "tensorboard"
        for old in where.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = module.SummaryWriter(str(where))
        self._writer.add_text("config", "\n".join(f"    {line}" for line in _settings(run)), 0)

    def written(self) -> set[tuple[str, int]]:
        """Return nothing: the files are new."""
        return set()

    def write(self, series: str, round: int, values: Values) -> None:
        """Write one round's numbers at the step of that round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def finish(self, round: int, values: Values) -> None:
        """Write the final numbers at the step of the last round."""
        self.write("", round, values)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class MlflowSink:
    """One MLflow run in tracking/mlflow.db, a SQLite file; a resumed training goes on with it."""

    def __init__(self, module: Any, folder: Path, run: RunFolder) -> None:
        client = importlib.import_module("mlflow.tracking").MlflowClient
        self._entities = importlib.import_module("mlflow.entities")
        config = run.read_config()
        database = (folder / "mlflow.db").resolve()
        sqlalchemy = importlib.import_module("sqlalchemy")
        unusable = (module.exceptions.MlflowException, sqlalchemy.exc.SQLAlchemyError)
        try:
            self._client = client(tracking_uri=_address(sqlalchemy, database))
            found = self._client.get_experiment_by_name("fedperl")
            artifacts = (folder / "mlflow-artifacts").resolve().as_uri()
            number = found.experiment_id if found else self._client.create_experiment("fedperl", artifacts)
            runs = self._client.search_runs([number], order_by=["attributes.start_time ASC"])
            self._run = runs[0].info.run_id if runs else self._new(number, config.name, _settings(run))
        except unusable as error:
            reason, _, _ = str(error).partition("\n")
            raise RunError(f"{database}: cannot be used by MLflow: {reason}") from None

    def _new(self, experiment: str, name: str, settings: list[str]) -> str:
        run_id: str = self._client.create_run(experiment, run_name=name).info.run_id
        params = [self._entities.Param(*line.split(" = ", 1)) for line in settings]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + MOST_PARAMS])
        return run_id

    def written(self) -> set[tuple[str, int]]:
        """Return the series and rounds that were written whole: the mark is written last."""
        marks = [name for name in self._client.get_run(self._run).data.metrics if name.startswith("written")]
        return {
            (name.partition("/")[2], metric.step)
            for name in marks
            for metric in self._client.get_metric_history(self._run, name)
        }

    def write(self, series: str, round: int, values: Values) -> None:
        """Write one round's numbers at the step of that round, and the mark that they are there."""
        now, mark = int(1000 * time.time()), f"written/{series}" if series else "written"
        metrics = [self._entities.Metric(name, value, now, round) for name, value in (values | {mark: 1.0}).items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + MOST_METRICS])

    def finish(self, round: int, values: Values) -> None:
        """Write the final numbers, once, and end the run."""
        if ("test", round) not in self.written():
            self.write("test", round, values)
        self._client.set_terminated(self._run)

    def close(self) -> None:
        """Do nothing: every round is written at once."""


def _address(sqlalchemy: Any, database: Path) -> str:
    """Return a SQLite file's address, in which ? and % of a folder's name would mean something else.

    Raises:
        RunError: this version of SQLAlchemy knows no way to write that name.
    """
    address: str = sqlalchemy.URL.create("sqlite", database=str(database)).render_as_string(hide_password=False)
    if sqlalchemy.make_url(address).database != str(database):
        raise RunError(f"{database}: MLflow cannot use a folder of this name; wanted one without '?'")
    return address


def _settings(run: RunFolder) -> list[str]:
    """Return the run's settings, one `key = value` each, sorted."""
    return [f"{key} = {value}" for key, value in sorted(flat(run.read_config().model_dump()).items())]
