"""The engine on a real GPU: same results however clients and images are placed; errors name what to change."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedperl.config import load_config
from fedperl.engines.cuda.captured import WARM, CudaGraphs
from fedperl.engines.cuda.exchange import CudaExchange
from fedperl.engines.local import LocalExchange
from fedperl.errors import ConfigError
from fedperl.learn.nets import build_net
from fedperl.learn.passes import logits_of
from fedperl.learn.state import load_into
from fedperl.pretraining import Pretraining, pretrain
from fedperl.training import train
from tests.conftest import small_store

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")

SMALL = ["device=cuda", "threads=1", "data.size=32", "data.scale=0.02", "model.net=small_cnn", "peers.warmup=1"]
SMALL += ["federation.rounds=3", "federation.steps=3", "federation.server_validation=true"]
STARTS = {"fedirm": ["objective.start=1"], "cbafed": ["objective.start=1"]}  # by default after this run has ended


def run(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """Return the rounds of a small run, without their times."""
    train(load_config(None, [*SMALL, *settings]), folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_neither_places_nor_memory_change_a_number(tmp_path: Path) -> None:
    expected = run(tmp_path / "three", "at_once=3", "image_memory=device")
    assert run(tmp_path / "again", "at_once=3", "image_memory=device") == expected
    assert run(tmp_path / "one", "at_once=1") == expected
    assert run(tmp_path / "host", "at_once=2", "image_memory=host") == expected


def test_a_run_that_is_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    expected = run(tmp_path / "whole")
    config = load_config(None, SMALL)

    def stop(progress: Any) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", watchers=[stop])
    train(config, tmp_path / "parts", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [{key: value for key, value in line.items() if key != "seconds"} for line in lines] == expected


@pytest.mark.parametrize("method", ["lower", "fedperl", "uda", "fedirm", "fedmatch", "cbafed", "fedperl_local_norm"])
def test_every_kind_of_method_learns_the_same_as_operation_by_operation(tmp_path: Path, method: str) -> None:
    fast, slow = (
        run(tmp_path / mode, f"method={method}", *STARTS.get(method, []), f"gpu={mode}")
        for mode in ("fast", "reference")
    )
    for ours, theirs in zip(fast, slow, strict=True):
        assert ours["cohort"] == theirs["cohort"]
        for client, numbers in ours["numbers"].items():
            assert numbers["loss"] == pytest.approx(theirs["numbers"][client]["loss"], rel=0.05)


def test_what_clients_use_of_their_own_changes_no_training(tmp_path: Path) -> None:
    """A share of their own models' mean, in eight orientations; more rounds than clients, so that some train again."""
    more = ["federation.rounds=8", "privacy=research", "checkpoint_every=8"]
    plain, own = (
        run(tmp_path / "plain", *more),
        run(tmp_path / "own", *more, "federation.own_share=0.5", "model.orientations=8"),
    )
    for before, after in zip(plain, own, strict=True):
        assert before["numbers"] == after["numbers"]
        assert not after["rejected"]
        assert before["validation"].keys() == after["validation"].keys()
    chosen, half = (
        run(tmp_path / f"{share}", *more, f"federation.own_share={share}", "optimizer.carry=true")
        for share in ("validation", 0.5)
    )
    carried = run(tmp_path / "carried", *more, "optimizer.carry=true")
    assert [one["numbers"] for one in carried] == [one["numbers"] for one in chosen]
    for client, numbers in chosen[-1]["validation"].items():
        assert numbers in (carried[-1]["validation"][client], half[-1]["validation"][client])
    turned = run(tmp_path / "turned", *more, "model.orientations=8")
    assert len({json.dumps(lines[-1]["validation"]) for lines in (plain, own, turned)}) == 3


def test_clients_that_choose_a_share_are_validated_together_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["federation.own_share=validation", "model.orientations=8", "federation.rounds=8", "gpu=reference"]
    monkeypatch.setattr("fedperl.federation.client.LEAST", 1)
    together = run(tmp_path / "together", *own)
    monkeypatch.setattr(CudaExchange, "evaluate", LocalExchange.evaluate)
    apart = run(tmp_path / "apart", *own)
    for ours, theirs in zip(together, apart, strict=True):
        assert ours["numbers"] == theirs["numbers"]
        assert ours["validation"].keys() == theirs["validation"].keys()
        for client, numbers in theirs["validation"].items():
            assert ours["validation"][client] == pytest.approx(numbers, rel=1e-3, abs=1e-4)


@torch.no_grad()
def test_efficientnets_recorded_passes_are_its_passes_to_the_bit() -> None:
    """Of batches of any size, one after the other and with another model in its place; padding changes little."""
    from fedperl.engines.cuda.fused_b0 import FusedB0

    ours, again, *others = (build_net("efficientnet_b0", 8, seed=seed).cuda().eval() for seed in (1, 1, 2, 3))
    played, made = FusedB0(ours), FusedB0(again, record=lambda step: step)
    for net in (played, made):
        net.to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for other in (None, *others):
        for net in (played, made):
            load_into(net, {} if other is None else other.state_dict())
        for size in (256, 100, 416) * (WARM + 2):
            images = torch.rand(size, 3, 112, 112, device="cuda").contiguous(memory_format=torch.channels_last)
            found = played(images)
            assert torch.equal(found, made(images))
            torch.testing.assert_close(found, logits_of([played], images)[0], rtol=1e-4, atol=1e-5)
            with torch.enable_grad():  # neither recorded nor padded
                wanted = made(images)
            assert (found - wanted).norm() < 0.05 * wanted.norm()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # as a client of a cohort is trained
            assert torch.equal(played(images), found)
        stream.synchronize()
    assert played._passes is not None
    graphs = [fixed.play for fixed in played._passes._fixed.values()]
    assert len(graphs) == 2  # of 256 and of 128 images
    assert None not in graphs


@torch.no_grad()
def test_efficientnets_passes_within_a_recording_are_part_of_it() -> None:
    from fedperl.engines.cuda.fused_b0 import FusedB0

    net = FusedB0(build_net("efficientnet_b0", 8, seed=1).cuda().eval())
    images, logits = torch.rand(128, 3, 112, 112, device="cuda"), torch.empty(128, 8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(WARM + 1):
            wanted = net(images)
        play = CudaGraphs()(lambda: void(logits.copy_(net(images))))
        play()
        assert torch.equal(logits, wanted)
        images.uniform_()
        play()
        assert torch.equal(logits, net(images))


def void(_: object) -> None:
    pass


def test_the_server_learns_the_same_as_operation_by_operation(tmp_path: Path) -> None:
    own = ["scenario.labels=server", "objective.tau=0.05", "scenario.server_steps=5"]  # every label counts
    fast, slow = (run(tmp_path / mode, *own, f"gpu={mode}") for mode in ("fast", "reference"))
    for ours, theirs in zip(fast, slow, strict=True):
        assert ours["server"].keys() == theirs["server"].keys()
        for client, numbers in ours["numbers"].items():
            assert numbers["loss"] == pytest.approx(theirs["numbers"][client]["loss"], rel=0.1)
            assert numbers["loss"] > 0
    assert run(tmp_path / "again", *own) == fast
    less = run(tmp_path / "less", *own[:2], "scenario.server_steps=1")
    assert less[0]["numbers"] != fast[0]["numbers"]  # the server's steps count


@pytest.mark.parametrize("method", ["fedperl", "fedirm", "fedirm_fedperl"])
def test_efficientnet_learns_about_the_same_as_operation_by_operation(tmp_path: Path, method: str) -> None:
    """With dropout and drop-connect on, whose draws differ."""
    own = [f"method={method}", "objective.start=1", "model.net=efficientnet_b0", "data.size=64"]
    fast, slow = (run(tmp_path / mode, *own, f"gpu={mode}") for mode in ("fast", "reference"))
    for ours, theirs in zip(fast, slow, strict=True):
        assert ours["numbers"].keys() == theirs["numbers"].keys()  # no client failed
        assert {key for one in ours["numbers"].values() for key in one} == {
            key for one in theirs["numbers"].values() for key in one
        }
    losses = [[one["loss"] for line in lines for one in line["numbers"].values()] for lines in (fast, slow)]
    assert fmean(losses[0]) == pytest.approx(fmean(losses[1]), rel=0.25)


@pytest.mark.parametrize("method", ["fedperl_raw", "fedmatch", "fedprox_uda"])
def test_resnet9_with_fewer_checkpoints_learns_the_same_as_operation_by_operation(tmp_path: Path, method: str) -> None:
    """Views in one pass, kernels that pool, models kept by reference, batches of two sizes."""
    own = [f"method={method}", "privacy=research", "model.net=resnet9", "federation.unlabelled_batch=24"]
    fast = run(tmp_path / "fast", *own, "checkpoint_every=2")
    slow = run(tmp_path / "slow", *own, "gpu=reference")
    assert fast == run(tmp_path / "always", *own)
    for ours, theirs in zip(fast, slow, strict=True):
        for client, numbers in ours["numbers"].items():
            assert numbers["loss"] == pytest.approx(theirs["numbers"][client]["loss"], rel=0.05)


def test_a_backbone_is_trained_by_the_same_kernels(tmp_path: Path) -> None:
    store = small_store(images=60, size=32)
    settings = Pretraining(size=64, epochs=2, batch=16, device="cuda")
    found = pretrain(store, tmp_path / "fast.safetensors", settings)
    assert found["size"] == "64"
    assert (
        load_file(tmp_path / "fast.safetensors").keys() == build_net("efficientnet_b0", 3, seed=1).state_dict().keys()
    )
    pretrain(store, tmp_path / "again.safetensors", settings)
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "fast.safetensors").read_bytes()


def test_running_out_of_memory_names_the_settings(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.001)
    try:
        with pytest.raises(
            ConfigError, match="memory is full .* wanted image_memory = 'host', at_once = 1, or a smaller"
        ):
            run(tmp_path / "run", "data.size=224", "model.net=efficientnet_b0", "federation.batch=64")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
