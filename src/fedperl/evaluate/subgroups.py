"""Whether a model serves all alike: numbers by age, sex, body site or skin type, where they are known."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.calibration import confidences, ece_and_mce
from fedperl.evaluate.classification import Labels, Probabilities, checked, classification
from fedperl.evaluate.ranking import auroc

Values = Sequence[object] | npt.NDArray[Any]

AGES = (30.0, 45.0, 60.0, 75.0)
SMALLEST = 30
UNKNOWN = ("", "nan", "none", "unknown")


@dataclass(frozen=True)
class Subgroup:
    """One group's numbers; all None if it is too small to say anything, the AUROC also where no class has one."""

    value: str
    images: int
    too_small: bool
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    weighted_f1: float | None = None
    macro_f1: float | None = None
    auroc: float | None = None
    ece: float | None = None


@dataclass(frozen=True)
class Subgroups:
    """The groups of one attribute, sorted by value; images whose value is unknown are counted alone."""

    images: int
    unknown: int
    smallest: int
    groups: tuple[Subgroup, ...]

    def gap(self, number: str) -> float | None:
        """Return how far the best group lies above the worst in one number; None with fewer than two to compare."""
        values = [value for group in self.groups if (value := getattr(group, number)) is not None]
        return max(values) - min(values) if len(values) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name, the groups as a sequence of such."""
        return asdict(self)


def subgroups(truth: Labels, probabilities: Probabilities, values: Values, *, smallest: int = SMALLEST) -> Subgroups:
    """Return the numbers of each group of images that share a value.

    A group of fewer than `smallest` images is named and counted, not computed. Macro averages run over the classes
    that a group has, so that groups with other lesions are compared with care.

    Args:
        values: (n,) what each image is grouped by; "", "unknown", None and NaN are unknown.
        smallest: fewest images that make a group.
    Raises:
        ValueError: as many values as images are wanted; or as `classification`.
    """
    truth, probabilities = checked(truth, probabilities)
    names = known_names(values)
    if names.shape != truth.shape:
        raise ValueError(f"wanted one value an image, {truth.shape}, found {names.shape}")
    if smallest < 1:
        raise ValueError(f"smallest {smallest}; wanted at least 1")
    present = sorted(set(names.tolist()) - {""}, key=sort_key)
    groups = tuple(_group(name, names == name, truth, probabilities, smallest) for name in present)
    return Subgroups(len(truth), int((names == "").sum()), smallest, groups)


def age_bands(ages: Values, edges: Sequence[float] = AGES) -> npt.NDArray[np.str_]:
    """Return the band of each age, "45-59" from 45 up to 60, "" where it is unknown.

    Args:
        ages: (n,) years, as numbers or as written; what is unknown as in `subgroups`.
        edges: years at which a band begins, ascending; the youngest begins at 0.
    Raises:
        ValueError: an age that is no number of years, or edges that do not ascend from above 0.
    """
    if not len(edges) or min(edges) <= 0 or any(b <= a for a, b in pairwise(edges)):
        raise ValueError(f"edges {list(edges)}; wanted at least one, above 0 and ascending")
    written = known_names(ages)
    years = np.array([_years(age) for age in written.tolist()], dtype=np.float64)
    names = [f"{a:.0f}-{b - 1:.0f}" for a, b in pairwise([0.0, *edges])] + [f"{edges[-1]:.0f}+"]
    place = np.searchsorted(np.array(edges), years, side="right")
    found: npt.NDArray[np.str_] = np.where(written == "", "", np.array(names)[place])
    return found


def known_names(values: Values) -> npt.NDArray[np.str_]:
    """Return the values as text, "" where unknown."""
    given = np.asarray(values, dtype=object)
    found = np.char.strip(np.array([str(value) for value in given.ravel().tolist()], dtype=np.str_))
    return np.where(np.isin(np.char.lower(found), UNKNOWN), "", found).reshape(given.shape)


def sort_key(name: str) -> tuple[float, str]:
    """Return what sorts bands and types by their number, the rest by name."""
    number = re.match(r"\d+", name)
    return (float(number[0]) if number else float("inf"), name)


def _years(age: str) -> float:
    if age == "":
        return 0.0
    try:
        years = float(age)
    except ValueError:
        years = -1.0
    if not 0 <= years <= 130:
        raise ValueError(f"age {age!r}; wanted years, 0 to 130")
    return years


def _group(
    name: str, members: npt.NDArray[np.bool_], truth: Labels, probabilities: Probabilities, smallest: int
) -> Subgroup:
    images = int(members.sum())
    if images < smallest:
        return Subgroup(name, images, too_small=True)
    found = classification(truth[members], probabilities[members])
    return Subgroup(
        name,
        images,
        too_small=False,
        accuracy=found.accuracy,
        balanced_accuracy=found.balanced_accuracy,
        weighted_f1=found.weighted_f1,
        macro_f1=found.macro_f1,
        auroc=auroc(truth[members], probabilities[members]).macro,
        ece=ece_and_mce(confidences(truth[members], probabilities[members]))[0],
    )
