"""Write docs/results/plus.md from the lines that bench/plus.py has left.

    python bench/plus_page.py [--check]

With `--check` nothing is written: it fails where the page is not what the lines give, or a line was trained with other
settings than its suite has now.
"""

from collections.abc import Callable, Sized
from pathlib import Path
from statistics import fmean

import numpy as np
import side_by_side
from plus import DEVICES, LINES, jobs
from plus_report import carried_section, report_section
from side_by_side import Line, check_lines, run_page, table, where_and_when
from skin_notes import numbered
from skin_rows import RARE, Rows, apart, course, shown
from variants import Chosen, Variant, named, parsed

from fedperl.evaluate import Interval, paired_interval
from fedperl.evaluate.classification import Classification, from_confusion
from fedperl.federation.personal import SHARES

PAGE = LINES.parent / "plus.md"
BASE, WITHOUT_PEERS = "FedPerl", "SSFL"


def read_rows(name: str) -> dict[str, dict[int, Line]]:
    """Return the lines of a suite by row and seed, less those that diverged."""
    found: dict[str, dict[int, Line]] = {}
    for run, line in side_by_side.read(LINES / f"{name}.jsonl").items():
        row, _, seed = run.rpartition(", seed ")
        if "failed" not in line:
            found.setdefault(row, {})[int(seed)] = line
    return found


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


def moments_note(rows: Rows) -> list[str]:
    """Return how long training took with moments kept and without, where both were side by side on a GPU."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    beside = {line["side_by_side"] for line in rows.get("moments kept", {}).values() if line["device"] != "CPU"}
    for name, lines in rows.items():
        for line in lines.values():
            if line["side_by_side"] in beside:
                seconds["moments" in name].append(line["results"]["seconds"]["training"])
    if not all(seconds.values()):
        return []
    kept, plain = (f"{fmean(some):.0f} s" for some in seconds.values())
    return [
        f"Training took {kept} with moments kept and {plain} without, the mean of runs with as many side by side. In "
        "these runs the moments of each tensor travelled to the host and back by themselves in every round, which may "
        "be why. Now those of all tensors travel together, which was not timed yet.",
        "",
    ]


def variant_tables(rows: Rows) -> list[str]:
    """Return what FedPerl and SSFL are worth however their last models are handed out: macro F1, and by ECE."""
    text = []
    for name in (BASE, WITHOUT_PEERS):
        looks = [line["variants"]["last"] for line in rows.get(name, {}).values() if "variants" in line]
        if not looks:
            continue
        plain, known = named(PLAIN), [parsed(name) for name in looks[0] if all(name in look for look in looks)]
        counts = sorted({count for _, _, count in known})
        cells = []
        for decay, share in sorted({(decay, share) for decay, share, _ in known}):
            cells.append([f"{decay:g}" if decay else "none", f"{share:g}" if share else "none"])
            for count in counts:
                chosen = named((decay, share, count))
                macro, ece = (fmean(fmean(one[chosen][key].values()) for one in looks) for key in ("macro_f1", "ece"))
                pairs = [
                    [one[chosen]["macro_f1"][k] - one[plain]["macro_f1"][k] for k in one[plain]["macro_f1"]]
                    for one in looks
                ]
                less = "" if chosen == plain else f" {shown(paired_interval(pairs))}"
                cells[-1].append(f"{macro:.3f}{less}, ECE {ece:.3f}")
        head = ["running mean", "own share", *(f"{count} orientation{'s' * (count > 1)}" for count in counts)]
        text += [f"{name} ({len(looks)} seed{'s' if len(looks) > 1 else ''}):", "", *table(head, cells), ""]
    return [VARIANTS, "", *text] if text else []


def followed(rows: Rows) -> dict[str, dict[int, Line]]:
    """Return what is known of rows however their last models are handed out, by row and seed."""
    looks = {
        name: {seed: line["variants"]["last"] for seed, line in lines.items() if "variants" in line}
        for name, lines in rows.items()
    }
    return {name: some for name, some in looks.items() if some}


def handed_out(variant: Variant | Chosen, key: str) -> Callable[[Line], dict[str, float]]:
    """Return what reads a number by client of models that are handed out so."""
    decay, share, count = variant
    if share != "validation":
        return lambda look: look[named((decay, share, count))][key]

    def of_chosen(look: Line) -> dict[str, float]:
        shares = chosen_shares(look, decay)
        return {client: look[named((decay, one, count))][key][client] for client, one in shares.items()}

    return of_chosen


def chosen_shares(look: Line, decay: float) -> dict[str, float]:
    """Return the share of its own that each client takes: the one with the least log loss on its validation images."""
    losses = {share: look[named((decay, share, 1))]["nll"] for share in SHARES}
    return {client: min(SHARES, key=lambda share: losses[share][client]) for client in losses[SHARES[0]]}


def telling(looks: Rows) -> dict[str, dict[int, Line]]:
    """Return of what is known the part that tells how clients would choose: the first runs of the search do not."""
    known = {
        name: {seed: look for seed, look in some.items() if "nll" in next(iter(look.values()))}
        for name, some in looks.items()
    }
    return {name: some for name, some in known.items() if some}


def mean_of(looks: Rows, name: str, variant: Variant | Chosen, key: str) -> float:
    """Return a number of models that are handed out so, the mean over clients and seeds."""
    return fmean(fmean(handed_out(variant, key)(look).values()) for look in looks[name].values())


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


def few_seeds(some: Sized) -> str:
    """Return a remark where there is one seed."""
    return "" if len(some) > 1 else " (1 seed)"


def learnt() -> list[str]:
    """Return what the two networks say of FedPerl+; nothing while what it is made of is not trained on both."""
    known = {name: followed(read_rows(name)) for name in NETWORKS}
    if not all({BASE, WITHOUT_PEERS, TRAINED_AS} <= set(looks) for looks in known.values()):
        return []
    text = ["## What is known so far", "", LEARNT, ""]
    for name, looks in known.items():
        text += [f"{NETWORKS[name]}:", "", *parts_table(looks), ""]
    text += [PEERS, *(f"- {NETWORKS[name]}: {peers_worth(looks)}" for name, looks in known.items()), ""]
    told = [[NETWORKS[name], *choice_worth(telling(looks))] for name, looks in known.items()]
    halves = [f"{who_takes_half(telling(looks))} ({NETWORKS[name]})" for name, looks in known.items()]
    text += [
        f"{CHOOSING} Half is taken {'; '.join(halves)}.",
        "",
        *table(["", "runs", *(f"chosen less {what}" for what in FIXED)], told),
    ]
    return [*text, "", BOTH, "", *both_table(*known.values()), ""]


def parts_table(looks: Rows) -> list[str]:
    """Return FedPerl and SSFL as they are, FedPerl handed out otherwise, and trained as FedPerl+ besides."""
    parts = {
        "FedPerl as it is": (BASE, PLAIN),
        "SSFL as it is": (WITHOUT_PEERS, PLAIN),
        "FedPerl handed out otherwise": (BASE, HALF),
        "trained as FedPerl+, too": (TRAINED_AS, HALF),
    }
    known = {
        part: {seed: handed_out(v, "macro_f1")(look) for seed, look in looks[row].items()}
        for part, (row, v) in parts.items()
    }
    firsts, cells = list(parts)[:2], []
    for part, (row, variant) in parts.items():
        less = ["" if part in firsts else shown(apart(known, part, first, dict)) for first in firsts]
        numbers = [mean_of(looks, row, variant, key) for key in ("macro_f1", "weighted_f1", "ece")]
        far = ["", ""] if part in firsts else worst_and_best(looks, row, variant)
        cells.append([part + few_seeds(looks[row]), *(f"{number:.3f}" for number in numbers), *less, *far])
    head = ["", "macro F1", "weighted F1", "ECE", *(f"macro F1 less {first}" for first in firsts)]
    return table([*head, f"weighted F1 less {WITHOUT_PEERS}'s as it is, least", "most"], cells)


def peers_worth(looks: Rows) -> str:
    """Return FedPerl less SSFL in macro F1, as they are and handed out otherwise."""
    found = [shown(apart(looks, BASE, WITHOUT_PEERS, handed_out(variant, "macro_f1"))) for variant in (PLAIN, HALF)]
    return f"{found[0]} as they are, {found[1]} handed out otherwise."


def choice_worth(choosing: Rows) -> tuple[str, ...]:
    """Return how many runs tell, and what is better or worse by how much with a chosen share than with a fixed one."""
    runs, cells = [look for some in choosing.values() for look in some.values()], []
    for fixed in FIXED.values():
        less = []
        for key in ("macro_f1", "weighted_f1", "ece"):
            pairs = [(handed_out(PLUS, key)(look), handed_out(fixed, key)(look)) for look in runs]
            found = [fmean(one.values()) - fmean(other.values()) for one, other in pairs]
            better = sum(value < 0 if key == "ece" else value > 0 for value in found)
            less.append(f"{KEYS[key]} {fmean(found):+.3f} (better in {better})")
        cells.append(", ".join(less))
    return str(len(runs)), *cells


def who_takes_half(choosing: Rows) -> str:
    """Return in how many cases client 8, the clinical photographs, and the others take half of their own."""
    chosen = [chosen_shares(look, PLUS[0]) for some in choosing.values() for look in some.values()]
    outlier = [shares["8"] > 0 for shares in chosen if "8" in shares]
    others = [share > 0 for shares in chosen for client, share in shares.items() if client != "8"]
    return f"by client 8 in {sum(outlier)} of {len(outlier)} cases, by others in {sum(others)} of {len(others)}"


def both_gains(one: Rows, other: Rows) -> dict[str, list[Interval]]:
    """Return what each row that both networks have is worth on top of FedPerl, those first that gain on both."""
    found = {}
    for row in one:
        theirs = row.removeprefix("together: ")
        if row != BASE and theirs in other:
            pair = [
                apart(looks, name, BASE, handed_out(HALF, "macro_f1")) for looks, name in ((one, row), (other, theirs))
            ]
            found[theirs] = [gain for gain in pair if gain is not None]
    whole = {row: pair for row, pair in found.items() if len(pair) == 2}
    return dict(sorted(whole.items(), key=lambda item: -min(gain.mean for gain in item[1])))


def both_table(one: Rows, other: Rows) -> list[str]:
    """Return those gains as a table."""
    cells = [
        [row, *(f"{shown(gain)}{few_seeds(range(gain.seeds))}" for gain in pair)]
        for row, pair in both_gains(one, other).items()
    ]
    return table(["", *NETWORKS.values()], cells)


def worst_and_best(looks: Rows, row: str, variant: Variant | Chosen) -> list[str]:
    """Return weighted F1 of models that are handed out so less SSFL's as they are, of two clients: least and most."""
    f1, theirs = "weighted_f1", looks[WITHOUT_PEERS]
    seeds = [seed for seed in looks[row] if seed in theirs]
    pairs = [(handed_out(variant, f1)(looks[row][seed]), handed_out(PLAIN, f1)(theirs[seed])) for seed in seeds]
    found = {client: fmean(one[client] - other[client] for one, other in pairs) for client in pairs[0][0]}
    order = sorted(found, key=lambda client: found[client])
    return [f"{found[client]:+.3f} (client {client})" for client in (order[0], order[-1])]


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
    made = [*report_section("report"), *carried_section(), *report_section("small_report")]
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
        made += [*search_table(rows, names), "", *moments_note(rows)]
        if went := course_table(rows, names):
            made += [*went, "", *falling_note(rows, names)]
        made += [*variant_tables(rows), *handed_out_table(rows)]
        made += [LABELS, "", *label_table(rows, names), ""]
        if gaps := missing(name):
            made += [f"**Not trained yet:** {'; '.join(gaps)}.", ""]
    return {PAGE: "\n".join([*TOP, *made]).rstrip() + "\n"} if made != SEARCH else {}


LABELS = (
    f"What the last model's labels of the unlabelled images are worth, of the images themselves, without peers: the "
    f"share above tau and how many of those are right; the same of images of {', '.join(RARE)}; and how many of the "
    "labels of these classes are right. Where a running mean is handed out, the last model is that mean."
)
VARIANTS = (
    "Running means, shares of clients' own models and orientations change no training. Macro F1 of the last model on "
    "validation images with each, what it is more than that of the model as it is, and ECE; the mean over clients and "
    "seeds. All are compared with one and the same model: a star by itself says little."
)
PLAIN: Variant = (0.0, 0.0, 1)
HALF: Variant = (0.9, 0.5, 4)
"""A way to hand models out that all runs of the search tell."""
PLUS: Chosen = (0.9, "validation", 4)
"""How `fedperl_plus` hands models out where weak views flip."""
TRAINED_AS = "moments kept, label smoothing 0.1"
"""The row that trains as `fedperl_plus` does."""
FIXED: dict[str, Variant] = {"half at every client": HALF, "nothing": (0.9, 0.0, 4)}
"""Shares of their own that clients take without a choice."""
KEYS = {"macro_f1": "macro F1", "weighted_f1": "weighted F1", "ece": "ECE"}
NETWORKS = {"alone": "EfficientNet-B0 at 112 px", "small_variants": "The small network at 48 px"}
LEARNT = (
    "Of the last models of both networks after 150 rounds, on validation images, where all of it was chosen, which "
    "flatters it. Handed out otherwise: with a running mean of 0.9, half of each client's own and four orientations, "
    "which all runs tell. On test images FedPerl+ is not trained with EfficientNet-B0."
)
PEERS = "What peers are worth in macro F1, FedPerl less SSFL:"
CHOOSING = (
    "What it is worth that each client takes half or nothing of its own, by the log loss of its validation images, in "
    "place of a share that is the same for all: the mean over the runs that tell, whatever they were trained with, and "
    "in how many of them it is better. The images that choose are those that are counted, which flatters the choice."
)
BOTH = (
    "What each row that was trained with both networks is worth on top of FedPerl in macro F1, both handed out "
    "otherwise, by the smaller of the two gains. FedPerl+ trains as the first of them does, "
    f"`{TRAINED_AS}`: not as what does best with one network alone."
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
        "150 rounds, half of what [skin.md](skin.md) has. Rows were trained in the order of what was hoped for from "
        "them, some with a second seed: one seed is no verdict.",
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
