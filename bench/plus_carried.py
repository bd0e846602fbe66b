"""FedPerl+ on CIFAR-10 in the well-trained regime of bench/poc.py; and what a small network says of its parts there."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import poc
import side_by_side
from plus import CARRIED, CARRIED_ROWS, CARRIED_SMALL, CARRIED_SMALL_ROWS, LINES, jobs
from plus_networks import BASE, few_seeds
from plus_report import OURS
from poc_cells import Difference, cell, difference
from side_by_side import Line, check_lines, table, where_and_when

from fedperl.paper.runs import TASKS


def carried_gain() -> Difference:
    """Return FedPerl+ less FedPerl on CIFAR-10, over the seeds that both have."""
    ended = {run: line for run, line in side_by_side.read(LINES / f"{CARRIED}.jsonl").items() if "failed" not in line}
    return difference(cell(ended, TASKS[0], OURS), cell(poc.read("trained"), TASKS[0], "FedPerl"))


def carried_section() -> list[str]:
    """Return FedPerl+ on CIFAR-10; nothing while it is not trained.

    Raises:
        ConfigError: a line was trained with other settings than it would be now.
    """
    lines = side_by_side.read(LINES / f"{CARRIED}.jsonl")
    if not lines:
        return []
    check_lines(CARRIED, lines, jobs(CARRIED, Path(), "cuda", [], []))
    task, trained = TASKS[0], poc.read("trained")
    ended = {run: line for run, line in lines.items() if "failed" not in line}
    ours = {row: cell(ended, task, row) for row in CARRIED_ROWS if any(f": {row}, seed" in run for run in ended)}
    rows = {row: cell(trained, task, row) for row in poc.SETS["trained"].rows} | ours
    taught = {row: _taught(ended if row in ours else trained, task, row) for row in rows}
    cells = [
        [
            row,
            str(one),
            taught[row],
            *("" if row == other else str(difference(mine, one)) for other, mine in ours.items()),
        ]
        for row, one in rows.items()
    ]
    text = [
        "## On CIFAR-10",
        "",
        CIFAR,
        *([] if OURS in ours else [NOT_CARRIED]),
        "",
        where_and_when(lines.values()),
        "",
    ]
    return [
        *text,
        *table(["", "accuracy, %", "labelled in the last rounds, %", *(f"{row} less this row" for row in ours)], cells),
        "",
    ]


def _taught(lines: Mapping[str, Line], task: str, row: str) -> str:
    """Return the share of unlabelled images whose label counted in the last rounds that tell, the mean over seeds."""
    told = [line["accepted"] for run, line in lines.items() if run.startswith(f"{task}: {row}, seed")]
    found = [shares[-1] for shares in told if shares]
    return f"{100 * fmean(found):.0f}" if found else "·"


def carried_small_section() -> list[str]:
    """Return what FedPerl+ changes in training on CIFAR-10 one by one, with a small network."""
    lines = side_by_side.read(LINES / f"{CARRIED_SMALL}.jsonl")
    if not lines:
        return []
    check_lines(CARRIED_SMALL, lines, jobs(CARRIED_SMALL, Path(), "cpu", [], []))
    rows: dict[str, dict[int, Line]] = {}
    for run, line in lines.items():
        row, _, seed = run.removeprefix(f"{TASKS[0]}: ").rpartition(", seed ")
        rows.setdefault(row, {})[int(seed)] = line
    base, cells = rows.get(BASE, {}), []
    for name in (name for name in (poc.LOWER, *CARRIED_SMALL_ROWS) if name in rows):
        some = rows[name]
        accuracies = {seed: 100 * poc.accuracy(line) for seed, line in some.items()}
        both = [seed for seed in some if seed in base]
        less = [f"{accuracies[seed] - 100 * poc.accuracy(base[seed]):+.2f}" for seed in both]
        taught = [line["accepted"][-1] for line in some.values() if line["accepted"]]
        cells.append(
            [
                name + few_seeds(some),
                f"{fmean(accuracies.values()):.2f}",
                "" if name == BASE else "; ".join(less),
                f"{fmean(line['validation'][-1] for line in some.values()):.3f}",
                f"{100 * fmean(taught):.1f}" if taught else "·",
            ]
        )
    head = ["", "accuracy, %", "less FedPerl, seed by seed", "validation accuracy", "labelled in the last round, %"]
    kept = [
        poc.accuracy(line) - poc.accuracy(base[seed])
        for name, some in rows.items()
        if name.startswith("moments kept")
        for seed, line in some.items()
        if seed in base
    ]
    told = f"With moments kept {sum(less < 0 for less in kept)} of {len(kept)} runs are below FedPerl's of their seed."
    text = ["### Why not", "", CARRIED_NOTE, "", where_and_when(lines.values()), ""]
    return [*text, *table(head, cells), "", told, ""]


CIFAR = (
    "The well-trained regime of [poc.md](poc.md). There the server alone tests, so that no client has a share of its "
    "own; and images are not flipped, which leaves one orientation: without moments and smoothing the running mean is "
    "all that is left. The rate falls to 0, so that the last models hardly differ, and their mean hardly from the "
    "last. ± beside an accuracy is the standard deviation over seeds, beside a difference half of its 95 % interval."
)
NOT_CARRIED = f"{OURS} as it is now is not trained there yet."
CARRIED_NOTE = (
    "Fewer labels count with FedPerl+ (the table above), and it is left with about what labelled images give. Moments "
    "and smoothing were not trained apart there. With a small network, which gains less from unlabelled images, and "
    "80 rounds in place of 300 (`python bench/plus.py carried_small --device cpu --workers 2`), two seeds and 3,000 "
    "test images say where to look, and decide nothing. 0.765 is tau times 0.9. A client takes part in every twentieth "
    "round or so, and the moments that it keeps are of that long ago; whether that is what they cost was not tried."
)
