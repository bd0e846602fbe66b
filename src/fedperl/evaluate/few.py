"""What of a site's counts leaves it: none of a class, a bin or a group with fewer than ten images.

Small classes are left out, and where the images left out are themselves fewer than ten, so that they could be had as a
difference, the next larger class too. Bins are joined with their neighbours until each holds ten: sums stay exact,
curves get coarser.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.binned import BinnedSums
from fedperl.evaluate.classification import Counts
from fedperl.evaluate.group_counts import LEAST, GroupCounts


def without_few(
    sums: BinnedSums, groups: Mapping[str, GroupCounts], least: int = LEAST
) -> tuple[BinnedSums, dict[str, GroupCounts]]:
    """Return the counts, and those of patients' groups, that may leave a site."""
    small = small_classes(sums.confusion.sum(axis=1), least)
    confusion, scores = sums.confusion.copy(), np.zeros_like(sums.scores)
    confusion[small] = 0
    for label in np.flatnonzero(~small):
        for bins in joined(sums.scores[label].sum(axis=1), least):
            scores[label, bins[len(bins) // 2]] = sums.scores[label, bins].sum(axis=0)
    confidence, total = np.zeros_like(sums.confidence), np.zeros_like(sums.total_confidence)
    for bins in joined(sums.confidence.sum(axis=1), least):
        counts, summed = sums.confidence[bins].sum(axis=0), sums.total_confidence[bins].sum()
        place = int(np.clip(summed / counts.sum() * len(confidence), bins[0], bins[-1]))
        confidence[place], total[place] = counts, summed
    told = BinnedSums(confusion, confidence, total, scores)
    return told, {
        name: found for name, counts in groups.items() if (found := _groups(counts, small, told, least)) is not None
    }


def small_classes(images: npt.NDArray[np.int64], least: int) -> npt.NDArray[np.bool_]:
    """Return which classes are not told: those with few images, and more until what is left out is enough."""
    small = images < least
    for label in np.argsort(images, kind="stable"):
        left_out = images[small].sum()
        if not left_out or left_out >= least:
            break
        small[label] = True
    return small


def joined(images: npt.NDArray[np.int64], least: int) -> list[npt.NDArray[np.int64]]:
    """Return neighbouring bins, put together from the surest down so that each has enough images; none if all have not.

    Bins without images between two belong to the surer one.
    """
    if images.sum() < least:
        return []
    found, start, held = [], len(images), 0
    for place in range(len(images) - 1, -1, -1):
        held += int(images[place])
        if held >= least:
            found.append(np.arange(place, start))
            start, held = place, 0
    if held:
        found[-1] = np.arange(0, found[-1][-1] + 1)
    return found


def _groups(counts: GroupCounts, small: npt.NDArray[np.bool_], told: BinnedSums, least: int) -> GroupCounts | None:
    """Return the groups without the small classes; None where too few images would be outside of them."""
    kept: dict[str, Counts] = {}
    for name, confusion in counts.groups.items():
        of_large = np.where(small[:, None], 0, confusion)
        if of_large.sum() >= least:
            kept[name] = of_large
    outside = int(told.confusion.sum()) - sum(int(confusion.sum()) for confusion in kept.values())
    found = GroupCounts(kept, min(counts.images - sum(int(c.sum()) for c in kept.values()), outside))
    try:
        found.check(told.confusion)
    except ValueError:
        return None
    return found if kept else None
