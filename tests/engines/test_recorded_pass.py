"""Passes that are recorded once and played again, against the same passes made operation by operation.

Without a GPU an imitation of a CUDA graph records; with one the graph itself.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fedperl.engines.cuda import recorded_pass
from fedperl.engines.cuda.captured import WARM, Record, Step
from fedperl.engines.cuda.recorded_pass import PassGraphs, RecordedPasses
from fedperl.learn.nets.small_cnn import SmallCNN
from fedperl.learn.state import load_into
from tests.engines.recording import recorded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recorded_pass, "EACH", 4)
    monkeypatch.setattr(recorded_pass, "PASS", 8)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    with torch.no_grad():
        yield


class Counted:
    """Counts what it records."""

    def __init__(self) -> None:
        self.record: Record = PassGraphs() if DEVICE == "cuda" else recorded
        self.steps = 0

    def __call__(self, step: Step) -> Step:
        self.steps += 1
        return self.record(step)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = SmallCNN(4, widths=(8, 8, 8, 8)).to(DEVICE)
    net(images(16))  # statistics that are not at their start
    return net.eval()


def images(n: int) -> Tensor:
    return torch.rand(n, 3, 16, 16, device=DEVICE)


def check(passes: RecordedPasses, net: nn.Module, n: int) -> None:
    given = images(n)
    torch.testing.assert_close(passes(net, given), net(given), rtol=1e-4, atol=1e-5)


def test_batches_of_any_size_are_played_from_a_few_graphs() -> None:
    net, record = network(1), Counted()
    passes = RecordedPasses(net, record)
    for _ in range(WARM):
        check(passes, net, 8)
    assert record.steps == 0  # the first ones warm up, and one that comes once need not be recorded
    for n in (8, 7, 5, 8):
        check(passes, net, n)
    assert record.steps == 1
    for n in (3, 1, 4, 8 + 2, 8 + 8 + 7):  # larger ones in several passes
        check(passes, net, n)
    assert record.steps == 2


def test_what_was_given_stays_as_the_next_is_played() -> None:
    net = network(1)
    passes, given = RecordedPasses(net, Counted()), [images(6) for _ in range(WARM + 3)]
    found = [passes(net, one) for one in given]
    for one, rows in zip(given, found, strict=True):
        torch.testing.assert_close(rows, net(one), rtol=1e-4, atol=1e-5)


def test_another_model_in_the_same_place_is_seen_and_one_elsewhere_is_recorded_anew() -> None:
    net, record = network(1), Counted()
    passes = RecordedPasses(net, record)
    for seed in range(WARM + 3):
        load_into(net, network(seed).state_dict())
        check(passes, net, 8)
    assert record.steps == 1
    for tensor in (next(net.parameters()), [*net.buffers()][-2]):
        tensor.data = tensor.data + 0.5
        for _ in range(WARM + 2):
            check(passes, net, 8)
    assert record.steps == 3
    name, weight = [*net.named_parameters()][-1]
    owner = net.get_submodule(name.rpartition(".")[0])
    setattr(owner, name.rpartition(".")[2], nn.Parameter(weight + 1))
    for _ in range(WARM + 2):
        check(passes, net, 8)
    assert record.steps == 4


def test_no_graph_holds_for_images_of_another_kind() -> None:
    net, record = network(1), Counted()
    passes = RecordedPasses(net, record)
    for size in (16, 24):
        for _ in range(WARM + 2):
            given = torch.rand(4, 3, size, size, device=DEVICE)
            torch.testing.assert_close(passes(net, given), net(given), rtol=1e-4, atol=1e-5)
    assert record.steps == 2


def test_inference_leaves_nothing_that_cannot_be_written_again() -> None:
    net, record = network(1), Counted()
    passes = RecordedPasses(net, record)
    with torch.inference_mode():
        for _ in range(WARM + 1):
            check(passes, net, 4)
    check(passes, net, 4)
    assert record.steps == 1


def test_a_pass_that_cannot_be_recorded_is_made_operation_by_operation(caplog: pytest.LogCaptureFixture) -> None:
    def refused(_: Step) -> Step:
        raise RuntimeError("operation not permitted\nwhile a stream is recorded")

    net = network(1)
    passes = RecordedPasses(net, refused)
    for n in (8, 4):
        for _ in range(WARM + 2):
            check(passes, net, n)
    assert len(caplog.records) == 1
    assert "RuntimeError: operation not permitted" in caplog.text


def test_full_memory_is_not_taken_for_a_pass_that_cannot_be_recorded() -> None:
    def record(_: Step) -> Step:
        raise torch.OutOfMemoryError("full")

    net = network(1)
    passes = RecordedPasses(net, record)
    for _ in range(WARM):
        check(passes, net, 8)
    with pytest.raises(torch.OutOfMemoryError):
        passes(net, images(8))
