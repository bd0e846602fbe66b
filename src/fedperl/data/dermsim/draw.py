"""The entry point of dermsim: names of images in, pixels out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fedperl.data.dermsim import lesion, photograph
from fedperl.data.dermsim.cues import CLASSES
from fedperl.data.dermsim.styles import STYLES, frame_lesions, shots_of
from fedperl.data.dermsim.tape import Index, lesion_tape, shot_tape
from fedperl.machine import cores

__all__ = ["CLASSES", "STYLES", "draw"]

SMALLEST, LARGEST = 16, 224
THREADS = 4  # numpy leaves Python's lock while it computes, and beyond a few threads they wait for it all the same
CHUNK_PIXELS = 2**17  # pixels drawn at once: what is in the making stays near the processor, and memory is bounded


def _names(values: npt.ArrayLike, what: str) -> Index:
    array = np.asarray(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ValueError(f"{what} must be a flat array of whole numbers, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _check_range(values: Index, names: tuple[str, ...], what: str) -> None:
    wrong = values[(values < 0) | (values >= len(names))]
    if wrong.size:
        raise ValueError(f"{what} must lie in 0..{len(names) - 1} ({', '.join(names)}), found {wrong[0]}")


def _draw_chunk(
    labels: Index, lesions: Index, shots: Index, styles: Index, *, size: int, seed: int
) -> npt.NDArray[np.uint8]:
    tape, grain = shot_tape(seed, labels, lesions, shots, styles, photograph.SECTIONS, size)
    settings_tape = tape.section(photograph.SETTINGS_SECTION)
    shot = shots_of(styles, settings_tape)
    canvas = frame_lesions(shot, settings_tape, size)
    own_tape = lesion_tape(seed, labels, lesions, lesion.SECTIONS)
    light = lesion.reflectance(canvas, labels, own_tape, photograph.skin_mottling(tape, size))
    recorded = photograph.photograph(light, shot, tape, grain)
    pixels: npt.NDArray[np.uint8] = np.clip(recorded * 255.0 + 0.5, 0.0, 255.0).astype(np.uint8)
    return pixels


def draw(
    labels: npt.ArrayLike,
    lesions: npt.ArrayLike,
    shots: npt.ArrayLike,
    styles: npt.ArrayLike,
    *,
    size: int = 64,
    seed: int = 0,
) -> npt.NDArray[np.uint8]:
    """Return drawn dermatoscopic images, (n, 3, size, size), RGB.

    An image depends on its own label, lesion, shot and style, on seed and size, and on nothing else: drawn alone or
    in any batch it is the same. Images of one lesion share its shape, colours and structures; the shot decides on
    position, light and clutter. At another size the same picture appears at another resolution.

    Args:
        labels: class of each image, an index into CLASSES, (n,).
        lesions: name of the lesion, any whole number; lesions of different classes are different lesions.
        shots: name of the photograph of that lesion, any whole number.
        styles: archive it is photographed for, an index into STYLES.
        size: edge in pixels, 16 to 224.
        seed: another seed, other patients.
    Raises:
        ValueError: lengths that differ, a label or style out of range, a size out of range, or not whole numbers.
    """
    if not SMALLEST <= size <= LARGEST:
        raise ValueError(f"size must lie in {SMALLEST}..{LARGEST} pixels, not {size}")
    names = [
        _names(values, what)
        for values, what in ((labels, "labels"), (lesions, "lesions"), (shots, "shots"), (styles, "styles"))
    ]
    lengths = [len(values) for values in names]
    if len(set(lengths)) > 1:
        raise ValueError(f"labels, lesions, shots and styles must have one length, not {lengths}")
    _check_range(names[0], CLASSES, "labels")
    _check_range(names[3], STYLES, "styles")

    images = np.empty((lengths[0], 3, size, size), dtype=np.uint8)
    step = max(1, CHUNK_PIXELS // size**2)
    # Images of one class share their structures, so chunks of one class do fewer and larger operations.
    order = np.argsort(names[0], kind="stable")

    def fill(start: int) -> None:
        rows = order[start : start + step]
        images[rows] = _draw_chunk(*(values[rows] for values in names), size=size, seed=seed)

    with ThreadPoolExecutor(min(cores(), THREADS)) as pool:
        list(pool.map(fill, range(0, lengths[0], step)))
    return images
