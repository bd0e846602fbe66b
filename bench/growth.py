"""How cost grows: with the clients of a federation, the cohort, T, the images' size and their number.

    python bench/growth.py [--device cuda] [--out docs/performance]

The number of clients concerns the server alone: clients are simulated there, each answers with the global model moved a
little (100,000 parameters in 20 tensors, cohorts of 10, every client banked beforehand). The rest is measured by short
runs of ten drawn hospitals, as `fedperl bench` does. Writes a figure each, and all numbers into growth.json: in
milliseconds, and as ratios to the smallest point.
"""

import argparse
import datetime
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedperl.benchmarking import bench_config, measure
from fedperl.benchmarking.speed import default_device, device_name
from fedperl.cli.common import bar
from fedperl.config import load_config
from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.data.store import Store
from fedperl.federation.messages import TrainTask, Update
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.files import write_durably
from fedperl.learn.state import State
from fedperl.paper.content import FigureContent
from fedperl.paper.figures.style import BLUE, GREEN, GREY, LINES, OURS, PINK, VERMILION, Space, panels
from fedperl.paper.writing import drawn

INITIAL: State = {f"layer{i}.weight": torch.zeros(100, 50) for i in range(20)}
TOGETHER = 100
"""Simulated clients that are banked between two commits."""
SIZES = {"cpu": [32, 48, 64, 96], "cuda": [64, 112, 160, 224]}
SCALES = [0.02, 0.04, 0.08, 0.16]

Numbers = dict[str, float]


@dataclass(frozen=True)
class Curve:
    """What is varied, and how one point of it is measured: milliseconds by name."""

    name: str
    axis: str
    points: Sequence[float]
    measure: Callable[[float], Numbers]
    power: int = 1
    """Of the axis that work is in proportion to."""


# The server, with simulated clients


def answer(task: TrainTask) -> Update:
    generator = torch.Generator().manual_seed(1000 * task.round + task.client)
    state = {name: t + 0.01 * torch.randn(t.shape, generator=generator) for name, t in task.model.state.items()}
    return Update(task.run, task.round, task.client, state, {"loss": 1.0})


def server_cost(clients: int, rounds: int) -> Numbers:
    """Return the mean milliseconds of plan + absorb and of the commit, the process' memory and the models read."""
    with TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.open()
        run.restore()
        config = load_config(None, ["federation.cohort=10", "federation.quorum=3", "peers.warmup=0"])
        server = Server(config, [100] * clients, 1, INITIAL, run.bank, run.ledger)
        for client in range(clients):
            update = answer(TrainTask(server.run, 0, client, server.model, None, server._settings, 0))
            server._bank(update, server._know(update))
            if client % TOGETHER == TOGETHER - 1 or client == clients - 1:
                run.commit({"round": 0})
        reads, get = 0, run.bank.get

        def counted(key: int) -> State:
            nonlocal reads
            reads += 1
            return get(key)

        run.bank.get = counted  # type: ignore[method-assign]
        work = commit = 0.0
        for round in range(1, rounds + 1):
            start = time.perf_counter()
            tasks = list(server.plan(round))
            planned = time.perf_counter()
            updates = [answer(task) for task in tasks]
            trained = time.perf_counter()
            server.absorb(updates)
            absorbed = time.perf_counter()
            run.commit({"round": round})
            commit += time.perf_counter() - absorbed
            work += (planned - start) + (absorbed - trained)
        run.close()
    return {
        "plan + absorb": 1e3 * work / rounds,
        "commit": 1e3 * commit / rounds,
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "models read": reads / rounds,
    }


# Short runs of ten hospitals


@lru_cache(maxsize=2)
def hospitals(size: int, scale: float) -> Store:
    return ten_hospitals(size=size, scale=scale, seed=0)


class Runs:
    """Measures one run of the real engine; what is not given is the smallest."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments

    def __call__(self, *, cohort: int = 3, size: int = 0, scale: float = 0.0, settings: Sequence[str] = ()) -> Numbers:
        asked = self.arguments
        given = {
            "seed": asked.seed,
            "device": asked.device,
            "data.size": size or asked.sizes[0],
            "data.scale": scale or asked.scales[0],
            "federation.cohort": cohort,
            "federation.steps": asked.steps,
            "federation.batch": asked.batch,
        }
        config = bench_config(given, settings, rounds=asked.rounds)
        with TemporaryDirectory() as folder:
            found = measure(config, hospitals(config.data.size, config.data.scale), Path(folder) / "run")
        seconds = found["seconds_per_round"]
        return {
            "round": 1e3 * seconds["wall"],
            "training": 1e3 * seconds["training"],
            "validation": 1e3 * seconds["validation"],
            "server": 1e3 * (seconds["server"] + seconds["checkpoint"]),
            "client step": found["ms_per_step"],
        }

    def images(self, scale: float) -> float:
        """Return the mean number of images a client has at a scale."""
        clients = hospitals(self.arguments.sizes[0], scale).partition.clients
        return sum(map(len, clients)) / len(clients)


def with_peers(run: Runs, T: int) -> Numbers:
    """Return the cost with T peers averaged into one, and as they are; all ten clients, so that T are known."""
    averaged = run(cohort=10, settings=[f"peers.T={T}"])
    raw = run(cohort=10, settings=[f"peers.T={T}", "peers.anonymize=false", "privacy=research"])
    return {
        "client step, peers averaged": averaged["client step"],
        "client step, raw peers": raw["client step"],
        "server, peers averaged": averaged["server"],
        "server, raw peers": raw["server"],
    }


def curves(asked: argparse.Namespace) -> Iterator[Curve]:
    run = Runs(asked)
    yield Curve("clients", "clients of the federation", asked.clients, lambda x: server_cost(int(x), asked.rounds))
    yield Curve("cohort", "clients a round", asked.cohorts, lambda x: run(cohort=int(x)))
    yield Curve("T", "T, peers a client", asked.T, lambda x: with_peers(run, int(x)))
    yield Curve("size", "pixels along an edge", asked.sizes, lambda x: run(size=int(x)), power=2)
    scales = {run.images(scale): scale for scale in asked.scales}
    yield Curve("images", "images a client", list(scales), lambda x: run(scale=scales[x]))


# Figures and numbers


def figure(curve: Curve, found: dict[str, Any], note: str) -> bytes:
    """Return milliseconds on the left and ratios to the smallest point on the right, both on logarithmic axes."""
    from matplotlib import style
    from matplotlib.ticker import LogLocator, NullFormatter

    with style.context(["default", OURS]):
        page, axes = panels(2, 2, 2.2, Space(left=0.55, top=0.3, bottom=0.45, across=0.6))
        colours = (VERMILION, BLUE, GREEN, PINK, GREY)
        for axis, kind in zip(axes, ("ms", "ratio"), strict=True):
            for colour, (name, values) in zip(colours, found[kind].items(), strict=False):
                axis.plot(curve.points, values, marker="o", markersize=3, color=colour, label=name)
            axis.set(xscale="log", yscale="log", xlabel=curve.axis)
            axis.set_xticks(curve.points, [f"{x:,.0f}" for x in curve.points])
            axis.set_xticks([], minor=True)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        line = [(x / curve.points[0]) ** curve.power for x in curve.points]
        axes[1].plot(curve.points, line, color=GREY, linestyle=LINES[3], label="in proportion")
        axes[0].set(ylabel="ms", title=note)
        axes[1].set(ylabel="ratio to the smallest")
        axes[1].legend()
        ends = "; ".join(f"{name} {values[0]:.1f} to {values[-1]:.1f}" for name, values in found["ms"].items())
        told = f"Milliseconds against {curve.axis}, {curve.points[0]:g} to {curve.points[-1]:g}: {ends}."
        return drawn(FigureContent(page, told), "svg")


def table_of(points: Sequence[Numbers]) -> dict[str, Any]:
    """Return each series in milliseconds and as ratios; what is no time is kept apart."""
    series = {name: [point[name] for point in points] for name in points[0]}
    times = {name: values for name, values in series.items() if name not in ("peak memory, MB", "models read")}
    return {
        "ms": times,
        "ratio": {name: [value / values[0] for value in values] for name, values in times.items()},
        "other": {name: values for name, values in series.items() if name not in times},
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--out", type=Path, default=Path("docs/performance"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4, help="that count, a point")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100, 1000, 10000])
    parser.add_argument("--cohorts", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--T", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--sizes", type=int, nargs="+", help="the first is that of all other curves")
    parser.add_argument("--scales", type=float, nargs="+", default=SCALES, help="likewise; shares of the paper's sizes")
    arguments = parser.parse_args()
    arguments.sizes = arguments.sizes or SIZES[arguments.device.partition(":")[0]]
    return arguments


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    device, made = device_name(asked.device), datetime.date.today().isoformat()
    every = [curve for curve in curves(asked) if curve.points]
    written: dict[str, Any] = {}
    with bar("points", hidden=False) as progress:
        task = progress.add_task("", total=sum(len(curve.points) for curve in every))
        for curve in every:
            progress.update(task, description=curve.axis)
            points = []
            for x in curve.points:
                points.append(curve.measure(x))
                progress.advance(task)
            found = {"axis": curve.axis, "x": list(curve.points)} | table_of(points)
            written[curve.name] = found
            write_durably(asked.out / f"growth_{curve.name}.svg", figure(curve, found, f"{device}, {made}"), mode=0o644)
    about = {"device": device, "date": made, "seed": asked.seed, "torch": str(torch.__version__)}
    about |= {name: getattr(asked, name) for name in ("rounds", "steps", "batch")}
    write_durably(
        asked.out / "growth.json", (json.dumps(about | {"curves": written}, indent=1) + "\n").encode(), mode=0o644
    )
    for name, found in written.items():
        for series, values in found["ratio"].items():
            print(
                f"{name:8} {series:28} " + "  ".join(f"{x:g}: {v:.2f}" for x, v in zip(found["x"], values, strict=True))
            )


if __name__ == "__main__":
    main()
