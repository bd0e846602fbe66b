"""What of a site's images leaves it: numbers and counts of classes with ten images or more, and nothing of the others.

Images of a smaller class are left out before anything is computed: no number depends on them, so that nothing of them
can be had as the difference of two. Bins are joined with their neighbours until each holds ten: sums stay exact, curves
get coarser.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.binned import BinnedSums
from fedperl.evaluate.classification import Labels
from fedperl.evaluate.group_counts import LEAST, GroupCounts


def of_large_classes(labels: Labels, least: int = LEAST) -> npt.NDArray[np.bool_]:
    """Return which images numbers may be told of; one without a label (below 0) stays, for others to refuse."""
    small = np.bincount(labels[labels >= 0], minlength=1) < least
    return (labels < 0) | ~small[labels]


def without_few(
    sums: BinnedSums, groups: Mapping[str, GroupCounts], least: int = LEAST
) -> tuple[BinnedSums, dict[str, GroupCounts]]:
    """Return the counts, and those of patients' groups, that may leave a site.

    Raises:
        ValueError: images of a small class were counted.
    """
    images = sums.confusion.sum(axis=1)
    if ((images > 0) & (images < least)).any():
        raise ValueError(f"counts of classes with {images.tolist()} images; wanted none of fewer than {least}")
    scores = np.zeros_like(sums.scores)
    for label in np.flatnonzero(images):
        for bins in joined(sums.scores[label].sum(axis=1), least):
            scores[label, bins[len(bins) // 2]] = sums.scores[label, bins].sum(axis=0)
    confidence, total = np.zeros_like(sums.confidence), np.zeros_like(sums.total_confidence)
    for bins in joined(sums.confidence.sum(axis=1), least):
        counts, summed = sums.confidence[bins].sum(axis=0), sums.total_confidence[bins].sum()
        place = int(np.clip(summed / counts.sum() * len(confidence), bins[0], bins[-1]))
        confidence[place], total[place] = counts, summed
    told = BinnedSums(sums.confusion, confidence, total, scores)
    return told, {name: counts for name, counts in groups.items() if counts.groups}


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
