"""The contract of an objective: what a local round gives it, what one step asks of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedperl.learn.local_images import LocalImages
from fedperl.learn.passes import logits_of
from fedperl.learn.state import State
from fedperl.settings import Objective as ObjectiveSettings

View = Literal["labelled", "labelled_again", "weak", "weak_again", "strong"]


@dataclass(frozen=True)
class Batch:
    """One step's images as floats in [0, 1], (n, 3, h, w); None where the client has none or nobody asked."""

    labelled: Tensor | None  # weak views
    labels: Tensor | None  # (n,)
    weak: Tensor | None  # of the unlabelled images
    strong: Tensor | None  # of the same images
    labelled_again: Tensor | None = None  # other weak views of the labelled images
    weak_again: Tensor | None = None  # other weak views of the unlabelled images
    rows: Tensor | None = None  # (n,) which unlabelled images these are: positions in the client's images
    told: Tensor | None = None  # (helpers, n, classes) what networks that stay as they are say of the weak views
    progress: float | Tensor = 0.0  # share of the run's steps before this one, in [0, 1); a tensor in a recorded step
    mixed: Tensor | None = None  # (n,) which share of a labelled image, and label, is that of the batch's other end


@dataclass(frozen=True)
class Losses:
    """The loss to minimise and the numbers to log; values stay tensors, so that no step waits for the device."""

    total: Tensor
    numbers: dict[str, Tensor]
    then: "Callable[[], Losses] | None" = None
    """What to minimise next on the same batch, after the optimiser's step on this."""


@dataclass(frozen=True)
class Context:
    """What surrounds one local round: the client's own images, and what the server sent along."""

    data: LocalImages
    class_weights: Tensor | None = None
    """Of the labelled images, on their device; None where classes count alike."""
    peers: Sequence[nn.Module] = ()
    """Networks that help to label: frozen, in eval mode."""
    teacher: nn.Module | None = None
    """The network of `objective.teacher_source`: frozen, in eval mode; a running average is moved by the objective."""
    relation: Tensor | None = None
    """FedIRM: the labelled clients' averaged relation matrix, (classes, classes); a row of zeros is unknown."""
    memory: State = field(default_factory=dict)
    """What the client keeps from round to round: tensors by name, read and replaced by the objective."""
    round: int = 1
    rounds: int = 1

    @cached_property
    def log_class_shares(self) -> Tensor:
        """The log of the classes' shares among the client's labels, (classes,); one without counts as one image."""
        counts = torch.bincount(self.data.labels[self.data.labelled], minlength=self.data.classes).clamp_min(1)
        return torch.log(counts / counts.sum())


class Objective(ABC):
    """Computes the losses of one step; gradients flow into the network alone. Made anew for each local round."""

    views: ClassVar[frozenset[View]] = frozenset({"labelled"})
    """What its batches must hold; other views are not made."""

    def __init_subclass__(cls) -> None:
        """Take steps not to repeat where the class does not say so itself, whatever it derives from."""
        super().__init_subclass__()
        if "repeats" not in vars(cls):
            cls.repeats = Objective.repeats  # type: ignore[method-assign]

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        self.settings, self.context = settings, context

    @property
    def repeats(self) -> bool:
        """Whether every step does the same to tensors, so that it can be recorded once and played again.

        A recorded step goes on using the numbers and the places in memory that it saw. What differs from step to step
        or from round to round must therefore be a tensor: of the batch, or of `tensors`, changed in place alone. Steps
        in which a shape depends on values, or that read a value out of a tensor, do not repeat.
        """
        return False

    def tensors(self) -> State:
        """Return what a round brings to its steps or takes from them, by name: always the same tensors.

        Before the first step of a round that is played, they are copied into those of the objective that was recorded,
        and back after the last. What the steps also put into the memory must have its name there.
        """
        context, found = self.context, State()
        if context.class_weights is not None:
            found["class_weights"] = context.class_weights
        if context.relation is not None:
            found["relation"] = context.relation
        if self.settings.labelled_loss == "logit_adjusted":
            found["log_class_shares"] = context.log_class_shares
        return found

    @property
    def helpers(self) -> Sequence[nn.Module]:
        """Networks that stay as they are during the round and are asked about weak views alone.

        What they say may be made ahead of the steps, of many images at a time: `Batch.told`.
        """
        return ()

    def said(self, helper: nn.Module, batch: Batch) -> Tensor:
        """Return a helper's logits of the batch's weak views, (n, classes) in float32."""
        if batch.told is not None:
            return batch.told[[each is helper for each in self.helpers].index(True)]
        if batch.weak is None:
            raise ValueError("a helper was asked about weak views, and the batch has none")
        return logits_of([helper], batch.weak, batch=len(batch.weak))[0]

    def begin(self, net: nn.Module) -> None:  # noqa: B027
        """Prepare the round: the network holds the received model."""

    @abstractmethod
    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one batch; either kind of image may be missing, not both."""

    def after_step(self, net: nn.Module) -> None:  # noqa: B027
        """Follow the network after an optimiser step."""

    def relation(self) -> Tensor | None:
        """Return the relation matrix of this round's labelled images, for the server; None where there is none."""
        return None
