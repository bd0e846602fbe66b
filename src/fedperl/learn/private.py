"""A client's local round with differential privacy: DP-SGD (Abadi et al. 2016), per image or per patient.

    each step:  every unit with chance q  ->  g_u = sum of the gradients of the unit's images
                g = (sum_u g_u min(1, C / ||g_u||) + sigma C N(0, 1)) / batch          q = batch / images

All that follows from the noisy gradients is post-processing: the optimiser's moments, a running average of the weights,
the proximal term, the model that is sent, the peers and averages made of it. Which units are in a step, the noise, the
views and dropout come from the operating system, never from the run's seed, which the server knows.
"""

import hashlib
import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedperl.errors import ConfigError, RunError
from fedperl.learn import optimizers
from fedperl.learn.accounting import PrivacyBudgetSpent, Spent, StepCount, check_count, epsilon, figure_text
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalResult, LocalSettings, draw_view, objective_for
from fedperl.learn.objectives import Batch, Context, Objective, View, find_objective
from fedperl.learn.passes import logits_of
from fedperl.learn.proximal import Proximal
from fedperl.learn.state import State
from fedperl.learn.steps import EagerViews
from fedperl.settings import DP, dp_fault
from fedperl.settings import Objective as ObjectiveSettings

STEPS = "private.steps"
"""In the client's memory: the steps it knows to have taken. The count on disk may be ahead, never behind."""
GRADIENTS = 256 * 2**20
"""Bytes of single images' gradients at a time."""
BELOW = 1 - 1e-6
"""A gradient that is cut comes out a hair below the norm, so that rounding never takes it above."""
SEED = 32
"""Bytes of the operating system's randomness behind each draw."""
LARGEST = 2**63 - 1
LABELLED: tuple[View, ...] = ("labelled",)
UNLABELLED: tuple[View, ...] = ("weak", "weak_again", "strong")


@dataclass(frozen=True)
class Pool:
    """The images that private steps draw from, by unit."""

    rows: Tensor  # (n,) positions in the client's images, those of a unit one after the other
    units: Tensor  # (n,) which unit each belongs to, rising
    labelled: Tensor  # (n,) whether it counts with its label
    rate: float
    """The chance of each unit to be in a step."""

    def draw(self) -> Tensor:
        """Return the places (m,) in this pool of a Poisson sample's images: each unit is in it or not, by itself."""
        chosen = uniform(int(self.units.max()) + 1) <= self.rate
        return chosen[self.units].nonzero().squeeze(1)


@dataclass(frozen=True)
class Private:
    """What makes a client's rounds private."""

    settings: DP
    units: Tensor
    """(images,) the number of the unit that each of the client's images belongs to; all of them labelled, or none."""
    count: StepCount | None = None
    """None: nobody counts, and no private step is taken."""
    whose: str = "a client"

    def pool(self, data: LocalImages, objective: ObjectiveSettings, batch: int) -> Pool:
        """Return what a round's steps draw from: all images that the objective has a use for.

        Raises:
            ConfigError: there are too few for the batch or for delta.
        """
        unlabelled = data.unlabelled if find_objective(objective.kind).views & set(UNLABELLED) else data.unlabelled[:0]
        rows = torch.cat([data.labelled, unlabelled]).cpu()
        labelled = torch.arange(len(rows)) < len(data.labelled)
        if len(rows) <= batch:
            raise ConfigError(
                f"{self.whose}: {len(rows)} training images and federation.batch = {batch}: with dp.unit = "
                f"{self.settings.unit!r} a step must leave most out; wanted a smaller batch or more images"
            )
        found, units = torch.unique(self.units[rows], return_inverse=True)
        if set(units[labelled].tolist()) & set(units[~labelled].tolist()):
            raise ConfigError(f"{self.whose}: a {self.settings.unit} has images with and without labels; wanted either")
        if self.settings.delta >= 1 / len(found):
            raise ConfigError(
                f"{self.whose}: dp.delta = {self.settings.delta:g} lets one of its {len(found)} units "
                f"({self.settings.unit}s) be given away; wanted less than {1 / len(found):.2g}"
            )
        order = torch.argsort(units, stable=True)
        return Pool(rows[order], units[order], labelled[order], batch / len(rows))

    def admit(self, spent: Spent, memory: State) -> StepCount:
        """Return the count that the steps belong to, if they may be taken.

        Raises:
            PrivacyBudgetSpent: they would take epsilon beyond `dp.epsilon_max`.
            RunError: nobody counts, or the count has lost steps.
        """
        if self.count is None:
            raise RunError(f"{self.whose}: dp.unit = {self.settings.unit!r} where nobody counts the steps: not trained")
        before = self.count.read()
        check_count(self.count, before, int(memory.get(STEPS, torch.tensor(0))))
        most = self.settings.epsilon_max
        if most is not None and (after := epsilon([*before, spent], self.settings.delta)) > most:
            text = figure_text(after, self.settings.delta, self.settings.unit)
            raise PrivacyBudgetSpent(f"{self.whose}: {text} after this round; dp.epsilon_max = {most:g}")
        return self.count


def private_steps(
    net: nn.Module,
    data: LocalImages,
    settings: LocalSettings,
    private: Private,
    *,
    peers: Sequence[nn.Module] = (),
    teacher: nn.Module | None = None,
    memory: State | None = None,
) -> Generator[None, None, LocalResult]:
    """Train the network in place as `local_steps` does, privately; no number of the training is told.

    The steps are counted on disk when this returns, before anything of them can leave the client.

    Raises:
        ConfigError: the network or the objective lets one image change what another one teaches.
        FedPerlError: as `Private.pool` and `Private.admit`.
    """
    memory = {} if memory is None else memory
    check_private(net, settings.objective)
    context = Context(data, None, peers, teacher, None, memory, settings.round, settings.rounds)
    objective = objective_for(settings, context)
    pool = private.pool(data, settings.objective, settings.batch)
    spent = Spent(pool.rate, private.settings.noise, settings.steps)
    count = private.admit(spent, memory)
    net.requires_grad_(True).train(not settings.eval_mode)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secret_seed())
        optimizer, proximal = optimizers.build(net, settings.optimizer, memory), Proximal(net, settings.objective.mu)
        objective.begin(net)
        losses = LossOfOne(net, objective)
        for step in range(settings.steps):
            losses.progress = ((settings.round - 1) * settings.steps + step) / (settings.rounds * settings.steps)
            total = clipped_sum(losses, data, settings, pool, pool.draw(), private.settings.clip)
            noise = standard_normal(len(total), total.device) * (private.settings.noise * private.settings.clip)
            put_gradient(net, (total + noise) / settings.batch, proximal)
            optimizer.step()
            objective.after_step(net)
            yield
    if settings.optimizer.carry:
        memory.update(optimizers.moments(optimizer))
    memory[STEPS] = torch.tensor(count.add(spent))
    return LocalResult()


def check_private(net: nn.Module, objective: ObjectiveSettings) -> None:
    """Refuse what would make epsilon wrong.

    Raises:
        ConfigError: the network has batch norm, or a state beside its parameters, which would follow the images
            without noise; or the objective mixes images.
    """
    parameters = dict(net.named_parameters())
    mixing = [name for name, layer in net.named_modules() if isinstance(layer, _BatchNorm)]
    mixing += [name for name in net.state_dict() if name not in parameters]
    if mixing:
        raise ConfigError(
            f"dp.unit: the network's {mixing[0]!r} follows all images of a batch; wanted model.norm = 'group'"
        )
    fault = dp_fault(objective)
    if fault is not None:
        raise ConfigError(f"dp.unit: {fault}")


# Gradients


class LossOfOne(nn.Module):
    """The objective's loss of one image by itself, as a function of the network's parameters.

    Whatever the objective averages over a batch, it averages over that image.
    """

    def __init__(self, net: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.net, self.objective, self.progress = net, objective, 0.0

    def forward(self, one: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of one image's views (3, h, w), by name, with its label or with what helpers say of it."""
        many = {name: value.unsqueeze(0) for name, value in one.items() if name != "told"}
        told = one["told"].unsqueeze(1) if "told" in one else None
        batch = Batch(
            many.get("labelled"),
            many.get("labels"),
            many.get("weak"),
            many.get("strong"),
            None,
            many.get("weak_again"),
            None,
            told,
            self.progress,
        )
        return self.objective(self.net, batch).total

    @property
    def together(self) -> bool:
        """Whether the gradients of many images can be made in one pass: not where vmap lacks an operation."""
        settings = self.objective.settings
        return settings.label_source != "ema" and settings.targets == "hard"

    def gradients(self, examples: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the gradients of n images, (n, size) for each of the network's parameters."""
        parameters = {name: value.detach() for name, value in self.named_parameters()}
        one = grad(lambda weights, example: functional_call(self, weights, (example,)))
        if self.together:
            found = vmap(one, in_dims=(None, 0), randomness="different")(parameters, dict(examples))
            return [found[name].flatten(1) for name in parameters]
        count = len(next(iter(examples.values())))
        each = [one(parameters, {name: value[place] for name, value in examples.items()}) for place in range(count)]
        return [torch.stack([found[name].flatten() for found in each]) for name in parameters]


def clipped_sum(
    losses: LossOfOne, data: LocalImages, settings: LocalSettings, pool: Pool, drawn: Tensor, clip: float
) -> Tensor:
    """Return the sum over the drawn units of their clipped gradients, (parameters,) in 64 bits; 0 where none is drawn.

    In the rounds of `objective.start` an unlabelled image teaches nothing: its gradient is 0.
    """
    sizes = [parameter.numel() for parameter in losses.net.parameters()]
    total = torch.zeros(sum(sizes), dtype=torch.float64, device=data.device)
    most = max(1, GRADIENTS // (4 * len(total)))
    for labelled, possible in ((True, LABELLED), (False, UNLABELLED)):
        names = [name for name in possible if name in losses.objective.views]
        if not names or (not labelled and settings.round <= settings.objective.start):
            continue
        places = drawn[pool.labelled[drawn] == labelled]
        for part in by_unit(pool.units[places], most):
            rows = pool.rows[places[part]]
            found, unit = torch.unique_consecutive(pool.units[places[part]], return_inverse=True)
            if len(found) == len(rows):
                sums = losses.gradients(_examples(losses.objective, data, settings, rows, names))
            else:
                sums = [torch.zeros(len(found), size, device=data.device) for size in sizes]
                for some, of in zip(torch.split(rows, most), torch.split(unit.to(data.device), most), strict=True):
                    gradients = losses.gradients(_examples(losses.objective, data, settings, some, names))
                    for one, more in zip(sums, gradients, strict=True):
                        one.index_add_(0, of, more)
            total += clipped(sums, clip)
    return total


def by_unit(units: Tensor, most: int) -> Iterator[slice]:
    """Yield slices of rising unit numbers (n,) that never part a unit: up to `most` entries, or one unit."""
    sizes = torch.unique_consecutive(units, return_counts=True)[1].tolist()
    start = stop = 0
    for size in sizes:
        if stop > start and stop + size - start > most:
            yield slice(start, stop)
            start = stop
        stop += size
    if stop > start:
        yield slice(start, stop)


def clipped(gradients: Sequence[Tensor], clip: float) -> Tensor:
    """Return the sum (parameters,) of units' gradients, each cut to the norm; one that is not finite counts as 0.

    Args:
        gradients: (units, size) for each parameter; changed where not finite.
    """
    parts = [torch.linalg.vector_norm(one, dim=1, dtype=torch.float64) for one in gradients]
    norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    scale = torch.where(norms > clip, clip * BELOW / norms, 1.0).float()
    for one in gradients:
        one[~norms.isfinite()] = 0.0
    return torch.cat([scale @ one for one in gradients]).double()


@torch.no_grad()
def put_gradient(net: nn.Module, gradient: Tensor, proximal: Proximal) -> None:
    """Give each parameter its part of a gradient (parameters,), laid out as it is itself, and of the proximal term."""
    start = 0
    for parameter in net.parameters():
        part = gradient[start : start + parameter.numel()].view(parameter.shape)
        parameter.grad = torch.empty_like(parameter).copy_(part)
        start += parameter.numel()
    for parameter, received in zip(proximal.parameters, proximal.received, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(parameter - received, alpha=proximal.mu)


def _examples(
    objective: Objective, data: LocalImages, settings: LocalSettings, rows: Tensor, names: Sequence[View]
) -> dict[str, Tensor]:
    """Return the views of the images at these rows, (n, 3, h, w) each, and their labels or what helpers say of them."""
    generator = torch.Generator().manual_seed(secret_seed())
    rows = rows.to(data.images.device)
    draws = [draw_view(name, len(rows), generator, settings.views) for name in names]
    examples: dict[str, Tensor] = dict(zip(names, EagerViews(data, rows, draws)(slice(0, len(rows))), strict=True))
    if "labelled" in examples:
        examples["labels"] = data.labels[rows.to(data.device)]
    elif objective.helpers:
        examples["told"] = logits_of(objective.helpers, examples["weak"]).transpose(0, 1)
    return examples


# Randomness


def uniform(n: int, device: torch.device | None = None) -> Tensor:
    """Return n numbers in (0, 1], multiples of 2^-63, from the operating system's randomness, stretched by SHAKE-128.

    Torch's own generator on a CPU starts from 32 bits: all that it could ever give can be tried.
    """
    drawn = bytearray(hashlib.shake_128(os.urandom(SEED)).digest(8 * n))
    bits = torch.frombuffer(drawn, dtype=torch.int64) if n else torch.empty(0, dtype=torch.int64)
    return (bits.to(device) & LARGEST).double().add_(1.0).mul_(2.0**-63)


def standard_normal(n: int, device: torch.device | None = None) -> Tensor:
    """Return n normal numbers in 64 bits from the operating system's randomness (Box and Muller 1958).

    They are added in 64 bits and rounded to 32 afterwards, which hides the pattern that floating-point noise has in its
    last bits.
    """
    radius, angle = uniform(n + n % 2, device).view(2, -1)
    radius, angle = radius.log_().mul_(-2.0).sqrt_(), angle.mul_(2.0 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:n]


def secret_seed() -> int:
    """Return a seed from the operating system's randomness, for views and dropout."""
    return int.from_bytes(os.urandom(8), "big") >> 1
