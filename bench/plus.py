"""FedPerl+ on real lesions: the options of bench/plus.toml, many runs side by side.

    python bench/plus.py alone --workers 6 [--device cuda] [--seeds 11 12] [--rows ...]

`alone` is each option that changes training by itself on top of FedPerl, and what each is worth however its models are
handed out (bench/variants.py); `falling` a few runs with a rate that falls to 0; `small` and `small_variants` a first
look with a small network, on two cores of a machine without a GPU (--device cpu --workers 2). A run becomes a line of
docs/results/plus/SET.jsonl (bench/side_by_side.py) as those of bench/skin.py do.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import side_by_side
import variants
from side_by_side import Line
from skin import run_command

from fedperl.evaluate.classification import from_confusion
from fedperl.parallel import Job

FILES = {
    "alone": "plus.toml",
    "falling": "plus_falling.toml",
    "small": "plus_small.toml",
    "small_variants": "plus_small_variants.toml",
}
SUITES = {name: Path(__file__).with_name(file) for name, file in FILES.items()}
DEVICES = {"alone": "cuda", "falling": "cuda", "small": "cpu", "small_variants": "cpu"}
"""Where the runs of a suite that are on the page were trained."""
FOLLOWED = ("alone", "small_variants")
"""Suites whose runs tell what their models are worth however they are handed out."""
LINES = Path(__file__).parents[1] / "docs" / "results" / "plus"


def jobs(name: str, out: Path, device: str, seeds: list[int], rows: list[str]) -> dict[str, Job]:
    """Return the runs of a set by name, or some of them.

    Raises:
        ConfigError: seeds or rows that are not of the set.
    """
    found = side_by_side.suite_jobs(name, SUITES[name], out / "plus" / name, device, seeds, rows)
    followed = {run for run, job in found.items() if name in FOLLOWED and variants.apply(job.config)}
    return {run: replace(job, watch=variants.Variants) if run in followed else job for run, job in found.items()}


def validated(line: Line) -> str:
    """Return macro F1 of the last model on validation images, the mean over clients: test images choose nothing."""
    matrices = line["last_validation_confusion"].values()
    return f"validation macro F1 {fmean(from_confusion(np.array(one)).macro_f1 for one in matrices):.3f}"


if __name__ == "__main__":
    run_command(__doc__ or "", SUITES, LINES, jobs, validated)
