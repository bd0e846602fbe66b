"""Policies: which of the T candidates are kept (paper, section 2.3.5)."""

from collections.abc import Sequence
from typing import Literal


def apply_policy(policy: Literal["all"], candidates: Sequence[int]) -> list[int]:
    """Return the candidates that may help; `all` is the static policy."""
    if policy != "all":
        raise ValueError(f"policy = {policy!r}; wanted 'all'")
    return list(candidates)
