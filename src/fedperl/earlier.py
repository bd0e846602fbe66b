"""Runs of an earlier edition (0.1, 0.2, ...): read without the settings that are gone."""

import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedperl import __version__
from fedperl.config import Table, flat, load_config, read_toml
from fedperl.settings import Config


def read_resolved(path: Path) -> tuple[Config, Table]:
    """Return a run's own configuration, and what it says that this version does not know, by dotted key.

    What an earlier edition wrote is not checked for contradictions: it was, when it was written.
    """
    table = read_toml(path)
    by = str(table.get("written_by", ""))
    if not () < _edition(by) < _edition(f"fedperl {__version__}"):
        return load_config(path), {}
    config, gone = split_known(table)
    if gone:
        known = flat(config.model_dump())
        told = [f"{key} = {gone[key]!r} (read as {known[key]!r})" if key in known else key for key in sorted(gone)]
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
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            values[key], others = split_known(value, kind, f"{name}.")
            gone |= others
        else:
            kind = Annotated[kind, field]
            try:
                values[key] = TypeAdapter(kind).validate_python(value)
            except ValidationError:
                gone[name] = value
    return section.model_construct(**values), gone


@cache
def _tell_once(line: str) -> None:
    logging.getLogger(__name__).warning(line)


def _edition(by: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    found = re.match(r"fedperl (\d+)\.(\d+)\.", by)
    return tuple(int(number) for number in found.groups()) if found else ()
