"""What the server knows of each client that sent it a model; kept in the bank, beside that model."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedperl.learn.state import State
from fedperl.peers.profiles import Profile

EXTRA = "__"
"""Names that start so are the server's own; no tensor of a model does."""
PROFILE = EXTRA + "profile__"
EMBEDDING = EXTRA + "embedding__"
SCORE = EXTRA + "score__"
RELATION = EXTRA + "relation__"
MOVED = EXTRA + "moved__"


@dataclass(frozen=True)
class Known:
    """One client's last model, as the server sees it. None of this is ever sent to a client."""

    profile: Profile
    embedding: npt.NDArray[np.float64] | None = None
    """What its model says about the image of noise, where the selector compares that."""
    score: float | None = None
    """Its accuracy, where a policy asks for it."""
    relation: Tensor | None = None
    """FedIRM: the relation matrix of its labelled images, if it has any."""
    moved: float | None = None
    """How far it is from the model that its training started with, where that was looked at."""
    screened: bool = False
    """Whether that is too far to help others."""

    def tensors(self) -> State:
        """Return all of it as tensors, under names that no model has."""
        found = {PROFILE: torch.from_numpy(self.profile)}
        if self.embedding is not None:
            found[EMBEDDING] = torch.from_numpy(self.embedding)
        if self.score is not None:
            found[SCORE] = torch.tensor([self.score], dtype=torch.float64)
        if self.relation is not None:
            found[RELATION] = self.relation
        if self.moved is not None:
            found[MOVED] = torch.tensor([self.moved, float(self.screened)], dtype=torch.float64)
        return found

    @classmethod
    def of(cls, tensors: State) -> "Known":
        """Return what `tensors` gave."""
        embedding, score, moved = tensors.get(EMBEDDING), tensors.get(SCORE), tensors.get(MOVED)
        return cls(
            tensors[PROFILE].numpy(),
            None if embedding is None else embedding.numpy(),
            None if score is None else float(score),
            tensors.get(RELATION),
            None if moved is None else float(moved[0]),
            moved is not None and bool(moved[1]),
        )


def model_of(stored: State) -> State:
    """Return the model alone from what the bank holds of a client."""
    return {name: tensor for name, tensor in stored.items() if not name.startswith(EXTRA)}
