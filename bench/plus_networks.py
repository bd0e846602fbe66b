"""What the last models of both networks say of FedPerl+, on validation images: how they are handed out, how trained.

Running means, shares of clients' own models and orientations change no training, so every run that was followed
(bench/variants.py) tells what each is worth, whatever it was trained with.
"""

from collections.abc import Callable, Sized
from statistics import fmean

import numpy as np
import side_by_side
from plus import LINES
from side_by_side import Line, table
from skin_rows import Rows, apart, shown
from variants import Chosen, Variant, named

from fedperl.evaluate import Interval
from fedperl.federation.personal import SHARES

BASE, WITHOUT_PEERS = "FedPerl", "SSFL"


def read_rows(name: str) -> dict[str, dict[int, Line]]:
    """Return the lines of a suite by row and seed, less those that diverged."""
    found: dict[str, dict[int, Line]] = {}
    for run, line in side_by_side.read(LINES / f"{name}.jsonl").items():
        row, _, seed = run.rpartition(", seed ")
        if "failed" not in line:
            found.setdefault(row, {})[int(seed)] = line
    return found


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
    halves = [f"{who_takes_half(telling(looks))} ({NETWORKS[name]})" for name, looks in known.items()]
    text += [f"{HANDING_OUT} Half is taken {'; '.join(halves)}.", ""]
    for name, looks in known.items():
        text += [f"{NETWORKS[name]}:", "", *ways_table(looks), ""]
    text += [BOTH, "", *both_table(*known.values()), ""]
    return [*text, SEEDS, *(f"- {NETWORKS[name]}: {seeds_agree(looks)}" for name, looks in known.items()), ""]


def ways_table(looks: Rows) -> list[str]:
    """Return what each way to hand models out is worth beside the model as it is, the mean over runs that tell all."""
    cells, runs = [], [look for some in telling(looks).values() for look in some.values()]
    for way in WAYS:
        decay, share, count = way
        less = []
        for key in KEYS:
            pairs = [(handed_out(way, key)(look), handed_out(PLAIN, key)(look)) for look in runs]
            found = [fmean(one.values()) - fmean(other.values()) for one, other in pairs]
            better = sum(value < 0 if key == "ece" else value > 0 for value in found)
            less.append(f"{fmean(found):+.3f} ({better} of {len(runs)})" if runs else "·")
        own = "chosen" if share == "validation" else f"{share:g}" if share else "none"
        cells.append([f"{decay:g}" if decay else "none", own, str(count), *less])
    return table(["running mean", "own share", "orientations", *KEYS.values()], cells)


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


def who_takes_half(choosing: Rows) -> str:
    """Return in how many cases client 8, the clinical photographs, and the others take half of their own."""
    chosen = [chosen_shares(look, PLUS[0]) for some in choosing.values() for look in some.values()]
    outlier = [shares["8"] > 0 for shares in chosen if "8" in shares]
    others = [share > 0 for shares in chosen for client, share in shares.items() if client != "8"]
    return f"by client 8 in {sum(outlier)} of {len(outlier)} cases, by others in {sum(others)} of {len(others)}"


def both_gains(one: Rows, other: Rows) -> dict[str, list[Interval]]:
    """Return what each row that both networks have is worth on top of FedPerl, those first that gain on both."""
    names = [
        {row.removeprefix("together: "): row for row in looks if row not in (BASE, WITHOUT_PEERS)}
        for looks in (one, other)
    ]
    found = {}
    for row in names[0].keys() & names[1].keys():
        pair = [
            apart(looks, of[row], BASE, handed_out(HALF, "macro_f1"))
            for looks, of in zip((one, other), names, strict=True)
        ]
        found[row] = [gain for gain in pair if gain is not None]
    whole = {row: pair for row, pair in found.items() if len(pair) == 2}
    return dict(sorted(whole.items(), key=lambda item: (-min(gain.mean for gain in item[1]), item[0])))


def both_table(one: Rows, other: Rows) -> list[str]:
    """Return those gains as a table."""
    cells = [
        [row, *(f"{shown(gain)}{few_seeds(range(gain.seeds))}" for gain in pair)]
        for row, pair in both_gains(one, other).items()
    ]
    return table(["", *NETWORKS.values()], cells)


def seeds_agree(looks: Rows) -> str:
    """Return how far two seeds agree on which rows do well, in macro F1, and where FedPerl is among these rows."""
    macro, seeds = handed_out(HALF, "macro_f1"), sorted(looks[BASE])[:2]
    found = {
        name: [fmean(macro(some[seed]).values()) for seed in seeds]
        for name, some in looks.items()
        if some.keys() >= set(seeds)
    }
    first, second = np.array([*found.values()]).T
    apart_by = np.std(first - second) / np.sqrt(2)  # what seeds alone do to one run, without what they share
    place = sorted(found, key=lambda name: -fmean(found[name])).index(BASE) + 1
    return (
        f"{len(found)} rows, a correlation of {np.corrcoef(first, second)[0, 1]:.2f}; another seed is off by "
        f"{apart_by:.3f} (standard deviation), rows' means differ by {np.std((first + second) / 2):.3f}; {BASE} is at "
        f"place {place}."
    )


def worst_and_best(looks: Rows, row: str, variant: Variant | Chosen) -> list[str]:
    """Return weighted F1 of models that are handed out so less SSFL's as they are, of two clients: least and most."""
    f1, theirs = "weighted_f1", looks[WITHOUT_PEERS]
    seeds = [seed for seed in looks[row] if seed in theirs]
    pairs = [(handed_out(variant, f1)(looks[row][seed]), handed_out(PLAIN, f1)(theirs[seed])) for seed in seeds]
    found = {client: fmean(one[client] - other[client] for one, other in pairs) for client in pairs[0][0]}
    order = sorted(found, key=lambda client: found[client])
    return [f"{found[client]:+.3f} (client {client})" for client in (order[0], order[-1])]


PLAIN: Variant = (0.0, 0.0, 1)
HALF: Variant = (0.9, 0.5, 4)
"""A way to hand models out that all runs of the search tell."""
PLUS: Chosen = (0.9, "validation", 4)
"""How `fedperl_plus` hands models out where weak views flip."""
TRAINED_AS = "moments kept, label smoothing 0.1"
"""The row that trains as `fedperl_plus` does."""
WAYS: tuple[Variant | Chosen, ...] = (
    (0.0, 0.0, 4),
    (0.0, 0.5, 1),
    (0.9, 0.0, 1),
    (0.9, 0.0, 4),
    (0.9, 0.25, 4),
    HALF,
    PLUS,
)
"""Ways to hand models out that are compared, over the runs that also tell how clients would choose."""
KEYS = {"macro_f1": "macro F1", "weighted_f1": "weighted F1", "ece": "ECE"}
NETWORKS = {"alone": "EfficientNet-B0 at 112 px", "small_variants": "The small network at 48 px"}
LEARNT = (
    "Of the last models of both networks after 150 rounds, on validation images, where all of it was chosen, which "
    "flatters it. Handed out otherwise: with a running mean of 0.9, half of each client's own and four orientations, "
    "which all runs tell."
)
PEERS = "What peers are worth in macro F1, FedPerl less SSFL:"
HANDING_OUT = (
    "What each way to hand models out is worth beside the last model as it is: the mean over the runs that tell how "
    "clients would choose, whatever they were trained with, and in how many of them it is better. Chosen: each client "
    "takes half or nothing of its own, by the log loss of its validation images; these are the images that are "
    "counted, which flatters the choice, and all runs share them."
)
SEEDS = (
    "Whether two seeds agree on which rows do well, handed out otherwise. All rows share their seeds, split and images:"
)
BOTH = (
    "What each row that was trained with both networks is worth on top of FedPerl in macro F1, both handed out "
    "otherwise, by the smaller of the two gains. FedPerl+ trains as the first of them does, "
    f"`{TRAINED_AS}`: on neither network is it the first, and no interval of its own excludes 0."
)
