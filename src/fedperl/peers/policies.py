"""Policies: which of the T candidates are kept, the static one and the three dynamic ones (paper, section 2.3.5)."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

Policy = Literal["all", "validation", "gated_validation", "gated_similarity"]
Scale = Literal["absolute", "relative_to_best", "minmax"]


def apply_policy(
    policy: Policy,
    candidates: Sequence[int],
    *,
    client: int,
    similarity: Mapping[int, float],
    scores: Mapping[int, float],
    rho: float,
    scale: Scale = "absolute",
) -> list[int]:
    """Return those of the T candidates that may help a client, in their order.

    - `all`: every one, the static policy.
    - `validation`: those whose score is at least the client's own. Nobody helps a client without a score, and a
      candidate without one helps nobody.
    - `gated_validation`: those whose scaled score is at least rho.
    - `gated_similarity`: those whose similarity with the client is at least rho.

    To a gate, what is unknown or negative is 0, so that rho = 0 is the static policy. Similarities are negative only
    where profiles are scaled by `zscore` or `none`, or where they are minus the distances of predictions, for which
    no gate above 0 opens.

    Args:
        similarity: candidate -> its similarity with the client; for `gated_similarity`.
        scores: client -> accuracy of its last upload; for `validation` and `gated_validation`.
        rho: the gate, in [0, 1]; the paper has 0.75, 0.85 and 0.95.
        scale: of the scores behind `gated_validation`, see `scale_scores`.
    Raises:
        ValueError: an unknown policy or scale, a gate outside [0, 1], or a score that is no accuracy.
    """
    if policy not in get_args(Policy):
        raise ValueError(f"policy = {policy!r}; wanted one of {', '.join(get_args(Policy))}")
    if policy == "all":
        return list(candidates)
    if policy == "validation":
        return [k for k in candidates if k in scores and client in scores and scores[k] >= scores[client]]
    if not 0 <= rho <= 1:
        raise ValueError(f"rho = {rho}; wanted 0 to 1")
    known = similarity if policy == "gated_similarity" else scale_scores(scores, scale)
    return [k for k in candidates if max(0.0, known.get(k, 0.0)) >= rho]


def scale_scores(scores: Mapping[int, float], scale: Scale) -> dict[int, float]:
    """Return the scores as the gate sees them.

    The server's images are hard: models reach 0.70 to 0.75 there, and a gate of 0.85 on the accuracy itself would
    never open. The paper does not say which it means.

    Args:
        scale: `absolute`: as they are; `relative_to_best`: divided by the best known, 0 where that is 0; `minmax`:
            from 0 for the worst known client to 1 for the best, 1 where all are equal.
    Raises:
        ValueError: an unknown scale, or a score that is negative or not finite.
    """
    if scale not in get_args(Scale):
        raise ValueError(f"scale = {scale!r}; wanted one of {', '.join(get_args(Scale))}")
    for client, score in scores.items():
        if not 0 <= score < math.inf:
            raise ValueError(f"client {client} has the score {score}; wanted an accuracy, 0 or more")
    if scale == "absolute" or not scores:
        return dict(scores)
    worst, best = min(scores.values()), max(scores.values())
    if scale == "relative_to_best":
        return {client: score / best if best > 0 else 0.0 for client, score in scores.items()}
    return {client: (score - worst) / (best - worst) if best > worst else 1.0 for client, score in scores.items()}
