"""A client's step as a CUDA graph: recorded once for each kind of step, then played with one launch."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor, nn

from fedperl.learn import optimizers
from fedperl.learn.objectives import Batch, Objective
from fedperl.learn.proximal import Proximal
from fedperl.learn.state import State
from fedperl.learn.steps import EagerSteps, EagerViews, MakeViews, Steps, take_step
from fedperl.settings import Optimizer

WARM = 2
"""Steps before recording: libraries choose and load what they use, the optimiser makes its moments."""

Step = Callable[[], None]
Record = Callable[[Step], Step]
"""From a step, what takes it again: the same operations on the same places in memory."""


class CudaGraphs:
    """Records steps as CUDA graphs that share their memory: one is played at a time, and leaves nothing there."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Return what plays a step, recorded on the current stream, with one launch."""
        stream = torch.cuda.current_stream()
        stream.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode="thread_local"):
            step()
        return graph.replay


class Recorder:
    """The graphs of one place in a cohort; the networks of its steps stay the same from round to round."""

    def __init__(
        self,
        say: Callable[[str], None] = lambda _: None,
        record: Record | None = None,
        make_views: MakeViews = EagerViews,
    ) -> None:
        self.make_views = make_views
        self.graphs: dict[Hashable, _Graph] = {}
        self.record = record or CudaGraphs()
        self._say = say

    def __call__(
        self, net: nn.Module, objective: Objective, optimizer: Optimizer, mu: float, memory: State, seed: int
    ) -> Steps:
        """Return the steps of one round: played from a graph, or eager where the objective's steps do not repeat."""
        if not objective.repeats:
            self._say(
                f"objective {type(objective).__name__} runs step by step: with these settings its steps are not all "
                "alike, so that none can be recorded"
            )
            return EagerSteps(net, objective, optimizer, mu, memory, seed)
        return _Round(self, net, objective, optimizer, mu, memory, seed)


class _Round:
    """The steps of one round; which graph plays them is known with the first batch."""

    def __init__(
        self,
        recorder: Recorder,
        net: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        mu: float,
        memory: State,
        seed: int,
    ) -> None:
        objective.begin(net)
        self._make = partial(_Graph, recorder.record, net, objective, optimizer, mu)
        self._begin = partial(_Graph.begin, objective=objective, optimizer=optimizer, memory=memory, seed=seed)
        context = objective.context
        networks = tuple(id(each) for each in (net, context.teacher, *context.peers))
        settings = objective.settings.model_dump_json() + optimizer.model_dump_json(exclude={"lr"})
        shapes = tuple((name, tensor.shape) for name, tensor in objective.tensors().items())
        self._key = (type(objective), settings, mu, networks, net.training, shapes)
        self._recorder, self._objective = recorder, objective
        self._graph: _Graph | None = None

    def __call__(self, batch: Batch) -> None:
        """Play one step."""
        if self._graph is None:
            graphs = self._recorder.graphs
            key = (*self._key, tuple((name, tensor.shape) for name, tensor in _tensors(batch).items()))
            if key not in graphs:
                graphs[key] = self._make(batch)
            self._graph = graphs[key]
            self._begin(self._graph)
        self._graph.play(batch)

    def totals(self) -> dict[str, float]:
        """Return the sum over the steps of each logged number, and give the objective what the steps changed."""
        if self._graph is None:
            return {}
        self._graph.end(self._objective)
        names = list(self._graph.totals)
        found = torch.stack([self._graph.totals[name] for name in names]).tolist()
        return dict(zip(names, found, strict=True))

    def moments(self) -> State:
        """Return the optimiser's moments, for a client that keeps them."""
        return {} if self._graph is None else optimizers.moments(self._graph.optimizer)


class _Graph:
    """One kind of step, with the tensors that its recorded operations read and write."""

    def __init__(
        self, record: Record, net: nn.Module, objective: Objective, optimizer: Optimizer, mu: float, batch: Batch
    ) -> None:
        self.net, self.objective = net, objective
        device = next(net.parameters()).device
        self.rate = torch.tensor(optimizer.lr, device=device)
        self.optimizer = optimizers.build(net, optimizer, {}, rate=self.rate)
        self.proximal = Proximal(net, mu)
        self.progress = torch.zeros((), dtype=torch.float64, device=device)
        self.batch = replace(batch, **{name: t.clone() for name, t in _tensors(batch).items()}, progress=self.progress)
        self.totals: dict[str, Tensor] = {}
        self.tensors = objective.tensors()
        before = [t.detach().clone() for t in self._changed()]
        for _ in range(WARM):
            self._step()
        self.totals = {name: torch.zeros_like(value) for name, value in self.totals.items()}
        self._play = record(self._step)
        self.kept = [name for name, tensor in self.tensors.items() if objective.context.memory.get(name) is tensor]
        with torch.no_grad():
            for tensor, value in zip(self._changed(), before, strict=True):
                tensor.copy_(value)

    def begin(self, *, objective: Objective, optimizer: Optimizer, memory: State, seed: int) -> None:
        """Start a round: the network holds the received model; everything else is copied into place."""
        _copy(objective.tensors(), self.tensors)
        self.rate.fill_(optimizer.lr)
        optimizers.reset(self.optimizer, memory if optimizer.carry else {})
        self.proximal.receive()
        for total in self.totals.values():
            total.zero_()
        torch.cuda.manual_seed(seed)

    def end(self, objective: Objective) -> None:
        """End a round: its objective holds what the steps changed, and its memory what the client keeps of that."""
        theirs = objective.tensors()
        _copy(self.tensors, theirs)
        objective.context.memory.update({name: theirs[name] for name in self.kept})

    def play(self, batch: Batch) -> None:
        """Copy the batch into place and take the step."""
        for name, tensor in _tensors(batch).items():
            getattr(self.batch, name).copy_(tensor, non_blocking=True)
        self.progress.fill_(batch.progress)
        self._play()

    def _step(self) -> None:
        take_step(self.net, self.objective, self.batch, self.proximal, self.optimizer, self.totals)

    def _changed(self) -> Iterable[Tensor]:
        """Yield what steps change, beside the optimiser's moments and the totals, which a round starts anew."""
        for net in (self.net, self.objective.context.teacher):
            if net is not None:
                yield from net.parameters()
                yield from net.buffers()
        yield from self.tensors.values()


def _copy(source: State, target: State) -> None:
    for name, tensor in source.items():
        if tensor is not target[name]:
            target[name].copy_(tensor)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    """Return what a step is given by name, but `progress`; anything but a tensor would stay as it was recorded."""
    found = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name != "progress"}
    for name, value in found.items():
        if not (value is None or isinstance(value, Tensor)):
            raise TypeError(f"Batch.{name} is a {type(value).__name__}; a recorded step is given tensors or None")
    return {name: value for name, value in found.items() if value is not None}
