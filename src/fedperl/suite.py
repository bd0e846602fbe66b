"""A suite: runs to be compared, as a TOML file says (docs/comparing.md); all of it is checked before any is trained."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from fedperl.config import (
    Table,
    check_keys,
    config_hash,
    merged,
    named,
    nearest,
    read_toml,
    resolve,
)
from fedperl.earlier import read_resolved
from fedperl.errors import ConfigError
from fedperl.federation.messages import EVALUATION_NUMBERS
from fedperl.files import digest
from fedperl.machine import cores
from fedperl.parallel import Job
from fedperl.settings import Config, Section, explain

GIVEN = ("name", "method", "seed")
"""What the suite itself says of each run; no setting."""
IMAGES_OF = ("data", "partition", "scenario")
"""Sections that decide which images are trained and tested on."""
IMAGES = "_images"
"""The folder of drawn images; no run's begins with an underscore."""


class SuiteRun(Section):
    """One row of the table: a method with settings of its own, or a grid of them."""

    name: str
    method: str
    settings: dict[str, Any] = Field(default={})
    """Laid over the suite's."""
    grid: dict[str, Any] | None = None
    """Settings with the values to try: every combination is trained, the best on validation images is reported."""


class Suite(Section):
    """Runs to be compared on equal terms."""

    name: Annotated[str, Field(pattern=r"^[^/\\.\[][^/\\\[]*$")]
    baseline: str
    """The name of the run that the others are compared with."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)] = (1, 2, 3)
    metric: str = "weighted_f1"
    """A number that results.json has for each client."""
    choice: Literal["per_client_best", "global_best", "server_best", "last"] = "per_client_best"
    """Which round's model is tested; the best ones are chosen on validation images."""
    settings: dict[str, Any] = Field(default={})
    """What all runs share, as in a training file."""
    runs: Annotated[tuple[SuiteRun, ...], Field(strict=False, min_length=1)]


@dataclass(frozen=True)
class Point:
    """One way to train a run: the values of its grid, none without one, and a job for each seed."""

    run: SuiteRun
    values: dict[str, Any]
    jobs: dict[int, Job]


@dataclass(frozen=True)
class Plan:
    """A suite with every setting resolved, and the folder it goes to."""

    suite: Suite
    points: list[Point]
    out: Path

    @property
    def jobs(self) -> list[Job]:
        """All that is to be trained."""
        return [job for point in self.points for job in point.jobs.values()]


def plan_suite(
    what: str | Path, out: str | Path | None = None, *, seeds: int | None = None, overrides: Sequence[str] = ()
) -> Plan:
    """Return what a suite would train, every configuration resolved.

    Args:
        what: a TOML file, or the name of a suite that ships with the package.
        out: the folder of its runs, by default runs/NAME.
        seeds: how many of the suite's seeds; more than it has are counted on from its last.
        overrides: `a.b=c`, laid over the settings of every run.
    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown, a value is of the wrong type or out of range, or
            two of them contradict each other; the message names file, run and key.
    """
    suite, source = _read_suite(what)
    if seeds is not None:
        more = itertools.count(max(suite.seeds) + 1)
        wanted = tuple(itertools.islice(itertools.chain(suite.seeds, more), seeds))
        suite = suite.changed(seeds=wanted)
    return plan_of(suite, Path("runs") / suite.name if out is None else Path(out), source, overrides)


def plan_of(suite: Suite, folder: Path, source: str, overrides: Sequence[str] = ()) -> Plan:
    """Return what a suite trains into a folder; `source` is what errors call the suite.

    Raises:
        ConfigError: as `plan_suite`.
    """
    _check_suite(suite, source)
    points = [point for run in suite.runs for point in _points(run, suite, source, folder, overrides)]
    return Plan(suite, points, folder)


def _read_suite(what: str | Path) -> tuple[Suite, str]:
    """Return a suite and what errors call it."""
    path = Path(what)
    shipped = path.suffix != ".toml" and len(path.parts) == 1 and not path.is_file()
    table, source = (named("suites", str(what)), f"suite {what}") if shipped else (read_toml(path), str(path))
    _check_table(table, Suite, source)
    runs = table["runs"]
    if not isinstance(runs, list) or not all(isinstance(run, Mapping) for run in runs):
        raise ConfigError(f"{source}: runs = {runs!r}; wanted tables, [[runs]]")
    for number, run in enumerate(runs):
        _check_table(run, SuiteRun, source, f"runs[{number}].")
    try:
        return Suite.model_validate(table), source
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def _check_table(table: Table, model: type[BaseModel], source: str, prefix: str = "") -> None:
    for key in table:
        if key not in model.model_fields:
            setting = key in Config.model_fields and key not in GIVEN
            guess = "; wanted in a table of settings" if setting else nearest(key, model.model_fields)
            raise ConfigError(f"{source}: unknown key {prefix + key!r}{guess}")
    for key, field in model.model_fields.items():
        if field.is_required() and key not in table:
            raise ConfigError(f"{source}: {prefix}{key} is missing")


def _check_suite(suite: Suite, source: str) -> None:
    """Refuse what is wrong in the suite itself; settings are checked where they are resolved."""
    names = [run.name for run in suite.runs]
    if suite.baseline not in names:
        guess = nearest(suite.baseline, names)
        raise ConfigError(f"{source}: baseline = {suite.baseline!r} is none of the runs{guess}")
    if len(set(suite.seeds)) < len(suite.seeds):
        raise ConfigError(f"{source}: seeds = {list(suite.seeds)}: one of them is there twice")
    metrics = EVALUATION_NUMBERS - {"images"}
    if suite.metric not in metrics:
        guess = nearest(suite.metric, metrics)
        raise ConfigError(f"{source}: metric = {suite.metric!r}{guess}; wanted one of {', '.join(sorted(metrics))}")
    folders: dict[str, str] = {}
    for name in names:
        if not _slug(name):
            raise ConfigError(f"{source}: a run's name is {name!r}; wanted one with a letter from a to z or a digit")
        other = folders.setdefault(_slug(name), name)
        if names.count(name) > 1 or other != name:
            raise ConfigError(f"{source}: runs {other!r} and {name!r} would share a folder; wanted names that differ")
    for where, settings in (("settings", suite.settings), *((f"run {run.name!r}", run.settings) for run in suite.runs)):
        for key in GIVEN:
            if key in settings:
                raise ConfigError(
                    f"{source}: {where}: {key} = {settings[key]!r} is no setting here: the suite gives it"
                )
        check_keys(settings, Config, source if where == "settings" else f"{source}, {where}", "settings.")


def _points(run: SuiteRun, suite: Suite, source: str, out: Path, overrides: Sequence[str]) -> list[Point]:
    """Return every way to train a run, resolved."""
    where = f"{source}, run {run.name!r}"
    grid = {} if run.grid is None else dict(_flat(run.grid, where))
    if run.grid is not None and not grid:
        raise ConfigError(f'{where}: the grid is empty; wanted settings with values: "objective.tau" = [0.6, 0.9]')
    for key in grid:
        if key in GIVEN or key.split(".")[0] in IMAGES_OF or key == "federation.exclude":
            raise ConfigError(f"{where}: grid: {key} decides what is compared, not how well; wanted other settings")
    points, seen = [], dict[str, str]()
    for chosen in itertools.product(*grid.values()):
        values = dict(zip(grid, chosen, strict=True))
        text = ", ".join(f"{key} = {value}" for key, value in values.items())
        at = f" ({text})" if text else ""
        configs = [_config(run, values, seed, suite, overrides, where + at) for seed in suite.seeds]
        place = re.sub(r"[^\w.=+-]+", "-", text.replace(" = ", "=").replace(", ", "_"))
        for mark in (f"folder {place}", config_hash(configs[0])):
            if mark in seen:
                raise ConfigError(f"{where}: {seen[mark]} and {text} are one point; is a value there twice, or --set?")
            seen[mark] = text
        folder = out / _slug(run.name) / place
        configs = [_on_this_machine(config, folder / f"seed-{config.seed}") for config in configs]
        jobs = [Job(f"{run.name}{at}, seed {c.seed}", c, folder / f"seed-{c.seed}", _images(c, out)) for c in configs]
        points.append(Point(run, values, dict(zip(suite.seeds, jobs, strict=True))))
    return points


def _config(run: SuiteRun, values: Table, seed: int, suite: Suite, overrides: Sequence[str], where: str) -> Config:
    own = {"name": f"{_slug(run.name)} seed {seed}", "method": run.method, "seed": seed}
    table = merged(suite.settings, run.settings, *(_nested(*item) for item in values.items()), own)
    try:
        config = resolve(table, overrides, source=where)
    except ConfigError as error:  # of a method or a preset that is not there, it does not say where
        text = str(error)
        raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from None
    for key in GIVEN:
        if getattr(config, key) != own[key]:
            raise ConfigError(f"--set {key}={getattr(config, key)}: the suite gives every run its {key}")
    if config.federation.alone and suite.choice in ("global_best", "server_best"):
        raise ConfigError(
            f"{where}: choice = {suite.choice!r} is of a global model, and these clients train alone; wanted "
            "'per_client_best' or 'last'"
        )
    return config


def _on_this_machine(config: Config, folder: Path) -> Config:
    """Return the configuration with its threads settled: those of a run that is there already, or the machine's."""
    if config.threads != "auto":
        return config
    started = folder / "config.toml"
    threads = read_resolved(started)[0].threads if started.exists() else cores()
    return config.changed(threads=threads)


def _flat(grid: Mapping[str, Any], where: str, prefix: str = "") -> Iterable[tuple[str, list[Any]]]:
    """Yield the settings of a grid and their values; `objective.tau` and a table [objective] are the same."""
    for key, values in grid.items():
        if isinstance(values, Mapping):
            yield from _flat(values, where, f"{prefix}{key}.")
        elif isinstance(values, list) and values:
            yield prefix + key, values
        else:
            raise ConfigError(f"{where}: grid: {prefix}{key} = {values!r}; wanted a list of values, at least one")


def _nested(key: str, value: Any) -> Table:
    first, dot, rest = key.partition(".")
    return {first: _nested(rest, value) if dot else value}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("+", " plus ")).strip("-")


def _images(config: Config, out: Path) -> Path | None:
    """Return the folder for drawn images, one for all runs that draw the same; others are opened where they lie."""
    if config.data.source != "dermsim" or config.partition.file:
        return None
    drawn = [config.data.model_dump_json(), config.partition.model_dump_json(), config.scenario.labels == "server"]
    return out / IMAGES / digest(repr(drawn).encode())[:12]
