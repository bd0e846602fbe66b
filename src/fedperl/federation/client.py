"""The client's side of a round: train on its own images, evaluate on its own images, send what is allowed."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedperl.data.partition import PARTS, ClientPart
from fedperl.data.store import Store
from fedperl.evaluate import classification
from fedperl.federation.messages import EvaluateTask, Evaluation, TrainTask, Update
from fedperl.learn.local_round import LocalImages, client_weights, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.predict import predict
from fedperl.learn.state import State, load_into, state_of
from fedperl.peers.committee import peer_state
from fedperl.settings import Config


class Workspace:
    """Networks that tasks are loaded into, built once: one to train, one a peer, one teacher."""

    def __init__(self, config: Config, classes: int) -> None:
        self._config, self._classes = config, classes
        self.net = self._build()
        self._peers: list[nn.Module] = []
        self._teacher: nn.Module | None = None

    def _build(self) -> nn.Module:
        model = self._config.model
        net = build_net(model.net, self._classes, seed=self._config.seed, input_scale=model.input_scale)
        net = net.to(self._config.device)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

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
    ) -> None:
        """Hold the images.

        Args:
            class_weights: of its labelled images; they weigh its evaluation loss too.
            step: when each unlabelled image arrives, where they stream in; each piece stays `rounds_per_step` rounds.
        """
        self.number = number
        self.class_weights = class_weights
        self._step, self._rounds_per_step = step, rounds_per_step
        self.training = training
        self.evaluation = evaluation
        self.work = work

    def train(self, task: TrainTask, state: State) -> tuple[Update, State]:
        """Return the update of one local round and the state to keep."""
        work = self.work
        load_into(work.net, task.model.state)
        teacher, kept = self._teacher(task, state)
        numbers = local_round(
            work.net,
            self._present(task.round),
            task.settings,
            seed=task.seed,
            peers=work.peers([peer_state(task.model.state, peer) for peer in task.peer_states()]),
            teacher=teacher,
        )
        if kept and teacher is not None:
            state = state_of(teacher)
        return Update(task.run, task.round, self.number, state_of(work.net), numbers), state

    def _present(self, round: int) -> LocalImages:
        """Return the training images that are there in a round; after the last piece of a stream, that one stays."""
        if self._step is None:
            return self.training
        now = min((round - 1) // self._rounds_per_step, int(self._step.max()))
        return replace(self.training, unlabelled=self.training.unlabelled[self._step == now])

    def evaluate(self, task: EvaluateTask) -> Evaluation:
        """Return the allowed numbers of the model on this client's images of one part."""
        load_into(self.work.net, task.model.state)
        data = self.evaluation[task.part]
        probabilities = predict(self.work.net, data.images).cpu().numpy()
        truth = data.labels.cpu()
        numbers = classification(truth.numpy(), probabilities).to_dict()
        logs = torch.from_numpy(probabilities).clamp_min(1e-12).log()
        numbers["loss"] = float(F.nll_loss(logs, truth, weight=self.class_weights))
        return Evaluation(task.run, task.round, self.number, task.part, numbers)

    def _teacher(self, task: TrainTask, state: State) -> tuple[nn.Module | None, bool]:
        """Return the network that labels instead of the trained one, and whether the client keeps it."""
        source = task.settings.objective.label_source
        if source == "current":
            return None, False
        if source == "round_start":
            return self.work.teacher(task.model.state), False
        return self.work.teacher(state or task.model.state), True


def client_of_store(number: int, store: Store, config: Config, work: Workspace) -> Client:
    """Return the client that holds a store's part of that number, its images copied out of the store."""
    part = store.partition.clients[number]
    rows = part.rows()
    images = torch.from_numpy(store.pixels(rows)).to(config.device)
    labels = torch.from_numpy(store.manifest.label[rows]).to(config.device)
    place = _places(part)
    every = torch.arange(len(rows), device=config.device)
    labelled, unlabelled = every[place["labelled"]], every[place["unlabelled"]]
    if config.objective.labels == "all":
        labelled, unlabelled = torch.cat([labelled, unlabelled]), unlabelled[:0]
    training = LocalImages(images, labels, labelled, unlabelled, len(store.classes))
    evaluation = {name: EvaluationImages(images[place[name]], labels[place[name]]) for name in ("validation", "test")}
    streams = len(part.step) > 0 and len(unlabelled) > 0
    return Client(
        number,
        training,
        evaluation,
        work,
        client_weights(training, config.objective),
        torch.from_numpy(part.step).to(config.device) if streams else None,
        config.federation.rounds_per_step,
    )


def _places(part: ClientPart) -> dict[str, slice]:
    """Return where each use lies within the client's own rows: slices, so that no image is copied."""
    places: dict[str, slice] = {}
    start = 0
    for name in PARTS:
        stop = start + len(getattr(part, name))
        places[name] = slice(start, stop)
        start = stop
    return places
