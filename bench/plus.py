"""FedPerl+ on real lesions: the options of bench/plus.toml, many runs side by side.

    python bench/plus.py alone --workers 6 [--device cuda] [--seeds 11 12] [--rows ...]

`alone` is each option that changes training by itself on top of FedPerl, and what each is worth however its models are
handed out (bench/variants.py); `falling` a few runs with a rate that falls to 0; `report` is `fedperl_plus` with fresh
seeds, for test images; `carried` the same on CIFAR-10, in the well-trained regime of bench/poc.py; `small`,
`small_variants` and `small_report` are of a small network, on two cores without a GPU (--device cpu --workers 2).
A run becomes a line of docs/results/plus/SET.jsonl (bench/side_by_side.py), as in bench/skin.py and bench/poc.py.
"""

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import poc
import side_by_side
import skin
import variants
from side_by_side import Line

from fedperl.config import Table, merged, resolve
from fedperl.evaluate.classification import from_confusion
from fedperl.parallel import Job

FILES = {
    "report": "plus_report.toml",
    "alone": "plus.toml",
    "falling": "plus_falling.toml",
    "small": "plus_small.toml",
    "small_variants": "plus_small_variants.toml",
    "small_report": "plus_small_report.toml",
}
SUITES = {name: Path(__file__).with_name(file) for name, file in FILES.items()}
CARRIED, PLUS = "carried", "fedperl_plus"
CARRIED_ROWS: dict[str, Table] = {
    "FedPerl+": {},
    "FedPerl+ less moments and smoothing": {"objective": {"label_smoothing": 0.0}, "optimizer": {"carry": False}},
}
"""FedPerl+ on CIFAR-10, and what is left of it there without what it changes in training: a running mean."""
DEVICES = {name: "cpu" if name.startswith("small") else "cuda" for name in SUITES}
"""Where the runs of a suite that are on the page were trained."""
FOLLOWED = {"alone": variants.Few, "small_variants": variants.Variants}
"""Suites whose runs tell what their models are worth however they are handed out."""
LINES = Path(__file__).parents[1] / "docs" / "results" / "plus"


def jobs(name: str, out: Path, device: str, seeds: list[int], rows: list[str]) -> dict[str, Job]:
    """Return the runs of a set by name, or some of them.

    Raises:
        ConfigError: seeds or rows that are not of the set.
    """
    if name == CARRIED:
        return carried_jobs(out, device, seeds, rows)
    found = side_by_side.suite_jobs(name, SUITES[name], out / "plus" / name, device, seeds, rows)
    watch = FOLLOWED.get(name)
    return {run: replace(job, watch=watch) if variants.apply(job.config) else job for run, job in found.items()}


def carried_jobs(out: Path, device: str, seeds: list[int], rows: list[str]) -> dict[str, Job]:
    """Return FedPerl's well-trained runs on CIFAR-10 as CARRIED_ROWS, less own shares: no client tests models there.

    Raises:
        ConfigError: seeds or rows that are not of the set.
    """
    side_by_side.check_choice(CARRIED, rows, CARRIED_ROWS)
    found = {}
    trained = poc.jobs("trained", out, device, seeds, [], ["FedPerl"])
    for row in rows or CARRIED_ROWS:
        for run, job in trained.items():
            table = job.config.model_dump(mode="json", exclude_defaults=True) | {"method": PLUS}
            name, own = run.replace("FedPerl", row), merged({"federation": {"own_share": 0.0}}, CARRIED_ROWS[row])
            folder = out / "plus" / CARRIED / re.sub(r"[^\w+]+", "-", name)
            found[name] = Job(f"{CARRIED}: {name}", resolve(merged(table, own), (), source=name), folder)
    return found


def noted(folder: Path, *, device: str) -> Line:
    """Return what a line has besides, as the runs that it is compared with have it."""
    return poc.noted(folder) if folder.parent.name == CARRIED else skin.noted(folder, device=device)


def validated(line: Line) -> str:
    """Return what the last model has on validation images: test images choose nothing."""
    if "last_validation_confusion" not in line:
        return f"validation accuracy {line['validation'][-1]:.3f}"
    matrices = line["last_validation_confusion"].values()
    return f"validation macro F1 {fmean(from_confusion(np.array(one)).macro_f1 for one in matrices):.3f}"


if __name__ == "__main__":
    skin.run_command(__doc__ or "", [*SUITES, CARRIED], LINES, jobs, validated, noted)
