"""Steps that are recorded once and played again, against the same steps taken operation by operation.

Without a GPU an imitation of a CUDA graph records; with one the graph itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedperl.config import methods, resolve
from fedperl.engines.cuda.captured import Recorder
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, drained, local_steps
from fedperl.learn.nets import build_net
from fedperl.learn.nets.decomposed import Decomposed
from fedperl.learn.nets.small_cnn import SmallCNN
from fedperl.learn.objectives import FixMatch, build_objective
from fedperl.learn.state import State, load_into, state_of, with_prefix
from fedperl.learn.steps import EagerSteps, MakeSteps
from fedperl.settings import OBJECTIVES, Objective, Optimizer, Views
from tests.conftest import context
from tests.engines.recording import NotRecordable, recorded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, SIZE = 4, 32
RATE = 2**-7  # the same number in 32 and in 64 bits
TAU = 0.3  # what untrained networks reach


@dataclass(frozen=True)
class Case:
    """What a client is told, and how many networks help it."""

    objective: Objective
    optimizer: Optimizer = Optimizer(lr=RATE)  # noqa: RUF009
    peers: int = 0
    eval_mode: bool = False


def fixmatch(peers: int = 1, **choices: Any) -> Case:
    return Case(Objective(**({"tau": TAU} | choices)), peers=peers)


def of_methods() -> dict[str, Case]:
    """Each objective that the shipped methods have, with the optimiser and peers of the first method that has it."""
    found: dict[str, Case] = {}
    for name in methods():
        config = resolve({"method": name, "objective": {"tau": TAU, "labels": "labelled"}, "optimizer": {"lr": RATE}})
        helpers = (1 if config.peers.anonymize else 2) if config.peer_learning else 0
        case = Case(config.objective, config.optimizer, helpers)
        if case.objective not in [other.objective for other in found.values()]:
            found[name] = case
    return found


OPTIONS = {
    "prior": fixmatch(prior_correction=0.5, thresholds="class_aware", prior_decay=0.6, targets="agreement", peers=2),
    "ema": fixmatch(label_source="ema", ema_decay=0.6, mu=0.1, peers=0),
    "detached": fixmatch(consistency="detached", unlabelled_mean="accepted"),
    "eval labels": fixmatch(label_mode="eval", combine="sum", peers=2),
    "logit mean": fixmatch(combine="logit_mean", peer_weight=0.3, labelled_loss="logit_adjusted", label_smoothing=0.1),
    "mixed": fixmatch(mixup=0.5, label_smoothing=0.1, class_weights="root_median_frequency"),
    "eval mode": Case(Objective(tau=TAU), peers=1, eval_mode=True),
    "sgd": Case(Objective(tau=TAU), Optimizer(kind="sgd", lr=RATE, momentum=0.9, weight_decay=0.01, carry=True)),
    "schedule": Case(Objective(tau=TAU), Optimizer(lr=RATE, schedule="cosine", weight_decay=0.01, carry=True)),
    "uda linear": fixmatch(kind="uda", uda={"tsa": "linear"}, prior_correction=0.5),
    "uda log": fixmatch(kind="uda", uda={"tsa": "log"}, label_source="ema"),
    "ramp": fixmatch(kind="mean_teacher", teacher={"ramp": 5}, peers=0),
    "fedirm by batches": fixmatch(kind="fedirm", teacher={"count_weighted": False, "nats": 2.0, "ramp": 3}, peers=0),
    "fedirm apart": fixmatch(kind="fedirm", teacher={"relation": False}, peers=0),
    "fedirm and ema": fixmatch(kind="fixmatch_irm", label_source="ema", thresholds="class_aware", peers=2),
    "fedirm without weight": fixmatch(kind="fixmatch_irm", teacher={"weight": 0.0}),
    "fedmatch undivided": fixmatch(kind="fedmatch", fedmatch={"decompose": False}, label_mode="eval", mu=0.1),
    "cbafed tail": fixmatch(kind="cbafed", cbafed={"base": 0.2, "tail": 0.3}, unlabelled_mean="accepted", peers=0),
}


def images(client: int, labelled: int, unlabelled: int) -> LocalImages:
    generator = torch.Generator().manual_seed(client)
    n = labelled + unlabelled
    pixels = torch.randint(0, 256, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    every = torch.arange(n, device=DEVICE)
    return LocalImages(pixels.to(DEVICE), labels.to(DEVICE), every[:labelled], every[labelled:], CLASSES)


CLIENTS = (images(1, 9, 14), images(2, 13, 40))


class Place:
    """Networks that stay, into which each client's round is loaded, and how their steps are taken."""

    def __init__(self, case: Case, make_steps: MakeSteps) -> None:
        self.case, self.make_steps = case, make_steps
        self.net = self._build(0)
        self.peers = [self._build(1 + number).eval().requires_grad_(False) for number in range(case.peers)]
        self.teacher = self._build(9).eval().requires_grad_(False) if case.objective.teacher_source != "none" else None

    def _build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        net: nn.Module = SmallCNN(CLASSES, widths=(8, 8, 8, 8))
        net = Decomposed(net) if self.case.objective.decomposed else net
        return net.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def round(self, number: int, data: LocalImages, start: State, kept: State) -> tuple[State, dict[str, float]]:
        """Train, and return all tensors that a round leaves, and its numbers; `kept` is replaced by what is kept."""
        case, generator = self.case, torch.Generator().manual_seed(number)
        load_into(self.net, start)
        for peer in self.peers:
            load_into(peer, {k: v + 0.01 * number for k, v in start.items() if k.endswith("weight")})
        if self.teacher is not None:
            load_into(self.teacher, {k[8:]: v for k, v in kept.items() if k.startswith("teacher.")} or start)
        rate = case.optimizer.lr / (2**number if case.optimizer.schedule == "cosine" else 1)
        relation = torch.softmax(torch.randn(CLASSES, CLASSES, generator=generator), 1)
        relation[number % CLASSES] = 0
        settings = LocalSettings(
            case.objective,
            case.optimizer.model_copy(update={"lr": rate}),
            Views(weak="none", strong="standard", operations=1),
            steps=2,
            batch=4,
            round=max(case.objective.start - 1, 0) + number - 1,  # with `start` the first is on labelled images alone
            rounds=case.objective.start + 4,
            eval_mode=case.eval_mode,
        )
        memory = {k.removeprefix("memory."): v for k, v in kept.items() if k.startswith("memory.")}
        before = {name: tensor.clone() for name, tensor in memory.items()}
        went_in = dict(memory)
        result = drained(
            local_steps(
                self.net,
                data,
                settings,
                seed=number,
                peers=self.peers,
                teacher=self.teacher,
                relation=relation,
                memory=memory,
                make_steps=self.make_steps,
            )
        )
        assert all(torch.equal(went_in[name], value) for name, value in before.items())  # a checkpoint may hold them
        kept.clear()
        kept |= with_prefix(memory, "memory.")
        if self.teacher is not None:
            kept |= with_prefix(self.teacher.state_dict(), "teacher.")
        found = with_prefix(self.net.state_dict(), "net.") | kept
        if result.relation is not None:
            found["relation"] = result.relation
        return found, result.numbers


def rounds(case: Case, make_steps: MakeSteps, clients: tuple[LocalImages, ...] = CLIENTS) -> list[tuple[State, Any]]:
    """Three rounds of two clients in one place, each from what the one before made, each with a memory of its own."""
    place, kept = Place(case, make_steps), [State() for _ in clients]
    start, found = state_of(place.net), []
    stream = torch.cuda.Stream() if DEVICE == "cuda" else None  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for number in (2, 3, 4):
            for client, data in enumerate(clients):
                found.append(place.round(number, data, start, kept[client]))
                start = state_of(place.net)
    return found


def recorder() -> Recorder:
    return Recorder(pytest.fail, None if DEVICE == "cuda" else recorded)


def compare(found: list[tuple[State, Any]], wanted: list[tuple[State, Any]]) -> None:
    for (ours, numbers), (theirs, others) in zip(found, wanted, strict=True):
        assert set(ours) == set(theirs)
        if DEVICE == "cpu":
            assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
            assert numbers == others
        else:
            assert numbers == pytest.approx(others, rel=1e-4, abs=1e-5)
            for name, tensor in theirs.items():
                assert torch.allclose(ours[name].double(), tensor.double(), rtol=1e-4, atol=1e-5), name


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


CASES = of_methods() | OPTIONS


@pytest.mark.parametrize("name", CASES)
def test_played_steps_are_the_steps_taken_one_by_one(name: str) -> None:
    case, record = CASES[name], recorder()
    compare(rounds(case, record), rounds(case, EagerSteps))
    assert len(record.graphs) == (2 if case.objective.start else 1)  # whoever the client is, whatever the round


@pytest.mark.parametrize("kind", ["uda", "fixmatch_irm", "fedmatch"])
def test_a_client_without_labels_has_a_graph_of_its_own(kind: str) -> None:
    case, record = fixmatch(peers=0, kind=kind), recorder()
    some = (images(1, 9, 14), images(2, 0, 30))
    compare(rounds(case, record, some), rounds(case, EagerSteps, some))
    assert len(record.graphs) == 2


NOT_RECORDED = {
    (kind, "accepted"): "how many views pass the network depends on how many are accepted"
    for kind in ("fixmatch", "uda", "fixmatch_irm", "cbafed")
}


@pytest.mark.parametrize("strong_pass", ["all", "accepted"])
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_objective_is_recorded_or_has_a_reason(
    kind: str, strong_pass: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = fixmatch(peers=0, kind=kind, strong_pass=strong_pass)
    objective = build_objective(case.objective, context(teacher=build_net("small_cnn", CLASSES, seed=0)))
    assert objective.repeats == ((kind, strong_pass) not in NOT_RECORDED)
    if objective.repeats:
        return
    said: list[str] = []
    eager = Recorder(said.append, recorded)
    rounds(case, eager, CLIENTS[:1])
    assert not eager.graphs
    assert type(objective).__name__ in said[0]
    if DEVICE == "cpu":
        monkeypatch.setattr(type(objective), "repeats", True)
        with pytest.raises(NotRecordable, match="nonzero"):
            rounds(case, recorder())


def test_a_class_derived_from_ours_is_not_recorded_unless_it_says_so() -> None:
    class Mine(FixMatch):
        pass

    class Willing(FixMatch):
        repeats = True

    class Derived(Willing):
        pass

    built = [kind(Objective(), context()) for kind in (FixMatch, Mine, Willing, Derived)]
    assert [objective.repeats for objective in built] == [True, False, True, False]


def reads(x: Tensor) -> object:
    return float(x.sum())


def copies(x: Tensor) -> object:
    return x + torch.tensor(2.0)


@pytest.mark.parametrize(
    "step", [reads, copies, lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: bool(x.any()), lambda x: x.unique()]
)
def test_the_imitation_refuses_what_a_graph_cannot_hold(step: Callable[[Tensor], object]) -> None:
    with pytest.raises(NotRecordable):
        recorded(lambda: void(step(torch.ones(3))))


def void(_: object) -> None:
    pass


def test_the_imitation_plays_operations_and_no_python() -> None:
    weights, seen, factor = torch.ones(2, requires_grad=True), list[Tensor](), 3.0
    given = torch.ones(2)

    def step() -> None:
        (factor * weights * given).square().sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            weights.sub_(weights.grad, alpha=0.01)  # type: ignore[arg-type]
        weights.grad = None
        seen.append(weights)

    play = recorded(step)
    factor = 100.0
    given.fill_(2.0)
    before = weights.detach().clone()
    play()
    assert len(seen) == 1
    assert torch.allclose(weights, before * (1 - 0.01 * 2 * 9 * 4))
