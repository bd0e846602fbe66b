"""What a client minimises. An objective is a callable: (network, batch) -> losses; add one by adding a file here."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedperl.learn.objectives.base import Batch, Losses, Objective
from fedperl.learn.objectives.fixmatch import FixMatch
from fedperl.learn.objectives.supervised import Supervised
from fedperl.settings import Objective as ObjectiveSettings

__all__ = ["Batch", "FixMatch", "Losses", "Objective", "Supervised", "build_objective"]


def build_objective(
    settings: ObjectiveSettings,
    *,
    class_weights: Tensor | None,
    peers: Sequence[nn.Module] = (),
    labeller: nn.Module | None = None,
) -> Objective:
    """Return the objective the settings name.

    Args:
        peers: networks in eval mode that help to label.
        labeller: whose own probabilities label, where that is not the network being trained.
    """
    if settings.kind == "supervised":
        return Supervised(class_weights)
    return FixMatch(settings, class_weights, peers, labeller)
