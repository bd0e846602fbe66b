"""The client's side of a round: train on its own images, evaluate on its own images, send what is allowed."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.data.manifest import Indices, Manifest, Names
from fedperl.data.partition import PARTS, ClientPart
from fedperl.data.store import Images, Store
from fedperl.errors import ConfigError, DataError
from fedperl.evaluate import ATTRIBUTES, Description, classification, describe_fully, group_names
from fedperl.evaluate.classification import Labels, Probabilities
from fedperl.evaluate.group_counts import LEAST
from fedperl.federation.members import member_of
from fedperl.federation.messages import EvaluateTask, Evaluation, TrainTask, Update
from fedperl.federation.personal import BATCH_NORM, OWN, SHARES, as_used, own_mean
from fedperl.learn.accounting import count_of, library
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import client_weights, drained, local_steps
from fedperl.learn.nets import build_net
from fedperl.learn.nets.decomposed import Decomposed, merged
from fedperl.learn.predict import predict, predict_further
from fedperl.learn.private import Private, private_steps
from fedperl.learn.recalibrate import recalibrate
from fedperl.learn.sparse import sparsify
from fedperl.learn.state import State, batch_norm_names, load_into, moved, part_of, state_of, with_prefix
from fedperl.learn.steps import EagerSteps, MakeSteps
from fedperl.peers.committee import peer_state
from fedperl.seeds import seed_for
from fedperl.settings import Config

HELD, MEMORY, TEACHER = "held.", "memory.", "teacher."
"""What a client keeps besides, by the start of its names: its last model, its objective's own, its teacher."""
LEAST_IMAGES = 2
"""Labelled images behind a row of a relation matrix that is sent."""
RECALIBRATION = 256
"""Most images that a peer's batch-norm statistics are measured on."""


class Workspace:
    """Networks that tasks are loaded into, built once: one to train, one a peer, one teacher."""

    def __init__(
        self, config: Config, classes: int, finish: Callable[[nn.Module], nn.Module] = lambda net: net
    ) -> None:
        """Build the network to train.

        Args:
            finish: puts an engine's own form of a network in its place, with the same state.
        """
        self._config, self._classes, self._finish = config, classes, finish
        self.net = self._build()
        self.orientations = config.orientations
        self._peers: list[nn.Module] = []
        self._teacher: nn.Module | None = None

    def plain(self) -> nn.Module:
        """Return a new network with the run's initial weights, not decomposed."""
        model = self._config.model
        return build_net(
            model.net,
            self._classes,
            seed=self._config.seed,
            input_scale=model.input_scale,
            dropout=model.dropout,
            norm=model.norm,
            init_scale=model.init_scale,
        )

    def decomposed(self, net: nn.Module) -> nn.Module:
        """Return the network as the run trains it: as it is, or as FedMatch's sum of two."""
        objective = self._config.objective
        if not objective.decomposed:
            return net
        return Decomposed(net, share=objective.fedmatch.psi, zero=objective.fedmatch.zero)

    def deliverable(self, state: State) -> State:
        """Return a trained state as one of the plain network: what is written for users."""
        objective = self._config.objective
        return merged(state, objective.fedmatch.zero) if objective.decomposed else state

    def _build(self) -> nn.Module:
        net = self._finish(self.decomposed(self.plain())).to(self._config.device)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def predict(self, images: Tensor) -> Tensor:
        """Return what the network says of images, (n, classes), as a trained one is asked."""
        return predict(self.net, images, orientations=self.orientations)

    def peers(self, states: list[State]) -> list[nn.Module]:
        """Return networks in eval mode that hold the states."""
        while len(self._peers) < len(states):
            self._peers.append(self._build().eval().requires_grad_(False))
        for net, state in zip(self._peers, states, strict=False):
            load_into(net, state)
        return self._peers[: len(states)]

    def teacher(self, state: State) -> nn.Module:
        """Return the teacher network, in eval mode, holding the state."""
        if self._teacher is None:
            self._teacher = self._build().eval().requires_grad_(False)
        load_into(self._teacher, state)
        return self._teacher


@dataclass(frozen=True)
class EvaluationImages:
    """One part of a client's images with the truth."""

    images: Tensor  # (n, 3, h, w) uint8
    labels: Tensor  # (n,)
    groups: Mapping[str, Names] = field(default_factory=dict)
    """Attribute -> (n,): each patient's age band, sex, body site or skin type; of test images, where it is known."""


class Client:
    """One hospital. `state` is what it keeps from round to round: it never leaves the client."""

    def __init__(
        self,
        number: int,
        training: LocalImages,
        evaluation: dict[str, EvaluationImages],
        work: Workspace,
        class_weights: Tensor | None = None,
        step: Tensor | None = None,
        rounds_per_step: int = 1,
        private: Private | None = None,
        own_share: float | Literal["validation"] = 0.0,
    ) -> None:
        """Hold the images.

        Args:
            class_weights: of its labelled images; they weigh its evaluation loss too.
            step: when each unlabelled image arrives, where they stream in; each piece stays `rounds_per_step` rounds.
            private: makes its rounds differentially private, whatever a task says.
            own_share: of the mean of its own models in the one that it evaluates; or chosen on validation images.
        """
        self.number = number
        self.class_weights = class_weights
        self._step, self._rounds_per_step = step, rounds_per_step
        self.training = training
        self.evaluation = evaluation
        self.work = work
        self.private = private
        self.own_share = own_share

    def train(self, task: TrainTask, state: State) -> tuple[Update, State]:
        """Return the update of one local round and the state to keep."""
        return drained(self.train_steps(task, state))

    def train_steps(
        self, task: TrainTask, state: State, work: Workspace | None = None, make_steps: MakeSteps = EagerSteps
    ) -> Generator[None, None, tuple[Update, State]]:
        """Train one local round, yielding after each step, and return the update and the state to keep.

        Args:
            work: other networks than the client's own to train in, for clients that train side by side.
            make_steps: how the device is told to take a step.
        """
        work, settings = work or self.work, task.settings
        start = self._start(task, state)
        load_into(work.net, start)
        data, memory = self._present(task.round), part_of(state, MEMORY)
        teacher = self._teacher(work, task, state, start)
        peers = self._peers(work, task, start, data)
        if self.private is not None:
            result = yield from private_steps(
                work.net, data, settings, self.private, peers=peers, teacher=teacher, memory=memory
            )
        else:
            result = yield from local_steps(
                work.net,
                data,
                settings,
                seed=task.seed,
                peers=peers,
                teacher=teacher,
                relation=task.relation,
                memory=memory,
                make_steps=make_steps,
            )
        trained = state_of(work.net)
        if settings.sparse:
            trained, _ = sparsify(trained, start, settings.sparse)
        numbers = result.numbers | self._accuracy(work, settings.report, trained)
        kept = with_prefix(memory, MEMORY)
        if teacher is not None and settings.objective.teacher_source == "ema":
            kept |= with_prefix(state_of(teacher), TEACHER)
        if settings.own_batch_norm:
            names = batch_norm_names(work.net)
            kept |= with_prefix({name: trained[name] for name in sorted(names)}, BATCH_NORM)
        if settings.sparse:
            kept |= {HELD + name: tensor for name, tensor in trained.items()}  # what is sent; nobody changes it
        if self.own_share:
            kept |= own_mean(state, trained)
        relation = None if result.relation is None else _guarded(result.relation, data)
        return Update(task.run, task.round, self.number, trained, numbers, relation), kept

    def _start(self, task: TrainTask, state: State) -> State:
        """Return what the client trains from: the received model, save what it keeps of its own."""
        received, held = task.model.state, part_of(state, HELD)
        if task.settings.own_batch_norm:
            received = received | part_of(state, BATCH_NORM)
        if not held:
            return received
        return sparsify(received, moved(held, next(iter(received.values())).device), task.settings.sparse)[0]

    def _peers(self, work: Workspace, task: TrainTask, start: State, data: LocalImages) -> list[nn.Module]:
        """Return the networks that help to label; where asked, with batch-norm statistics of the client's images."""
        peers = work.peers([peer_state(start, peer) for peer in task.peer_states()])
        if peers and task.settings.recalibrate:
            rows = torch.cat([data.labelled, data.unlabelled])
            generator = torch.Generator().manual_seed(seed_for(task.seed, "recalibration"))
            drawn = torch.randperm(len(rows), generator=generator)[:RECALIBRATION].to(rows.device)
            for peer in peers:
                recalibrate(peer, data.pixels(rows[drawn]))
        return peers

    def _accuracy(self, work: Workspace, report: str, trained: State) -> dict[str, float]:
        """Return the trained model's accuracy on the client's own images of the part asked for, if any is."""
        if report == "none" or self.private is not None:
            return {}
        data = self.evaluation["validation"]
        if report == "training":
            labelled = self.training.labelled
            data = EvaluationImages(self.training.pixels(labelled), self.training.labels[labelled])
        if not len(data.labels):
            return {}
        load_into(work.net, trained)
        right = predict(work.net, data.images).argmax(1) == data.labels
        return {"accuracy": float(right.float().mean())}

    def _present(self, round: int) -> LocalImages:
        """Return the training images that are there in a round; after the last piece of a stream, that one stays."""
        if self._step is None:
            return self.training
        now = min((round - 1) // self._rounds_per_step, int(self._step.max()))
        return replace(self.training, unlabelled=self.training.unlabelled[self._step == now])

    def evaluate(
        self, task: EvaluateTask, state: State | None = None, predicted: Probabilities | None = None
    ) -> Evaluation:
        """Return the allowed numbers of the model, with what it keeps for that, on its own images of one part.

        Args:
            predicted: what the model says of them, where that is known already; not with `task.full`.
        """
        if predicted is None and not task.full and task.part == "validation" and self.own_share == "validation":
            predicted = self._answers(task.model.state, state or {}).cpu().numpy()
        if predicted is None:
            load_into(self.work.net, self.in_use(task.model.state, state or {}))
            truth, probabilities = self._predictions(task.part)
        else:
            truth, probabilities = self.evaluation[task.part].labels.cpu().numpy(), predicted
        found = self._described(task.part, truth, probabilities) if task.full else None
        numbers = classification(truth, probabilities).to_dict() if found is None else found.numbers
        logs = torch.from_numpy(probabilities).clamp_min(1e-12).log()
        numbers["loss"] = float(F.nll_loss(logs, torch.from_numpy(truth), weight=self.class_weights))
        sums, groups = (None, {}) if found is None else (found.sums, found.groups)
        return Evaluation(task.run, task.round, self.number, task.part, numbers, sums, groups)

    def in_use(self, model: State, state: State) -> State:
        """Return a global model as the client uses it, with what it kept when the model was made.

        A share that is to be chosen follows from the two and the validation images: nobody need remember it. The
        network at hand is left with one or the other.
        """
        share = self._chosen_share(model, state) if self.own_share == "validation" else self.own_share
        return as_used(model, state, share)

    def own_answers(self, model: State, state: State, said: Tensor) -> Tensor | None:
        """Return what a global model mixed with the client's own says of its validation images, (n, classes).

        None where the client uses the model itself: by what it kept when the model was made, or for want of that. The
        network at hand is left with one or the other.

        Args:
            said: what the model itself says of the images as they are.
        """
        plain = {0.0: said}
        share = self._chosen_share(model, state, plain)
        if not share:
            return None
        if share != SHARES[-1]:  # which the network at hand was left with
            load_into(self.work.net, as_used(model, state, share))
        return self._further(plain[share])

    def _answers(self, model: State, state: State) -> Tensor:
        """Return what a global model, as the client uses it, says of its validation images, (n, classes).

        What it and its mixture say of the images as they are, to choose between them, is not asked again.
        """
        load_into(self.work.net, model)
        said = predict(self.work.net, self.evaluation["validation"].images)
        mixed = self.own_answers(model, state, said)
        if mixed is not None:
            return mixed
        load_into(self.work.net, model)
        return self._further(said)

    def _further(self, said: Tensor) -> Tensor:
        """Return what the network at hand says of validation images, given what it says of them as they are."""
        images, orientations = self.evaluation["validation"].images, self.work.orientations
        return predict_further(self.work.net, [images], [said], orientations=orientations)[0]

    def _chosen_share(self, model: State, state: State, plain: dict[float, Tensor] | None = None) -> float:
        """Return the share of its own with the least log loss on validation images; nothing where these are few.

        Args:
            plain: what the model with a share says of them as they are, as far as that is known; the rest is added.
        """
        data, plain = self.evaluation["validation"], {} if plain is None else plain
        if len(data.labels) < LEAST or not part_of(state, OWN):
            return 0.0
        for share in SHARES:
            if share not in plain:
                load_into(self.work.net, as_used(model, state, share))
                plain[share] = predict(self.work.net, data.images)

        def loss(share: float) -> float:
            return float(F.nll_loss(plain[share].double().clamp_min(1e-12).log(), data.labels))

        return min(SHARES, key=loss)

    def _predictions(self, part: str) -> tuple[Labels, Probabilities]:
        """Return the truth and what the network at hand says of one part."""
        data = self.evaluation[part]
        return data.labels.cpu().numpy(), self.work.predict(data.images).cpu().numpy()

    def _described(self, part: str, truth: Labels, probabilities: Probabilities) -> Description:
        """Return all that may be told; of test images also with the temperature of the validation images."""
        fits = part == "test" and len(self.evaluation["validation"].labels) > 0
        fit_on = self._predictions("validation") if fits else None
        return describe_fully(truth, probabilities, groups=self.evaluation[part].groups, fit_on=fit_on)

    def _teacher(self, work: Workspace, task: TrainTask, state: State, start: State) -> nn.Module | None:
        """Return the network that labels or teaches beside the trained one."""
        source = task.settings.objective.teacher_source
        if source == "none":
            return None
        kept = part_of(state, TEACHER) if source == "ema" else {}
        return work.teacher(kept or start)


def _guarded(relation: Tensor, data: LocalImages) -> Tensor:
    """Return a relation matrix without the rows that rest on fewer than two labelled images: what one image says."""
    counts = torch.bincount(data.labels[data.labelled], minlength=data.classes).cpu()
    return torch.where((counts >= LEAST_IMAGES)[:, None], relation, 0.0)


def client_of_store(
    number: int, store: Store, config: Config, work: Workspace, *, resident: bool = True, counts: Path | None = None
) -> Client:
    """Return the client that holds a store's part of that number, its images copied out of the store.

    Args:
        resident: whether the images lie on the device, or in the host's memory.
        counts: the folder in which private steps are counted; without it a private client trains nothing.
    Raises:
        ConfigError: the client's images do not allow what [dp] promises.
    """
    part = store.partition.clients[number]
    rows = part.rows()
    images = placed(store.pixels(rows), config.device, resident=resident)
    labels = torch.from_numpy(store.manifest.label[rows]).to(config.device)
    place = _places(part)
    every = torch.arange(len(rows), device=images.device)
    labelled, unlabelled = every[place["labelled"]], every[place["unlabelled"]]
    if config.objective.labels == "all":
        labelled, unlabelled = torch.cat([labelled, unlabelled]), unlabelled[:0]
    training = LocalImages(images, labels, labelled, unlabelled, len(store.classes))
    evaluation = {name: EvaluationImages(images[place[name]], labels[place[name]]) for name in ("validation", "test")}
    evaluation["test"] = replace(evaluation["test"], groups=groups_of(store.manifest, part.test, f"client {number}"))
    streams = len(part.step) > 0 and len(unlabelled) > 0
    return Client(
        number,
        training,
        evaluation,
        work,
        client_weights(training, config.objective),
        torch.from_numpy(part.step).to(images.device) if streams else None,
        config.federation.rounds_per_step,
        _private(number, store, config, training, counts) if config.dp.unit != "none" else None,
        config.federation.own_share,
    )


def _private(number: int, store: Store, config: Config, training: LocalImages, counts: Path | None) -> Private:
    """Return what makes a client's rounds private."""
    groups = store.manifest.group[store.partition.clients[number].rows()]
    units = np.unique(groups, return_inverse=True)[1] if config.dp.unit == "patient" else np.arange(len(groups))
    if config.dp.unit == "patient" and store.partition.straddles:
        raise ConfigError("dp.unit = 'patient': the partition splits groups, over clients too; wanted whole ones")
    count = None if counts is None else count_of(counts, number)
    private = Private(config.dp, torch.from_numpy(units), count, f"client {number}")
    if member_of(store.partition.clients[number], config).size(config):
        library()
        private.pool(training, config.objective, config.federation.batch)
    return private


def placed(pixels: Images, device: str, *, resident: bool) -> Tensor:
    """Return images on the device, or in the host's memory."""
    images = torch.from_numpy(pixels)
    return images.to(device) if resident else images


def groups_of(manifest: Manifest, rows: Indices, whose: str) -> dict[str, Names]:
    """Return the groups of these images by attribute, as far as the manifest knows them.

    Raises:
        DataError: an age that is no number of years.
    """
    try:
        known = {name: group_names(name, manifest.about[name][rows]) for name in ATTRIBUTES if name in manifest.about}
    except ValueError as error:
        raise DataError(f"{whose}, test images: {error}, or nothing where it is unknown") from None
    return {name: names for name, names in known.items() if (names != "").any()}


def _places(part: ClientPart) -> dict[str, slice]:
    """Return where each use lies within the client's own rows: slices, so that no image is copied."""
    places: dict[str, slice] = {}
    start = 0
    for name in PARTS:
        stop = start + len(getattr(part, name))
        places[name] = slice(start, stop)
        start = stop
    return places
