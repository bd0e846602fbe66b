"""What of its own a client uses a global model with: batch-norm layers, or a share of the mean of its models."""

import torch

from fedperl.federation.aggregate import fedavg, running_mean
from fedperl.learn.state import State, as_one, moved, part_of, with_prefix

BATCH_NORM, OWN = "batch_norm.", "own."
"""What a client keeps to evaluate with, by the start of its names: its batch-norm layers, the mean of its models."""
TO_EVALUATE = (BATCH_NORM, OWN)
OWN_COUNT = "own_count"
"""Of how many models that mean is."""
OWN_DECAY = 0.9
SHARES = (0.0, 0.5)
"""Of its own that a client may choose from."""


def as_used(model: State, kept: State, own_share: float) -> State:
    """Return a global model as the client that kept this uses it: with its batch-norm layers, or mixed with its own."""
    own = moved(part_of(kept, OWN), next(iter(model.values())).device) if own_share else {}
    mixed = fedavg([model, own], [1 - own_share, own_share]) if own else model
    return mixed | part_of(kept, BATCH_NORM)


def own_mean(state: State, trained: State) -> State:
    """Return the running mean of a client's models with the last one in it, where that lies, and of how many it is.

    A model that diverged, which the server will refuse, is left out: it would stay in the mean for good.
    """
    before, count = part_of(state, OWN), int(state.get(OWN_COUNT, torch.tensor(0)))
    device = next(iter(trained.values())).device
    joined, _ = as_one([{name: tensor for name, tensor in trained.items() if tensor.is_floating_point()}])
    if all(bool(tensor.isfinite().all()) for tensor in joined[0].values()):
        count += 1
        before = trained if count == 1 else running_mean(moved(before, device), trained, OWN_DECAY, count)
    return with_prefix(before, OWN) | {OWN_COUNT: torch.tensor(count, device=device)}
