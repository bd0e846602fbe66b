"""Who holds which images, and for what: a file that can be read, diffed and used again."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedperl.data.manifest import Indices
from fedperl.errors import DataError
from fedperl.files import write_durably

Part = Literal["labelled", "unlabelled", "validation", "test"]
PARTS: tuple[Part, ...] = ("labelled", "unlabelled", "validation", "test")


@dataclass(frozen=True)
class ClientPart:
    """The rows of the manifest that one client holds, by use; `unlabelled` hides its labels from training."""

    source: str
    labelled: Indices
    unlabelled: Indices
    validation: Indices
    test: Indices

    def rows(self) -> Indices:
        """Return every row of the client."""
        return np.concatenate([getattr(self, part) for part in PARTS])

    def __len__(self) -> int:
        return sum(len(getattr(self, part)) for part in PARTS)


@dataclass(frozen=True)
class Partition:
    """All clients and the server's own images."""

    clients: tuple[ClientPart, ...]
    server: Indices

    @cached_property
    def hash(self) -> str:
        """Digest of who holds what; written into every run folder."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the partition as text, one client and part a line."""
        lines = [
            f'  {{"client": {number}, "source": {json.dumps(client.source)},\n'
            + ",\n".join(f'   "{part}": {json.dumps(getattr(client, part).tolist())}' for part in PARTS)
            + "}"
            for number, client in enumerate(self.clients)
        ]
        return f'{{"server": {json.dumps(self.server.tolist())},\n "clients": [\n' + ",\n".join(lines) + "\n]}\n"

    def write(self, path: Path) -> None:
        """Write the partition as JSON."""
        write_durably(path, self.to_json().encode(), mode=0o644)

    @staticmethod
    def read(path: Path) -> "Partition":
        """Return the partition of a JSON file.

        Raises:
            DataError: the file is missing, is no partition, or gives one image to two places.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            clients = tuple(
                ClientPart(str(c["source"]), *(np.array(c[part], dtype=np.int64) for part in PARTS))
                for c in content["clients"]
            )
            partition = Partition(clients, np.array(content["server"], dtype=np.int64))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as a partition: {error!r}") from None
        return partition

    def check(self, groups: npt.NDArray[np.str_]) -> None:
        """Refuse a partition whose rows are not in the manifest, are dealt twice, or split a group over two uses.

        Raises:
            DataError: naming the row or group, and the two places.
        """
        place: dict[int, str] = {}
        group_place: dict[str, str] = {}
        places = [("the server", self.server)] + [
            (f"client {number}, {part}", getattr(client, part))
            for number, client in enumerate(self.clients)
            for part in PARTS
        ]
        for name, rows in places:
            for row in rows.tolist():
                if not 0 <= row < len(groups):
                    raise DataError(f"partition: {name} holds row {row}; the manifest has {len(groups)} rows")
                if row in place:
                    raise DataError(f"partition: row {row} is dealt to {place[row]} and to {name}")
                place[row] = name
                if group_place.setdefault(str(groups[row]), name) != name:
                    raise DataError(
                        f"partition: group {str(groups[row])!r} is on both sides of a split, "
                        f"{group_place[str(groups[row])]} and {name}"
                    )


def split_by_group(
    rows: Indices,
    labels: Indices,
    groups: npt.NDArray[np.str_],
    sizes: Sequence[int],
    generator: np.random.Generator,
) -> list[Indices]:
    """Deal rows into parts of about the given sizes: groups stay whole, each part has the classes in proportion.

    Groups are laid in one line in which every class is spread evenly, and the line is cut; a part may be off its
    size by less than one group.

    Args:
        rows: of the manifest, to be dealt.
        labels: (manifest,), the class of every row, used for the proportions alone.
        groups: (manifest,), the group of every row.
    """
    names, first, inverse = np.unique(groups[rows], return_index=True, return_inverse=True)
    group_class = labels[rows][first]
    position = np.empty(len(names))
    for label in np.unique(group_class):
        members = generator.permutation(np.flatnonzero(group_class == label))
        position[members] = (np.arange(len(members)) + generator.random()) / len(members)
    line = np.argsort(position, kind="stable")
    counts = np.bincount(inverse, minlength=len(names))[line]
    # A group belongs to the part that its middle image falls into.
    middle = np.cumsum(counts) - counts / 2
    part_of_group = np.empty(len(names), dtype=np.int64)
    part_of_group[line] = np.searchsorted(np.cumsum(sizes)[:-1], middle, side="right")
    part = part_of_group[inverse]
    return [np.sort(rows[part == number]) for number in range(len(sizes))]
