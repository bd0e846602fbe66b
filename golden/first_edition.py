"""Runs cases with the package as it was before the second edition: the driver of a commit that has none of its own.

A driver is all that knows the package: a case goes in as a table, files come out in a folder.
"""

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedperl.errors import FedPerlError
from golden.layouts import write_layout

Case = dict[str, Any]
REFUSAL = FedPerlError
"""What settings that are not allowed raise; all else is a fault of a case or of this machine."""


def run(case: Case, folder: Path, scratch: Path) -> None:
    """Run a case; its files lie in the folder afterwards.

    Args:
        scratch: where what several cases use is kept: stores.
    """
    DOES[case["does"]](case, folder, scratch)


def train(case: Case, folder: Path, scratch: Path) -> None:
    """Train a run, killed on the way and gone on with where the case says so; then report on it and evaluate it."""
    import fedperl

    settings = dict(case["settings"])
    if "sets" in case:
        settings["data"] = settings.get("data", {}) | {"source": str(store_of(case, scratch))}
    file = scratch / f"{os.getpid()}.toml"
    file.write_text(tomli_w.dumps(settings))
    config = fedperl.load_config(file)
    if "killed_after" in case:
        words = [str(file), str(folder), str(case["killed_after"])]
        command = [sys.executable, "-m", "golden.first_edition", *words]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if ended.returncode != -signal.SIGKILL:
            raise RuntimeError(f"wanted a run that is killed after round {case['killed_after']}: {ended.stderr}")
    drawn = "sets" not in case and not settings.get("partition")
    store = drawn_store(config.data.size, config.data.scale, config.data.seed) if drawn else None
    fedperl.train(config, folder, resume="killed_after" in case, store=store)
    if case.get("report"):
        printed = command_line("report", folder, "--out", folder / "page.html")
        (folder / "printed.txt").write_text(printed + terminal_tables(folder))
    for data in case.get("evaluate", ()):
        source = store_of({"sets": [data]}, scratch) if data != "dermsim" else data
        command_line("evaluate", folder, "--data", source, "--json")


@functools.cache
def drawn_store(size: int, scale: float, seed: int) -> Any:
    """Return the ten drawn hospitals, which take longer to draw than to train."""
    from fedperl.data.dermsim.hospitals import ten_hospitals

    return ten_hospitals(size=size, scale=scale, seed=seed)


def terminal_tables(folder: Path) -> str:
    """Return the tables that commands print of a finished run."""
    from rich.console import Console

    from fedperl.report.tables import clients_table, community_lines, peers_table, runs_table

    results = json.loads((folder / "results.json").read_text())
    sources = [str(number) for number in range(10)]
    out = io.StringIO()
    console = Console(file=out, width=200)
    console.print(runs_table({"run": results}), clients_table({"run": results}, sources), peers_table(results, 10))
    console.print(*community_lines(results, ["a"] * 5 + ["b"] * 5), sep="\n")
    return out.getvalue()


def prepare(case: Case, folder: Path, scratch: Path) -> None:
    """Write what was listed of published sets: the store's table and classes."""
    store = store_of(case, scratch)
    for name in ("manifest.csv", "store.json"):
        (folder / name).write_bytes((store / name).read_bytes())


def split(case: Case, folder: Path, scratch: Path) -> None:
    """Write who holds which image of a store."""
    options = [f"--set={key}={json.dumps(value)}" for key, value in case["partition"].items()]
    command_line("data", "partition", store_of(case, scratch), "--out", folder / "partition.csv", *options)


def store_of(case: Case, scratch: Path) -> Path:
    """Return the store of a case's sets, prepared once."""
    store = scratch / "-".join(case["sets"])
    if not store.exists():
        sets = [write_layout(name, scratch / "sets") for name in case["sets"]]
        command_line("data", "prepare", *sets, "--out", store, "--size", "16", "--quiet")
    return store


def command_line(*words: object) -> str:
    """Return what a command prints."""
    from fedperl.cli import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = app([str(word) for word in words], standalone_mode=False)
    if code:
        raise RuntimeError(f"fedperl {' '.join(map(str, words))}: ended with code {code}")
    return printed.getvalue()


def numbers(case: Case, folder: Path, scratch: Path) -> None:
    """Write every number of the evaluation of fixed predictions."""
    from fedperl import evaluate
    from fedperl.evaluate.malignancy import malignancy, malignant_classes

    truth, probabilities = predictions(case["images"], case["classes"], case["seed"])
    other = predictions(case["images"], case["classes"], case["seed"] + 1)
    told = evaluate.describe_fully(truth, probabilities, groups={"age": ages(len(truth))}, fit_on=other)
    found: dict[str, Any] = {
        "numbers": told.numbers,
        "counts": told.sums.to_dict(),
        "groups": {name: counts.to_dict() for name, counts in told.groups.items()},
        "classification": evaluate.classification(truth, probabilities).to_dict(),
        "calibration": [
            evaluate.calibration(truth, probabilities, binning=binning).to_dict()
            for binning in ("adaptive", "equal_width")
        ],
        "risk_coverage": evaluate.risk_coverage(truth, probabilities).to_dict(),
        "from_counts": {
            "classification": told.sums.classification().to_dict(),
            "reliability": told.sums.reliability(),
            "ece": told.sums.ece(),
            "auroc": [told.sums.auroc(label) for label in range(case["classes"])],
        },
        "intervals": {
            name: asdict(interval)
            for name, interval in (
                evaluate.intervals_of_confusion(told.sums.confusion)
                | {f"{name} of confidence": one for name, one in evaluate.intervals_of_confidence(told.sums).items()}
            ).items()
        },
        "paired": asdict(evaluate.paired_interval(probabilities[:12, :2] - other[1][:12, :2])),
        "spread": asdict(evaluate.spread(probabilities[:10, 0].tolist())),
        "communities": evaluate.purity(
            {0: {1: 3, 2: 1}, 1: {0: 2, 2: 2}, 2: {0: 1}}, {0: "a", 1: "a", 2: "b"}
        ).to_dict(),
    }
    if case["classes"] == 8:
        names = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
        sick = malignant_classes(names)
        found["malignancy"] = malignancy(sick[truth], probabilities, sick).to_dict()
    (folder / "numbers.json").write_text(json.dumps(found, default=float))


def counts_told(case: Case, folder: Path, scratch: Path) -> None:
    """Write what a site tells of fixed predictions, some of classes with few images."""
    from fedperl import evaluate

    truth, probabilities = predictions(case["images"], case["classes"], case["seed"])
    every = evaluate.describe_fully(truth, probabilities, groups={"age": ages(len(truth))}, fit_on=None)
    write_told(folder, evaluate.without_few(every.sums, every.groups))


def write_told(folder: Path, told: tuple[Any, dict[str, Any]]) -> None:
    """Write counts in bins and those of groups."""
    sums, groups = told
    found = {"counts": sums.to_dict(), "groups": {name: counts.to_dict() for name, counts in groups.items()}}
    (folder / "numbers.json").write_text(json.dumps(found))


def ages(images: int) -> Any:
    """Return a band of ages for each image, of some none."""
    return np.array(["", "0-39", "40-59", "60+"])[np.random.default_rng(0).integers(0, 4, images)]


def predictions(images: int, classes: int, seed: int) -> tuple[Any, Any]:
    """Return classes and probabilities, right in about half of the images, rare classes included."""
    generator = np.random.default_rng(seed)
    truth = generator.choice(classes, size=images, p=(weights := np.arange(1.0, classes + 1)) / weights.sum())
    logits = generator.normal(size=(images, classes)) + 1.5 * np.eye(classes)[truth]
    odds = np.exp(logits)
    return truth.astype(np.int64), odds / odds.sum(axis=1, keepdims=True)


DOES: dict[str, Callable[[Case, Path, Path], None]] = {
    "train": train,
    "prepare": prepare,
    "split": split,
    "numbers": numbers,
    "counts_told": counts_told,
}


def train_until(file: Path, folder: Path, round: int) -> None:
    """Train, and kill this process without warning once a round is over."""
    import fedperl

    def watch(progress: Any) -> None:
        if progress.round == round:
            os.kill(os.getpid(), signal.SIGKILL)

    fedperl.train(fedperl.load_config(file), folder, watchers=[watch])


if __name__ == "__main__":
    train_until(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
