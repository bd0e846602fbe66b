"""Write docs/results/skin.md and docs/results/claims.md from the lines that bench/skin.py has left.

    python bench/skin_page.py [--check]

With `--check` nothing is written: it fails where a page is not what the lines give, or a line was trained with other
settings than its group has now.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from side_by_side import Line, check_lines, run_page, table, where_and_when
from skin import CHOICE, GROUPS, LINES, SCALE, jobs, read

from fedperl.errors import ConfigError
from fedperl.evaluate import Interval, paired_interval
from fedperl.paper.printed import printed
from fedperl.paper.runs import find_scale

PAGE, CLAIMS = LINES.parent / "skin.md", LINES.parent / "claims.md"
OUTLIER = str(find_scale(str(SCALE)).outlier)
ISIC, HAM = tuple("01234"), tuple("567")
OTHERS = (*ISIC, *HAM)
WITHOUT = "without outlier: "
RARE = ("AK", "DF", "VASC", "SCC")
MARGIN = 0.01
"""What counts as no difference, in F1."""
METRICS = {
    "weighted F1": "weighted_f1",
    "macro F1": "macro_f1",
    "balanced accuracy": "balanced_accuracy",
    "AUROC": "macro_auroc",
    "ECE": "ece",
    "MCE": "mce",
    "AURC": "aurc",
}
READING = "argmax_then_group"
BASE = "SSFL"
UNDECIDED, HOLDS, DOES_NOT = "undecided", "**holds**", "**does not**"

Rows = Mapping[str, Mapping[int, Line]]
"""Lines by row and seed."""


def read_rows() -> dict[str, dict[int, Line]]:
    """Return the lines of every group but the one that chose the learning rate."""
    found: dict[str, dict[int, Line]] = {}
    for name in (name for name in GROUPS if name != "rates"):
        for run, line in read(name).items():
            row, _, seed = run.rpartition(", seed ")
            found.setdefault(row, {})[int(seed)] = line
    return found


def tested(line: Line) -> dict[str, dict[str, float]]:
    """Return the numbers of each client's best model by client."""
    found: dict[str, dict[str, float]] = line["results"]["test"][CHOICE]
    return found


def by_client(metric: str) -> Callable[[Line], dict[str, float]]:
    """Return what reads a metric of a line by client."""
    return lambda line: {client: numbers[metric] for client, numbers in tested(line).items()}


def by_class(line: Line) -> dict[str, float]:
    """Return F1 by class, of the images of all clients together; none where a class has no image."""
    matrix = np.sum([np.array(one) for one in line["confusion"].values()], axis=0)  # rows: the truth
    names = line["results"]["classes"]
    right, there, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return {names[k]: 2 * right[k] / (there[k] + said[k]) for k in range(len(names)) if there[k]}


def unseen(metric: str) -> Callable[[Line], dict[str, float]]:
    """Return what reads a metric of the client that was kept out: malignant where the likeliest class is."""
    return lambda line: {OUTLIER: line["unseen"]["malignancy"][READING][metric]} if "unseen" in line else {}


def apart(
    rows: Rows, one: str, other: str, of: Callable[[Line], Mapping[str, float]], only: Collection[str] = ()
) -> Interval | None:
    """Return one row less another over the seeds and clients (or classes) that both have; None where there are none."""
    seeds = [seed for seed in rows.get(one, {}) if seed in rows.get(other, {})]
    if not seeds:
        return None
    pairs = [(of(rows[one][seed]), of(rows[other][seed])) for seed in seeds]
    names = [name for name in pairs[0][0] if all(name in each for pair in pairs for each in pair)]
    names = [name for name in names if not only or name in only]
    if not names:
        return None
    return paired_interval([[mine[name] - theirs[name] for name in names] for mine, theirs in pairs])


def shown(found: Interval | None) -> str:
    """Return a difference with its interval; * where that excludes 0."""
    if found is None:
        return "·"
    if found.low is None or found.high is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]{'*' if found.excludes_zero else ''}"


def better(found: Interval | None) -> str:
    """Return whether one is above another: not where the interval lies below 0, or ends before MARGIN."""
    if found is None or found.low is None or found.high is None:
        return UNDECIDED
    if found.low > 0:
        return HOLDS
    return DOES_NOT if found.high < MARGIN else UNDECIDED


def no_worse(found: Interval | None) -> str:
    """Return whether one is not below another: by MARGIN at most, at the interval's lower end."""
    if found is None or found.low is None or found.high is None:
        return UNDECIDED
    if found.low > -MARGIN:
        return HOLDS
    return DOES_NOT if found.high < 0 else UNDECIDED


def same(found: Interval | None) -> str:
    """Return whether there is no difference beyond MARGIN either way."""
    if found is None or found.low is None or found.high is None:
        return UNDECIDED
    if found.low > -MARGIN and found.high < MARGIN:
        return HOLDS
    return DOES_NOT if found.low > MARGIN or found.high < -MARGIN else UNDECIDED


@dataclass(frozen=True)
class Comparison:
    """One row less another."""

    about: str
    find: Callable[[Rows], Interval | None]
    paper: float | None
    """What the paper reports, the same way round."""


@dataclass(frozen=True)
class Claim:
    """What the paper claims, and the comparisons that say whether it holds here; all must, but `also`."""

    says: str
    comparisons: tuple[Comparison, ...]
    verdict: Callable[[Interval | None], str] = better
    also: tuple[Comparison, ...] = ()


def f1_of(row: str) -> float | None:
    """Return the F1 that the paper prints of a row, the mean over its ten clients."""
    for artefact, column, unit in (
        ("table2", "f1", 1),
        ("random_peers", "f1", 1),
        ("table8", "f1", 1),
        ("table10", "avg", 1),
        ("figure8", "f1", 100),
    ):
        found = printed(artefact).get(row, {}).get(column)
        if isinstance(found, list):
            return float(found[0])
        if isinstance(found, int | float):
            return float(found) / unit
    return None


def more_f1(one: str, other: str) -> Comparison:
    """Return the comparison of two rows' weighted F1."""
    mine, theirs = f1_of(one), f1_of(other)
    paper = None if mine is None or theirs is None else mine - theirs
    find = lambda rows: apart(rows, one, other, by_client("weighted_f1"))  # noqa: E731
    return Comparison(f"weighted F1, {one} less {other}", find, paper)


def cell_of(artefact: str, row: str, column: str) -> float:
    """Return a number that the paper prints."""
    found = printed(artefact)[row][column]
    return float(found[0] if isinstance(found, list) else found)


def less_harm(row: str, other: str) -> Comparison:
    """Return by how much less the other clients lose by the outlier's part in training, in one row than in another."""

    def find(rows: Rows) -> Interval | None:
        four = [rows.get(name, {}) for name in (WITHOUT + other, other, WITHOUT + row, row)]
        found = []
        for seed in (seed for seed in four[0] if all(seed in lines for lines in four)):
            values = [by_client("weighted_f1")(lines[seed]) for lines in four]
            found.append([values[0][c] - values[1][c] - (values[2][c] - values[3][c]) for c in OTHERS])
        return paired_interval(found) if found else None

    paper = paper_gain(other) - paper_gain(row)
    return Comparison(f"what client {OUTLIER} costs the others, {other} less {row}", find, paper)


def paper_gain(row: str) -> float:
    """Return what the paper's other nine clients gain when the outlier takes no part in training."""
    return cell_of("table4", row, "without_8") - fmean(cell_of("table4", row, client) for client in "012345679")


def rare(line: Line) -> dict[str, float]:
    """Return the mean F1 of the rarest classes."""
    return {"rare": fmean(by_class(line)[name] for name in RARE)}


def lead(line: Line) -> dict[str, float]:
    """Return how far the rarest classes are above the others."""
    return {"lead": rare(line)["rare"] - fmean(f1 for name, f1 in by_class(line).items() if name not in RARE)}


def rare_classes(row: str, other: str, *, more: bool = False) -> Comparison:
    """Return the gain of the rarest classes, or by how much more than the others they gain."""
    gains = {name: cell_of("table5", row, name) - cell_of("table5", other, name) for name in printed("table5")[row]}
    paper = fmean(gains[name] for name in RARE)
    if more:
        paper -= fmean(gain for name, gain in gains.items() if name not in RARE)
    about = f"F1 of {', '.join(RARE)}{' less that of the other classes' if more else ''}, {row} less {other}"
    return Comparison(about, lambda rows: apart(rows, row, other, lead if more else rare), paper)


def less_error(row: str, other: str, metric: str) -> Comparison:
    """Return the comparison of a calibration error, the other's less the row's, so that above 0 is better."""
    paper = cell_of("figure9", other, metric) - cell_of("figure9", row, metric)
    find = lambda rows: apart(rows, other, row, by_client(metric))  # noqa: E731
    return Comparison(f"{metric.upper()}, {other} less {row}", find, paper)


def on_unseen(row: str, other: str) -> Comparison:
    """Return the comparison of malignant F1 on the client that was kept out of training."""
    paper = cell_of("table9", row, "malignant_f1") - cell_of("table9", other, "malignant_f1")
    names = [WITHOUT + name for name in (row, other)]
    find = lambda rows: apart(rows, names[0], names[1], unseen("malignant_f1"))  # noqa: E731
    return Comparison(f"malignant F1 of the unseen client, {row} less {other}", find, paper)


FEDPERL, GATED = "FedPerl T=2", "gated similarity 95"
ALL_CLAIMS = (
    Claim(
        "Federated training beats training alone.",
        (more_f1("Lower", "Local lower"), more_f1(BASE, "Local FixMatch"), more_f1("Upper", "Local upper")),
    ),
    Claim("Unlabelled images help (SSFL beats the lower bound).", (more_f1(BASE, "Lower"),)),
    Claim("Peers help (FedPerl beats SSFL).", (more_f1(FEDPERL, BASE),), also=(more_f1("FedPerl raw T=2", BASE),)),
    Claim("Similar peers beat random ones.", (more_f1(FEDPERL, "Random peers"),)),
    Claim(
        "Anonymization costs nothing.",
        (more_f1(FEDPERL, "FedPerl raw T=2"),),
        no_worse,
        (more_f1("FedMatch+", "FedMatch"),),
    ),
    Claim(
        "How many peers hardly matters.",
        tuple(more_f1(row, FEDPERL) for row in ("FedPerl raw T=1", "FedPerl T=3", "FedPerl T=4", "FedPerl T=5")),
        same,
    ),
    Claim(
        f"A gate helps the client that is unlike all others, {OUTLIER}.",
        (
            Comparison(
                f"weighted F1 of client {OUTLIER}, {GATED} less {FEDPERL}",
                lambda rows: apart(rows, GATED, FEDPERL, by_client("weighted_f1"), (OUTLIER,)),
                cell_of("table10", GATED, OUTLIER) - cell_of("table10", FEDPERL, OUTLIER),
            ),
        ),
        also=(more_f1(GATED, FEDPERL),),
    ),
    Claim(
        f"Client {OUTLIER} harms the others least under FedPerl.",
        tuple(less_harm(FEDPERL, other) for other in (BASE, "Lower", "FedMatch+", "Upper")),
    ),
    Claim(
        "Rare classes gain most.",
        (rare_classes(FEDPERL, BASE, more=True),),
        also=(rare_classes(FEDPERL, BASE), rare_classes(BASE, "Lower", more=True), rare_classes(BASE, "Lower")),
    ),
    Claim(
        "FedPerl is better calibrated.", (less_error(FEDPERL, BASE, "ece"),), also=(less_error(FEDPERL, BASE, "mce"),)
    ),
    Claim(
        "FedPerl is better on a client that no model saw.",
        (on_unseen(FEDPERL, BASE),),
        also=(on_unseen(FEDPERL, "Lower"), on_unseen(FEDPERL, "Upper")),
    ),
    Claim(
        "With few labelled clients FedPerl is on par with FedIRM.",
        (more_f1("few: FedPerl 30%", "few: FedIRM 30%"),),
        no_worse,
    ),
    Claim("Where no client has labels, FedPerl beats SSFL too.", (more_f1(f"server: {FEDPERL}", f"server: {BASE}"),)),
)


def verdict(claim: Claim, rows: Rows) -> str:
    """Return what all its comparisons say: it holds where each does, and does not where one does not."""
    found = [one.find(rows) for one in claim.comparisons]
    said = [claim.verdict(one) for one in found]
    one = DOES_NOT if DOES_NOT in said else UNDECIDED if UNDECIDED in said else HOLDS
    return f"{one}, one seed" if one != UNDECIDED and any(each and each.seeds == 1 for each in found) else one


def seeds_of(rows: Rows, name: str) -> str:
    """Return how many seeds a row has, where not three."""
    count = len(rows[name])
    return "" if count == 3 else f" ({count} seed{'s' if count > 1 else ''})"


def over_clients(rows: Rows, name: str, metric: str, only: Collection[str] = ()) -> float:
    """Return the mean over seeds and clients."""
    found = [by_client(metric)(line) for line in rows[name].values()]
    return fmean(fmean(v for client, v in values.items() if not only or client in only) for values in found)


def main_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return all metrics of some rows, beside the paper's F1."""
    cells = []
    for name in (name for name in names if name in rows and not name.startswith(WITHOUT)):
        paper = f1_of(name)
        numbers = [f"{over_clients(rows, name, metric):.3f}" for metric in METRICS.values()]
        less = "" if name == BASE else shown(apart(rows, name, BASE, by_client("weighted_f1")))
        less_macro = "" if name == BASE else shown(apart(rows, name, BASE, by_client("macro_f1")))
        label = name + seeds_of(rows, name)
        cells.append([label, *numbers, "·" if paper is None else f"{paper:.3f}", less, less_macro])
    head = ["", *METRICS, "paper's F1", f"weighted F1 less {BASE}'s", f"macro F1 less {BASE}'s"]
    return table(head, cells)


def client_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return weighted F1 by client and community."""
    columns = {**{client: (client,) for client in (*OTHERS, OUTLIER)}, "0 to 4": ISIC, "5 to 7": HAM}
    cells = []
    for name in (name for name in names if name in rows):
        there = set(tested(next(iter(rows[name].values()))))
        cells.append(
            [
                name + seeds_of(rows, name),
                *(
                    f"{over_clients(rows, name, 'weighted_f1', only):.3f}" if there & set(only) else "·"
                    for only in columns.values()
                ),
            ]
        )
    return table(["weighted F1 of client", *columns], cells)


def class_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return F1 by class over the images of all clients."""
    known = [name for name in names if name in rows and not name.startswith(WITHOUT)]
    if not known:
        return []
    classes = rows[known[0]][min(rows[known[0]])]["results"]["classes"]
    cells = []
    for name in known:
        found = [by_class(line) for line in rows[name].values()]
        numbers = [[one[label] for one in found if label in one] for label in classes]
        cells.append([name + seeds_of(rows, name), *(f"{fmean(some):.3f}" if some else "·" for some in numbers)])
    return table(["F1 of class", *classes], cells)


def helper_table(rows: Rows, name: str) -> list[str]:
    """Return who helped whom, in percent of the helpers a client had, and how often one of its own community."""
    lines = rows.get(name, {})
    clients = (*OTHERS, OUTLIER)
    counts = {
        (a, b): sum(line["helped"].get(f"{a} {b}", 0) for line in lines.values()) for a in clients for b in clients
    }
    cells = []
    for helped in clients:
        total = sum(counts[a, helped] for a in clients)
        own = next((group for group in (ISIC, HAM) if helped in group), (OUTLIER,))
        inside = sum(counts[a, helped] for a in own)
        share = [f"{100 * counts[a, helped] / total:.0f}" if total else "·" for a in clients]
        cells.append([f"client {helped}", *share, f"{100 * inside / total:.0f}" if total else "·"])
    return table(["was helped by", *clients, "own community"], cells)


def with_peers(rows: Rows, name: str) -> dict[int, float]:
    """Return the share of client-rounds with 0, 1 and more peers, where peers could help; nothing without peers."""
    counts = Counter[int]()
    for line in rows.get(name, {}).values():
        counts.update({int(size): count for size, count in line["results"]["totals"]["peers"].items()})
    return {size: count / counts.total() for size, count in sorted(counts.items())}


def peers_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return how many peers clients had, where peers could help."""
    known = [name for name in names if not name.startswith(WITHOUT)]
    found = {name: shares for name in known if (shares := with_peers(rows, name))}
    sizes = sorted({size for shares in found.values() for size in shares})
    cells = [[name, *(f"{100 * shares.get(size, 0):.0f}" for size in sizes)] for name, shares in found.items()]
    return table(["percent of client-rounds with so many peers", *map(str, sizes)], cells)


def gate_note(rows: Rows) -> list[str]:
    """Return what is to be known of the gate of claim 7."""
    if (shut := with_peers(rows, GATED).get(0)) is None:
        return []
    told = f"- The gate of {GATED} stayed shut in {100 * shut:.0f} % of the client-rounds in which peers could help"
    return [f"{told}: {f'{GATED} is {BASE}, to the digit' if shut == 1 else 'there it is ' + BASE}.", ""]


def outlier_table(rows: Rows) -> list[str]:
    """Return the other clients' F1 where the outlier takes part in training, and where not."""
    cells = []
    for row in (name.removeprefix(WITHOUT) for name in rows if name.startswith(WITHOUT)):
        if row in rows:
            levels = [f"{over_clients(rows, name, 'weighted_f1', OTHERS):.3f}" for name in (row, WITHOUT + row)]
            gain = apart(rows, WITHOUT + row, row, by_client("weighted_f1"), OTHERS)
            cells.append([row + seeds_of(rows, WITHOUT + row), *levels, shown(gain), f"{paper_gain(row):+.3f}"])
    return table(["weighted F1 of clients 0 to 7", "with client 8", "without", "gain", "paper's gain"], cells)


def unseen_table(rows: Rows) -> list[str]:
    """Return what models that never saw client 8's data set say of it."""
    cells = []
    for name, lines in rows.items():
        if some := [line["unseen"]["malignancy"] for line in lines.values() if "unseen" in line]:
            row = name.removeprefix(WITHOUT)
            their = printed("table9").get(row, {})
            numbers = [f"{fmean(one[READING][key] for one in some):.3f}" for key in UNSEEN_METRICS.values()]
            numbers.append(f"{fmean(one['auroc'] for one in some):.3f}")
            numbers.append(str(next(line["unseen"]["images"] for line in lines.values() if "unseen" in line)))
            cells.append([row + seeds_of(rows, name), *numbers, f"{their['malignant_f1']:.3f}" if their else "·"])
    return table(["", *UNSEEN_METRICS, "AUROC", "images", "paper's malignant F1, on ISIC20"], cells)


UNSEEN_METRICS = {
    "malignant F1": "malignant_f1",
    "malignant precision": "malignant_precision",
    "malignant recall": "malignant_recall",
    "benign F1": "benign_f1",
}


def missing() -> list[str]:
    """Return what is not trained yet, by group."""
    found = []
    for name, group in GROUPS.items():
        lines = read(name)
        for row in group.rows:
            for rate in group.rates or (None,):
                title = row if rate is None else f"{row}, lr {rate:g}"
                seeds = [str(seed) for seed in group.seeds if f"{title}, seed {seed}" not in lines]
                if seeds:
                    found.append(f"{title} (seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)})")
    return found


def rates_table() -> list[str]:
    """Return validation accuracy by learning rate."""
    group, lines = GROUPS["rates"], read("rates")
    (seed,) = group.seeds
    cells = []
    for row in group.rows:
        found = [lines.get(f"{row}, lr {rate:g}, seed {seed}") for rate in group.rates]
        accuracy = [line and line["results"]["validation"][CHOICE]["accuracy"] for line in found]
        cells.append([row, *("·" if value is None else f"{value:.3f}" for value in accuracy)])
    return table(["validation accuracy by learning rate", *(f"{rate:g}" for rate in group.rates)], cells)


def every_line() -> list[Line]:
    """Return the lines of all groups."""
    return [line for name in GROUPS for line in read(name).values()]


def skin_page(rows: Rows) -> str:
    """Return the page of all numbers."""
    rest = [name for group, chosen in GROUPS.items() if group not in ("rates", "core") for name in chosen.rows]
    core = GROUPS["core"].rows
    everyone = (*core, *rest)
    text = [
        "# The paper's experiments on real lesions",
        "",
        f"{find_scale(str(SCALE)).about} Made by `python bench/skin_page.py` from the results of every run in "
        "[skin/](skin); the claims one by one are in [claims.md](claims.md).",
        "",
    ]
    text += [where_and_when(every_line()), ""]
    if gaps := missing():
        text += [f"**Not trained yet:** {'; '.join(gaps)}.", ""]
    if rows:
        text += ["## All clients", "", *NOTES, "", *main_table(rows, core), ""]
        if any(name in rows for name in rest):
            text += [*main_table(rows, rest), ""]
        text += ["## Clients", "", *client_table(rows, everyone), ""]
        text += ["## Classes", "", "Of the test images of all clients together.", "", *class_table(rows, everyone), ""]
    if FEDPERL in rows:
        text += ["## Who helped whom", "", f"{FEDPERL}, percent of the helpers that a client had, all seeds.", ""]
        text += [*helper_table(rows, FEDPERL), "", *peers_table(rows, everyone), ""]
    if any(name.startswith(WITHOUT) for name in rows):
        text += ["## What the client unlike all others costs", "", *outlier_table(rows), ""]
        text += ["## A client that no model saw", "", UNSEEN_NOTE, "", *unseen_table(rows), ""]
    return "\n".join([*text, "## Set-up", "", *SETUP, *backbone(), *CHOICES, "", *rates_table(), "", *COMMANDS]) + "\n"


def backbone() -> list[str]:
    """Return what the networks started from.

    Raises:
        ConfigError: not all from the same.
    """
    found = {tuple(line["backbone"].values()) for line in every_line() if "backbone" in line}
    if len(found) != 1:
        raise ConfigError(f"the runs started from {len(found)} backbones; wanted one")
    ((trained, size, accuracy, images),) = found
    return [
        f"- EfficientNet-B0 at 112 px, from a backbone {trained} at {size} px, which has {100 * float(accuracy):.1f} % "
        f"of {images} others right; the paper's began at ImageNet."
    ]


NOTES = [
    "Mean over clients and seeds 1 to 3 where nothing else is said, each client with the model that was best on its "
    "validation images. Differences are paired by client and seed, with an interval of 95 % over clients and seeds "
    "(over clients alone with one seed); * excludes 0, which one in twenty does by chance. The paper's F1 is the mean "
    "of its ten clients, on other splits, from ImageNet weights, at 224 px and after 500 rounds: levels cannot be "
    "compared, and differences between rows with care.",
]
UNSEEN_NOTE = (
    "Models that were trained without client 8, on the images of PAD-UFES-20: photographs of another clinic, by other "
    "cameras, where the paper has ISIC 2020. Malignant: where the likeliest class is MEL, BCC, AK or SCC."
)
SETUP = [
    "`bench/skin.toml` describes it. The images of HAM10000 are in ISIC 2019 too: clients 0 to 4 and 5 to 7 share them "
    "out, no lesion is with two clients, and both communities hold images of the same cameras. Of ISIC 2019 and "
    "PAD-UFES-20 not every image is at hand. Derm7pt, the paper's client 9, is not; with few labelled clients, 1 and 8 "
    "have labels.",
    "",
]
CHOICES = [
    "- 300 rounds of 3 clients, 26 steps each; validation every fifth round. Best models are chosen on validation "
    "images, and so is the learning rate, by the mean of two rows with seed 1:",
]
COMMANDS = [
    "```bash",
    "fedperl data prepare isic2019 ham10000 pad_ufes20 --out stores/skin112 --size 112 --allow-missing",
    "fedperl data prepare cifar10 --out stores/cifar32 --size 32",
    "fedperl pretrain stores/cifar32 --size 112 --epochs 10 --device cuda --out stores/backbone.safetensors",
    "python bench/skin.py rates && python bench/skin.py core   # each goes on where it stopped",
    "python bench/skin_page.py",
    "```",
]


def claims_page(rows: Rows) -> str:
    """Return the page of claims."""
    cells = []
    for number, claim in enumerate(ALL_CLAIMS, start=1):
        for place, one in enumerate(claim.comparisons + claim.also):
            first = [f"{number}. {claim.says}", verdict(claim, rows)] if not place else ["", ""]
            aside = "also: " if one in claim.also else ""
            paper = "·" if one.paper is None else f"{one.paper:+.3f}"
            cells.append([first[0], aside + one.about, paper, shown(one.find(rows)), first[1]])
    return (
        "\n".join(
            [
                "# The paper's claims on real lesions",
                "",
                "Made by `python bench/skin_page.py` from the runs of [skin.md](skin.md), which says how they were "
                "trained and how this differs from the paper.",
                "",
                *table(["claim", "comparison", "paper", "ours [95 %]", "verdict"], cells),
                "",
                *gate_note(rows),
                "Ours: the mean over clients and seeds, paired, with an interval of 95 % over both; over clients "
                "alone with one seed, which says nothing of other seeds, and over seeds alone of one client and of "
                "classes, whose F1 is that of all clients' images together (the paper's seems to be a mean over "
                "clients). `·`: not trained yet. Differences are in F1 or as named.",
                "",
                "- A claim that one is better **holds** where the whole interval is above 0, and **does not** where it "
                f"lies below 0, or reaches 0 and ends before {MARGIN:.2f}.",
                f"- A claim that something costs nothing holds where the interval begins above -{MARGIN:.2f}, and does "
                "not where it begins below and ends before 0.",
                f"- A claim that something hardly matters holds where the interval is within ±{MARGIN:.2f}, and does "
                "not where it is outside altogether.",
                "- Everything else is undecided. A claim with several comparisons holds where all do, and does not "
                "where one does not; those marked `also` have no say. A single number has no interval, and decides "
                "nothing.",
            ]
        )
        + "\n"
    )


def pages() -> dict[Path, str]:
    """Return both pages; none while nothing is trained."""
    if not every_line():
        return {}
    for name in GROUPS:
        lines: Mapping[str, Line] = read(name)
        if lines:
            check_lines(name, lines, jobs(name, Path(), "cuda", [], []))
    rows = read_rows()
    return {PAGE: skin_page(rows), CLAIMS: claims_page(rows)}


if __name__ == "__main__":
    run_page(__doc__ or "", pages)
