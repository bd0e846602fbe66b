"""Parcels as Flower's records. A piece of bytes is one array: Flower sends every array by itself."""

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedperl.federation.wire import Parcel, WireError

TEXT, BYTES, ENVELOPE, ERROR = "text", "bytes", "envelope", "error"


def record_of(parcel: Parcel, envelope: dict[str, str], made: dict[int, ArrayRecord] | None = None) -> RecordDict:
    """Return what a message carries: the parcel and the envelope by which an answer is recognised.

    Args:
        made: the records of pieces by their id, so that messages with the same piece share it.
    """
    made = {} if made is None else made
    content = RecordDict({ENVELOPE: ConfigRecord({TEXT: parcel.text, **envelope})})
    for name, piece in parcel.pieces.items():
        if id(piece) not in made:
            made[id(piece)] = ArrayRecord({BYTES: Array(np.frombuffer(piece, dtype=np.uint8))})
        content[name] = made[id(piece)]
    return content


def parcel_of(content: RecordDict, most: int | None = None) -> tuple[Parcel, dict[str, str]]:
    """Return the parcel and the envelope of a message.

    Args:
        most: bytes that its pieces may have in all; none is read where they have more.

    Raises:
        WireError: it carries something else.
    """
    records: dict[str, Any] = dict(content.items())
    outside = records.pop(ENVELOPE, None)
    if not isinstance(outside, ConfigRecord) or not all(isinstance(value, str) for value in outside.values()):
        raise WireError("a message without an envelope of texts")
    envelope = {str(key): str(value) for key, value in outside.items()}
    arrays = [array for record in records.values() if isinstance(record, ArrayRecord) for array in record.values()]
    size = sum(len(array.data) for array in arrays)
    if most is not None and size > most:
        raise WireError(f"pieces of {size} bytes; wanted at most {most}")
    pieces = {}
    for name, record in records.items():
        if not isinstance(record, ArrayRecord) or list(record) != [BYTES]:
            raise WireError(f"record {name!r} is no piece of bytes")
        try:
            piece = record[BYTES].numpy()
        except Exception as error:
            raise WireError(f"record {name!r} cannot be read: {type(error).__name__}") from None
        if piece.dtype != np.uint8 or piece.ndim != 1:
            raise WireError(f"record {name!r} is {piece.dtype} of {piece.ndim} dimensions; wanted bytes")
        pieces[name] = piece.tobytes()
    return Parcel(envelope.pop(TEXT, ""), pieces), envelope


def kind_of(content: RecordDict) -> str:
    """Return the kind of error that an answer tells of; nothing where it tells of none."""
    outside: Any = content[ENVELOPE]
    return str(outside.get(ERROR, ""))
