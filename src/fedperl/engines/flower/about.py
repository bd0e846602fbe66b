"""What a site tells of itself before the first round, as the server reads it."""

import json
from typing import Any

from fedperl.federation.members import Member
from fedperl.federation.wire import Parcel, WireError

ABOUT = {"classes": list, "size": int, "digest": str, "version": str} | dict.fromkeys(Member.__dataclass_fields__, int)
"""What a site says of itself, and nothing else."""
MOST_CLASSES, MOST_SAID = 1000, 2**16


def read_about(parcel: Parcel) -> dict[str, Any]:
    """Return what a site said of itself.

    Raises:
        WireError: it said something else.
    """
    try:
        if len(parcel.text) > MOST_SAID:
            raise ValueError(f"{len(parcel.text)} characters")
        found: dict[str, Any] = json.loads(parcel.text)
        if found.keys() != ABOUT.keys() or not all(isinstance(found[key], kind) for key, kind in ABOUT.items()):
            raise ValueError("other keys or types")
        counts = [found[name] for name in Member.__dataclass_fields__]
        if any(isinstance(count, bool) or not 0 <= count < 2**40 for count in counts):
            raise ValueError("a count is out of range")
        if not 0 < len(found["classes"]) < MOST_CLASSES or not all(isinstance(c, str) for c in found["classes"]):
            raise ValueError("classes are no names")
    except (ValueError, AttributeError, TypeError) as error:
        raise WireError(f"what a site says of itself: {error}") from None
    return found
