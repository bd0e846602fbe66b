"""What differential privacy costs: seconds a step, and weighted F1 on dermsim at several epsilons.

    python bench/dp_cost.py [--device cuda] [--nets small_cnn efficientnet_b0]
    python bench/dp_cost.py --score [--noise 0 0.5 1 2] [--rounds 40] [--scale 0.25] [--seeds 3] [--unit patient]

Seconds: FixMatch at 32 px, 16 images a step: 8 labelled and 8 unlabelled ones, or a Poisson sample of 16 in the mean;
the fastest of several rounds. Scores: FedPerl with the demo's network on drawn lesions; noise 0 is a
run without differential privacy.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedperl import train
from fedperl.config import resolve
from fedperl.learn.accounting import StepCount
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, drained, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.private import Private, private_steps, standard_normal
from fedperl.opening import open_store
from fedperl.settings import DP, Config, Objective, Optimizer, Views

STEPS, REPEATS, IMAGES, SIZE, CLASSES, PER_PATIENT = 4, 4, 400, 32, 8, 2


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--nets", nargs="+", default=["small_cnn", "efficientnet_b0"])
    asked.add_argument("--score", action="store_true")
    asked.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.5, 1.0, 2.0])
    asked.add_argument("--clip", type=float, default=1.0)
    asked.add_argument("--lr", type=float, default=1e-3)
    asked.add_argument("--rounds", type=int, default=40)
    asked.add_argument("--steps", type=int, default=20)
    asked.add_argument("--batch", type=int, default=16)
    asked.add_argument("--scale", type=float, default=0.25)
    asked.add_argument("--seeds", type=int, default=1)
    asked.add_argument("--unit", default="record")
    asked.add_argument("--out", type=Path, help="keeps the runs: the same command goes on with them")
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    if given.score:
        scores(given)
    else:
        for name in given.nets:
            costs(name, torch.device(given.device))


def costs(name: str, device: torch.device) -> None:
    numbers = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8, generator=numbers).to(device)
    every = torch.arange(IMAGES, device=device)
    data = LocalImages(pixels, every % CLASSES, every[: IMAGES // 2], every[IMAGES // 2 :], CLASSES)
    objective = Objective(kind="fixmatch", class_weights="none", tau=0.1)
    norms: tuple[Literal["batch", "group"], ...] = ("batch", "group")
    nets = {norm: build_net(name, CLASSES, seed=0, norm=norm).to(device) for norm in norms}
    settings = {n: LocalSettings(objective, Optimizer(lr=1e-5), Views(), STEPS, n) for n in (8, 16)}

    def plain(norm: Literal["batch", "group"]) -> Callable[[], object]:
        return lambda: local_round(nets[norm], data, settings[8], seed=1)

    def private(units: torch.Tensor, unit: Literal["record", "patient"]) -> Callable[[], object]:
        return lambda: drained(
            private_steps(nets["group"], data, settings[16], Private(DP(unit=unit), units, StepCount(count)))
        )

    with tempfile.TemporaryDirectory() as folder:
        count = Path(folder) / "count.json"
        host = torch.arange(IMAGES)
        width = sum(p.numel() for p in nets["group"].parameters())
        rows = {
            "batch norm": plain("batch"),
            "group norm": plain("group"),
            "private, per record": private(host, "record"),
            "private, per patient": private(host // PER_PATIENT, "patient"),
        }
        print(f"{name}, {SIZE} px, {device}, {width:,} parameters\n{'step':24} {'ms':>9} {'ratio':>7}")
        first = 0.0
        for what, do in rows.items():
            taken = fastest(do, device) / STEPS
            first = first or taken
            print(f"{what:24} {taken * 1e3:9.1f} {taken / first:7.1f}")
        noise = fastest(lambda: standard_normal(width), device)
        print(f"{'of it noise':24} {noise * 1e3:9.1f} {noise / first:7.1f}\n", flush=True)


def fastest(do: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        do()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def scores(given: argparse.Namespace) -> None:
    runs: dict[str, Config] = {}
    for noise in given.noise:
        if noise == 0:
            runs |= {f"no noise, {norm} norm": config_of(given, {"norm": norm}, {}) for norm in ("batch", "group")}
        else:
            dp = {"unit": given.unit, "noise": noise, "clip": given.clip, "delta": 1e-4}
            runs[f"noise {noise:g}"] = config_of(given, {"norm": "group"}, dp)
    store = open_store(next(iter(runs.values())))
    clients = store.partition.clients
    held = sorted(len(client.labelled) + len(client.unlabelled) for client in clients)
    print(f"{len(clients)} clients of {held[0]} to {held[-1]} training images, {given.steps} steps a round")
    for name, config in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            place = (given.out or Path(folder)) / name
            seeds = {seed: config.changed(seed=seed) for seed in range(1, given.seeds + 1)}
            found = [train(one, place / str(seed), store=store, resume=True) for seed, one in seeds.items()]
        f1 = [one["over_clients"]["global_best"]["weighted_f1"]["mean"] for one in found]
        spread = f" ± {np.std(f1, ddof=1):.3f}" if len(f1) > 1 else ""
        spent = [sorted(one["epsilon"] for one in each["dp"]["clients"].values()) for each in found if "dp" in each]
        text = f"; median client {np.median(spent):.1f}; {found[0]['dp']['text']}" if spent else ""
        print(f"{name:22} weighted F1 {np.mean(f1):.3f}{spread}{text}", flush=True)


def config_of(given: argparse.Namespace, model: dict[str, str], dp: dict[str, object]) -> Config:
    federation = {"rounds": given.rounds, "steps": given.steps, "batch": given.batch}
    return resolve(
        {
            "method": "fedperl",
            "threads": given.threads,
            "device": given.device,
            "gpu": "reference",
            "data": {"size": SIZE, "scale": given.scale},
            "model": {"net": given.nets[0], **model},
            "objective": {"class_weights": "none"},
            "peers": {"warmup": 3},
            "federation": {**federation, "cohort": 3, "quorum": 3},
            "optimizer": {"lr": given.lr},
            "dp": dp,
        }
    )


if __name__ == "__main__":
    main()
