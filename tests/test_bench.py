"""Speed: the counted floor by hand, `fedperl bench`, the plain loop beside it and the growth curves. No times."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fedperl.benchmarking import Passes, Traffic, network_traffic, passes_of, step_bytes
from fedperl.cli import main
from fedperl.data.views import Operation, StrongDraw, apply_strong
from fedperl.settings import Optimizer
from tests.conftest import small_config, small_store

BENCH = Path(__file__).parents[1] / "bench"
PLAIN = BENCH / "plain_loop.py"
TINY = ["--device", "cpu", "--rounds", "2", "--size", "16", "--steps", "2", "--batch", "4"]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    """Return the exit code of the command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["fedperl", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


# The floor


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pad = nn.ConstantPad2d(1, 0.0)
        self.convolution = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.convolution(self.pad(images)))).mean((2, 3)))
        return out


def test_two_layers_move_what_a_hand_count_says() -> None:
    """The convolution takes 3 x 8 x 8 = 192 values to 4 x 8 x 8 = 256, the head 4 to 5; padding is not moved."""
    found = network_traffic(TwoLayers(), 8, 2)
    forward = 2 * (192 + 256 + 4 + 5)
    backward = 2 * ((192 + 256) + (4 + 5 + 4))  # of the images no gradient is written
    parameters = 4 * 3 * 9 + 2 * 4 + 4 * 5 + 5
    assert found == Traffic(forward, backward, parameters, 192, 2)
    passes = Passes(gradient=6, plain=2, others=(2, 2), views=8)
    activations = 6 * (forward + backward) + 6 * forward
    views = 8 * 192 * (1 + 2)
    peers = 2 * parameters * 2
    # Forward, backward; then in single precision: gradient written; parameter, gradient and moments read; the first and
    # the moments written.
    adam = parameters * (2 + 2 + 4 * (1 + 4 + 3))
    assert step_bytes(found, passes, Optimizer()) == activations + views + peers + adam
    sgd = parameters * (2 + 2 + 4 * (1 + 2 + 1))
    assert step_bytes(found, passes, Optimizer(kind="sgd")) == activations + views + peers + sgd


def test_passes_are_those_of_the_objective() -> None:
    config = small_config(federation={"unlabelled_batch": 6})
    assert passes_of(config, 1) == Passes(4 + 6 + 6, 0, (6,), 16)
    assert passes_of(config, 0) == Passes(4 + 6, 6, (), 16)
    assert passes_of(small_config(objective={"consistency": "detached"}), 2) == Passes(8, 4, (4, 4), 12)
    assert passes_of(small_config(objective={"label_source": "round_start"}), 1) == Passes(12, 0, (4, 4), 12)
    assert passes_of(small_config(method="lower"), 0) == Passes(4, 0, (), 4)
    assert passes_of(small_config(method="uda"), 0) is None
    assert passes_of(small_config(objective={"strong_pass": "accepted"}), 0) is None


# The command


@pytest.fixture(name="images")
def _images(tmp_path: Path) -> Path:
    small_store().save(tmp_path / "store")
    return tmp_path / "store"


def test_bench_measures_a_real_run_beside_the_plain_loop(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "bench", *TINY, "--set", f"data.source={images}", "--beside", PLAIN, "--json") == 0
    printed = capsys.readouterr().out
    found: dict[str, Any] = json.loads(printed)
    assert printed.count("\n") == 1
    assert found["settings"]["net"] == "small_cnn"
    assert found["rounds"] == {"warm": 2, "measured": 2}
    seconds = found["seconds_per_round"]
    parts = sum(value for name, value in seconds.items() if name != "wall")
    assert parts == pytest.approx(seconds["wall"])
    assert seconds["other"] > -1e-3  # the parts are rounded
    assert all(seconds[name] > 0 for name in ("training", "validation", "server", "checkpoint"))
    step = seconds["training"] / (3 * 2)
    assert found["ms_per_step"] == pytest.approx(1e3 * step)
    assert found["images_per_second"] == pytest.approx(8 / step)
    assert found["validation_images"] == 5 * 6
    assert found["with_peer"] == 1.0
    assert found["peak_bytes"]["resident"] > 10_000_000
    floor = found["floor"]
    assert floor["share"] == pytest.approx(floor["bytes_per_step"] / floor["bytes_per_second"] / step)
    plain = found["plain"]
    assert plain["ms_per_step"] == pytest.approx(1e3 * plain["seconds"] / (3 * 2))
    assert found["ratio"] == pytest.approx(plain["ms_per_step"] / found["ms_per_step"])


def test_without_the_plain_loop_one_line_says_so(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.py"
    assert run(monkeypatch, "bench", *TINY, "--set", f"data.source={images}", "--beside", missing) == 0
    shown = capsys.readouterr()
    assert "ms a client step" in shown.out
    assert "floor / measured" in shown.out
    assert "plain loop" not in shown.out
    assert shown.err.startswith(f"fedperl: {missing}: no such file")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "local_lower"], "trains each client by itself"),
        (["--set", "federation.steps=auto_min"], "wanted a number of steps"),
        (["--device", "tpu"], "device = 'tpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "bench", *TINY, *arguments) == 2
    assert message in capsys.readouterr().err


# The plain loop


@pytest.mark.slow
def test_the_plain_loop_tries_workers_and_prints_one_line(tmp_path: Path) -> None:
    small_store(size=32).save(tmp_path / "store")
    options = ["--net", "small_cnn", "--size", "32", "--steps", "2", "--batch", "4", "--cohort", "2"]
    command = [
        sys.executable,
        str(PLAIN),
        str(tmp_path / "store"),
        "--device",
        "cpu",
        *options,
        "--raw",
        "--workers",
        "0",
        "2",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert set(found["tried_ms_per_step"]) == {"0", "2"}
    assert found["workers"] == int(min(found["tried_ms_per_step"], key=found["tried_ms_per_step"].get))
    assert found["ms_per_step"] == pytest.approx(1e3 * found["seconds"] / (2 * 2))
    assert found["images_per_second"] == pytest.approx(8e3 / found["ms_per_step"])
    assert 0 < found["ms_waiting_per_step"] < found["ms_per_step"]
    assert "10/10 steps" in done.stderr  # 2 to warm up, 2 for each number of workers, 2 x 2 that count


def test_its_operations_are_ours_with_pil() -> None:
    ours = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    values = {Operation.ROTATE: 30.0, Operation.SOLARIZE: 100.0, Operation.POSTERIZE: 4.0, Operation.TRANSLATE_X: 0.2}
    plain = script("plain_loop")
    assert set(plain.STRONG) == set(Operation)
    for operation, apply in plain.STRONG.items():
        value = values.get(operation, 0.25)
        drawn = StrongDraw(torch.tensor([[int(operation)]]), torch.tensor([[value]]))
        wanted = apply_strong(torch.from_numpy(ours)[None].float() / 255, drawn)[0]
        made = plain.to_tensor(apply(Image.fromarray(ours.transpose(1, 2, 0)), value))
        assert (made - wanted).abs().mean() < 0.02, operation


# Growth


@pytest.mark.slow
def test_growth_writes_a_figure_a_curve_and_all_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["--clients", "10", "12", "--cohorts", "--T", "2", "--sizes", "16", "24", "--scales", "0.005"]
    options = ["--rounds", "1", "--steps", "1", "--batch", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["growth.py", "--out", str(tmp_path), *few, *options])
    script("growth").main()
    found = json.loads((tmp_path / "growth.json").read_text())
    assert {"device", "date", "seed"} <= set(found)
    assert list(found["curves"]) == ["clients", "T", "size", "images"]  # no cohorts, no curve
    assert found["curves"]["clients"]["other"]["models read"] == [20.0, 20.0]
    for name, curve in found["curves"].items():
        assert (tmp_path / f"growth_{name}.svg").read_text().lstrip().startswith("<?xml")
        for series, values in curve["ms"].items():
            assert len(values) == len(curve["x"])
            assert curve["ratio"][series] == pytest.approx([value / values[0] for value in values])
