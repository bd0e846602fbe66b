"""FedPerl+ on real lesions: the options of bench/plus.toml, many runs side by side.

    python bench/plus.py alone --workers 6 [--device cuda] [--seeds 11 12] [--rows ...]

`alone` is each option that changes training by itself on top of FedPerl, and what each is worth however its models are
handed out (bench/variants.py); `falling` a few runs with a rate that falls to 0; `report` is `fedperl_plus` with fresh
seeds, for test images; `carried` the same on CIFAR-10, in the well-trained regime of bench/poc.py; `small`,
`small_variants`, `small_report` and `carried_small` are of a small network, on two cores without a GPU (--device cpu
--workers 2), and so is `course`: what becomes of labels and clients over the rounds (bench/plus_course.py).
A run becomes a line of docs/results/plus/SET.jsonl (bench/side_by_side.py), as in bench/skin.py and bench/poc.py.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import plus_course
import poc
import side_by_side
import skin
import variants
from side_by_side import Line

from fedperl.config import Table, merged, resolve
from fedperl.evaluate.classification import from_confusion
from fedperl.paper.runs import TASKS
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
CARRIED, CARRIED_SMALL, PLUS = "carried", "carried_small", "fedperl_plus"
CARRIED_ROWS: dict[str, Table] = {
    "FedPerl+": {},
    "FedPerl+ less moments and smoothing": {"objective": {"label_smoothing": 0.0}, "optimizer": {"carry": False}},
}
"""FedPerl+ on CIFAR-10, and what is left of it there without what it changes in training: a running mean."""
SMALL_CIFAR: Table = {"model": {"net": "small_cnn"}, "federation": {"rounds": 80}}
"""What a small network on a CPU has otherwise in that regime."""
SMOOTHED: Table = {"objective": {"label_smoothing": 0.1}}
KEPT: Table = {"optimizer": {"carry": True}}
LOWERED: Table = {"objective": {"tau": 0.765}}
"""The threshold of that regime, 0.85, times 0.9: about the share of a smoothed label that is left to its class."""
CARRIED_SMALL_ROWS: dict[str, Table] = {
    "FedPerl": {},
    "moments kept": KEPT,
    "label smoothing 0.1": SMOOTHED,
    "moments kept, label smoothing 0.1": merged(KEPT, SMOOTHED),
    "moments kept, label smoothing 0.1, tau 0.765": merged(KEPT, SMOOTHED, LOWERED),
    "FedPerl, tau 0.765": LOWERED,
}
"""What FedPerl+ changes in training there, one by one."""
SMALL_SEEDS = (11, 12)
DEVICES = {name: "cpu" if name.startswith("small") else "cuda" for name in SUITES}
"""Where the runs of a suite that are on the page were trained."""
COURSE, COURSE_ROWS = "course", ("SSFL", "FedPerl", "moments kept, label smoothing 0.1")
"""Rows of the small network whose labels and clients are followed: the last trains as FedPerl+ does."""
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
    if name == CARRIED_SMALL:
        return carried_small_jobs(out, device, seeds, rows)
    if name == COURSE:
        side_by_side.check_choice(name, rows, COURSE_ROWS)
        every = side_by_side.suite_jobs(
            name, SUITES["small_variants"], out / "plus" / name, device, seeds, rows or COURSE_ROWS
        )
        return {run: replace(job, watch=plus_course.Course) for run, job in every.items()}
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


def carried_small_jobs(out: Path, device: str, seeds: list[int], rows: list[str]) -> dict[str, Job]:
    """Return FedPerl on CIFAR-10 with a small network as CARRIED_SMALL_ROWS, and labelled images alone.

    Raises:
        ConfigError: seeds or rows that are not of the set.
    """
    for asked, there in ((rows, (poc.LOWER, *CARRIED_SMALL_ROWS)), (seeds, SMALL_SEEDS)):
        side_by_side.check_choice(CARRIED_SMALL, asked, there)
    found = {}
    trained = poc.jobs("trained", out, device, [1], [], [poc.LOWER, "FedPerl"])
    for seed in seeds or SMALL_SEEDS:
        for row in rows or (poc.LOWER, *CARRIED_SMALL_ROWS):
            base = poc.LOWER if row == poc.LOWER else "FedPerl"
            table = trained[f"{TASKS[0]}: {base}, seed 1"].config.model_dump(mode="json", exclude_defaults=True)
            run = f"{TASKS[0]}: {row}, seed {seed}"
            own = merged(SMALL_CIFAR, CARRIED_SMALL_ROWS.get(row, {}), {"seed": seed, "name": run})
            folder = out / "plus" / CARRIED_SMALL / re.sub(r"[^\w+]+", "-", run)
            found[run] = Job(f"{CARRIED_SMALL}: {run}", resolve(merged(table, own), (), source=run), folder)
    return found


def noted(folder: Path, *, device: str) -> Line:
    """Return what a line has besides, as the runs that it is compared with have it."""
    if folder.parent.name in (CARRIED, CARRIED_SMALL):
        return poc.noted(folder)
    course = folder / plus_course.FILE
    told = {"course": json.loads(course.read_text())} if course.exists() else {}
    return skin.noted(folder, device=device) | told


def validated(line: Line) -> str:
    """Return what the last model has on validation images: test images choose nothing."""
    if "last_validation_confusion" not in line:
        return f"validation accuracy {line['validation'][-1]:.3f}"
    matrices = line["last_validation_confusion"].values()
    return f"validation macro F1 {fmean(from_confusion(np.array(one)).macro_f1 for one in matrices):.3f}"


if __name__ == "__main__":
    skin.run_command(__doc__ or "", [*SUITES, CARRIED, CARRIED_SMALL, COURSE], LINES, jobs, validated, noted)
