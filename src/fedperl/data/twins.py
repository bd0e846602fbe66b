"""The same photograph under two names: found by its fine detail, so that twins never straddle a split.

Twins are one photograph re-encoded, resized, cropped or magnified, brightened, turned or mirrored. Two lesions may
look alike, and their outlines then agree; hairs, bubbles and pigment dots agree only between twins. Hence two stages,
both on grey images whose local contrast is evened out: a coarse one that compares everything with everything, in every
orientation and at every zoom, by matrix products, and a fine one that aligns the few pairs left and compares them
block by block.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedperl.data.manifest import Indices, Names
from fedperl.data.packed import in_order
from fedperl.errors import DataError

Images = npt.NDArray[np.uint8]
Map = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]

ZOOMS = (1.0, 1.07, 1.14, 1.22, 1.31, 1.4)
"""How much larger one twin may show the lesion; half a step off, the blocks still find their counterparts."""
AGREEMENT = 0.65
"""From this mean correlation of their blocks on, two photographs are twins. Chosen by looking at contact sheets of the
pairs around it, of ISIC 2019 and PAD-UFES-20: a judgement by eye, which no test repeats."""

COARSE, FINE = 32, 64  # edges of the two maps
COARSE_BAND, FINE_BAND = (0.5, 2.0, 3.0, 4.0), (0.7, 1.5, 3.0, 1.0)  # inner, outer, around, floor: see _codes
FREQUENCIES = 10  # of the coarse map's cosine transform: a shift by 5 % of the edge still correlates
COARSE_AGREEMENT, ALIGNED_AGREEMENT = 0.78, 0.33  # what twins pass and nearly all other pairs do not
ALIKE = 200  # candidates for each image, on average, that no collection of photographs comes near
CODE = 40.0  # maps are stored as whole numbers, this many to one standard deviation
MARGIN, REACH = 8, 7  # pixels of the fine map left out around the edge; the furthest shift tried
BLOCKS = 4  # along an edge
NOISE = 0.02  # variance of a block that counts as nothing to compare; 1 where there is plenty
IMAGES_AT_ONCE, PAIRS_AT_ONCE, ROWS_AT_ONCE = 64, 128, 4096
ROWS, COLUMNS = 64, 128  # of one matrix product: so small that BLAS leaves it to our own threads, which wait for nobody


class Pair(NamedTuple):
    """Two stored images that are one photograph; first < second."""

    first: int
    second: int
    agreement: float
    """Mean correlation of their blocks; 1 for exact copies."""


@dataclass(frozen=True)
class Fingerprints:
    """What is kept of images to compare them: 5 kB each, whatever their size."""

    digest: npt.NDArray[np.uint64]  # (n,), of the pixels
    coarse: Codes  # (n, 32, 32)
    fine: Codes  # (n, 64, 64)

    def __len__(self) -> int:
        return len(self.digest)

    @staticmethod
    def concatenate(parts: Sequence["Fingerprints"]) -> "Fingerprints":
        """Return the fingerprints of several batches as those of one."""
        parts = (_blank(0), *parts)
        return Fingerprints(
            np.concatenate([part.digest for part in parts]),
            np.concatenate([part.coarse for part in parts]),
            np.concatenate([part.fine for part in parts]),
        )


def fingerprints(images: Images) -> Fingerprints:
    """Return the fingerprints of images (n, 3, size, size), each independent of the others.

    Raises:
        ValueError: another shape or type.
    """
    if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3] or images.dtype != np.uint8:
        raise ValueError(f"images are {images.dtype} {images.shape}; wanted uint8 (n, 3, size, size)")
    found = _blank(len(images))

    def fill(start: int) -> None:
        rows = slice(start, start + IMAGES_AT_ONCE)
        fine = _grey(images[rows])  # (n, 64, 64)
        coarse = fine.reshape(-1, COARSE, 2, COARSE, 2).mean(axis=(2, 4))
        found.digest[rows] = [_digest(image) for image in images[rows]]
        found.coarse[rows], found.fine[rows] = _codes(coarse, *COARSE_BAND), _codes(fine, *FINE_BAND)

    for _ in in_order(fill, range(0, len(images), IMAGES_AT_ONCE)):
        pass
    return found


def find_twins(prints: Fingerprints, *, agreement: float = AGREEMENT, zooms: Sequence[float] = ZOOMS) -> list[Pair]:
    """Return all pairs of images that are one photograph, sorted; of several exact copies, each with the first.

    Whether two images are twins depends on these two alone.

    Args:
        agreement: mean correlation of blocks from which on a pair counts.
        zooms: each at least 1, tried in both directions.
    Raises:
        ValueError: a zoom below 1.
        DataError: these are no photographs with detail of their own, since nearly all look alike.
    """
    if any(zoom < 1 for zoom in zooms):
        raise ValueError(f"zooms {tuple(zooms)}: each is tried in both directions; wanted none below 1")
    _, first, inverse = np.unique(prints.digest, return_index=True, return_inverse=True)
    original = first[inverse]  # of each image, its first exact copy
    found = {(int(original[row]), row): 1.0 for row in range(len(prints)) if original[row] != row}
    distinct = np.sort(first).astype(np.int64)
    for zoom in zooms:
        for first_image, second_image, value in _twins_at(zoom, prints, distinct, agreement):
            pair = (first_image, second_image)
            found[pair] = max(value, found.get(pair, 0.0))
    return sorted(Pair(*pair, value) for pair, value in found.items())


def merge_groups(groups: Names, pixels: Indices, pairs: Sequence[Pair]) -> Names:
    """Return the group of every row once all that must stay together is one group, named by its smallest name.

    Rows stay together that have one group's name, that point to one stored image, or whose stored images are twins;
    and so do rows that are connected through others.

    Args:
        groups: (rows,), the name of each row's group.
        pixels: (rows,), the stored image of each row.
        pairs: of stored images; those that no row points to are ignored.
    """
    names, group = np.unique(groups, return_inverse=True)
    parent = list(range(len(names)))  # names are sorted: the smallest index is the smallest name

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(one: int, two: int) -> None:
        low, high = sorted((root(one), root(two)))
        parent[high] = low

    group_of: dict[int, int] = {}  # of each stored image
    for image, number in zip(pixels.tolist(), group.tolist(), strict=True):
        join(group_of.setdefault(image, number), number)
    for pair in pairs:
        if pair.first in group_of and pair.second in group_of:
            join(group_of[pair.first], group_of[pair.second])
    roots = np.array([root(index) for index in range(len(names))], dtype=np.int64)
    merged: Names = names[roots[group]]
    return merged


def _twins_at(zoom: float, prints: Fingerprints, images: Indices, agreement: float) -> Iterator[Pair]:
    """Yield the twins among some images of which one is that much larger, a strip of the comparison to a thread."""
    coarse = prints.coarse[images]
    search = _Search(_keys(coarse, 1.0), _keys(coarse, zoom), mirrored=zoom == 1)

    def strip(start: int) -> list[Pair]:
        found = []
        left, right, orientation = search.candidates(start)
        for begin in range(0, len(left), PAIRS_AT_ONCE):
            part = slice(begin, begin + PAIRS_AT_ONCE)
            one, two = images[left[part]], images[right[part]]
            turned = _oriented(prints.fine[two], orientation[part])
            score = _block_agreement(prints.fine[one].astype(np.float32), _magnified(turned, zoom))
            for row in np.flatnonzero(score >= agreement):
                low, high = sorted((int(one[row]), int(two[row])))
                found.append(Pair(low, high, float(score[row])))
        return found

    for pairs in in_order(strip, range(0, len(images), COLUMNS)):
        yield from pairs


def _blank(count: int) -> Fingerprints:
    return Fingerprints(
        np.zeros(count, dtype=np.uint64),
        np.zeros((count, COARSE, COARSE), dtype=np.int8),
        np.zeros((count, FINE, FINE), dtype=np.int8),
    )


def _digest(image: Images) -> int:
    return int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:8], "little")


def _grey(images: Images) -> Map:
    """Return the brightness of images, 0 ... 255, resized to the fine maps' edge."""
    red, green, blue = (images[:, channel].astype(np.uint16) for channel in range(3))
    bright = (77 * red + 150 * green + 29 * blue).astype(np.float32) / 256.0
    small = np.empty((len(images), FINE, FINE), dtype=np.float32)
    for row, image in enumerate(bright):
        small[row] = np.asarray(Image.fromarray(image).resize((FINE, FINE), Image.Resampling.HAMMING))
    return small


@cache
def _blur(edge: int, sigma: float) -> Map:
    """Return the (edge, edge) matrix of a Gaussian blur, the image mirrored at its border."""
    offset = np.arange(-int(3 * sigma + 0.5), int(3 * sigma + 0.5) + 1)
    weight = np.exp(-0.5 * (offset / sigma) ** 2)
    source = np.arange(edge)[:, None] + offset
    source = np.where(source < 0, -source - 1, np.where(source >= edge, 2 * edge - 1 - source, source))
    matrix = np.zeros((edge, edge))
    np.add.at(matrix, (np.arange(edge)[:, None], source), weight / weight.sum())
    return matrix.astype(np.float32)


def _codes(grey: Map, inner: float, outer: float, around: float, floor: float) -> Codes:
    """Return the detail between two blurs over its own deviation nearby: light, colour and outlines weigh little.

    Args:
        grey: (n, edge, edge).
        inner: sigma of the blur that takes noise away.
        outer: sigma of the blur that is subtracted.
        around: sigma of the neighbourhood whose variance is evened out.
        floor: added to that variance, in grey levels squared, so that flat skin stays flat.
    """
    smooth, background, nearby = (_blur(grey.shape[-1], sigma) for sigma in (inner, outer, around))
    detail = smooth @ grey @ smooth.T - background @ grey @ background.T
    even = detail / np.sqrt(nearby @ (detail * detail) @ nearby.T + floor)
    return np.clip(np.rint(CODE * even), -127, 127).astype(np.int8)


def _magnified(maps: Codes | Map, zoom: float) -> Map:
    """Return the maps enlarged about their middle."""
    values = maps.astype(np.float32)
    if zoom == 1:
        return values
    edge = maps.shape[-1]
    source = (np.arange(edge)[:, None] - (edge - 1) / 2) / zoom + (edge - 1) / 2
    matrix = np.maximum(1.0 - np.abs(source - np.arange(edge)), 0.0).astype(np.float32)
    return np.asarray(matrix @ values @ matrix.T)


def _oriented(maps: Codes, orientation: Indices) -> Codes:
    """Return each map in its orientation 0 ... 7: transposed if 4 is in it, rows reversed if 1, columns if 2."""
    turned = np.empty_like(maps)
    for number in range(8):
        rows = orientation == number
        some = maps[rows]
        some = some.swapaxes(1, 2) if number & 4 else some
        some = some[:, ::-1] if number & 1 else some
        turned[rows] = some[:, :, ::-1] if number & 2 else some
    return turned


def _keys(coarse: Codes, zoom: float) -> Map:
    """Return the low cosine coefficients of the magnified coarse maps, (n, 10, 10), scaled to length 1."""
    order, pixel = np.arange(FREQUENCIES)[:, None], np.arange(COARSE)
    cosine = np.cos(np.pi * order * (2 * pixel + 1) / (2 * COARSE)).astype(np.float32)
    cosine[0] /= np.sqrt(2.0)
    low = (order**2 + order.T**2 < FREQUENCIES**2) & (order + order.T > 0)
    keys = np.empty((len(coarse), FREQUENCIES, FREQUENCIES), dtype=np.float32)
    for start in range(0, len(coarse), IMAGES_AT_ONCE):
        rows = slice(start, start + IMAGES_AT_ONCE)
        keys[rows] = np.where(low, cosine @ _magnified(coarse[rows], zoom) @ cosine.T, 0.0)
    length = np.sqrt((keys**2).sum(axis=(1, 2), keepdims=True))
    return np.asarray(keys / np.maximum(length, 1e-3))


class _Search:
    """All pairs of keys that agree, the right one in any of eight orientations.

    Reversing rows or columns changes the signs of the odd coefficients alone. So four products, over the coefficients
    that are even or odd along each axis, tell the correlation in four orientations, and their magnitudes bound it.

    Args:
        left: (n, 10, 10).
        right: (n, 10, 10), the same images.
        mirrored: whether right is left, and half the pairs are enough.
    """

    def __init__(self, left: Map, right: Map, *, mirrored: bool) -> None:
        missing = -len(left) % ROWS  # keys of zeros, which agree with nothing
        padded = np.concatenate([left, np.zeros((missing, *left.shape[1:]), dtype=np.float32)])
        self._left = [part.reshape(len(padded) // ROWS, ROWS, part.shape[1]) for part in _by_parity(padded)]
        self._right = (_by_parity(right), _by_parity(right.swapaxes(1, 2)))
        self._mirrored = mirrored

    def candidates(self, start: int) -> tuple[Indices, Indices, Indices]:
        """Return left, right and orientation of the pairs whose right one is among the columns from start on.

        Raises:
            DataError: there are far too many of them.
        """
        found = []
        stop = start + COLUMNS if self._mirrored else len(self._left[0]) * ROWS
        for top in range(0, stop, ROWS_AT_ONCE):
            for transposed, right in enumerate(self._right):
                row, column, flip = self._block(top, min(top + ROWS_AT_ONCE, stop), right, start)
                keep = row < column if self._mirrored else row != column
                found.append((row[keep], column[keep], 4 * transposed + flip[keep]))
                if sum(len(rows) for rows, _, _ in found) > ALIKE * COLUMNS:
                    raise DataError(
                        f"twins: images {start} to {start + COLUMNS} each look like more than {ALIKE} others; twins "
                        "can be told in photographs with detail of their own alone"
                    )
        rows, columns, orientations = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows, columns, orientations

    def _block(self, top: int, bottom: int, right: list[Map], start: int) -> tuple[Indices, Indices, Indices]:
        groups = slice(top // ROWS, -(-bottom // ROWS))
        even, by_row, by_column, by_both = (
            (one[groups] @ two[start : start + COLUMNS].T).reshape(-1, len(two[start : start + COLUMNS]))
            for one, two in zip(self._left, right, strict=True)
        )
        bound = even + np.abs(by_row) + np.abs(by_column) + np.abs(by_both)
        near = np.flatnonzero(bound > COARSE_AGREEMENT)
        even, by_row, by_column, by_both = (part.ravel()[near] for part in (even, by_row, by_column, by_both))
        flips = (
            even + by_row + by_column + by_both,
            even - by_row + by_column - by_both,
            even + by_row - by_column - by_both,
            even - by_row - by_column + by_both,
        )
        flip, which = np.nonzero(np.stack(flips) > COARSE_AGREEMENT)
        row, column = np.divmod(near[which], bound.shape[1])
        return row + top, column + start, flip


def _by_parity(keys: Map) -> list[Map]:
    """Return the coefficients even along both axes, odd along rows, along columns, along both, one row an image."""
    half = FREQUENCIES // 2
    parities = ((0, 0), (1, 0), (0, 1), (1, 1))
    return [np.ascontiguousarray(keys[:, row::2, column::2]).reshape(len(keys), half**2) for row, column in parities]


def _block_agreement(one: Map, two: Map) -> Map:
    """Return, for each pair of fine maps, the mean correlation of their blocks once aligned; 0 where none aligns.

    Each block may move by one more pixel than the whole: a crop also magnifies a little.
    """
    score = np.zeros(len(one), dtype=np.float32)
    correlation, down, right = _alignment(one, two)
    close = np.flatnonzero(correlation > ALIGNED_AGREEMENT)
    if not len(close):
        return score
    inner = FINE - 2 * MARGIN
    blocks = _blocks(one[close, MARGIN:-MARGIN, MARGIN:-MARGIN])
    row = (down[close] + MARGIN - 1)[:, None, None] + np.arange(inner + 2)[:, None]
    column = (right[close] + MARGIN - 1)[:, None, None] + np.arange(inner + 2)
    around = two[close[:, None, None], row, column]
    best = np.full(blocks.shape[:2], -1.0, dtype=np.float32)
    for y in range(3):
        for x in range(3):
            best = np.maximum(best, _correlation(blocks, _blocks(around[:, y : y + inner, x : x + inner])))
    score[close] = best.mean(axis=1)
    return score


def _alignment(one: Map, two: Map) -> tuple[Map, Indices, Indices]:
    """Return the highest correlation of the middle of the first maps with the second, and the shift down and right."""
    middle = one[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    template = np.zeros_like(one)
    template[:, MARGIN:-MARGIN, MARGIN:-MARGIN] = middle - middle.mean(axis=(1, 2), keepdims=True)
    product = np.fft.irfft2(np.conj(np.fft.rfft2(template)) * np.fft.rfft2(two), s=(FINE, FINE))
    shifts = np.arange(-REACH, REACH + 1)
    product = product[:, shifts[:, None], shifts]
    pixel = np.arange(FINE)
    window = ((pixel >= MARGIN + shifts[:, None]) & (pixel < FINE - MARGIN + shifts[:, None])).astype(np.float32)
    total, squares = window @ two @ window.T, window @ (two * two) @ window.T
    variance = np.maximum(squares - total**2 / middle[0].size, 0.0)
    length = np.sqrt((template**2).sum(axis=(1, 2))[:, None, None] * variance)
    correlation = (product / np.maximum(length, CODE)).reshape(len(one), -1)
    best = correlation.argmax(axis=1)
    down, right = np.divmod(best, len(shifts))
    return np.asarray(correlation[np.arange(len(one)), best], dtype=np.float32), down - REACH, right - REACH


def _blocks(maps: Map) -> Map:
    """Return (n, blocks, pixels), each block less its mean."""
    edge = maps.shape[-1] // BLOCKS
    cut = maps.reshape(len(maps), BLOCKS, edge, BLOCKS, edge).swapaxes(2, 3).reshape(len(maps), BLOCKS**2, edge**2)
    return np.asarray(cut - cut.mean(axis=2, keepdims=True))


def _correlation(one: Map, two: Map) -> Map:
    """Return the correlation along the last axis, towards 0 where there is hardly any contrast."""
    noise = NOISE * CODE**2 * one.shape[-1]
    squares = ((one**2).sum(axis=-1) + noise) * ((two**2).sum(axis=-1) + noise)
    return np.asarray((one * two).sum(axis=-1) / np.sqrt(squares))
