"""Every random draw starts from a seed made of what it is for, so that any part can be repeated alone."""

import hashlib


def seed_for(run: int, *purpose: int | str) -> int:
    """Return a 63-bit seed that depends on the run's seed and on every part of the purpose.

    Rounds, clients and purposes never share a stream, and a resumed run draws what the uninterrupted one drew.
    """
    text = "/".join([str(run), *(str(part) for part in purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
