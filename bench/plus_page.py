"""Write docs/results/plus.md from the lines that bench/plus.py has left.

    python bench/plus_page.py [--check]

With `--check` nothing is written: it fails where the page is not what the lines give, or a line was trained with other
settings than its suite has now.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import side_by_side
from plus import DEVICES, LINES, jobs
from plus_carried import carried_section, carried_small_section
from plus_networks import (
    BASE,
    HALF,
    PLAIN,
    PLUS,
    WITHOUT_PEERS,
    few_seeds,
    followed,
    handed_out,
    learnt,
    mean_of,
    read_rows,
    telling,
)
from plus_report import report_section
from plus_why import in_short, why_section
from side_by_side import Line, check_lines, run_page, table, where_and_when
from skin_notes import numbered
from skin_rows import RARE, Rows, apart, course, shown

from fedperl.evaluate.classification import Classification, from_confusion

PAGE = LINES.parent / "plus.md"


def validated(
    metric: Callable[[Classification], float], of: str = "validation_confusion"
) -> Callable[[Line], dict[str, float]]:
    """Return what reads a number of a line's validation images by client, of each one's best model or the last."""
    return lambda line: {client: metric(from_confusion(np.array(one))) for client, one in line[of].items()}


def macro_f1(found: Classification) -> float:
    """Return macro F1 over the classes that are there."""
    return found.macro_f1


def weighted_f1(found: Classification) -> float:
    """Return weighted F1."""
    return found.weighted_f1


def rare_f1(line: Line) -> float:
    """Return the mean F1 of the rare classes, of the validation images of all clients together."""
    matrix = np.sum([np.array(one) for one in line["validation_confusion"].values()], axis=0)
    names = line["results"]["classes"]
    rare = [names.index(name) for name in RARE]
    return float(np.mean([2 * matrix[k, k] / max(1, matrix[k].sum() + matrix[:, k].sum()) for k in rare]))


def mean(rows: Rows, row: str, of: Callable[[Line], float | None]) -> str:
    """Return a number of a row, the mean over its seeds; a dot where a line has none."""
    found = [of(line) for line in rows.get(row, {}).values()]
    numbers = [one for one in found if one is not None]
    return f"{fmean(numbers):.3f}" if numbers and len(numbers) == len(found) else "·"


def accepted(line: Line) -> float | None:
    """Return the share of unlabelled images whose label counted, the mean over rounds; None where none has any."""
    return fmean(line["accepted"].values()) if line["accepted"] else None


def over_clients(of: Callable[[Line], dict[str, float]]) -> Callable[[Line], float]:
    """Return the mean over clients of what `of` reads."""
    return lambda line: fmean(of(line).values())


def worst(rows: Rows, row: str) -> str:
    """Return the client that loses most against SSFL, in weighted F1, the mean over the seeds that both have."""
    mine, theirs = rows.get(row, {}), rows.get(WITHOUT_PEERS, {})
    seeds = [seed for seed in mine if seed in theirs]
    if not seeds or row == WITHOUT_PEERS:
        return "·"
    pairs = [(validated(weighted_f1)(mine[seed]), validated(weighted_f1)(theirs[seed])) for seed in seeds]
    lost = {client: fmean(one[client] - other[client] for one, other in pairs) for client in pairs[0][0]}
    client = min(lost, key=lambda name: lost[name])
    return f"{lost[client]:+.3f} (client {client})"


def search_table(rows: Rows, names: list[str]) -> list[str]:
    """Return every option on validation images, the best first."""
    by_macro = over_clients(validated(macro_f1))
    known = [name for name in names if name in rows]
    known.sort(key=lambda name: -fmean(by_macro(line) for line in rows[name].values()))
    found = []
    for name in known:
        few = "" if len(rows[name]) > 1 else " (1 seed)"
        found.append(
            [
                name + few,
                mean(rows, name, by_macro),
                "" if name == BASE else shown(apart(rows, name, BASE, validated(macro_f1))),
                mean(rows, name, over_clients(validated(macro_f1, "last_validation_confusion"))),
                mean(rows, name, over_clients(validated(weighted_f1))),
                mean(rows, name, rare_f1),
                worst(rows, name),
                mean(rows, name, lambda line: fmean(line["validation_ece"].values())),
                mean(rows, name, accepted),
            ]
        )
    head = [
        "",
        "macro F1",
        f"less {BASE}",
        "macro F1, last model",
        "weighted F1",
        "rare classes",
        f"weighted F1 of the worst client less {WITHOUT_PEERS}",
        "ECE",
        "labelled",
    ]
    return table(head, found)


def label_table(rows: Rows, names: list[str]) -> list[str]:
    """Return what the pseudo labels of the last model are worth, of all clients' unlabelled images."""
    found = []
    for name in (name for name in names if name in rows):
        kinds = ("images", "above", "right", "said")
        counts = {kind: sum(np.array(line["pseudo"][kind]) for line in rows[name].values()) for kind in kinds}
        classes = next(iter(rows[name].values()))["results"]["classes"]
        few = [place for place, label in enumerate(classes) if label in RARE]
        every = {kind: int(np.sum(one)) for kind, one in counts.items()}
        rare = {kind: int(np.sum(np.asarray(one)[few])) for kind, one in counts.items()}
        shares = [every["above"] / every["images"], every["right"] / max(1, every["above"])]
        shares += [rare["above"] / rare["images"], rare["right"] / max(1, rare["above"])]
        shares.append(rare["right"] / max(1, rare["said"]))
        found.append([name, *(f"{share:.3f}" for share in shares)])
    head = [
        "",
        "labelled",
        "of them right",
        "of the rare ones labelled",
        "of them right",
        "of labels of rare classes right",
    ]
    return table(head, found)


def course_table(rows: Rows, names: list[str]) -> list[str]:
    """Return how validation macro F1 of what is handed out went over the rounds, the mean over clients and seeds."""
    found = {name: macro for name in names if (macro := course(rows, name, "macro_f1"))}
    after = sorted({round for macro in found.values() for round in macro})[1::2]
    cells = [
        [name, *(f"{macro[round]:.3f}" if round in macro else "·" for round in after)] for name, macro in found.items()
    ]
    return table(["validation macro F1 after round", *map(str, after)], cells) if cells else []


def falling_note(rows: Rows, names: list[str]) -> list[str]:
    """Return where macro F1 under a falling rate was highest and where it ended, beside FedPerl in these rounds."""
    told = []
    for name in (name for name in names if "falling rate" in name and name in rows):
        seeds = sorted(set(rows[name]) & set(rows.get(BASE, {})))
        both = {row: {seed: rows[row][seed] for seed in seeds} for row in (name, BASE)}
        macro, base = (course(both, row, "macro_f1") for row in (name, BASE))
        if not macro:
            continue
        best, its = (max(one, key=lambda round: one[round]) for one in (macro, base))
        last = max(macro)
        told.append(
            f"- {name} ({numbered(seeds)}): highest after round {best}, {macro[best]:.3f}, and {macro[last]:.3f} after "
            f"round {last}; {BASE}: highest after round {its}, {base[its]:.3f}, and {base[last]:.3f} after round "
            f"{last}."
        )
    return [*told, ""] if told else []


def handed_out_table(rows: Rows) -> list[str]:
    """Return what each option is worth when its last models are handed out otherwise, best first.

    With half of its own at every client, which all runs tell, and as FedPerl+ hands them out, which the later ones do.
    """
    looks = followed(rows)
    if len(looks) < 3:  # FedPerl and SSFL have a table of their own
        return []
    cells, choosing = [], telling(looks)
    for name in sorted(looks, key=lambda name: -mean_of(looks, name, HALF, "macro_f1")):
        less = "" if name == BASE else shown(apart(looks, name, BASE, handed_out(HALF, "macro_f1")))
        numbers = [f"{mean_of(looks, name, variant, 'macro_f1'):.3f}" for variant in (PLAIN, HALF)]
        chosen = ["·"] * 3
        if name in choosing:
            chosen = [f"{mean_of(choosing, name, PLUS, key):.3f}" for key in ("macro_f1", "weighted_f1", "ece")]
            chosen[0] += few_seeds(choosing[name]) if len(looks[name]) > 1 else ""
        cells.append([name + few_seeds(looks[name]), *numbers, less, *chosen])
    head = ["", "macro F1 as it is", "with half of one's own", f"the same less {BASE}'s", "handed out as FedPerl+"]
    return [HANDED_OUT, "", *table([*head, "weighted F1 of it", "ECE of it"], cells), ""]


def missing(name: str) -> list[str]:
    """Return the runs of a suite that have no line, by row."""
    there, seeds = side_by_side.read(LINES / f"{name}.jsonl"), dict[str, list[int]]()
    for run in jobs(name, Path(), DEVICES[name], [], []):
        if run not in there:
            row, _, seed = run.rpartition(", seed ")
            seeds.setdefault(row, []).append(int(seed))
    return [f"{row} ({numbered(some)})" for row, some in seeds.items()]


def pages() -> dict[Path, str]:
    """Return the page; none while nothing is trained."""
    made = [*in_short(), *report_section("report"), *why_section(), *carried_section(), *carried_small_section()]
    made += report_section("small_report")
    made += [*learnt(), *SEARCH]
    for name in HEADS:
        lines = side_by_side.read(LINES / f"{name}.jsonl")
        if not lines:
            continue
        planned = jobs(name, Path(), DEVICES[name], [], [])
        check_lines(name, lines, planned)
        rows = read_rows(name)
        names = list(dict.fromkeys(run.rpartition(", seed ")[0] for run in planned))
        made += [f"## {HEADS[name]}", "", *NOTES[name], where_and_when(lines.values()), ""]
        made += [*search_table(rows, names), ""]
        if went := course_table(rows, names):
            made += [*went, "", *falling_note(rows, names)]
        made += handed_out_table(rows)
        made += [LABELS, "", *label_table(rows, names), ""]
        if gaps := missing(name):
            made += [f"**Not trained yet:** {'; '.join(gaps)}.", ""]
    return {PAGE: "\n".join([*TOP, *made]).rstrip() + "\n"} if made != SEARCH else {}


LABELS = (
    f"What the last model's labels of the unlabelled images are worth, of the images themselves, without peers: the "
    f"share above tau and how many of those are right; the same of images of {', '.join(RARE)}; and how many of the "
    "labels of these classes are right. Where a running mean is handed out, the last model is that mean."
)
HANDED_OUT = (
    "Each option on top of FedPerl, its last models handed out with a running mean of 0.9 and four orientations: with "
    "half of its own at every client, and as `fedperl_plus` hands them out, where each client takes half or nothing of "
    "its own, by the log loss of its validation images, which the first runs do not tell. On validation images, the "
    "mean over clients and seeds, differences over the seeds that both have."
)
HEADS = {
    "alone": "Each option alone, and some together, on validation images",
    "falling": "A falling rate",
    "small": "A first look: a small network at 48 px, 150 rounds",
    "small_variants": "How the small network's models are handed out",
}
NOTES = {
    "alone": [
        "150 rounds, half of what [skin.md](skin.md) has. Labels, aggregation, batch norm, relations and "
        "communities beyond the paper have two seeds; some further settings have one, which is no verdict. The paper's "
        "policies are in [skin.md](skin.md). Of what was planned, the mean of logits, labels in eval mode, clients by "
        "size, FedProx, a falling rate from 0.001, standard strong views, twice the rate, and on top of moments and "
        "smoothing the unlabelled loss times 2, class-aware thresholds or running-average labels were left out for "
        "want of time. The peer that is recalibrated was trained anew: until then its statistics stayed at 0 and 1 on "
        "a GPU.",
        "",
    ],
    "falling": [
        "The rows that are named after it hand out a running mean, with a share of each client's own models, asked in "
        "eight orientations; their rate falls by half a cosine to nearly 0. One seed says where to look, nothing more.",
        "",
    ],
    "small_variants": [
        "As above, without the running mean in training's own numbers, and from a backbone that was trained again, on "
        "another processor: levels are not those above.",
        "",
    ],
    "small": [
        "Four convolutions from a backbone of CIFAR-10, on two cores (`bench/plus_small.toml`), the same split of the "
        "same lesions, judged on validation images. Every row hands out the running mean but the one that says so. "
        "What is seen here is where to look, not what holds for EfficientNet-B0.",
        "",
    ],
}
TOP = [
    "# FedPerl+",
    "",
    "Made by `python bench/plus_page.py` from the results of every run in [plus/](plus), on the benchmark of "
    "[skin.md](skin.md). The method that came of it is explained in [methods.md](../methods.md#fedperl).",
    "",
]
SEARCH = [
    "**The search is judged on validation images.** Each client's model is the one that was best on its validation "
    "images, and these are the same images: levels are too high, and more so where they swing from look to look. The "
    "last model's column is steadier. Labelled: the share of unlabelled images whose label counted, the mean over "
    "rounds.",
    "",
]


if __name__ == "__main__":
    run_page(__doc__ or "", pages)
