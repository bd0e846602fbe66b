"""An answer that is far too large is refused by its length alone: nothing of it is read."""

import pytest

pytest.importorskip("flwr")

from dataclasses import replace

import safetensors.torch
from flwr.app import Message
from torch import Tensor

from fedperl.engines.flower.records import parcel_of, record_of
from fedperl.federation.messages import Failure
from tests.flower.test_exchange import Clock, FakeGrid, Reply, _clock, exchange_of, site, tasks_of

__all__ = ["_clock"]  # a fixture that is always on


def grown(times: int) -> Reply:
    """Return what answers as a site does, with a model of so many times its size."""

    def reply(message: Message) -> Message:
        parcel, envelope = parcel_of(site(message).content)
        large = replace(parcel, pieces={"model": parcel.pieces["model"] * times})
        return Message(record_of(large, envelope), reply_to=message)

    return reply


def test_a_large_answer_is_a_failure_and_is_not_read(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(clock, {100, 101, 102}, replies={1: grown(1000)})
    read, load = list[int](), safetensors.torch.load

    def noted(content: bytes) -> dict[str, Tensor]:
        read.append(len(content))
        return load(content)

    monkeypatch.setattr(safetensors.torch, "load", noted)
    found = list(exchange_of(grid).train(tasks_of(0, 1, 2)))
    (failed,) = [one for one in found if isinstance(one, Failure)]
    assert failed.client == 1
    assert "bytes; wanted at most" in failed.kind
    assert max(read) < 2000
