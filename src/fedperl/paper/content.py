"""What a table or a figure of the paper consists of, apart from how it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedperl.paper.found import Found

NONE = "–"
"""A cell that has no value."""


@dataclass(frozen=True)
class Row:
    """One run: our numbers, and those that the paper prints for it."""

    label: str
    ours: tuple[str, ...]
    paper: tuple[str, ...] = ()
    """As many as ours; empty where the paper has none for this run."""
    setting: str = ""
    """The group of rows it belongs to; a line is drawn where it changes."""


@dataclass(frozen=True)
class TableContent:
    """A table: every row once with our numbers and, where there are some, once with the paper's."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureContent:
    """A figure, what a person who cannot see it is told, and its numbers as a table."""

    figure: "Figure"
    alt: str
    values: TableContent | None = None
    notes: tuple[str, ...] = ()
    private: bool = False
    """It shows images of patients: it stays on this machine."""


Content = TableContent | FigureContent


@dataclass(frozen=True)
class Artefact:
    """One table or figure: what it is, what must be trained for it, and how it is made."""

    name: str
    title: str
    runs: tuple[str, ...]
    """Names of runs."""
    make: "Callable[[Found], Content]"
    unseen: bool = False
    """Whether it needs the models' answers on the images of the unseen client."""
    where: str = ""
    """Where the paper has it."""


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as the paper prints it."""
    return NONE if value is None else f"{value:.{digits}f}"
