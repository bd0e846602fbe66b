"""The paper's run, whole, in one command: 500 rounds, 3 of 10 clients, 26 steps of 16 + 16 images, EfficientNet-B0 at
224 px, every global model validated on the clients' 4,050 images and the server's 1,000. Where its time goes.

    python bench/paper_run.py [--rounds 500] [--device cuda] [--memory 12] [--out FOLDER] [--json FILE] [--set ...]

Images: the embedded ten hospitals at their full size, 33,555 images, drawn at 28 px and enlarged to 224: the time of a
step does not depend on what is in an image. Without ImageNet's weights, which change nothing about the time.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedperl.cli.common import bar
from fedperl.config import load_config
from fedperl.data.store import Store
from fedperl.federation.rounds import Progress
from fedperl.opening import open_store
from fedperl.settings import Config
from fedperl.training import train

DRAWN, SIZE = 28, 224
PARTS = ("training", "validation", "server", "checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the hospitals' images")
    parser.add_argument("--out", type=Path, help="keep the run folder here")
    parser.add_argument("--json", type=Path, help="write the numbers here, too")
    parser.add_argument("--memory", type=float, help="GB that torch may hold of the GPU's memory; by default all")
    parser.add_argument("--set", nargs="*", default=[], help="further settings")
    arguments = parser.parse_args()
    started = time.perf_counter()
    if arguments.memory:
        whole = torch.cuda.get_device_properties(arguments.device).total_memory
        torch.cuda.set_per_process_memory_fraction(1e9 * arguments.memory / whole)
    settings = ["preset=paper", "model.weights=none", f"data.size={SIZE}", f"data.scale={arguments.scale}"]
    settings += [f"device={arguments.device}", f"federation.rounds={arguments.rounds}", "federation.steps=26"]
    config = load_config(None, [*settings, "federation.server_validation=true", *arguments.set])
    store = enlarged(config)
    drawn = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, bar("rounds", hidden=False) as progress:
        task = progress.add_task("rounds", total=arguments.rounds)
        first: list[float] = []

        def watch(done: Progress) -> None:
            if done.round <= 4:  # the first with and without a peer, in every place, are recorded
                first.append(time.perf_counter())
            progress.update(task, completed=done.round)

        out = arguments.out or Path(folder) / "run"
        results = train(config, out, store=store, watchers=[watch])
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    ended = time.perf_counter()
    later = lines[4:]
    found = {
        "device": torch.cuda.get_device_name() if arguments.device != "cpu" else "cpu",
        "rounds": len(lines),
        "settings": [*settings, *arguments.set],
        "wall": ended - started,
        "images": drawn - started,
        "first four rounds": first[-1] - drawn,
        **{part: sum(line["seconds"].get(part, 0.0) for line in later) for part in PARTS},
    }
    counted = sum(found[part] for part in (*PARTS, "images", "first four rounds"))
    found["test and the rest"] = found["wall"] - counted
    steps = len(later) * config.cohort * int(config.federation.steps)
    found["ms per client step"] = 1e3 * found["training"] / max(1, steps)
    if arguments.device != "cpu":
        found["peak GB allocated"] = torch.cuda.max_memory_allocated() / 1e9
        found["peak GB reserved"] = torch.cuda.max_memory_reserved() / 1e9
    found["validation accuracy, last"] = float(np.mean([c["accuracy"] for c in lines[-1]["validation"].values()]))
    found["seconds of the run itself"] = results["seconds_this_start"]
    for name, value in found.items():
        print(f"{name:28} {value:10.2f}" if isinstance(value, float) else f"{name:28} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def enlarged(config: Config) -> Store:
    """Return the configuration's images, drawn small and enlarged."""
    small = open_store(config.changed(data=config.data.changed(size=DRAWN)))
    images = np.empty((len(small.images), 3, SIZE, SIZE), dtype=np.uint8)
    for start in range(0, len(images), 512):
        part = torch.from_numpy(small.images[start : start + 512]).to(config.device).float()
        large = torch.nn.functional.interpolate(part, size=(SIZE, SIZE), mode="bilinear")
        images[start : start + 512] = large.round().byte().cpu().numpy()
    return replace(small, images=images)


if __name__ == "__main__":
    main()
