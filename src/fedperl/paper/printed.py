"""What the paper prints, by table or figure, run and column: the numbers that ours are set beside."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from fedperl.config import nearest

Value = float | list[float]
"""A number, or several of one cell: [mean, std], [mean, median, std] or [least, most]."""


def printed(artefact: str) -> dict[str, dict[str, Value]]:
    """Return {run: {column: value}} of a table or figure, in the paper's order; empty cells are left out.

    Raises:
        ValueError: the paper gives no numbers under that name.
    """
    known = _file()
    if artefact not in known:
        raise ValueError(f"no printed numbers of {artefact!r}{nearest(artefact, known)}; known: {', '.join(known)}")
    rows = dict(known[artefact])
    columns = rows.pop("columns")
    return {
        run: {column: value for column, value in zip(columns, values, strict=True) if value != "-"}
        for run, values in rows.items()
    }


@cache
def _file() -> dict[str, dict[str, list[Any]]]:
    return tomllib.loads(resources.files("fedperl.paper").joinpath("printed.toml").read_text(encoding="utf-8"))
