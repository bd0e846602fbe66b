"""The counts of a run folder: checked, and with the intervals that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fedperl.errors import RunError
from fedperl.evaluate import ATTRIBUTES, BinnedSums, BootstrapInterval, GroupCounts, intervals_of_confusion
from fedperl.federation.run_folder import RunFolder

Intervals = Mapping[str, BootstrapInterval]


@dataclass(frozen=True)
class Counted:
    """What `curves.json` holds. A key names a client and a round, as in 3@24."""

    chosen: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Choice -> client -> key."""
    sums: Mapping[str, Mapping[str, BinnedSums]] = field(default_factory=dict)
    """Key -> "test" and "validation" -> counts."""
    groups: Mapping[str, Mapping[str, GroupCounts]] = field(default_factory=dict)
    """Key -> attribute of patients -> counts of test images; nothing where nothing is known."""

    @cached_property
    def intervals(self) -> dict[str, Intervals]:
        """Key -> name of a number -> the number with its interval, on test images."""
        tested = {key: parts["test"].confusion for key, parts in self.sums.items() if "test" in parts}
        return {key: intervals_of_confusion(confusion) for key, confusion in tested.items() if confusion.any()}


def read_counts(folder: RunFolder, classes: int) -> Counted:
    """Return the counts of a finished run.

    Raises:
        RunError: there are none, or they cannot be used.
    """
    found, path = folder.read_curves(), folder.path / "curves.json"
    try:
        sums = {
            key: {part: BinnedSums.from_dict(counts) for part, counts in parts.items()}
            for key, parts in found["sums"].items()
        }
        chosen = {name: dict(keys) for name, keys in found["chosen"].items()}
        shapes = {one.scores.shape for parts in sums.values() for one in parts.values()}
        if len(shapes) > 1 or any(shape[0] != classes for shape in shapes):
            raise ValueError(f"counts of shapes {sorted(shapes)}; wanted one shape, of {classes} classes")
        missing = [key for keys in chosen.values() for key in keys.values() if key not in sums]
        if missing:
            raise ValueError(f"no counts under {missing[0]!r}")
        groups = {key: _groups(sums[key]["test"], one) for key, one in found.get("groups", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: cannot be used: {error}") from None
    return Counted(chosen, sums, groups)


def _groups(sums: BinnedSums, found: Mapping[str, dict[str, object]]) -> dict[str, GroupCounts]:
    groups = {attribute: GroupCounts.from_dict(counts) for attribute, counts in found.items()}
    for attribute, counts in groups.items():
        if attribute not in ATTRIBUTES:
            raise ValueError(f"groups by {attribute!r}; wanted one of {', '.join(ATTRIBUTES)}")
        counts.check(sums.confusion)
    return groups
