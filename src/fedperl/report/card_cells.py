"""Markdown of the model card: tables, numbers, and texts from outside that stay texts."""

import re
from collections.abc import Sequence

UNKNOWN = "·"
ACTIVE = re.compile(r"[\\`*\[\]<>]")
"""Characters that begin something in Markdown or HTML; `|` is the tables' own."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> list[str]:
    """Return a Markdown table, the first `text` columns to the left, numbers to the right."""
    lines = [list(header), ["---"] * text + ["---:"] * (len(header) - text), *map(list, rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def plain(text: str) -> str:
    """Return a text from outside, a class or a data set, as one line in which nothing acts."""
    return ACTIVE.sub(r"\\\g<0>", _one_line(text))


def code(text: str) -> str:
    """Return a file's name as one line of code."""
    return f"`{_one_line(text).replace('`', ' ')}`"


def _one_line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def count(number: int) -> str:
    """Return how many; a dot for none."""
    return str(number) if number else UNKNOWN


def value(number: float | None) -> str:
    """Return a count as it is and a share with three digits; a dot for what is not known."""
    if number is None:
        return UNKNOWN
    return str(number) if isinstance(number, int) else f"{number:.3f}"


def span(rounds: Sequence[int]) -> str:
    """Return the first and the last of sorted rounds."""
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"


def holder_name(holder: str) -> str:
    """Return how a client, or the server, is called."""
    return holder if holder == "server" else f"client {holder}"
