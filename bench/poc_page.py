"""Write docs/results/poc.md from the lines that bench/poc.py has left in docs/results/poc.

    python bench/poc_page.py [--check]

With `--check` nothing is written: it fails where the page is not what the lines give, where a line was trained with
other settings than its set has now, or where a cell is more than 3 points off the paper's and nothing says why.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from poc import LINES, LOWER, SETS, best_point, ended, jobs, read, validation
from poc_cells import TITLES, WORTH, Lines, Sets, cell, columns, difference, missing, paper_value, planned, shares
from poc_findings import findings, reasons, trained_findings
from side_by_side import check_lines, run_page, table, where_and_when

from fedperl.paper.runs import POC, TASKS

PAGE = LINES.parent / "poc.md"


def table1(lines: Lines) -> list[str]:
    """Return every cell beside the paper's."""
    rows = []
    for row in POC:
        cells = [row]
        for task in TASKS:
            ours, theirs = cell(lines, task, row), paper_value(task, row)
            cells += [str(ours), "·" if theirs is None else f"{theirs[0]:.2f} ± {theirs[1]:.2f}"]
        rows.append([*cells, str(cell(lines, TASKS[2], row, of_global=True))])
    head = ["", *(text for task in TASKS for text in (TITLES[task], "paper")), "Fashion-MNIST, global model"]
    return table(head, rows)


def unfinished() -> list[str]:
    """Return the sets but the published one of which runs are missing, and how many."""
    found = []
    for name, chosen in SETS.items():
        left = planned(name) - len(ended(name))
        if left and name != "published":
            found.append(f"`{name}` ({chosen.about}): {left} runs of {planned(name)}")
    return found


def check_settings() -> None:
    """Refuse lines that were trained with other settings than their set has now."""
    for name, chosen in SETS.items():
        lines = ended(name)
        if not lines or (chosen.best_of and not read(chosen.best_of)):
            continue
        check_lines(name, lines, jobs(name, Path(), "cuda", [], [], []))


VARIANTS = (
    "released",
    "released_streaming",
    "control",
    "louder",
    "all_labels_count",
    "unscaled",
    "five_steps",
    "heavy",
)


def variants(published: Lines) -> list[str]:
    """Return the other readings of the set-up beside the published one."""
    found: list[str] = []
    for name in VARIANTS:
        every = ended(name)
        lines = {run: line for run, line in read(name).items() if line.get("norm", 0) is not None}
        if not every:
            continue
        rows = []
        for row in SETS[name].rows:
            cells = [row]
            for task in SETS[name].tasks:
                theirs = paper_value(task, row)
                own = cell(lines, task, row)
                seeds = [seed for seed in SETS[name].seeds if f"{task}: {row}, seed {seed}" in every]
                same, lost = cell(published, task, row, seeds=seeds), len(seeds) - len(own.by_seed)
                said = f"{own}, {lost} diverged" if lost and own.by_seed else "all diverged" if lost else str(own)
                cells += [said, str(same), "·" if theirs is None else f"{theirs[0]:.2f}"]
            rows.append(cells)
        head = ["", *(text for task in SETS[name].tasks for text in (TITLES[task], "as above", "paper"))]
        about = SETS[name].about
        found += [f"**{about[0].upper()}{about[1:]}.** {where_and_when(every.values())}", "", *table(head, rows), ""]
    return found


def trained(sets: Sets) -> list[str]:
    """Return the well-trained regime, and what was tried for it."""
    text = ["## Trained well: CIFAR-10 IID", ""]
    task, rows = TASKS[0], list[list[str]]()
    base = cell(sets["trained"], task, LOWER)
    for name in ("trained", "trained_every_label", "trained_fedmatch"):
        chosen = SETS[name]
        if not sets[name]:
            continue
        changed = (*chosen.settings, *best_point(chosen.best_of), *chosen.after)
        settings = ", ".join(f"`{key}={value}`" for key, value in dict(one.split("=") for one in changed).items())
        text += [f"{chosen.about[0].upper()}{chosen.about[1:]}: {settings}. {where_and_when(sets[name].values())}", ""]
        for row in chosen.rows:
            own, with_these = cell(sets[name], task, row), f", `{'`, `'.join(chosen.after)}`" if chosen.after else ""
            rows.append([row + with_these, str(own), "" if row == LOWER else str(difference(own, base))])
    if rows:
        text += [*table(["", "accuracy", "less labelled images alone"], rows), "", *trained_findings(sets), ""]
    text += [
        "What was tried. The methods are trained with the point of the second table that is best on validation images "
        "over its seeds, FedMatch with the best of the third; the last was trained afterwards.",
        "",
    ]
    for name in ("grid", "steady", "steady_fedmatch", "longer"):
        tried, seeds = [], SETS[name].seeds
        for point, found in validation(name).items():
            tried.append([", ".join(f"`{one}`" for one in point), *(_said(found, seed) for seed in seeds)])
        head = [f"{SETS[name].about}: validation accuracy", *(f"seed {seed}" for seed in seeds)]
        text += [*table(head, tried), ""]
    return text


def _said(found: Mapping[int, float | None], seed: int) -> str:
    value = found.get(seed)
    return "·" if seed not in found else "diverged" if value is None else f"{100 * value:.2f}"


def page() -> str:
    """Return the whole page."""
    sets = {name: read(name) for name in SETS}
    lines = sets["published"]
    text = [
        "# Proof of concept: CIFAR-10 and Fashion-MNIST",
        "",
        "The paper's first table: FedMatch's three tasks, a ResNet-9 from scratch. Made by `python bench/poc_page.py` "
        "from the results of every run in [poc/](poc). Accuracy in percent, mean ± standard deviation over seeds 1 to "
        f"3. {where_and_when(lines.values())}",
        "",
        *table1(lines),
        "",
        "CIFAR-10: the last global model on 3,000 test images. Fashion-MNIST: the mean of the ten clients' own last "
        "models on 3,500, as FedMatch reports it; the last column is the global model there. `raw`: without "
        "anonymization. The row of labelled images alone is ours, and so are those on sigma + psi, another reading of "
        "the paper's FedPerl beside the same values. The tasks have test images of their own: numbers compare within "
        "a column.",
        "",
    ]
    gaps = missing("published")
    if gaps:
        text += [f"**Not trained yet:** {'; '.join(gaps)}.", ""]
    if undone := unfinished():
        text += [f"**Of the other sets of `bench/poc.py` not trained yet:** {'; '.join(undone)}.", ""]
    text += ["## What holds", "", *findings(sets), ""]
    text += ["## What is worth how much", "", *worth(sets), ""]
    text += ["## How many unlabelled images counted", "", *accepted_table(lines), ""]
    text += [
        "## Where we are more than 3 points off the paper",
        "",
        "In what we differ there, as far as is known; that it is the cause is shown only where it says so. In brackets "
        "ours less the paper's, and after the semicolon the same with the released choices (seed 1).",
        "",
        *reasons(lines, {**sets["released"], **sets["released_streaming"]}),
        "",
    ]
    text += ["## Other readings of the set-up", "", *variants(lines), *trained(sets)]
    return "\n".join([*text, *SETUP, *others(), *again(lines)]).rstrip() + "\n"


def others() -> list[str]:
    """Return when and where those runs were trained that have no table with a caption above."""
    shown = ("published", *VARIANTS, "trained", "trained_every_label", "trained_fedmatch")
    text = ["When and where the other sets were trained:", ""]
    for name in (name for name in SETS if name not in shown and ended(name)):
        text.append(f"- `{name}`, {SETS[name].about}: {where_and_when(ended(name).values())}")
    return [*text, ""]


def worth(sets: Sets) -> list[str]:
    """Return the differences between rows, in brackets the paper's."""
    rows = []
    for what, (one, other) in WORTH.items():
        cells = [str(found) for found in columns(sets, one, other)]
        for place, task in enumerate(TASKS):
            theirs = [paper_value(task, row) for name, row in (one, other) if name == "published"]
            if len(theirs) == 2 and theirs[0] and theirs[1] and theirs[0] != theirs[1]:
                cells[place] += f" ({theirs[0][0] - theirs[1][0]:+.2f})"
        rows.append([what, *cells])
    return [
        "One row less another, seed by seed, in points, and in brackets the paper's, where it prints both.",
        "",
        *table(["", *TITLES.values(), "Fashion-MNIST, global model"], rows),
    ]


def accepted_table(lines: Lines) -> list[str]:
    """Return the share of unlabelled images that counted, by row and task."""
    rows = []
    for row in POC:
        some = [shares(lines, task, row) for task in TASKS]
        if any(some):
            rows.append([row, *(f"{100 * fmean(one):.1f} ({len(one)})" if one else "·" for one in some)])
    return [
        "Percent of the unlabelled images that passed the threshold, the mean over a run (every tenth round) and over "
        "the seeds whose lines say so (how many: the first runs did not write it down).",
        "",
        *table(["", *TITLES.values()], rows),
    ]


def again(lines: Lines) -> list[str]:
    """Return how a cell is trained once more, and what came of it."""
    found = read("again")
    text = ["## Once more", "", "One cell anew:", "", "```bash", AGAIN, "```", ""]
    row, task = SETS["again"].rows[0], SETS["again"].tasks[0]
    if found:
        one, other = (cell(some, task, row) for some in (found, lines))
        equal = "seed by seed the same as above" if one == other else f"above {other}"
        text.append(f"{row}, {TITLES[task]}: {one}; {equal}.")
    return text


AGAIN = "rm docs/results/poc/again.jsonl\npython bench/poc.py again --workers 3 && python bench/poc_page.py"
SETUP = [
    "## The set-up",
    "",
    "`src/fedperl/paper/scales/full.toml`, tables `[poc...]`, and the methods' own files; the line of every run in "
    "[poc/](poc) has its settings, its date, device and seconds, validation accuracy every ten rounds, and its "
    "results.json. Fifteen runs of the first table and those of `five_steps` validated every round, which "
    "changes no number here.",
    "",
    "- CIFAR-10 (all 60,000; the copy used here had been through JPEG, so that its pixels differ slightly from the "
    "published archive's) and Fashion-MNIST (all 70,000) pooled, 90 % to train on; 100 clients, 5 a round, 200 rounds, "
    "or 10 clients, all in each of 100 rounds, with a tenth of their unlabelled images at a time. 50 labels a "
    "client, 5 a class.",
    "- 5 steps a round of 10 labelled and 98 (125) unlabelled images, SGD without momentum, 0.001, weight decay "
    "0.0001, labelled loss times 10; with every label, which do not stream, 54 (68) steps of 10 images, the loss times "
    "1.",
    "- ResNet-9 without batch norm; every method starts from 1.2 times the usual weights, as FedMatch's sigma + psi "
    "does.",
    "- Ours: a constant learning rate (FedMatch's falls when validation stalls), shuffled batches, FedPerl's strong "
    "views, FedPerl's peers from round 11 on, bfloat16 on the GPU. The seed draws weights, cohorts, batches and views; "
    "the split is the same for all.",
    "",
    "```bash",
    "fedperl data prepare cifar10 --out stores/cifar32 --size 32",
    "fedperl data prepare fashion_mnist --out stores/fmnist32 --size 32",
    "mv docs/results/poc aside          # what has a line is not trained again",
    "python bench/poc.py published       # and the other sets, by name; goes on where it stopped",
    "python bench/poc_page.py",
    "```",
    "",
]


def main() -> None:
    """Write the page, or check it."""

    def made() -> dict[Path, str]:
        check_settings()
        return {PAGE: page()}

    run_page(__doc__ or "", made)


if __name__ == "__main__":
    main()
