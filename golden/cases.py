"""Cases as files name them: a table each, `each` spread out to one case of every combination."""

import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Table = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is run under a name, and what of it is compared."""

    name: str
    kind: str
    """The file it stands in."""
    table: Table
    refused: bool = False
    """Whether the settings are such as must be refused."""
    parts: tuple[str, ...] = ()
    """Which parts are compared; none named, all."""


def read_cases(folder: Path) -> dict[str, Case]:
    """Return the cases of a folder's files, by name."""
    found: dict[str, Case] = {}
    for file in sorted(folder.glob("*.toml")):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        for name, table in content["cases"].items():
            for case in _spread(name, file.stem, merged(content["base"], table)):
                if case.name in found:
                    raise ValueError(f"{file}: case {case.name!r} is there twice")
                found[case.name] = case
    return found


def _spread(name: str, kind: str, table: Table) -> list[Case]:
    table = dict(table)
    each: Table = table.pop("each", {})
    refused, parts = bool(table.pop("refused", False)), tuple(table.pop("parts", ()))
    cases = []
    for values in itertools.product(*each.values()):
        chosen = dict(zip(each, values, strict=True))
        told = ", ".join(_told(key, value) for key, value in chosen.items())
        own = dict(table)
        for key, value in chosen.items():
            own = merged(own, _nested(key, value, table["does"]))
        cases.append(Case(f"{name}: {told}" if told else name, kind, own, refused, parts))
    return cases


def _told(key: str, value: Any) -> str:
    """Return a chosen value as part of a name."""
    if isinstance(value, dict):
        return ", ".join(str(one) for one in value.values())
    if isinstance(value, list):
        return " + ".join(map(str, value))
    return str(value) if key in ("method", "preset") else f"{key.rpartition('.')[2]} {value}"


def _nested(key: str, value: Any, does: str) -> Table:
    """Return a chosen value where it belongs: among a run's settings, or in the case itself."""
    table: Any = value
    for part in reversed(key.split(".")):
        table = {part: table}
    return {"settings": table} if does == "train" else dict(table)


def merged(below: Table, above: Table) -> Table:
    """Return two tables laid over each other, the second above."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result
