"""The local engine on a CUDA device: clients of a cohort train side by side, each on a stream of its own."""

import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from fedperl.engines.cuda.captured import Recorder
from fedperl.engines.cuda.kernels import fast_views, finish
from fedperl.engines.local import LocalExchange, PastStates, failure
from fedperl.errors import ConfigError
from fedperl.federation.client import Client, Workspace
from fedperl.federation.messages import EvaluateTask, Evaluation, Failure, TrainTask, Update
from fedperl.federation.state_files import RECENT, StateFiles
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.predict import predict_further, predict_parts
from fedperl.learn.state import State, load_into
from fedperl.learn.steps import AtWork, EagerSteps, MakeSteps
from fedperl.settings import Config

AT_ONCE = 4
"""Most clients side by side: beyond that a GPU is busy anyway, and memory is not."""
PLACE = 3 * 2**30
"""Bytes that a client at 224 px with batches of 16 + 16 images takes, roughly."""
SHARE = 0.5
"""Of the free memory: what images may fill."""
STATES, MOST, KINDS = 0.125, 16 * 2**30, 3
"""Of the free memory, and in bytes: what may be filled by the last models of clients, by what these keep of their own
and by what they kept for earlier models, a third each."""

log = logging.getLogger(__name__)

Going = Generator[None, None, tuple[Update, State]]


class Place:
    """Where one client of a cohort trains: networks, how steps are taken, a stream and random numbers of its own."""

    def __init__(self, work: Workspace, make_steps: MakeSteps, device: torch.device) -> None:
        self.work, self.make_steps, self.device = work, make_steps, device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.numbers = self._default().clone_state()

    def begin(self) -> None:
        """Wait, on the place's stream, for what was asked of the device so far."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put work on the place's stream, with its random numbers: how many clients train beside changes none."""
        default = self._default()
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.numbers)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            default.graphsafe_set_state(before)

    def end(self) -> None:
        """Let whatever is asked of the device from now on wait for the place's work."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    @contextmanager
    def at_work(self) -> Iterator[tuple[nn.Module, MakeSteps]]:
        """Give the network, and how its steps are taken, to one who trains here and nowhere beside."""
        self.begin()
        try:
            with self.used():
                yield self.work.net, self.make_steps
        finally:
            self.end()

    def _default(self) -> torch.Generator:
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        return torch.cuda.default_generators[index]


class CudaExchange(LocalExchange):
    """Hands tasks to as many clients at once as there are places."""

    def __init__(
        self,
        clients: Mapping[int, Client],
        states: StateFiles,
        past: PastStates,
        watch: Stopwatch,
        make_place: Callable[[], Place],
        count: int,
    ) -> None:
        super().__init__(clients, states, past, watch)
        self.make_place = make_place
        self.places = [make_place() for _ in range(count)]

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        """Yield the updates in the order of the tasks; as many are asked for at once as there are places."""
        waiting = iter(tasks)
        while cohort := list(itertools.islice(waiting, len(self.places))):
            with self.watch.measure("training"), torch.random.fork_rng(devices=[]):
                answers = self._side_by_side(cohort)
            for task, answer in zip(cohort, answers, strict=True):
                if isinstance(answer, Failure):
                    yield answer
                else:
                    self.remember(task, answer[1])
                    yield answer[0]

    def _side_by_side(self, tasks: list[TrainTask]) -> list[tuple[Update, State] | Failure]:
        """Return each client's update and what it keeps.

        All steps of one are launched, then all of the next: while the device works on the first, the host prepares the
        second. Only then is the first one's end waited for.
        """
        answers: dict[int, tuple[Update, State] | Failure] = {}
        going: dict[int, Going] = {}
        for end in (False, True):
            for number, task in enumerate(tasks):
                place = self.places[number]
                try:
                    if not end:
                        place.begin()
                        with place.used():  # what the client kept is copied where it is used
                            going[number] = self._steps(task, place)
                    if number in going:
                        with place.used():
                            for _ in range(1 if end else task.settings.steps):
                                next(going[number])
                except StopIteration as stop:
                    answers[number] = stop.value
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:
                    answers[number] = failure(task, error)
                    self.places[number] = self.make_place()  # nobody knows what is left of a recording that failed
                if number in answers and number in going:
                    place.end()
                    del going[number]
        return [answers[number] for number in range(len(tasks))]

    def _steps(self, task: TrainTask, place: Place) -> Going:
        """Return the client's steps, not yet taken."""
        kept = self.kept_by(task.client)
        return self.clients[task.client].train_steps(task, kept, place.work, place.make_steps)

    def evaluate(self, tasks: Iterable[EvaluateTask]) -> Iterator[Evaluation]:
        """Yield the evaluations in the order of the tasks, the images of all clients passing the network together.

        Those that choose a share of their own models on these images ask a mixture, each for itself, and the others'
        are shown in further orientations together. Not where clients keep batch-norm layers or use a share that is not
        chosen, nor where all is asked for that can be told.
        """
        tasks = list(tasks)
        if len({id(task.model) for task in tasks}) != 1 or any(map(self._alone, tasks)):
            yield from super().evaluate(tasks)
            return
        with self.watch.measure("validation"):
            clients, model = [self.clients[task.client] for task in tasks], tasks[0].model
            work = clients[0].work
            load_into(work.net, model.state)
            images = [client.evaluation[task.part].images for client, task in zip(clients, tasks, strict=True)]
            said = predict_parts(work.net, images)
            found = dict[int, Tensor]()
            for client, plain in zip(clients, said, strict=True):
                kept = self.past.at(client.number, model.round)
                if (mixed := client.own_answers(model.state, kept, plain)) is not None:
                    found[client.number] = mixed
            left = [number for number, client in enumerate(clients) if client.number not in found]
            if work.orientations > 1:
                load_into(work.net, model.state)  # a mixture may be there
            parts, plains = [images[number] for number in left], [said[number] for number in left]
            whole = predict_further(work.net, parts, plains, orientations=work.orientations)
            found |= {clients[number].number: one for number, one in zip(left, whole, strict=True)}
            predicted = {client: probabilities.cpu().numpy() for client, probabilities in found.items()}
        for task in tasks:
            yield self.evaluated(task, {}, predicted[task.client])

    def _alone(self, task: EvaluateTask) -> bool:
        if task.full:
            return True
        chooses = self.clients[task.client].own_share == "validation" and task.part == "validation"
        return not chooses and bool(self.past.at(task.client, task.model.round))


def places(config: Config, classes: int) -> tuple[Callable[[], Place], int]:
    """Return what makes a place for a client to train in, and how many there are to be side by side.

    One alone where a client may see another's update of the same round.
    """
    device, federation = torch.device(config.device), config.federation
    fast, told = config.gpu == "fast", set[str]()

    def say(text: str) -> None:
        if text not in told:
            told.add(text)
            log.warning(text)

    make_views = fast_views(config)
    free, _ = torch.cuda.mem_get_info(device)
    images = federation.batch + (federation.unlabelled_batch or federation.batch)
    each = PLACE * images * config.data.size**2 / (32 * 224**2)
    most = max(1, min(AT_ONCE, int((1 - STATES) * free / each))) if config.at_once == "auto" else config.at_once
    count = min(config.cohort, most) if config.peers.snapshot and fast else 1

    def make() -> Place:
        steps: MakeSteps = Recorder(say, make_views=make_views) if fast else EagerSteps
        return Place(Workspace(config, classes, finish(config)), steps, device)

    return make, count


def alone(config: Config, classes: int) -> AtWork:
    """Return where one trains who is no client of a cohort, the server or a backbone; made when first asked for."""
    made = cache(places(config, classes)[0])
    return lambda: made().at_work()


def resident(config: Config, image_bytes: int) -> bool:
    """Return whether images are to lie on the device."""
    if config.image_memory != "auto":
        return config.image_memory == "device"
    free, _ = torch.cuda.mem_get_info(torch.device(config.device))
    return image_bytes < SHARE * free


def memory_for_states(config: Config) -> int:
    """Return how many bytes of each kind of clients' states may stay on the device; others are read from files."""
    if config.image_memory == "host":
        return RECENT
    free, _ = torch.cuda.mem_get_info(torch.device(config.device))
    return max(RECENT, min(MOST, int(STATES * free)) // KINDS)


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Work on a device: repeatable, in full precision where float32 is asked for, its full memory named in an error."""
    backends = torch.backends
    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark
    deterministic = backends.cudnn.deterministic
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = backends.cudnn.benchmark = False
    backends.cudnn.deterministic = True
    try:
        with torch.cuda.device(torch.device(device).index or 0):
            yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory is full ({str(error).partition('. ')[0]}); wanted image_memory = 'host', at_once = 1, "
            "or a smaller federation.batch or data.size"
        ) from None
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark = before
        backends.cudnn.deterministic = deterministic
