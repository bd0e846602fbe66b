"""CBAFed against a naive restatement: the labelling image by image, the loss and its gradient."""

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import Batch, CBAFed, Context, build_objective
from fedperl.learn.objectives.cbafed import ACCEPTED, balanced_labels
from fedperl.learn.state import state_of
from fedperl.settings import CBAFed as Thresholds
from fedperl.settings import Objective, Optimizer, Views

CLASSES = 5


def net(seed: int = 1, sharpness: float = 12.0) -> nn.Module:
    """Linear and sure of itself, so that some images pass a threshold near 0.9."""
    torch.manual_seed(seed)
    linear = nn.Linear(3 * 256, CLASSES)
    with torch.no_grad():
        linear.weight *= sharpness
    return nn.Sequential(nn.Flatten(), linear)


def images(labels: list[int], unlabelled: int = 40) -> LocalImages:
    n = len(labels) + unlabelled
    pixels = torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    every = torch.randperm(n, generator=torch.Generator().manual_seed(1))  # rows are positions, not ranks
    truth = torch.full((n,), CLASSES - 1)
    truth[every[: len(labels)]] = torch.tensor(labels, dtype=torch.int64)
    return LocalImages(pixels, truth, every[: len(labels)], every[len(labels) :], CLASSES)


def settings(**choices: object) -> Objective:
    return Objective(**({"kind": "cbafed", "tau": 0.9, "class_weights": "none"} | choices))  # type: ignore[arg-type]


def naive_labels(
    model: nn.Module, data: LocalImages, s: Objective, before: list[int] | None = None
) -> dict[int, tuple[int, bool]]:
    """(label, accepted) by position, from label counts and those of the labelling before."""
    counts = [before[c] if before else 0 for c in range(CLASSES)]
    for position in data.labelled.tolist():
        counts[int(data.labels[position])] += 1
    shares = [c / sum(counts) if sum(counts) else 1 / CLASSES for c in counts]
    deviation = (sum((x - 1 / CLASSES) ** 2 for x in shares) / CLASSES) ** 0.5
    thresholds = [min(x + s.cbafed.base - deviation, s.tau) for x in shares]
    found = {}
    for position in data.unlabelled.tolist():
        with torch.no_grad():
            p = torch.softmax(model(data.images[position : position + 1].float() / 255), 1)[0].tolist()
        order = sorted(range(CLASSES), key=lambda c: -p[c])
        best, second = order[0], order[1]
        if p[best] >= thresholds[best]:
            found[position] = (best, True)
        elif shares[best] >= s.cbafed.tail > shares[second] and p[second] >= thresholds[second] / 2:
            found[position] = (second, True)
        else:
            found[position] = (best, False)
    return found


def batch(data: LocalImages, seed: int = 0, n: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = data.unlabelled[torch.randint(0, len(data.unlabelled), (n,), generator=generator)]
    views = [torch.rand(n, 3, 16, 16, generator=generator) for _ in range(2)]
    if not len(data.labelled):
        return Batch(None, None, views[1], None, rows=rows)
    labelled = data.labelled[torch.randint(0, len(data.labelled), (n,), generator=generator)]
    return Batch(views[0], data.labels[labelled], views[1], None, rows=rows)


def naive_loss(model: nn.Module, b: Batch, labels: dict[int, tuple[int, bool]], s: Objective) -> Tensor:
    total = torch.zeros(())
    if b.labelled is not None and b.labels is not None:
        logs = torch.log_softmax(model(b.labelled), 1)
        for i, y in enumerate(b.labels.tolist()):
            total = total - logs[i, y] / len(b.labels)
    assert b.weak is not None
    assert b.rows is not None
    logs = torch.log_softmax(model(b.weak), 1)
    kept = [(i, labels[row][0]) for i, row in enumerate(b.rows.tolist()) if labels[row][1]]
    for i, y in kept:
        total = total - s.beta * logs[i, y] / (max(1, len(kept)) if s.unlabelled_mean == "accepted" else len(b.rows))
    return total


@pytest.mark.parametrize("labels", [[0] * 12 + [1] * 6 + [2] * 2, []])
@pytest.mark.parametrize("choices", [{}, {"unlabelled_mean": "accepted", "beta": 2.0}, {"tau": 0.75}])
def test_labels_loss_and_gradient_against_naive_over_two_rounds(labels: list[int], choices: dict[str, object]) -> None:
    data, s, memory = images(labels), settings(**choices), dict[str, Tensor]()
    before: list[int] | None = None
    for number in (1, 2):
        model = net(number)
        objective = CBAFed(s, Context(data, memory=memory, round=number, rounds=2))
        objective.begin(model)
        expected = naive_labels(model, data, s, before)
        before = [sum(kept and y == c for y, kept in expected.values()) for c in range(CLASSES)]
        assert memory[ACCEPTED].tolist() == before
        assert 0 < sum(before) < len(data.unlabelled)
        losses = objective(model, batch(data))
        theirs = naive_loss(model, batch(data), expected, s)
        assert losses.total.item() == pytest.approx(theirs.item(), rel=1e-4)
        for a, b in zip(
            torch.autograd.grad(losses.total, list(model.parameters())),
            torch.autograd.grad(theirs, list(model.parameters())),
            strict=True,
        ):
            assert torch.allclose(a, b, atol=1e-6)
        rows = batch(data).rows
        assert rows is not None
        share = sum(expected[row][1] for row in rows.tolist()) / len(rows)
        assert losses.numbers["accepted"].item() == pytest.approx(share)
        assert losses.numbers["loss"] == losses.total
        assert "loss_unlabelled" in losses.numbers
        assert ("loss_labelled" in losses.numbers) == bool(labels)


def test_the_last_labelling_moves_the_thresholds() -> None:
    data, s = images([0] * 10 + [1] * 10), settings(cbafed=Thresholds(base=0.6))

    def accepted(memory: dict[str, Tensor]) -> list[int]:
        CBAFed(s, Context(data, memory=memory)).begin(net())
        return list(memory[ACCEPTED].tolist())

    assert accepted({}) != accepted({ACCEPTED: torch.tensor([0, 0, 500, 0, 0])})


def test_a_tail_class_is_taken_as_second_best() -> None:
    thresholds, tail = torch.tensor([0.9, 0.8, 0.6, 0.6]), torch.tensor([False, False, True, True])
    rows = [
        ([0.91, 0.05, 0.04, 0.0], 0, True),
        ([0.60, 0.05, 0.35, 0.0], 2, True),  # tail, at least half of 0.6
        ([0.80, 0.05, 0.15, 0.0], 0, False),  # tail, but unlikely
        ([0.55, 0.45, 0.0, 0.0], 0, False),  # not a tail class
        ([0.0, 0.05, 0.55, 0.40], 2, False),  # the best is a tail class itself
        ([0.0, 0.05, 0.61, 0.34], 2, True),
    ]
    labels, accepted = balanced_labels(torch.tensor([row for row, _, _ in rows]), thresholds, tail)
    assert labels.tolist() == [label for _, label, _ in rows]
    assert accepted.tolist() == [kept for _, _, kept in rows]


def test_nothing_is_labelled_before_the_start_nor_without_images() -> None:
    for data, start in ((images([0, 1, 2]), 3), (images([0, 1, 2], 0), 0)):
        memory: dict[str, Tensor] = {}
        CBAFed(settings(start=start), Context(data, memory=memory, round=3)).begin(net())
        assert not memory
    CBAFed(settings(start=3), Context(images([0, 1, 2]), memory=memory, round=4)).begin(net())
    assert ACCEPTED in memory


def test_labelling_leaves_the_network_as_it_was() -> None:
    model = build_net("small_cnn", CLASSES, seed=0).train()
    before = state_of(model)
    CBAFed(settings(), Context(images([0, 1, 2]))).begin(model)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(model).items())


@pytest.mark.parametrize("strong_pass", ["all", "accepted"])
def test_nothing_accepted_is_no_loss(strong_pass: str) -> None:
    data = images([])
    objective = CBAFed(settings(strong_pass=strong_pass, unlabelled_mean="accepted"), Context(data))
    model = net(sharpness=1.0)
    objective.begin(model)
    losses = objective(model, batch(data))
    assert losses.numbers["accepted"] == losses.numbers["loss_unlabelled"] == losses.total == 0


def test_batches_it_cannot_use_are_refused() -> None:
    objective = CBAFed(settings(), Context(images([0, 1, 2])))
    with pytest.raises(ValueError, match="without images"):
        objective(net(), Batch(None, None, None, None))
    with pytest.raises(ValueError, match="without their rows"):
        objective(net(), Batch(None, None, torch.rand(4, 3, 16, 16), None))


def test_a_local_round_is_the_same_twice_and_learns_from_unlabelled_images() -> None:
    def trained(beta: float, start: int = 0) -> tuple[dict[str, Tensor], dict[str, float], dict[str, Tensor]]:
        model, memory = build_net("small_cnn", CLASSES, seed=0), dict[str, Tensor]()
        objective = settings(beta=beta, start=start, tau=0.2)
        local = LocalSettings(objective, Optimizer(lr=1e-2), Views(), steps=3, batch=4)
        result = local_round(model, images([0, 1, 2, 0]), local, seed=1, memory=memory)
        return state_of(model), result.numbers, memory

    (first, numbers, memory), (second, _, _), (none, _, _) = trained(0.5), trained(0.5), trained(0.0)
    assert set(numbers) == {"loss", "loss_labelled", "loss_unlabelled", "accepted"}
    assert numbers["accepted"] > 0
    assert int(memory[ACCEPTED].sum()) > 0
    assert memory[ACCEPTED].device.type == "cpu"
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], none[name]) for name in first)
    assert set(trained(0.5, start=1)[1]) == {"loss", "loss_labelled"}


def test_the_settings_name_it() -> None:
    assert isinstance(build_objective(settings(), Context(images([0, 1]))), CBAFed)
