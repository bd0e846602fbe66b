"""What a client may tell of groups of its patients: a confusion matrix of each that is large enough, no other.

The matrices add up over clients, as `BinnedSums` do: numbers by age, sex, body site or skin type come from many
hospitals' counts, where no single one might have images enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.classification import Counts, Labels, confusion_matrix
from fedperl.evaluate.subgroups import Values, age_bands, known_names

ATTRIBUTES = ("age", "sex", "body_site", "skin_type")
LEAST = 10
"""Fewest images of a group that is told: what a model does on fewer says too much about single patients."""
LONGEST = 40
"""Most characters of a group's name that is told: a longer one is a remark, not a group."""
SKIN_TYPES = dict(zip("123456", ("I", "II", "III", "IV", "V", "VI"), strict=True))


@dataclass(frozen=True)
class GroupCounts:
    """The groups of one attribute, of one set of predictions or of several added up."""

    groups: Mapping[str, Counts]
    """Value -> (classes, classes): true, predicted."""
    too_few: int
    """Images with a known value that are in none of them."""

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        shapes = {counts.shape for counts in (*self.groups.values(), *other.groups.values())}
        if len(shapes) > 1:
            raise ValueError(f"groups' counts of shapes {sorted(shapes)} cannot be added")
        added = dict(self.groups)
        for name, counts in other.groups.items():
            added[name] = added[name] + counts if name in added else counts
        return GroupCounts(added, self.too_few + other.too_few)

    @property
    def images(self) -> int:
        """How many images have a known value."""
        return self.too_few + sum(int(counts.sum()) for counts in self.groups.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as lists."""
        return {"groups": {name: counts.tolist() for name, counts in self.groups.items()}, "too_few": self.too_few}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "GroupCounts":
        """Return what `to_dict` gave; whether it may be told is for `check` to say.

        Raises:
            ValueError: something is missing, or no whole number.
        """
        try:
            groups = {name: np.asarray(counts) for name, counts in found["groups"].items()}
            if any(not np.issubdtype(counts.dtype, np.integer) for counts in groups.values()):
                raise ValueError("a count is no whole number")
            if isinstance(found["too_few"], bool) or not isinstance(found["too_few"], int):
                raise ValueError(f"too_few is {found['too_few']!r}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"these are no groups' counts: {error!r}") from None
        return cls({name: counts.astype(np.int64) for name, counts in groups.items()}, found["too_few"])

    def check(self, whole: Counts) -> None:
        """Accept counts that may be told of predictions with this confusion matrix.

        Raises:
            ValueError: a name or a shape that is none, a negative count, more images than there are, or a group so
                small, or so few images outside the groups, that single patients could be guessed at.
        """
        rest = whole.copy()
        for name, counts in self.groups.items():
            if not may_be_named(name):
                raise ValueError(f"group {name!r:.60}; wanted a name of 1 to {LONGEST} characters")
            if counts.shape != whole.shape or not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
                raise ValueError(f"group {name!r}: wanted counts {whole.shape}, 0 or more, found {counts.shape}")
            if counts.sum() < LEAST:
                raise ValueError(f"group {name!r}: {counts.sum()} images; wanted at least {LEAST}")
            rest = rest - counts
        outside = int(rest.sum())
        if rest.min() < 0 or not 0 <= self.too_few <= outside:
            raise ValueError(f"groups of {self.images} images, of {whole.sum()} in all, hold more than there are")
        if self.groups and self.too_few and outside < LEAST:
            raise ValueError(f"{outside} images are outside the groups; wanted none of a known value, or {LEAST}")


def group_counts(truth: Labels, predicted: Labels, names: npt.NDArray[np.str_], classes: int) -> GroupCounts:
    """Return the counts of each group that may be told.

    Groups of fewer than ten images are left out. Their counts could still be had as the difference between all images
    and the groups that are told, so that these are left out too, the smallest first, until the others are ten.

    Args:
        truth, predicted: (n,) classes.
        names: (n,) the group of each image, "" where unknown, see `group_names`.
    Raises:
        ValueError: lengths that differ, or labels that are no classes.
    """
    if np.shape(names) != np.shape(truth):
        raise ValueError(f"wanted one group an image, {np.shape(truth)}, found {np.shape(names)}")
    present, sizes = np.unique(names[names != ""], return_counts=True)
    large = {str(name): int(n) for name, n in zip(present, sizes, strict=True) if n >= LEAST and may_be_named(name)}
    too_few, unknown = int(sizes.sum()) - sum(large.values()), int((names == "").sum())
    for name in sorted(large, key=lambda one: (large[one], one)):
        if not too_few or too_few + unknown >= LEAST:
            break
        too_few += large.pop(name)
    found = {name: confusion_matrix(truth[names == name], predicted[names == name], classes) for name in sorted(large)}
    return GroupCounts(found, too_few)


def group_names(attribute: str, values: Values) -> npt.NDArray[np.str_]:
    """Return the group of each image, "" where unknown: ages in bands, types of skin as I to VI, the rest as written.

    Raises:
        ValueError: another attribute, or an age that is no number of years.
    """
    if attribute not in ATTRIBUTES:
        raise ValueError(f"attribute {attribute!r}; wanted one of {', '.join(ATTRIBUTES)}")
    if attribute == "age":
        return age_bands(values)
    names = [" ".join(name.split()) for name in known_names(values).tolist()]
    if attribute == "skin_type":
        return np.array([SKIN_TYPES.get(name, name.upper()) for name in names], dtype=np.str_)
    return np.array([name.lower() for name in names], dtype=np.str_)


def may_be_named(name: object) -> bool:
    """Return whether this is a group's name: a short text that can be printed."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST and name.isprintable() and name == name.strip()
