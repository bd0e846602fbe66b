"""The proof of concept on CIFAR-10 and Fashion-MNIST: every cell, many runs side by side.

    python bench/poc.py SET [SET ...] [--workers 12] [--device cuda] [--seeds 1 2 3] [--tasks ...] [--rows ...]

It wants stores/cifar32 and stores/fmnist32 (docs/data.md). A set is the scale `full` with some settings changed, see
SETS; its runs become lines of docs/results/poc/SET.jsonl (bench/side_by_side.py). They take a minute, so they make no
checkpoints. bench/poc_page.py makes the page.
"""

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import side_by_side
import torch
from safetensors.torch import load_file
from side_by_side import Line

from fedperl.config import merged, resolve
from fedperl.errors import ConfigError
from fedperl.paper.runs import POC, TASKS, find_scale, paper_runs
from fedperl.parallel import Job
from fedperl.settings import Config

LINES = Path(__file__).parents[1] / "docs" / "results" / "poc"


@dataclass(frozen=True)
class Set:
    """Runs of the proof of concept with some settings changed."""

    about: str
    settings: tuple[str, ...] = ()
    rows: tuple[str, ...] = tuple(POC)
    tasks: tuple[str, ...] = TASKS
    seeds: tuple[int, ...] = (1, 2, 3)
    grid: tuple[tuple[str, ...], ...] = ((),)
    """Settings to choose from, each trained."""
    best_of: str = ""
    """The set whose grid's best point, on validation images, is added to the settings."""
    after: tuple[str, ...] = ()
    """Settings that override that point's."""


def _point(kind: str, lr: float, steps: int, weak: str = "none") -> tuple[str, ...]:
    momentum = ["optimizer.momentum=0.9"] if kind == "sgd" else []
    return (
        f"optimizer.kind={kind}",
        f"optimizer.lr={lr}",
        *momentum,
        f"federation.steps={steps}",
        f"views.weak={weak}",
    )


LOWER = "FedAvg, labelled images"
FIVE = ("federation.batch=108", "federation.steps=5", "objective.labelled_weight=10.0")
NO_UNLABELLED = ("objective.fedmatch.helpers=0.0", "objective.fedmatch.votes=0.0", "peers.selector=none")
TRAINED = ("objective.labelled_weight=1.0", "federation.rounds=300", "optimizer.schedule=cosine")
HALF = "federation.unlabelled_batch=49"
IN_PROPORTION = ("objective.fedmatch.closeness=1.0", "objective.fedmatch.sparsity=1e-5")
SETS = {
    "published": Set("FedMatch's published setting"),
    "released": Set(
        "the choices of FedMatch's released code: tau 0.75, helpers and peers every tenth round, 2,000 images to "
        "validate and to test, 102 unlabelled images a step, no weight decay",
        (
            "objective.tau=0.75",
            "peers.every=10",
            "optimizer.weight_decay=0.0",
            f"partition.held_out={2000 / 60000}",
            "federation.unlabelled_batch=102",
        ),
        tasks=TASKS[:2],
        seeds=(1,),
    ),
    "released_streaming": Set(
        "the same choices where images stream in, a task whose code was not released: tau 0.75, helpers and peers "
        "every tenth round, 2,000 images to validate and to test, no weight decay",
        (
            "objective.tau=0.75",
            "peers.every=10",
            "optimizer.weight_decay=0.0",
            f"partition.held_out={2000 / 70000}",
        ),
        tasks=TASKS[2:],
        seeds=(1,),
    ),
    "control": Set(
        "FedMatch whose unlabelled images count for nothing: sigma + psi on labelled images alone",
        NO_UNLABELLED,
        ("FedMatch",),
    ),
    "more_seeds": Set(
        "labelled images alone, plain and on sigma + psi, with six more seeds",
        NO_UNLABELLED,
        (LOWER, "FedMatch"),
        TASKS[:1],
        (4, 5, 6, 7, 8, 9),
    ),
    "all_labels_count": Set(
        "UDA without annealing, so that all labels count from the start",
        ("objective.uda.tsa=none",),
        ("FedAvg-UDA", "FedProx-UDA"),
        TASKS[:1],
    ),
    "unscaled": Set(
        "weights as they are usually drawn", ("model.init_scale=1.0",), (LOWER, "FedMatch"), TASKS[:1], (1,)
    ),
    "five_steps": Set("SL in five steps of 108 images, its loss times 10", FIVE, ("FedAvg-SL",), TASKS[:2], (1,)),
    "heavy": Set("SL with its loss times 10", ("objective.labelled_weight=10.0",), ("FedAvg-SL",), TASKS[:2], (1,)),
    "again": Set("one cell of the published setting once more", rows=("FedPerl",), tasks=TASKS[:1]),
    "louder": Set(
        "weights that start at 2 instead of 1.2 times the usual, where FedMatch's psi is drawn to",
        ("model.init_scale=2.0",),
        (LOWER,),
    ),
    "larger": Set(
        "weights that start at 1.4 to 1.8 times the usual",
        (),
        (LOWER,),
        TASKS[:1],
        grid=tuple((f"model.init_scale={scale}",) for scale in (1.4, 1.6, 1.8)),
    ),
    "grid": Set(
        "labelled images alone, by optimiser, rate and weak views",
        TRAINED,
        (LOWER,),
        TASKS[:1],
        (1,),
        (
            *(_point("sgd", lr, 10, "geometric") for lr in (0.003, 0.01, 0.03)),
            *(_point("sgd", lr, 10) for lr in (0.01, 0.03, 0.1)),
            _point("adam", 0.0003, 10, "geometric"),
        ),
    ),
    "steady": Set(
        "labelled images alone, by optimiser, rate and steps",
        TRAINED,
        (LOWER,),
        TASKS[:1],
        grid=(
            *(_point("sgd", lr, steps) for lr, steps in ((0.03, 10), (0.01, 10), (0.01, 20))),
            *(_point("adam", lr, 20) for lr in (0.0003, 0.001)),
        ),
    ),
    "steady_fedmatch": Set(
        "FedMatch, by optimiser",
        (*TRAINED, HALF, *IN_PROPORTION),
        ("FedMatch",),
        TASKS[:1],
        (1,),
        (_point("sgd", 0.003, 20), _point("adam", 0.0003, 20)),
    ),
    "longer": Set(
        "labelled images alone, twice the rounds",
        (*TRAINED, "federation.rounds=600"),
        (LOWER,),
        TASKS[:1],
        (1, 2),
        (
            _point("sgd", 0.01, 20),
            _point("sgd", 0.01, 20, "geometric"),
            _point("sgd", 0.01, 40),
            _point("adam", 0.001, 20, "geometric"),
            _point("sgd", 0.003, 40, "geometric"),
        ),
    ),
    "trained": Set(
        "trained well",
        (*TRAINED, HALF),
        (LOWER, "FedAvg-SL", "FedAvg-FixMatch", "FedPerl raw", "FedPerl"),
        TASKS[:1],
        best_of="steady",
    ),
    "trained_every_label": Set(
        "SL trained well, with as many images a round as a client has",
        (*TRAINED, HALF),
        ("FedAvg-SL",),
        TASKS[:1],
        best_of="steady",
        after=("federation.steps=54",),
    ),
    "trained_fedmatch": Set(
        "FedMatch trained well",
        (*TRAINED, HALF, *IN_PROPORTION),
        ("FedMatch",),
        TASKS[:1],
        best_of="steady_fedmatch",
    ),
}


def jobs(name: str, out: Path, device: str, seeds: list[int], tasks: list[str], rows: list[str]) -> dict[str, Job]:
    """Return the runs of a set by name, or some of them.

    Raises:
        ConfigError: seeds, tasks or rows that are not of the set.
    """
    chosen, runs, found = SETS[name], paper_runs(find_scale("full")), dict[str, Job]()
    for asked, there in ((seeds, chosen.seeds), (tasks, chosen.tasks), (rows, chosen.rows)):
        side_by_side.check_choice(name, asked, there)
    points = (best_point(chosen.best_of),) if chosen.best_of else chosen.grid
    for seed in seeds or chosen.seeds:
        for row in rows or chosen.rows:
            for task in tasks or chosen.tasks:
                run = runs[f"{task}: {row}"]
                for point in points:
                    title = ", ".join((run.name, *(point if len(points) > 1 else ()), f"seed {seed}"))
                    own = {"name": f"{task} {run.method} {seed}", "method": run.method, "seed": seed, "device": device}
                    changed = [
                        "checkpoint_every=1000",
                        "federation.validate_every=10",
                        *chosen.settings,
                        *point,
                        *chosen.after,
                    ]
                    config = resolve(merged(run.settings, own), changed, source=title)
                    found[title] = Job(f"{name}: {title}", config, out / "poc" / name / re.sub(r"[^\w.=]+", "-", title))
    return found


def cost(config: Config) -> float:
    """Return how long a run takes, roughly: by the images that pass the network, and what a step takes anyway."""
    federation, unlabelled = config.federation, config.objective.kind != "supervised"
    images = federation.batch + (2 * (federation.unlabelled_batch or federation.batch) if unlabelled else 0)
    steps = federation.rounds * config.cohort * int(federation.steps)
    return steps * (60 + images) * (1.5 if config.objective.decomposed else 1)


def best_point(name: str) -> tuple[str, ...]:
    """Return the point of a set's grid that was best on validation images in the end, over its seeds.

    Raises:
        ConfigError: not all of them are trained, or every one diverged.
    """
    found = validation(name)
    for point, by_seed in found.items():
        if missing := [seed for seed in SETS[name].seeds if seed not in by_seed]:
            raise ConfigError(f"{', '.join(point)}, seed {missing[0]}: not trained; wanted all of set {name!r} first")
    steady = [point for point, by_seed in found.items() if None not in by_seed.values()]
    if not steady:
        raise ConfigError(f"{name}: every point of its grid diverged")
    return max(steady, key=lambda point: fmean(value for value in found[point].values() if value is not None))


def validation(name: str) -> dict[tuple[str, ...], dict[int, float | None]]:
    """Return the last validation accuracy of each point of a set's grid by seed, of what is trained; None: diverged."""
    chosen, lines = SETS[name], ended(name)
    (row,), (task,) = chosen.rows, chosen.tasks
    titles = {
        point: {seed: ", ".join((f"{task}: {row}", *point, f"seed {seed}")) for seed in chosen.seeds}
        for point in chosen.grid
    }
    return {
        point: {seed: lines[title].get("validation", [None])[-1] for seed, title in by_seed.items() if title in lines}
        for point, by_seed in titles.items()
    }


def read(name: str) -> dict[str, Line]:
    """Return the lines of a set by the names of their runs, less those that diverged."""
    return {run: line for run, line in ended(name).items() if "failed" not in line}


def ended(name: str) -> dict[str, Line]:
    """Return the lines of a set by the names of their runs."""
    return side_by_side.read(LINES / f"{name}.jsonl")


def noted(folder: Path) -> Line:
    """Return, every ten rounds, validation accuracy and the share of unlabelled images that taught something.

    And how large the last weights are, with sigma + psi the sum; None where that is no number.
    """
    rounds = side_by_side.metrics(folder)
    shares = [[one["accepted"] for one in line["numbers"].values() if "accepted" in one] for line in rounds[9::10]]
    state = load_file(folder / "models" / "last.safetensors")
    psi = {name.removeprefix("psi."): value for name, value in state.items() if name.startswith("psi.")}
    kept = {name.removeprefix("sigma."): value for name, value in state.items() if not name.startswith("psi.")}
    summed = [value + psi.get(name, 0) for name, value in kept.items()]
    norm = float(torch.cat([value.flatten() for value in summed]).norm())
    return {
        "norm": round(norm, 3) if math.isfinite(norm) else None,
        "accepted": [round(fmean(some), 4) for some in shares if some],
        "validation": [round(line["server"]["accuracy"], 4) for line in rounds if "server" in line],
    }


def train(args: argparse.Namespace) -> None:
    """Train what has no line yet."""
    plan = lambda name: jobs(name, args.out, args.device, args.seeds, args.tasks, args.rows)  # noqa: E731
    side_by_side.train_sets(args, LINES, plan, noted, lambda line: f"{100 * accuracy(line):.2f}", cost)


def accuracy(line: Line) -> float:
    """Return what table 1 reports: of the last global model, or where images stream in, of the clients' last models."""
    results = line["results"]
    found: float = (results.get("local") or results["test"]["last"]["server"])["accuracy"]
    return found


def main() -> None:
    """Train what is asked for."""
    parser = side_by_side.parser_of(__doc__ or "", SETS)
    parser.add_argument("--tasks", nargs="+", default=[])
    train(parser.parse_args())


if __name__ == "__main__":
    main()
