"""What could make a result too good: the same picture, a twin of it, or the same patient on both sides of a split."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from fedperl.data.manifest import Names
from fedperl.data.partition import PARTS, SERVER_PARTS
from fedperl.data.store import Store
from fedperl.data.twins import Pair, find_twins, fingerprints

TRAINING = ("labelled", "unlabelled")
EXAMPLES = 10

Place = tuple[str, str]  # holder, part


@dataclass(frozen=True)
class Sides:
    """Where the two of a pair (or all of a group) are held."""

    together: int = 0
    """In one part of one holder: no harm."""
    parts: int = 0
    """In two parts of one client."""
    clients: int = 0
    """At two clients, or a client and the server."""
    training_and_held_out: int = 0
    """Of the last two: one is trained on, another validates or tests."""
    examples: tuple[str, ...] = ()

    @property
    def apart(self) -> int:
        """How many are on both sides of some split."""
        return self.parts + self.clients


@dataclass(frozen=True)
class Audit:
    """What was found in a store and its partition."""

    rows: int
    images: int
    in_two_sets: dict[str, int]
    """Pairs of rows with one image, by the set or the two sets that list it."""
    other_label: dict[str, int]
    """Of these, those with two labels, by the two."""
    same: Sides
    twins: Sides
    groups: Sides
    counts: dict[str, dict[str, dict[str, int]]]
    """Holder -> part -> class -> images."""

    @property
    def leaks(self) -> int:
        """How many pairs and groups are on both sides of a split."""
        return self.same.apart + self.twins.apart + self.groups.apart

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self) | {"leaks": self.leaks}


def audit(store: Store, twins: Sequence[Pair] | None = None) -> Audit:
    """Compare all pictures of a store by content, whatever their names, and see who holds them.

    It looks at the pixels again: it does not trust the groups that `prepare` merged.

    Args:
        twins: of the store's images, where they are at hand: they are the same for every partition.
    """
    manifest = store.manifest
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(manifest.pixels.tolist()):
        rows_of.setdefault(number, []).append(row)
    shared = [pair for rows in rows_of.values() for pair in combinations(rows, 2)]
    alike = [
        (a, b)
        for pair in (find_twins(fingerprints(store.images)) if twins is None else twins)
        for a in rows_of.get(pair.first, [])
        for b in rows_of.get(pair.second, [])
    ]
    places = _places(store)
    names = [f"{source} {image}" for source, image in manifest.names()]
    sets = Counter(" and ".join(sorted({str(manifest.source[a]), str(manifest.source[b])})) for a, b in shared)
    labels = (*store.classes, "no label")
    differ = Counter(
        f"{manifest.source[a]} {labels[manifest.label[a]]}, {manifest.source[b]} {labels[manifest.label[b]]}"
        for a, b in shared
        if manifest.label[a] != manifest.label[b]
    )
    published = manifest.about.get("published_group", manifest.group)
    return Audit(
        len(manifest),
        len(store.images),
        dict(sorted(sets.items())),
        dict(sorted(differ.items())),
        _sides(shared, places, names),
        _sides(alike, places, names),
        _group_sides(published, places),
        class_counts(store),
    )


def class_counts(store: Store) -> dict[str, dict[str, dict[str, int]]]:
    """Return holder -> part -> class -> images, clients by number and then the server."""
    names = (*store.classes, "no label")

    def count(rows: Any) -> dict[str, int]:
        found = Counter(store.manifest.label[rows].tolist())
        return {name: found[i if i < len(store.classes) else -1] for i, name in enumerate(names)}

    clients: dict[str, dict[str, dict[str, int]]] = {
        str(number): {part: count(getattr(client, part)) for part in PARTS}
        for number, client in enumerate(store.partition.clients)
    }
    return clients | {"server": {part: count(getattr(store.partition.server, part)) for part in SERVER_PARTS}}


def _places(store: Store) -> dict[int, Place]:
    """Return who holds each dealt row, and for what."""
    places: dict[int, Place] = {}
    for name, rows in store.partition.places():
        holder, _, part = name.partition(", ")
        places |= dict.fromkeys(rows.tolist(), (holder, part))
    return places


def _sides(pairs: Iterable[tuple[int, int]], places: dict[int, Place], names: list[str]) -> Sides:
    found, examples = Counter[str](), list[str]()
    for a, b in pairs:
        if a in places and b in places:
            kinds = _kinds({places[a], places[b]})
            found.update(kinds)
            if kinds[0] != "together" and len(examples) < EXAMPLES:
                examples.append(f"{names[a]} ({', '.join(places[a])}) and {names[b]} ({', '.join(places[b])})")
    return _to_sides(found, examples)


def _group_sides(groups: Names, places: dict[int, Place]) -> Sides:
    held: dict[str, dict[Place, int]] = {}
    for row, place in places.items():
        of_group = held.setdefault(str(groups[row]), {})
        of_group[place] = of_group.get(place, 0) + 1
    found, examples = Counter[str](), list[str]()
    for group, where in held.items():
        if sum(where.values()) < 2:
            continue
        kinds = _kinds(set(where))
        found.update(kinds)
        if kinds[0] != "together" and len(examples) < EXAMPLES:
            examples.append(f"{group} ({'; '.join(', '.join(place) for place in sorted(where))})")
    return _to_sides(found, examples)


def _to_sides(found: Counter[str], examples: list[str]) -> Sides:
    return Sides(found["together"], found["parts"], found["clients"], found["training_and_held_out"], tuple(examples))


def _kinds(where: set[Place]) -> list[str]:
    if len(where) == 1:
        return ["together"]
    kinds = ["clients" if len({holder for holder, _ in where}) > 1 else "parts"]
    uses = {part in TRAINING for _, part in where}
    return [*kinds, "training_and_held_out"] if len(uses) == 2 else kinds
