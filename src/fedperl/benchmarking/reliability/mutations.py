"""Damaged and hostile versions of a file, drawn from a seed: bytes flipped, cut, put in; structures bent."""

import copy
import io
import json
import random
from pathlib import Path
from typing import Any

HEADER = 8
"""Bytes of a safetensors file that tell the length of its header."""
DEEP = 20_000


def payload(sentinel: Path) -> bytes:
    """Return what creates a file when somebody unpickles it: open(sentinel, "w"), in the words of a pickle."""
    return f"cbuiltins\nopen\n(V{sentinel}\nVw\ntR.".encode()


class Mutations:
    """Draws mutations; the same seed draws the same."""

    def __init__(self, seed: str, sentinel: Path) -> None:
        """Start a sequence.

        Args:
            sentinel: the file that hostile content tries to create.
        """
        self.chance = random.Random(seed)
        self.pickled = payload(sentinel)
        self.sentinel = sentinel

    # Bytes

    def damaged(self, content: bytes) -> bytes:
        """Return the content changed in one of many ways, some of which leave it as it is."""
        ways = [self._flipped, self._flipped, self._cut, self._put_in, self._taken_out, self._doubled, self._replaced]
        return self.chance.choice(ways)(content)

    def _flipped(self, content: bytes) -> bytes:
        found = bytearray(content)
        within = min(len(found), self.chance.choice([64, 1024, 10**9]))
        for _ in range(self.chance.choice([1, 1, 2, 8])):
            if within:
                found[self.chance.randrange(within)] ^= 1 << self.chance.randrange(8)
        return bytes(found)

    def _cut(self, content: bytes) -> bytes:
        return content[: self.chance.randrange(len(content) + 1)]

    def _put_in(self, content: bytes) -> bytes:
        at = self.chance.randrange(len(content) + 1)
        return content[:at] + self.token() + content[at:]

    def _taken_out(self, content: bytes) -> bytes:
        at = self.chance.randrange(len(content) + 1)
        return content[:at] + content[at + self.chance.choice([1, 4, 100]) :]

    def _doubled(self, content: bytes) -> bytes:
        at, length = self.chance.randrange(len(content) + 1), self.chance.choice([1, 8, 300])
        return content[: at + length] + content[at:]

    def _replaced(self, content: bytes) -> bytes:
        return self.chance.choice([b"", self.pickled, b"PK\x03\x04" + content, b"[" * DEEP, b"\x93NUMPY" + content])

    def token(self) -> bytes:
        """Return bytes that mean something to some reader."""
        odd = [b"\0", b"\xff\xfe", b'"', b"[", b"{", b"}", b"\n", b",", b"=", b"#", b"nan", b"1e999", b"-1", b"../"]
        drawn = self.chance.randbytes(self.chance.randrange(1, 20))
        return self.chance.choice([*odd, b"9" * 5000, b"[" * DEEP, self.pickled, drawn])

    # Structures

    def odd(self) -> Any:
        """Return a value that is seldom the one expected."""
        values: list[Any] = [
            None, True, False, 0, 1, -1, 2, 10**30, -(10**30), 2**63, 0.5, -0.0, 1e308, float("nan"), float("inf"),
            "", " ", "x" * 300, "False", "0", "nan", "\0", "../../etc/passwd", "/etc/passwd", "~", "C:\\x",
            "\u202e", "=1+1", f"$(touch {self.sentinel})", "__import__('os')", f"{self.sentinel}.py:Objective",
            [], {}, [[]], [1, 2, 3], {"a": 1}, ["a", "a"], [-1], [None],
        ]  # fmt: skip
        return copy.deepcopy(self.chance.choice(values))

    def structure(self, value: Any) -> Any:
        """Return a copy of nested lists and tables in which one thing is changed, gone, doubled or renamed."""
        value = copy.deepcopy(value)
        holders = [found for found in _holders(value) if found]
        if not holders or self.chance.random() < 0.02:
            return self.odd()
        holder = self.chance.choice(holders)
        key = self.chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        way = self.chance.randrange(5)
        if way <= 1:
            holder[key] = self.odd()
        elif way == 2:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, self.odd() if way == 3 else copy.deepcopy(holder[key]))
        else:
            name = key if way == 3 else self.chance.choice([key[:-1], key + "s", key.upper(), "", "__class__"])
            holder[name] = self.structure(holder[key]) if way == 3 else holder.pop(key)
        return value

    def json(self, content: bytes) -> bytes:
        """Return JSON with its structure bent."""
        return json.dumps(self.structure(json.loads(content))).encode()

    def safetensors(self, content: bytes) -> bytes:
        """Return a safetensors file whose header is bent, and of the length that it says."""
        length = int.from_bytes(content[:HEADER], "little")
        header = self.json(content[HEADER : HEADER + length])
        if self.chance.random() < 0.1:
            header = header.replace(b"F32", self.chance.choice([b"F64", b"BF16", b"I32", b"F4", b"C64", b"BOOL"]), 1)
        told = len(header) if self.chance.random() < 0.9 else self.chance.choice([0, 2**63, 2**64 - 1, length])
        return told.to_bytes(HEADER, "little") + header + content[HEADER + length :]

    def table(self, content: bytes) -> bytes:
        """Return a table of comma-separated values with a cell, row or column changed."""
        rows = [line.split(b",") for line in io.BytesIO(content).read().split(b"\n")]
        row, other = self.chance.randrange(len(rows)), self.chance.randrange(len(rows))
        cell, way = self.chance.randrange(len(rows[row])), self.chance.randrange(7)
        if way <= 2:
            rows[row][cell] = self.chance.choice([self.token(), str(self.odd()).encode(errors="replace")])
        elif way == 3:
            del rows[row][cell]
        elif way == 4:
            rows[row].insert(cell, self.token())
        elif way == 5:
            rows.insert(other, rows[row])
        else:
            del rows[row]
        return b"\n".join(b",".join(cells) for cells in rows)


def _holders(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(found for inner in value.values() for found in _holders(inner))]
    if isinstance(value, list):
        return [value, *(found for inner in value for found in _holders(inner))]
    return []
