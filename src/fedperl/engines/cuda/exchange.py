"""The local engine on a CUDA device: clients of a cohort train side by side, each on a stream of its own."""

import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedperl.engines.cuda.captured import Recorder
from fedperl.engines.local import LocalExchange, PastStates, failure
from fedperl.errors import ConfigError
from fedperl.federation.client import Client, Workspace
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, TrainTask, Update
from fedperl.federation.state_files import StateFiles
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.predict import predict_parts
from fedperl.learn.state import State, load_into
from fedperl.learn.steps import EagerSteps, MakeSteps
from fedperl.settings import Config

AT_ONCE = 4
"""Most clients side by side: beyond that a GPU is busy anyway, and memory is not."""
PLACE = 3 * 2**30
"""Bytes that a client at 224 px with batches of 16 + 16 images takes, roughly."""
PASS = 256
"""Images that pass a network at a time where no gradient is wanted."""
SHARE = 0.5
"""Of the free memory: what images may fill."""

log = logging.getLogger(__name__)

Going = Generator[None, None, tuple[Update, State]]


@dataclass(frozen=True)
class Place:
    """Where one client of a cohort trains: networks, how steps are taken, a stream and random numbers of its own."""

    work: Workspace
    make_steps: MakeSteps
    stream: torch.cuda.Stream
    numbers: torch.Generator

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put work on the place's stream, with its random numbers: how many clients train beside changes none."""
        default = torch.cuda.default_generators[self.stream.device.index]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.numbers)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            default.graphsafe_set_state(before)


class CudaExchange(LocalExchange):
    """Hands tasks to as many clients at once as there are places."""

    def __init__(
        self,
        clients: Mapping[int, Client],
        states: StateFiles,
        past: PastStates,
        watch: Stopwatch,
        places: Sequence[Place],
    ) -> None:
        super().__init__(clients, states, past, watch)
        self.places = places

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield the updates in the order of the tasks; as many are asked for at once as there are places."""
        waiting = iter(tasks)
        while cohort := list(itertools.islice(waiting, len(self.places))):
            with self.watch.measure("training"):
                answers = self._side_by_side(cohort)
            for task, answer in zip(cohort, answers, strict=True):
                if isinstance(answer, Failure):
                    yield answer
                else:
                    self.remember(task, answer[1])
                    yield answer[0]

    def _side_by_side(self, tasks: Sequence[TrainTask]) -> list[tuple[Update, State] | Failure]:
        """Return each client's update and what it keeps.

        All steps of one are launched, then all of the next: while the device works on the first, the host prepares the
        second. Only then is the first one's end waited for.
        """
        answers: dict[int, tuple[Update, State] | Failure] = {}
        going: dict[int, tuple[Place, Going]] = {}
        for number, (task, place) in enumerate(zip(tasks, self.places, strict=False)):
            place.stream.wait_stream(torch.cuda.current_stream())
            steps = self.clients[task.client].train_steps(task, self.kept_by(task.client), place.work, place.make_steps)
            going[number] = place, steps
        for most in (tasks[0].settings.steps, 1):
            for number, (place, steps) in list(going.items()):
                try:
                    with place.used():
                        for _ in range(most):
                            next(steps)
                except StopIteration as end:
                    answers[number] = end.value
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:
                    answers[number] = failure(tasks[number], error)
                if number in answers:
                    torch.cuda.current_stream().wait_stream(place.stream)
                    del going[number]
        return [answers[number] for number in range(len(tasks))]

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations in the order of the tasks, the images of all clients passing the network together.

        Not where clients keep batch-norm layers of their own, nor where all is asked for that can be told.
        """
        tasks = list(tasks)
        if len({id(task.model) for task in tasks}) != 1 or any(map(self._alone, tasks)):
            yield from super().evaluate(tasks)
            return
        with self.watch.measure("validation"):
            work = self.clients[tasks[0].client].work
            load_into(work.net, tasks[0].model.state)
            images = [self.clients[task.client].evaluation[task.part].images for task in tasks]
            predicted = [part.cpu() for part in predict_parts(work.net, images, batch=PASS)]
        for task, probabilities in zip(tasks, predicted, strict=True):
            yield self.evaluated(task, {}, probabilities.numpy())

    def _alone(self, task: EvaluateTask) -> bool:
        return task.full or bool(self.past.at(task.client, task.model.round))


def places(config: Config, classes: int) -> list[Place]:
    """Return where clients train side by side; one alone where a client may see another's update of the same round."""
    free, _ = torch.cuda.mem_get_info(torch.device(config.device))
    most = max(1, min(AT_ONCE, free // PLACE)) if config.at_once == "auto" else config.at_once
    count = min(config.federation.cohort, most) if config.peers.snapshot and config.gpu == "fast" else 1
    told: set[str] = set()

    def say(text: str) -> None:
        if text not in told:
            told.add(text)
            log.warning(text)

    compile_ahead(config, classes)
    streams = [torch.cuda.Stream(torch.device(config.device)) for _ in range(count)]  # type: ignore[no-untyped-call]
    return [
        Place(
            Workspace(config, classes, finish(config)),
            Recorder(say) if config.gpu == "fast" else EagerSteps,
            stream,
            torch.cuda.default_generators[stream.device.index].clone_state(),
        )
        for stream in streams
    ]


def finish(config: Config) -> Callable[[nn.Module], nn.Module]:
    """Return what makes a network fast: kernels of our own where there are some for it, else bfloat16 layers."""
    if config.gpu == "reference":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return lambda net: net
    torch.backends.cudnn.benchmark = True
    if config.model.net != "efficientnet_b0" or config.objective.decomposed:
        return in_bfloat16
    try:
        from fedperl.engines.cuda.fused_b0 import FusedB0
    except ImportError:  # no Triton on this platform
        return in_bfloat16
    return FusedB0


def compile_ahead(config: Config, classes: int) -> None:
    """Compile our own kernels for the shapes of a run, many at a time: the first round then need not wait for each."""
    net = Workspace(config, classes, finish(config)).net
    prepare: Callable[..., None] | None = getattr(net, "prepare", None)
    if prepare is None:
        return
    federation, objective = config.federation, config.objective
    shapes: list[tuple[int, tuple[bool, ...]]] = [(federation.batch, (True,)), (PASS, (False,))]
    if objective.kind == "fixmatch" and federation.unlabelled_batch in (None, federation.batch):
        # labelled, weak and strong views in one pass; the weak ones with a gradient where a peer is to be resembled
        graphs = {False, config.peer_learning and objective.consistency == "gradient" and objective.gamma > 0}
        shapes = [(federation.batch, (True, graph, True)) for graph in graphs] + shapes[1:]
    elif objective.kind != "supervised":
        shapes += [(federation.unlabelled_batch or federation.batch, (graph,)) for graph in (True, False)]
    for batch, graph in dict.fromkeys(shapes):
        net.train(batch != PASS)
        prepare((batch, 3, config.data.size, config.data.size), graph)


def in_bfloat16(net: nn.Module) -> nn.Module:
    """Let a network's layers compute in bfloat16 where they may; weights and logits stay in float32."""
    forward = net.forward

    def half(images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a cache would outlive a recorded step
            logits: Tensor = forward(images)
        return logits.float()

    net.forward = half
    return net


def resident(config: Config, image_bytes: int) -> bool:
    """Return whether images are to lie on the device."""
    if config.image_memory != "auto":
        return config.image_memory == "device"
    free, _ = torch.cuda.mem_get_info(torch.device(config.device))
    return image_bytes < SHARE * free


@contextmanager
def memory_named() -> Iterator[None]:
    """Turn running out of the device's memory into an error that names what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory is full ({str(error).partition('. ')[0]}); wanted image_memory = 'host', at_once = 1, "
            "or a smaller federation.batch or data.size"
        ) from None
