"""The ledger: what was sent to whom, and what came back. Each line is durable before anything is sent.

Lines are chained by hash. A resumed run repeats the rounds after its checkpoint; an entry that is on disk already is
not written twice, and one that turns out otherwise is written beside it: a release that happened is never forgotten.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedperl.errors import RunError
from fedperl.files import append_durably, digest

Entry = dict[str, Any]


class Ledger:
    """An append-only file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.tail = ""
        """Hash of the last line of the rounds so far."""
        self._end = ""  # hash of the file's last line
        self._ahead: list[str] = []  # lines of rounds that are being repeated

    def open(self, confirmed: int = 0, tail: str = "") -> None:
        """Read the file; lines after the first `confirmed` are those of rounds that will be repeated.

        A torn last line was never acted upon and is cut off.

        Raises:
            RunError: a line was changed, or lines are missing.
        """
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        try:
            lines = whole.decode().splitlines()
        except UnicodeDecodeError as error:
            raise RunError(f"{self.path}: not a ledger: {error}") from None
        self._end = ""
        for number, line in enumerate(lines, start=1):
            if _parse(line, self.path, number)["previous"] != self._end:
                raise RunError(f"{self.path}, line {number}: does not follow the line before; the ledger was changed")
            self._end = digest(line.encode())
            if number == confirmed and tail and self._end != tail:
                raise RunError(f"{self.path}, line {number}: not the line the checkpoint knows; the ledger was changed")
        if len(lines) < confirmed:
            raise RunError(f"{self.path}: {len(lines)} lines; the checkpoint knows of {confirmed}")
        self._ahead = lines[confirmed:]
        self.lines, self.tail = confirmed, tail

    def append(self, entries: Iterable[Entry]) -> None:
        """Make the entries durable, except those that the file holds already at this place."""
        new = []
        for entry in entries:
            as_read = json.loads(json.dumps(entry))
            if self._ahead and _parse(self._ahead[0], self.path, self.lines + 1)["entry"] == as_read:
                self.tail = digest(self._ahead.pop(0).encode())
                self.lines += 1
                continue
            self.lines += len(self._ahead)  # they happened, in a life that went another way
            self._ahead = []
            line = json.dumps({"previous": self._end, "entry": entry}, sort_keys=True)
            self._end = self.tail = digest(line.encode())
            self.lines += 1
            new.append(line + "\n")
        if new:
            append_durably(self.path, "".join(new).encode())

    def entries(self) -> Iterator[Entry]:
        """Yield every entry of the file."""
        if self.path.exists():
            text = self.path.read_text()
            for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):  # no torn one
                yield _parse(line, self.path, number)["entry"]


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
        if parsed.keys() != {"previous", "entry"}:
            raise ValueError(f"found the keys {sorted(parsed)}")
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}, line {number}: not a line of a ledger: {error}") from None
    return dict(parsed)


def peer_frequency(entries: Iterable[Entry]) -> dict[int, dict[int, int]]:
    """Return receiver -> peer -> in how many rounds: who helped whom, as released."""
    last: dict[tuple[int, int], list[int]] = {}
    for entry in entries:
        for release in entry.get("releases", []):
            last[(entry["round"], release["to"])] = [member for member, _ in release["committee"]]
    frequency: dict[int, dict[int, int]] = {}
    for (_, receiver), members in last.items():
        for member in members:
            row = frequency.setdefault(receiver, {})
            row[member] = row.get(member, 0) + 1
    return frequency
