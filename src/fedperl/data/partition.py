"""Who holds which images, and for what: a file that can be read, diffed and used again."""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedperl.data.manifest import Indices, Manifest, Names
from fedperl.errors import DataError
from fedperl.files import write_durably

Part = Literal["labelled", "unlabelled", "validation", "test"]
PARTS: tuple[Part, ...] = ("labelled", "unlabelled", "validation", "test")
SERVER_PARTS: tuple[Part, ...] = ("labelled", "validation", "test")
NEEDED = ("holder", "part", "step", "source", "image")
COLUMNS = (*NEEDED, "group")  # the last for the reader, and to know an unseen client by


def no_rows() -> Indices:
    """Return an empty list of rows."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class ClientPart:
    """The rows of the manifest that one client holds, by use; `unlabelled` hides its labels from training."""

    source: str
    labelled: Indices
    unlabelled: Indices
    validation: Indices
    test: Indices
    step: Indices = field(default_factory=no_rows)
    """When each unlabelled row arrives, counted from 0, where they stream in; empty: all are there from the start."""

    def __post_init__(self) -> None:
        if len(self.step) not in (0, len(self.unlabelled)):
            raise DataError(f"partition: {len(self.step)} steps for {len(self.unlabelled)} unlabelled rows")
        found = np.unique(self.step)
        if len(found) and not (found[0] == 0 and found[-1] == len(found) - 1):
            raise DataError(f"partition: steps {found[:5].tolist()} ...; wanted 0, 1, 2 and so on, none left out")

    def unlabelled_at_once(self) -> int:
        """Return how many unlabelled images are there at a time, at least."""
        return int(np.bincount(self.step).min()) if len(self.step) else len(self.unlabelled)

    def rows(self) -> Indices:
        """Return every row of the client."""
        return np.concatenate([getattr(self, part) for part in PARTS])

    def __len__(self) -> int:
        return sum(len(getattr(self, part)) for part in PARTS)


@dataclass(frozen=True)
class ServerPart:
    """The rows that the server holds itself: to train on, to choose a model by, to test it on."""

    labelled: Indices = field(default_factory=no_rows)
    validation: Indices = field(default_factory=no_rows)
    test: Indices = field(default_factory=no_rows)

    def rows(self) -> Indices:
        """Return every row of the server."""
        return np.concatenate([getattr(self, part) for part in SERVER_PARTS])

    def __len__(self) -> int:
        return sum(len(getattr(self, part)) for part in SERVER_PARTS)


@dataclass(frozen=True)
class Partition:
    """All clients, the server's own images, and how they were dealt."""

    clients: tuple[ClientPart, ...] = ()
    server: ServerPart = field(default_factory=ServerPart)
    made: Mapping[str, Any] = field(default_factory=dict)
    straddles: bool = False
    """Made with groups on both sides of a split, on purpose: to measure what the paper's leak is worth."""

    def places(self) -> list[tuple[str, Indices]]:
        """Return the name and the rows of every part of every holder."""
        return [(f"the server, {part}", getattr(self.server, part)) for part in SERVER_PARTS] + [
            (f"client {number}, {part}", getattr(client, part))
            for number, client in enumerate(self.clients)
            for part in PARTS
        ]

    def to_csv(self, manifest: Manifest) -> str:
        """Return the partition as text: a comment with how it was made, then one line an image, by name."""
        about = {
            "made": dict(self.made),
            "straddles": self.straddles,
            "clients": [client.source for client in self.clients],
        }
        text = io.StringIO()
        text.write(f"# {json.dumps(about)}\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        groups = manifest.about.get("published_group", manifest.group).tolist()
        keys = [(*name, group) for name, group in zip(manifest.names(), groups, strict=True)]
        for part in SERVER_PARTS:
            writer.writerows(("server", part, "", *keys[row]) for row in getattr(self.server, part).tolist())
        for number, client in enumerate(self.clients):
            for part in PARTS:
                rows = getattr(client, part).tolist()
                steps = client.step.tolist() if part == "unlabelled" and len(client.step) else [""] * len(rows)
                lines = zip(rows, steps, strict=True)
                writer.writerows((number, part, step, *keys[row]) for row, step in lines)
        return text.getvalue()

    def hash(self, manifest: Manifest) -> str:
        """Return the digest of who holds what; written into every run folder."""
        return hashlib.sha256(self.to_csv(manifest).encode()).hexdigest()

    def write(self, path: Path, manifest: Manifest) -> None:
        """Write the partition as a csv file that can be read, compared line by line and used again."""
        write_durably(path, self.to_csv(manifest).encode(), mode=0o644)

    @staticmethod
    def read(path: Path, manifest: Manifest) -> "Partition":
        """Return the partition of a csv file, its images found by name in the manifest.

        Raises:
            DataError: the file is missing, is no partition, or names an image that the manifest does not have.
        """
        try:
            first, _, rest = path.read_text(encoding="utf-8-sig").partition("\n")
            about = json.loads(first.removeprefix("#"))
            lines = list(csv.DictReader(io.StringIO(rest)))
            sources = [str(source) for source in about["clients"]]
            rows = {key: row for row, key in enumerate(manifest.names())}
            held: dict[tuple[str, str], list[int]] = {}
            steps: dict[str, list[int]] = {}
            for number, line in enumerate(lines, start=3):
                if None in line or None in line.values() or not set(NEEDED) <= set(line):
                    raise DataError(f"{path}, line {number}: wanted the columns {', '.join(NEEDED)}")
                key = (line["source"], line["image"])
                if key not in rows:
                    raise DataError(f"{path}, line {number}: no image {key[1]!r} of {key[0]!r} in the store")
                held.setdefault((line["holder"], line["part"]), []).append(rows[key])
                if line["step"] and line["part"] == "unlabelled":
                    steps.setdefault(line["holder"], []).append(int(line["step"]))
            known = {(str(c), part) for c in range(len(sources)) for part in PARTS}
            known |= {("server", part) for part in SERVER_PARTS}
            for holder, part in held:
                if (holder, part) not in known:
                    raise DataError(f"{path}: holder {holder!r}, part {part!r}; there are {len(sources)} clients")

            def of(holder: str, part: str) -> Indices:
                return np.array(held.get((holder, part), []), dtype=np.int64)

            clients = tuple(
                ClientPart(
                    source,
                    of(str(c), "labelled"),
                    of(str(c), "unlabelled"),
                    of(str(c), "validation"),
                    of(str(c), "test"),
                    np.array(steps.get(str(c), []), dtype=np.int64),
                )
                for c, source in enumerate(sources)
            )
            server = ServerPart(*(of("server", part) for part in SERVER_PARTS))
            if not isinstance(about["straddles"], bool):
                raise DataError(f"{path}: straddles is {about['straddles']!r}; wanted true or false")
            return Partition(clients, server, dict(about["made"]), about["straddles"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error) as error:
            raise DataError(f"{path}: cannot be read as a partition: {error!r}") from None

    def check(self, groups: Names, images: Names | None = None) -> None:
        """Refuse a partition whose rows are not in the manifest, are dealt twice, or split a group over two uses.

        Args:
            images: their names, for the message.
        Raises:
            DataError: naming the row or group, and the two places.
        """
        place: dict[int, str] = {}
        group_place: dict[str, str] = {}
        for name, rows in self.places():
            for row in rows.tolist():
                if not 0 <= row < len(groups):
                    raise DataError(f"partition: {name} holds row {row}; the manifest has {len(groups)} rows")
                if row in place:
                    which = f"row {row}" if images is None else f"image {str(images[row])!r}"
                    raise DataError(f"partition: {which} is dealt to {place[row]} and to {name}")
                place[row] = name
                if group_place.setdefault(str(groups[row]), name) != name and not self.straddles:
                    raise DataError(
                        f"partition: group {str(groups[row])!r} is on both sides of a split, "
                        f"{group_place[str(groups[row])]} and {name}"
                    )


def split_by_group(
    rows: Indices,
    labels: Indices,
    groups: Names,
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
