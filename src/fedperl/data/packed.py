"""Images packed into one file: each cut to a square, resized, encoded; decoded again by all cores when loaded.

`images.bin` is the encoded images one after the other, `offsets.npy` where each begins and the last ends.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from fedperl.errors import DataError
from fedperl.machine import cores

Images = npt.NDArray[np.uint8]
Codec = Literal["jpeg", "png"]
Fit = Literal["crop", "squash"]

BLOB, OFFSETS = "images.bin", "offsets.npy"
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
QUALITY = 85
PIXEL_CAP = 100_000_000
LARGEST = 4096
"""Pixels along an edge of a stored image."""

A = TypeVar("A")
B = TypeVar("B")


class BadImageError(Exception):
    """One image file that cannot be used; the message is the reason."""


def decode(content: bytes | Images, size: int, fit: Fit = "crop", pixel_cap: int = PIXEL_CAP) -> Image.Image:
    """Return an image as RGB of size x size, upright as its EXIF says and without any of its metadata.

    Args:
        content: an encoded image file, or (h, w, 3) bytes.
        fit: `crop` keeps the largest centred square, `squash` the whole image.
        pixel_cap: refused from the header, before anything is decoded.
    Raises:
        BadImageError: it is no image of a known format, too large, truncated, or of more than 8 bits a channel.
    """
    if isinstance(content, np.ndarray):
        return _fitted(Image.fromarray(content), size, fit)
    if content[128:132] == b"DICM":
        raise BadImageError("DICOM under another name")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, laxer warning of large images
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
                if width * height > pixel_cap:
                    raise BadImageError(f"{width} x {height} pixels; at most {pixel_cap} in all")
                if image.mode in DEEP or any(";16" in str(tile[3]) for tile in image.tile):
                    raise BadImageError(f"more than 8 bits a channel (mode {image.mode})")
                image.draft("RGB", (2 * size, 2 * size))  # a JPEG much larger than wanted is decoded smaller
                upright = ImageOps.exif_transpose(image)
                return _fitted(upright.convert("RGB"), size, fit)
    except BadImageError:
        raise
    except Image.DecompressionBombError:
        raise BadImageError("far too many pixels") from None
    except UnidentifiedImageError:
        raise BadImageError("not an image of a known format") from None
    except Exception as error:  # a decoder may raise anything on hostile bytes
        raise BadImageError(f"cannot be decoded: {type(error).__name__}: {error}") from None


def encode(image: Image.Image, codec: Codec) -> bytes:
    """Return the image encoded: JPEG of quality 85, or PNG, which loses nothing."""
    out = io.BytesIO()
    if codec == "jpeg":
        image.save(out, "JPEG", quality=QUALITY, optimize=True)
    else:
        image.save(out, "PNG")
    return out.getvalue()


def write_offsets(folder: Path, lengths: Iterable[int]) -> None:
    """Write where each image of `images.bin` begins."""
    np.save(folder / OFFSETS, np.concatenate([[0], np.cumsum(list(lengths), dtype=np.int64)]).astype(np.int64))


def unpack(folder: Path) -> Images:
    """Return all images of a packed store, (m, 3, size, size).

    Raises:
        DataError: a file is missing or short, or an image cannot be decoded.
    """
    count = len(_open(folder)[1]) - 1
    images: Images | None = None
    start = 0
    for chunk in stream(folder):
        if images is None:
            images = np.empty((count, *chunk.shape[1:]), dtype=np.uint8)
        images[start : start + len(chunk)] = chunk
        start += len(chunk)
    assert images is not None
    return images


def shape_of(folder: Path) -> tuple[int, int, int, int]:
    """Return the shape that `unpack` would give: the first image is decoded, no other.

    Raises:
        DataError: as `unpack`.
    """
    blob, offsets = _open(folder)
    size = _pixels(folder, blob, offsets, 0).shape[0]
    return len(offsets) - 1, 3, size, size


def stream(folder: Path, *, chunk: int = 512) -> Iterator[Images]:
    """Yield the images of a packed store in order, some at a time, (n, 3, size, size).

    Raises:
        DataError: a file is missing or short, or an image cannot be decoded.
    """
    blob, offsets = _open(folder)
    size: int | None = None

    def pixels(number: int) -> Images:
        return _pixels(folder, blob, offsets, number)

    waiting: list[Images] = []
    for number, image in enumerate(in_order(pixels, range(len(offsets) - 1))):
        size = size or image.shape[0]
        if image.shape != (size, size, 3):
            raise DataError(f"{folder}: image {number} is {image.shape}; wanted ({size}, {size}, 3)")
        waiting.append(image)
        if len(waiting) == chunk or number == len(offsets) - 2:
            yield np.ascontiguousarray(np.stack(waiting).transpose(0, 3, 1, 2))
            waiting.clear()


def _open(folder: Path) -> tuple[Images, npt.NDArray[np.int64]]:
    reading = OFFSETS
    try:
        offsets = np.lib.format.open_memmap(folder / OFFSETS, mode="r")  # neither pickles nor zip files
        reading = BLOB
        blob = np.memmap(folder / BLOB, dtype=np.uint8, mode="r")
    except FileNotFoundError as error:
        raise DataError(f"{folder}: not a store, {Path(str(error.filename)).name} is missing") from None
    except Exception as error:  # numpy may raise anything on hostile bytes
        raise DataError(f"{folder / reading}: cannot be read: {error}") from None
    if (
        offsets.dtype != np.int64
        or offsets.ndim != 1
        or len(offsets) < 2
        or (np.diff(offsets) < 0).any()
        or offsets[-1] != len(blob)
    ):
        raise DataError(f"{folder}: {BLOB} and {OFFSETS} do not belong together")
    return blob, offsets


def in_order(work: Callable[[A], B], items: Iterable[A], *, ahead: int = 64) -> Iterator[B]:
    """Yield work(item) in the items' order, done by a thread for each core, never more than `ahead` at a time.

    Decoding, resizing and encoding let other threads run: no processes are needed, and nothing is copied between them.
    """
    with ThreadPoolExecutor(cores()) as pool:
        waiting: list[Future[B]] = []
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= ahead:
                    yield waiting.pop(0).result()
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()


def _fitted(image: Image.Image, size: int, fit: Fit) -> Image.Image:
    width, height = image.size
    box = None
    if fit == "crop":
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    fitted = image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
    fitted.info.clear()  # comments and profiles would be written again
    return fitted


def _pixels(folder: Path, blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], number: int) -> Images:
    content = blob[offsets[number] : offsets[number + 1]].tobytes()
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            if max(image.size) > LARGEST:  # from the header, before anything is decoded
                raise ValueError(f"{image.width} x {image.height} pixels; wanted at most {LARGEST} along an edge")
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # a decoder may raise anything on hostile bytes
        raise DataError(f"{folder}: image {number} of {BLOB} cannot be decoded: {error}") from None
