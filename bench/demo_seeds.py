"""The demo over several seeds, as a Markdown page: what semi-supervision adds, what peers add, who helps whom.

    python bench/demo_seeds.py --seeds 1 2 3 --out runs/demo_seeds > docs/results/demo.md

Runs that are there already are gone on with, or just read.
"""

import argparse
import datetime
import platform
from pathlib import Path
from typing import Any

import torch

import fedperl
from fedperl.demo import METHODS, SETTINGS, SOURCES, run_demo
from fedperl.evaluate import spread
from fedperl.report.tables import community_lines, time_line

CHOICES = {"per_client_best": "best per client", "global_best": "best overall", "last": "last round"}


def value(results: dict[str, Any], choice: str, metric: str = "weighted_f1") -> float:
    return float(results["over_clients"][choice][metric]["mean"])


def cell(values: list[float]) -> str:
    found = spread(values)
    return f"{found.mean:.3f} ± {found.std:.3f}"


def difference(runs: list[dict[str, Any]], first: str, second: str, choice: str) -> str:
    values = [value(r[first], choice) - value(r[second], choice) for r in runs]
    return f"{sum(values) / len(values):+.3f} (by seed: {', '.join(f'{v:+.3f}' for v in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/demo_seeds"))
    arguments = parser.parse_args()
    runs = [run_demo(arguments.out / f"seed-{s}", seed=s, tick=lambda jobs: None) for s in arguments.seeds]
    seeds = ", ".join(map(str, arguments.seeds))
    print("# The demo over three seeds\n" if len(runs) == 3 else f"# The demo over {len(runs)} seeds\n")
    print(f"Made by `python bench/demo_seeds.py --seeds {seeds.replace(',', '')}` on {datetime.date.today()}: ", end="")
    print(f"fedperl {fedperl.__version__}, torch {torch.__version__}, Python {platform.python_version()}, CPU,")
    print(f"one thread a run. Training seeds {seeds}; the images (data seed 0) are the same for all.\n")
    print(f"Settings: `{SETTINGS}`.\n")
    print("Weighted F1 on the clients' test images, mean over ten clients, then mean ± population std over seeds; ")
    print("the three columns differ in which round's global model is taken.\n")
    print("| method | " + " | ".join(CHOICES.values()) + " | macro F1 (best per client) |")
    print("|---" * (len(CHOICES) + 2) + "|")
    for name in METHODS:
        cells = [cell([value(r[name], choice) for r in runs]) for choice in CHOICES]
        cells.append(cell([value(r[name], "per_client_best", "macro_f1") for r in runs]))
        print(f"| {name} | " + " | ".join(cells) + " |")
    peer = "FedPerl (T = 2, PA)"
    print("\nDifferences in weighted F1, mean over seeds:\n")
    print("| | " + " | ".join(CHOICES.values()) + " |")
    print("|---" * (len(CHOICES) + 1) + "|")
    for name, first, second in (
        ("all labels against few: Upper - Lower", "Upper FedAvg", "Lower FedAvg"),
        ("what unlabelled images add: SSFL - Lower", "SSFL", "Lower FedAvg"),
        ("what peers add: FedPerl - SSFL", peer, "SSFL"),
    ):
        print(f"| {name} | " + " | ".join(difference(runs, first, second, choice) for choice in CHOICES) + " |")
    print("\nCommunities and time of the FedPerl runs:\n")
    for seed, results in zip(arguments.seeds, runs, strict=True):
        for line in community_lines(results[peer], SOURCES):
            print(f"- seed {seed}: {line}")
        print(f"- seed {seed}: {time_line(results[peer]['seconds'])}")


if __name__ == "__main__":
    main()
