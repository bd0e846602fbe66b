"""Where two values differ: bit for bit, or by numbers that are close."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Difference = tuple[str, str]
"""Where, and what stands there on either side."""


def differences(before: Any, after: Any, close: float | None = None, place: str = "") -> Iterator[Difference]:
    """Yield each place at which two values differ.

    Args:
        close: numbers that differ by no more than this, absolutely or as a share of the larger, count as equal.
    """
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        yield from _of_arrays(before, after, close, place)
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            inner = f"{place}.{key}" if place else str(key)
            if key not in before or key not in after:
                yield inner, "is new" if key in after else "is gone"
            else:
                yield from differences(before[key], after[key], close, inner)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield place, f"{len(before)} entries -> {len(after)}"
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, close, f"{place}[{number}]")
    elif not _equal(before, after, close):
        yield place, f"{before!r:.80} -> {after!r:.80}"


def _of_arrays(before: Any, after: Any, close: float | None, place: str) -> Iterator[Difference]:
    if before.shape != after.shape or before.dtype != after.dtype:
        yield place, f"{before.dtype} {before.shape} -> {after.dtype} {after.shape}"
    elif close is None or before.dtype.kind not in "fc":
        if before.tobytes() != after.tobytes():
            yield place, f"other values, by up to {_largest(before, after):.3g}"
    elif not np.allclose(before, after, rtol=close, atol=close, equal_nan=True):
        yield place, f"differs by up to {_largest(before, after):.3g}"


def _largest(before: Any, after: Any) -> float:
    apart = np.abs(before.astype(np.float64) - after.astype(np.float64))
    return float(apart.max()) if apart.size else 0.0


def _equal(before: Any, after: Any, close: float | None) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        if math.isnan(before) or math.isnan(after):
            return math.isnan(before) and math.isnan(after)
        if close is not None:
            return math.isclose(before, after, rel_tol=close, abs_tol=close)
    same_type = type(before) is type(after)
    return same_type and bool(before == after)
