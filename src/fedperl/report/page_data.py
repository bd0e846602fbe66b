"""Run folders as the page needs them: numbers, counts and curves, never an image's name or value."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedperl.data.partitions.paper import PAPER
from fedperl.errors import RunError
from fedperl.evaluate import (
    BinnedSums,
    BootstrapInterval,
    GroupCounts,
    additional_cost,
    early_and_late,
    heat_map,
    peer_counts,
    purity,
)
from fedperl.evaluate.communities import Help
from fedperl.federation.run_folder import RunFolder
from fedperl.files import digest
from fedperl.report.page_counts import Counted, Intervals, read_counts
from fedperl.settings import Config

CHOICES = {
    "per_client_best": "best for each client",
    "global_best": "best over all clients",
    "server_best": "best on the server's images",
    "last": "last round",
}
"""Which round's model is tested; the best ones are chosen on validation images."""
MEASURES = ("accuracy", "weighted_f1", "loss")
"""What is followed during training, on validation images."""
SERVER = "server"


@dataclass(frozen=True)
class PageRun:
    """One run, finished or not. Clients are named by their numbers as text, the server's own images by `server`."""

    name: str
    folder: Path
    config: Config
    sources: tuple[str, ...]
    """What each client's images are like: the data set that they come from."""
    lines: tuple[tuple[str | None, dict[str, Any]], ...]
    """Rounds so far; with the client, where clients train alone."""
    results: Mapping[str, Any] | None
    """None while the run is not finished."""
    counted: Counted
    hashes: Mapping[str, str]

    @property
    def chosen(self) -> Mapping[str, Mapping[str, str]]:
        """Choice -> client -> key in `sums`."""
        return self.counted.chosen

    @property
    def sums(self) -> Mapping[str, Mapping[str, BinnedSums]]:
        """Key -> "test" and "validation" -> counts."""
        return self.counted.sums

    @property
    def of_the_papers_clients(self) -> bool:
        """Whether the clients are the paper's ten."""
        return self.sources == tuple(hospital.source for hospital in PAPER)

    @property
    def rounds_done(self) -> int:
        """How many rounds were trained; over all clients where they train alone."""
        return len(self.lines)

    @property
    def rounds(self) -> int:
        """How many rounds there will be, in the same way."""
        federation = self.config.federation
        if not federation.alone or not self.sources:
            return federation.rounds
        members = len(self.sources) - len(federation.exclude)
        return math.ceil(federation.rounds * min(self.config.cohort, members) / members) * members

    def tested(self, choice: str) -> dict[str, dict[str, float]]:
        """Return the test numbers by client; the server's own only where no client has test images."""
        return clients_first(dict(self.results["test"].get(choice, {}))) if self.results else {}

    def pooled(self, choice: str, part: str = "test", client: str | None = None) -> BinnedSums | None:
        """Return the counts of a client, or of all clients together; None where there are none."""
        keys = clients_first(dict(self.chosen.get(choice, {})))
        found = [
            self.sums[key][part]
            for name, key in keys.items()
            if client in (None, name) and part in self.sums.get(key, {})
        ]
        if not found:
            return None
        total = found[0]
        for one in found[1:]:
            total = total + one
        return total

    def intervals(self, choice: str) -> dict[str, Intervals]:
        """Return each client's numbers on test images with their intervals, where its counts are known."""
        keys, known = clients_first(dict(self.chosen.get(choice, {}))), self.counted.intervals
        return {client: known[key] for client, key in keys.items() if key in known}

    def groups(self, choice: str) -> dict[str, GroupCounts]:
        """Return the test counts of patients' groups by attribute, added up over the clients."""
        total: dict[str, GroupCounts] = {}
        for key in clients_first(dict(self.chosen.get(choice, {}))).values():
            for attribute, counts in self.counted.groups.get(key, {}).items():
                total[attribute] = total[attribute] + counts if attribute in total else counts
        return total

    def helped(self) -> list[Help]:
        """Return who helped whom, round by round."""
        return [
            (line["round"], int(receiver), members)
            for alone, line in self.lines
            if alone is None
            for receiver, members in line.get("committees", {}).items()
            if members
        ]

    def extra_down(self) -> float | None:
        """Return what was sent down beyond one model for each client and round, in percent; None if not known."""
        if self.results is None or self.config.federation.alone:
            return None
        totals, evaluations = self.results["totals"], sum(len(line["validation"]) for _, line in self.lines)
        if not evaluations or not totals["bytes_evaluation"] or not totals["client_rounds"]:
            return None
        model = totals["bytes_evaluation"] // evaluations
        return additional_cost(totals["bytes_down"], model, totals["client_rounds"])


def clients_first(found: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of clients, by number; what is the server's only if there is no other."""
    of_clients = {key: value for key, value in found.items() if key != SERVER}
    return {key: of_clients[key] for key in sorted(of_clients, key=int)} if of_clients else found


def read_run(path: Path) -> PageRun:
    """Return what the page needs of one run folder.

    Raises:
        RunError: the folder holds no run, or one of its files cannot be used.
    """
    folder = RunFolder(path)
    if not (path / "config.toml").is_file():
        wanted = "a run folder, as `fedperl train --out` makes it"
        raise RunError(f"{path}: {'no such folder' if not path.is_dir() else 'holds no config.toml'}; wanted {wanted}")
    config = folder.read_config()
    results = folder.read_results()
    counted = Counted()
    if results is not None:
        lacking = [key for key in ("test", "over_clients", "totals", "classes", "seconds") if key not in results]
        if lacking:
            raise RunError(f"{path / 'results.json'}: holds no {lacking[0]!r}; wanted the results of a finished run")
        counted = read_counts(folder, len(results["classes"]))
    return PageRun(
        config.name,
        path,
        config,
        _sources(path / "partition.csv"),
        tuple(_lines(folder)),
        results,
        counted,
        _hashes(path) if results is not None else {},
    )


def read_runs(paths: Sequence[Path]) -> list[PageRun]:
    """Return the runs, each under a name of its own.

    Raises:
        RunError: a folder is named twice or cannot be used, or the runs' classes are not the same.
    """
    if not paths:
        raise RunError("no run folder was given; wanted at least one")
    for place, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise RunError(f"{path}: named twice; wanted each run once")
    runs = [read_run(path) for path in paths]
    known = [run for run in runs if run.results is not None]
    for run in known[1:]:
        ours, theirs = run.results["classes"], known[0].results["classes"]  # type: ignore[index]
        if ours != theirs:
            raise RunError(
                f"{run.folder}: its classes are {', '.join(ours)}; those of {known[0].folder} {', '.join(theirs)}: "
                "wanted runs of the same classes"
            )
    return _named_apart(runs)


def embedded(runs: Sequence[PageRun], *, live: bool = False) -> dict[str, Any]:
    """Return all that the page's script draws from, as plain lists and numbers."""
    finished = [run for run in runs if run.results is not None]
    return {
        "live": live,
        "classes": list(finished[0].results["classes"]) if finished else [],  # type: ignore[index]
        "choices": {name: CHOICES[name] for name in CHOICES if finished and all(name in r.chosen for r in finished)},
        "runs": [_embedded_run(run) for run in runs],
    }


def shared_choice(runs: Sequence[PageRun]) -> str:
    """Return the first choice of models that every finished run has.

    Raises:
        RunError: there is none.
    """
    for name in CHOICES:
        if all(run.tested(name) for run in runs if run.results is not None):
            return name
    found = "; ".join(f"{run.folder}: {', '.join(run.results['test'])}" for run in runs if run.results is not None)
    raise RunError(f"the runs share no choice of a model to report: {found}")


def _embedded_run(run: PageRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "finished": run.results is not None,
        "done": run.rounds_done,
        "rounds": run.rounds,
        "alone": run.config.federation.alone,
        "sources": list(run.sources),
        "chosen": {name: clients_first(dict(keys)) for name, keys in run.chosen.items()},
        "sums": {key: {part: sparse(sums, part) for part, sums in parts.items()} for key, parts in run.sums.items()},
        "f1": {
            name: {client: _plain(numbers.get("weighted_f1")) for client, numbers in run.tested(name).items()}
            for name in run.chosen
        },
        "f1_interval": {
            name: {client: _bounds(found["weighted_f1"]) for client, found in run.intervals(name).items()}
            for name in run.chosen
        },
        "training": _training(run),
        "peers": _peers(run),
    }


def sparse(sums: BinnedSums, part: str) -> dict[str, Any]:
    """Return the counts without empty bins: [bin, wrong, right, ...]; of validation images, the confidences alone."""
    filled = sums.confidence.sum(axis=1).nonzero()[0]
    found: dict[str, Any] = {
        "bins": len(sums.confidence),
        "confidence": [int(value) for b in filled for value in (b, *sums.confidence[b])],
        "total": [round(float(sums.total_confidence[b]), 6) for b in filled],
    }
    if part == "test":
        found["confusion"] = sums.confusion.tolist()
        found["scores"] = [
            [int(value) for b in one.sum(axis=1).nonzero()[0] for value in (b, *one[b])] for one in sums.scores
        ]
    return found


def _training(run: PageRun) -> dict[str, Any]:
    """Return client -> rounds and each measure on its validation images."""
    found: dict[str, dict[str, list[Any]]] = {}
    for alone, line in run.lines:
        numbers = dict(line.get("validation", {}))
        if line.get(SERVER):
            numbers[SERVER] = line[SERVER]
        for client, values in numbers.items():
            if alone in (None, client) or client == SERVER:
                name = alone if alone is not None else client
                row = found.setdefault(name, {"round": [], **{measure: [] for measure in MEASURES}})
                row["round"].append(line["round"])
                for measure in MEASURES:
                    row[measure].append(_plain(values.get(measure)))
    return clients_first(found)


def _peers(run: PageRun) -> dict[str, Any] | None:
    """Return who helped whom, in all rounds and in two halves, and how often from among the own kind."""
    helped, communities = run.helped(), dict(enumerate(run.sources))
    if not helped or not communities:
        return None
    every = peer_counts(helped)
    halves = early_and_late(helped, communities)
    shares = {"all": heat_map(every, list(communities)), "early": halves.early, "late": halves.late}
    known = {"all": purity(every, communities), "early": halves.early_purity, "late": halves.late_purity}
    return {
        "late_from": halves.late_from,
        "shares": {name: [[_plain(v) for v in row] for row in one.shares] for name, one in shares.items()},
        "purity": {name: {"overall": _plain(p.overall), "chance": _plain(p.chance)} for name, p in known.items()},
    }


def _bounds(interval: BootstrapInterval) -> list[float | None]:
    return [_plain(interval.low), _plain(interval.high)]


def _plain(value: Any) -> float | None:
    """Return a number that JSON knows, to five digits; None for what is missing or not finite."""
    return round(float(value), 5) if value is not None and math.isfinite(float(value)) else None


def _lines(folder: RunFolder) -> list[tuple[str | None, dict[str, Any]]]:
    """Return the rounds of a run; of clients that train alone, each client's in turn."""
    try:
        found: list[tuple[str | None, dict[str, Any]]] = [(None, line) for line in folder.read_metrics()]
        alone = folder.path / "clients"
        for path in sorted(alone.iterdir(), key=lambda p: (len(p.name), p.name)) if alone.is_dir() else []:
            found += [(path.name, line) for line in RunFolder(path).read_metrics()]
        wrong = [number for number, (_, line) in enumerate(found, start=1) if not _is_round(line)]
        if wrong:
            raise ValueError(f"line {wrong[0]} is not of a round")
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.metrics}: cannot be read: {error}") from None
    return found


def _is_round(line: Any) -> bool:
    return isinstance(line, dict) and "round" in line and isinstance(line.get("validation"), dict)


def _sources(path: Path) -> tuple[str, ...]:
    """Return what the clients' images are like, from the partition's first line; nothing where it does not say."""
    try:
        with path.open(encoding="utf-8") as file:
            return tuple(str(source) for source in json.loads(file.readline().lstrip("# "))["clients"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: its first line cannot be read: {error!r}; wanted how it was made") from None


def _hashes(path: Path) -> dict[str, str]:
    names = ["config.toml", "partition.csv", "results.json", "curves.json"]
    names += [f"models/{model.name}" for model in sorted((path / "models").glob("*.safetensors"))]
    return {name: digest((path / name).read_bytes()) for name in names if (path / name).is_file()}


def _named_apart(runs: list[PageRun]) -> list[PageRun]:
    """Return the runs with names that differ: the folder is added where they would not."""
    for whole in (False, True):
        names = [run.name for run in runs]
        added = [str(run.folder) if whole else run.folder.name for run in runs]
        runs = [
            replace(run, name=f"{run.name} ({more})") if names.count(run.name) > 1 else run
            for run, more in zip(runs, added, strict=True)
        ]
    return runs
