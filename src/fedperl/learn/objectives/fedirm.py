"""FedIRM (Liu et al. 2021): a mean teacher, and class relations matched between clients with and without labels."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedperl.learn.objectives.base import Batch, Context, Losses
from fedperl.learn.objectives.fixmatch import FixMatch
from fedperl.learn.objectives.mean_teacher import MeanTeacher
from fedperl.learn.objectives.supervised import cross_entropy
from fedperl.learn.passes import Forward
from fedperl.learn.relation import RelationSum, relation_divergence, relation_matrix
from fedperl.learn.state import State
from fedperl.settings import Objective as ObjectiveSettings


class FedIRM(MeanTeacher):
    """L = CE_l of two views + weight w(t) (teacher consistency + divergence of the relation matrices)."""

    views = frozenset({"labelled", "labelled_again", "weak", "weak_again"})

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        super().__init__(settings, context)
        data = context.data
        self._relations = _CountedSum(data.classes, settings.teacher.relation_temperature, data.device)

    @property
    def repeats(self) -> bool:
        """Always: the sums behind the relation matrix are tensors, and so is the received one."""
        return True

    def tensors(self) -> State:
        """Return also the sums of the round's labelled batches."""
        return super().tensors() | self._relations.tensors()

    def taught(
        self, net: nn.Module, logits: Tensor, weak: Tensor, weak_again: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted loss of the unlabelled images and the numbers to log; relations where a matrix came."""
        loss, numbers = super().taught(net, logits, weak, weak_again)
        received, settings = self.context.relation, self.settings.teacher
        if received is None or not settings.relation:
            return loss, numbers
        classes = logits.shape[1]
        most = settings.uncertainty * math.log(classes) if settings.nats is None else settings.nats
        confidence, labels = torch.softmax(logits.detach(), dim=1).max(dim=1)
        uncertainty = entropy(mean_of_passes(net, weak, settings.passes))
        certain = (confidence >= settings.confidence) & (uncertainty < most)
        matrix, counts = relation_matrix(logits, labels, classes, settings.relation_temperature, certain)
        rows = (received.sum(1) > 0) & ((counts > 0) | (not settings.count_weighted))
        divergence = relation_divergence(matrix, received, rows)
        numbers |= {"loss_relation": divergence.detach(), "certain": certain.float().mean()}
        return loss + self.weight * divergence, numbers

    def learn_relations(self, logits: Tensor, labels: Tensor) -> None:
        """Count labelled images in the matrix for the server."""
        if self.settings.teacher.relation:
            self._relations.add(logits, labels)

    def relation(self) -> Tensor | None:
        """Return the matrix of this round's labelled images, (classes, classes); None without any."""
        relations = self._relations
        return relations.over_images() if self.settings.teacher.count_weighted else relations.over_batches()

    def _labelled(self, forward: Forward, batch: Batch) -> Tensor | None:
        if batch.labels is None:
            return None
        logits = [forward(view).float() for view in (batch.labelled, batch.labelled_again) if view is not None]
        self.learn_relations(torch.cat(logits), batch.labels.repeat(len(logits)))
        losses = [cross_entropy(of_view, batch.labels, self.settings, self.context) for of_view in logits]
        return self.settings.labelled_weight * torch.stack(losses).sum()


class FixMatchIRM(FixMatch):
    """FedPerl and FedIRM together, as FedPerl's paper suggests: FixMatch with peers + the teacher's two terms."""

    views = frozenset({"labelled", "weak", "weak_again", "strong"})

    def __init__(self, settings: ObjectiveSettings, context: Context) -> None:
        # The teacher is moved by FedIRM's rule alone: where it labels too, FixMatch takes it as one that stands still.
        labels = "current" if settings.label_source == "current" else "round_start"
        super().__init__(settings.changed(kind="fixmatch", label_source=labels), context)
        self.irm = FedIRM(settings, context)

    @property
    def repeats(self) -> bool:
        """As FixMatch."""
        return super().repeats

    def tensors(self) -> State:
        """Return those of both."""
        return super().tensors() | self.irm.tensors()

    def __call__(self, net: nn.Module, batch: Batch) -> Losses:
        """Return the losses of one step; the passes of FixMatch serve the other terms too."""
        recorder = _Recorder(net)
        losses = super().__call__(recorder, batch)
        if batch.labelled is not None and batch.labels is not None:
            self.irm.learn_relations(recorder.logits_of(batch.labelled), batch.labels)
        if batch.weak is None or batch.weak_again is None or self.settings.teacher.weight == 0:
            return losses
        taught, numbers = self.irm.taught(net, recorder.logits_of(batch.weak), batch.weak, batch.weak_again)
        total = losses.total + taught
        return replace(losses, total=total, numbers=losses.numbers | numbers | {"loss": total.detach()})

    def begin(self, net: nn.Module) -> None:
        """Prepare the round for both."""
        super().begin(net)
        self.irm.begin(net)

    def after_step(self, net: nn.Module) -> None:
        """Follow the network with both."""
        super().after_step(net)
        self.irm.after_step(net)

    def relation(self) -> Tensor | None:
        """Return the matrix of this round's labelled images, (classes, classes); None without any."""
        return self.irm.relation()


class _CountedSum(RelationSum):
    """Counts its batches in a tensor too, so that a step that is played counts."""

    def __init__(self, classes: int, temperature: float, device: torch.device) -> None:
        super().__init__(classes, temperature, device)
        self._added = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        super().add(logits, labels)
        self._added += 1

    def over_images(self) -> Tensor | None:
        self.batches = int(self._added)
        return super().over_images()

    def over_batches(self) -> Tensor | None:
        self.batches = int(self._added)
        return super().over_batches()

    def tensors(self) -> State:
        parts = {"sums": self._sums, "counts": self._counts, "matrices": self._matrices, "batches": self._added}
        return {f"relation.{name}": part for name, part in parts.items()}


class _Recorder(nn.Module):
    """Passes images on to a network and remembers the logits, with a graph even where the caller asks for none."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.training = net, net.training
        self._passes: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        with torch.enable_grad():
            logits: Tensor = self.net(images)
        self._passes.append((images, logits))
        return logits

    def logits_of(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of the pass of these very images."""
        return next(logits.float() for seen, logits in self._passes if seen is images)


@torch.no_grad()
def mean_of_passes(net: nn.Module, images: Tensor, passes: int) -> Tensor:
    """Return the mean probabilities (n, classes) of passes with dropout on and batch norm in eval mode, unmoved.

    Without an active dropout layer all passes were the same, and one is made. With one, as in all our networks just
    before the classifier, what comes before it is the same in every pass, and the images are repeated only there.
    """
    modes = [(module, module.training) for module in net.modules()]
    layers = [module for module in net.modules() if isinstance(module, _DropoutNd) and module.p > 0]
    net.eval()
    for layer in layers:
        layer.train()
    passes = passes if layers else 1
    logits: Tensor
    if len(layers) == 1:
        with layers[0].register_forward_pre_hook(lambda _, inputs: (torch.cat([inputs[0]] * passes),)):
            logits = net(images)
    else:
        logits = net(torch.cat([images] * passes))
    for module, mode in modes:
        module.training = mode
    return torch.softmax(logits.float(), dim=1).view(passes, len(images), -1).mean(0)


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy (n,) of probabilities (n, classes), in nats."""
    return -(probabilities * torch.log(probabilities.clamp_min(1e-12))).sum(1)
