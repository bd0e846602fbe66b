"""Differences that are meant: lines of golden/changes.md that a commit does not have yet."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Change:
    """One declared difference: which cases, which part of them, and why."""

    cases: str
    """A name, or a pattern with * for any letters."""
    part: str
    why: str

    def covers(self, case: str, part: str) -> bool:
        """Return whether a difference is this one."""
        return fnmatchcase(case, self.cases) and self.part in (part, "*")


def read_changes(text: str) -> list[Change]:
    """Return the rows of the table in a changes.md: | `cases` | part | why |.

    Raises:
        ValueError: a row has no three cells, or one that is empty.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("|") or line.startswith(("| cases |", "|---")):
            continue
        cells = [cell.strip() for cell in line.strip("|\n ").split("|")]
        if len(cells) != 3 or not all(cells):
            raise ValueError(f"golden/changes.md, line {number}: wanted | `cases` | part | why |, found {line!r}")
        found.append(Change(cells[0].strip("`"), cells[1], cells[2]))
    return found


def declared_since(before: str, now: str) -> list[Change]:
    """Return the changes that a file has now and had not before."""
    known = set(read_changes(before))
    return [change for change in read_changes(now) if change not in known]


def unused(changes: Iterable[Change], found: Iterable[tuple[str, str]]) -> list[Change]:
    """Return the changes that no difference is covered by."""
    differing = list(found)
    return [change for change in changes if not any(change.covers(case, part) for case, part in differing)]
