"""Runs with settings that are gone, or of an earlier edition (0.1, 0.2, ...): read without these, not trained on."""

import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedperl import __version__
from fedperl.config import Table, flat, load_config, read_toml
from fedperl.errors import RunError
from fedperl.settings import Config

NEUTRAL: Table = {
    "model.orientations": 1,
    "federation.own_share": 0.0,
    "federation.batch_norm": "average",
    "federation.running_average": 0.0,
}
"""Settings that decide what a trained model answers, with the value that changes nothing."""


def read_resolved(path: Path) -> tuple[Config, Table]:
    """Return a run's own configuration, and what it says that this version does not know, by dotted key.

    Where something is gone, or an earlier edition wrote it, nothing is trained by it: contradictions do not matter.
    """
    table = read_toml(path)
    by, ours = str(table.get("written_by", "")), _edition(f"fedperl {__version__}")
    if not () < _edition(by) <= ours:
        return load_config(path), {}
    config, gone = split_known(table)
    known = flat(config.model_dump())
    if _edition(by) == ours and all(key in known or key in Config.model_fields for key in gone):
        return load_config(path), {}  # no setting went: a value that cannot be is an error
    if gone:
        told = [
            f"{key} = {gone[key]!r} (read as {known[key]!r})" if key in known else repr(key).strip("'")
            for key in sorted(gone)
        ]
        why = f"written by {by}; fedperl {__version__} does not know, and ignores"
        _tell_once(f"{path.resolve()}: {why}: {', '.join(told)}")
    return config, gone


def split_known(table: Mapping[str, Any], section: type[BaseModel] = Config, prefix: str = "") -> tuple[Any, Table]:
    """Return the settings of a table that exist and may have their value, and all others by dotted key."""
    values, gone = Table(), Table()
    for key, value in table.items():
        field, name = section.model_fields.get(key), prefix + key
        kind: Any = None if field is None else field.annotation
        if field is None:
            gone |= flat({name: value})
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            values[key], others = split_known(value if isinstance(value, Mapping) else {}, kind, f"{name}.")
            gone |= others if isinstance(value, Mapping) else {name: value}
        else:
            kind = Annotated[kind, field]
            try:
                values[key] = TypeAdapter(kind, config=section.model_config).validate_python(value)
            except ValidationError:
                gone[name] = value
    return section.model_construct(**values), gone


@cache
def _tell_once(line: str) -> None:
    logging.getLogger(__name__).warning(line)


def check_answers(source: Path, gone: Mapping[str, Any]) -> None:
    """Refuse to ask a model whose answers depended on a setting that is gone."""
    for key, neutral in NEUTRAL.items():
        if gone.get(key, neutral) != neutral:
            raise RunError(
                f"{source}: its answers depend on {key} = {gone[key]!r}, which fedperl {__version__} does not have; "
                "wanted the version that trained it"
            )


def check_trainable(folder: Path, by: str, gone: Mapping[str, Any]) -> None:
    """Refuse to train on what another edition began, or with settings that are gone.

    Args:
        by: what wrote the run's configuration.
    """
    instead = "go on with that version, or start anew in another folder"
    if _edition(by) not in ((), _edition(f"fedperl {__version__}")):
        raise RunError(f"{folder}: was begun with {by}; {instead}")
    if gone:
        raise RunError(f"{folder}: was begun with a {by} that had {', '.join(sorted(gone))}; {instead}")


def _edition(by: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, between which runs are not trained on."""
    found = re.match(r"fedperl (\d{1,4})\.(\d{1,4})\.", by)
    return tuple(int(number) for number in found.groups()) if found else ()
