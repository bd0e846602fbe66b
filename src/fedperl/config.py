"""One TOML file -> one frozen Config: defaults <- preset <- method <- privacy <- file <- command line."""

import difflib
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

import tomli_w
from pydantic import BaseModel, ValidationError

from fedperl import __version__
from fedperl.errors import ConfigError
from fedperl.settings import HOSPITAL_PEERS, Config, Peers, explain

Table = dict[str, Any]

LONGEST_NAME = 100
"""Letters of a method's or preset's name."""

HOSPITAL: Table = {
    "federation": {"cohort": "auto", "quorum": "auto", "robust": "clip"},
    "peers": {"T": HOSPITAL_PEERS, "k_min": HOSPITAL_PEERS},
}
"""What `privacy = "hospital"` sets where the file does not; a method's own T stays where it is larger."""


def load_config(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Return the configuration of a TOML file (or the defaults), with `a.b=c` overrides applied last.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown (the nearest one is named), a value is of the
            wrong type or out of range, or two settings contradict each other.
    """
    return resolve(read_toml(Path(path)) if path is not None else {}, overrides, source=str(path or "the command line"))


def resolve(table: Table, overrides: Iterable[str] = (), *, source: str = "the configuration") -> Config:
    """Return the configuration that a table and overrides describe, filled up from its method and preset."""
    given = table
    table = merged(table, *(override(text) for text in overrides))
    for key in ("method", "preset"):
        if given.get("written_by") and table.get(key) != given.get(key):
            raise ConfigError(
                f"{source}: {key} = {table.get(key)!r} over a resolved configuration of {given.get(key)!r}: with every "
                "setting spelt out it would only change the name; wanted a short file to start from"
            )
    preset = str(table.get("preset", Config.model_fields["preset"].default))
    method = str(table.get("method", Config.model_fields["method"].default))
    check_keys(table, Config, source)
    try:
        layers = [named("presets", preset), named("methods", method), table]
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    if merged(*layers).get("privacy") == "hospital":
        layers.insert(2, merged(HOSPITAL, {"peers": {"T": max(HOSPITAL_PEERS, _committee_size(*layers[:2]))}}))
    try:
        return Config.model_validate(merged(*layers))
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def _committee_size(preset: Table, method: Table) -> int:
    """Return T as preset and method have it."""
    return int(merged(preset, method).get("peers", {}).get("T", Peers.model_fields["T"].default))


def hospital_note(config: Config) -> str:
    """Return by how much `privacy = "hospital"` makes a method's committees larger; nothing where it does not."""
    if config.privacy != "hospital" or not config.peer_learning or config.peers.T != HOSPITAL_PEERS:
        return ""
    own = _committee_size(named("presets", config.preset), named("methods", config.method))
    if own >= HOSPITAL_PEERS:
        return ""
    return f"privacy = 'hospital': peers.T = {config.peers.T}; method {config.method!r} by itself has {own}"


@dataclass(frozen=True)
class Method:
    """One method: a short TOML file over shared parts."""

    line: str
    """What it is, in one line."""
    paper: str
    """Where FedPerl's paper has it."""
    source: str
    """Where the method itself was published."""
    here: str
    """Where ours differs from that."""
    settings: Table


def methods() -> dict[str, Method]:
    """Return what can be trained, by name."""
    found = {}
    for file in sorted(resources.files("fedperl").joinpath("methods").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            text = file.read_text(encoding="utf-8")
            line, *rest = (comment.removeprefix("# ") for comment in text.splitlines()[:4])
            paper, source, here = (comment.partition(": ")[2] for comment in rest)
            found[file.name.removesuffix(".toml")] = Method(line, paper, source, here, tomllib.loads(text))
    return found


def dump(config: Config) -> str:
    """Return the whole configuration as TOML, every setting spelt out: accepted back as input."""
    config = config.changed(written_by=f"fedperl {__version__}")
    return tomli_w.dumps(config.model_dump(exclude_none=True))


ASIDE = ("name", "written_by", "at_once", "image_memory", "engine", "checkpoint_every")
"""Settings that change no number."""


def config_hash(config: Config) -> str:
    """Return a digest of all that decides the result: not the name, the version that wrote the file, or memory."""
    left_out: dict[str, Any] = dict.fromkeys(ASIDE, True)
    if config.gpu == "fast":  # settings that came later: runs of earlier versions keep their hash
        left_out["gpu"] = True
    later: dict[str, Table] = {
        "partition": {"held_out": 0.05},
        "federation": {
            "server_validation": False,
            "organisations": (),
            "robust": "none",
            "faulty": 1,
            "validate_every": 1,
            "running_average": 0.0,
            "own_share": 0.0,
        },
        "objective": {"mixup": 0.0},
        "peers": {"k_min": 2},
        "model": {"norm": "batch", "init_scale": 1.0, "orientations": 1},
        "views": {"labelled": "weak"},
        "audit": {"keep_uploads": config.audit.keep_uploads},
    }
    for section, defaults in later.items():
        values = getattr(config, section)
        left_out[section] = {name for name, default in defaults.items() if getattr(values, name) == default}
    if config.dp.unit == "none":
        left_out["dp"] = True
    federation = config.federation
    weighed = federation.weights != "equal" or federation.aggregator != "fedavg" or federation.robust == "fltrust"
    if not config.coalition or not (config.peer_learning or weighed):  # nothing to swap, no shares to round
        left_out["audit"] = True
    return hashlib.sha256(config.model_dump_json(exclude=left_out).encode()).hexdigest()


def read_toml(path: Path) -> Table:
    """Return the table of a file, or raise a ConfigError that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; wanted a TOML configuration") from None
    except (ValueError, RecursionError, OSError) as error:  # of digits and nesting without end, too
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None


def named(folder: str, name: str) -> Table:
    """Return the table of a shipped preset, method or suite; the nearest name is given where there is none."""
    file = resources.files("fedperl").joinpath(folder, f"{name}.toml")
    if not name.isidentifier() or len(name) > LONGEST_NAME or not file.is_file():
        files = resources.files("fedperl").joinpath(folder).iterdir()
        known = sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))
        raise ConfigError(
            f"{folder.rpartition('/')[2].rstrip('s')} = {name!r} is unknown{nearest(name, known)}; "
            f"known: {', '.join(known)}"
        )
    return tomllib.loads(file.read_text(encoding="utf-8"))


def override(text: str) -> Table:
    """Return the table that `a.b=c` means."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: wanted key=value, for example peers.T=3")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return cast(Table, parsed)


def merged(*tables: Mapping[str, Any]) -> Table:
    """Return the tables laid over each other: later values win, tables are merged key by key."""
    result: Table = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


def check_keys(table: Mapping[str, Any], section: type[BaseModel], source: str, prefix: str = "") -> None:
    """Refuse a key that no setting has, naming the nearest."""
    for key, value in table.items():
        if key not in section.model_fields:
            known = [prefix + name for name in section.model_fields]
            guess = nearest(prefix + key, known) or nearest(key, _all_keys(Config), by_last=True)
            raise ConfigError(f"{source}: unknown key {prefix + key!r}{guess}")
        inner = section.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {prefix + key} = {value!r}; wanted a table, [{prefix + key}]")
            check_keys(value, inner, source, f"{prefix}{key}.")


def flat(table: Mapping[str, Any], prefix: str = "") -> Table:
    """Return a table of tables as one, with dotted keys."""
    found: Table = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _all_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += _all_keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def nearest(name: str, known: Iterable[str], *, by_last: bool = False) -> str:
    """Return "; did you mean ...?" where a known name is near, else nothing."""
    names = {k.rpartition(".")[2] if by_last else k: k for k in known}
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {names[match[0]]!r}?" if match else ""
