"""Write docs/results/skin.md and docs/results/claims.md from the lines that bench/skin.py has left.

    python bench/skin_page.py [--check]

With `--check` nothing is written: it fails where a page is not what the lines give, or a line was trained with other
settings than its group has now.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from side_by_side import Line, check_lines, run_page, table, where_and_when
from skin import CHOICE, GROUPS, LINES, SCALE, chosen_rate, jobs, own_lines, read
from skin_claims import claims_page
from skin_few import small_section
from skin_notes import (
    CHOICE_NOTE,
    COURSE_NOTE,
    FEW_NOTE,
    FINDING_NOTE,
    GUARD_NOTE,
    NOTES,
    SETUP,
    UNSEEN_NOTE,
    alone_note,
    collapsed,
    fell,
    gates_note,
    irm_note,
    poor_note,
    steady_note,
    unseen_note,
)
from skin_rows import (
    BASE,
    CHANCE,
    CHOICES,
    FEDPERL,
    HAM,
    ISIC,
    OTHERS,
    OUTLIER,
    READING,
    WITHOUT,
    Rows,
    apart,
    by_class,
    by_client,
    course,
    f1_of,
    matrix_of,
    never_open,
    over_clients,
    paper_gain,
    read_rows,
    seeds_of,
    sensitivity,
    shown,
    tested,
    under,
    with_peers,
)
from skin_split import PARTS

from fedperl.errors import ConfigError
from fedperl.paper.runs import find_scale, paper_runs

PAGE, CLAIMS = LINES.parent / "skin.md", LINES.parent / "claims.md"
METRICS = {
    "weighted F1": "weighted_f1",
    "macro F1": "macro_f1",
    "balanced accuracy": "balanced_accuracy",
    "AUROC": "macro_auroc",
    "ECE": "ece",
    "MCE": "mce",
    "AURC": "aurc",
}


def main_table(rows: Rows, names: Iterable[str], base: str = BASE) -> list[str]:
    """Return all metrics of some rows, beside the paper's F1, and what they are more than one of them."""
    cells = []
    for name in (name for name in names if name in rows and not name.startswith(WITHOUT)):
        paper = f1_of(name)
        numbers = [f"{over_clients(rows, name, metric):.3f}" for metric in METRICS.values()]
        less = "" if name == base else shown(apart(rows, name, base, by_client("weighted_f1")))
        less_macro = "" if name == base else shown(apart(rows, name, base, by_client("macro_f1")))
        label = name + seeds_of(rows, name)
        cells.append([label, *numbers, "·" if paper is None else f"{paper:.3f}", less, less_macro])
    head = ["", *METRICS, "paper's F1", f"weighted F1 less {base}'s", f"macro F1 less {base}'s"]
    return table(head, cells)


def scenario_tables(rows: Rows, names: Sequence[str]) -> list[str]:
    """Return the rows of the scenarios in which few clients have labels, or none."""
    text = []
    for start, base in {"few: ": "few: Lower 30%", "server: ": f"server: {BASE}"}.items():
        if some := [name for name in names if name.startswith(start) and name in rows]:
            head = "## Labels at few clients" if start == "few: " else "## Labels at the server alone"
            text += [head, "", *(FEW_NOTE if start == "few: " else []), *main_table(rows, some, base), ""]
            if told := collapsed(rows, some):
                text += [*told, ""]
            text += small_section() if start == "few: " else []
    return text


def guards_table(rows: Rows) -> list[str]:
    """Return what FedPerl is with the guards of privacy less the same without, whichever model is reported."""
    cells = []
    for name in (name for name in GROUPS["more"].rows if name.startswith("FedPerl") and name in rows):
        plain, f1 = name.partition(", ")[0], by_client("weighted_f1")
        less = [apart(rows, name, plain, by_client(METRICS[metric])) for metric in ("weighted F1", "macro F1", "ECE")]
        others = [apart(under(rows, choice), name, plain, f1) for choice in CHOICES]
        lines = rows[name].values()
        trained = fmean(line["results"]["totals"]["client_rounds"] for line in lines)
        peers = fmean(
            sum(count for size, count in line["results"]["totals"]["peers"].items() if int(size)) for line in lines
        )
        shares = [f"{100 * peers / trained:.0f}", f"{trained:.0f}"]
        without = apart(rows, name, plain, f1, OTHERS)
        cells.append([name, *map(shown, [less[0], without, *others, *less[1:]]), *shares])
    head = ["", "weighted F1", "of clients 0 to 7", *(f"weighted F1, {title}" for title in CHOICES.values())]
    head += ["macro F1", "ECE", "% of client-rounds with a peer", "client-rounds"]
    return table(head, cells) if cells else []


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
    counts = matrix_of(rows[known[0]][min(rows[known[0]])]).sum(1)
    return table(["F1 of class", *classes], [["test images", *map(str, counts)], *cells])


def finding_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return sensitivity and specificity over all images, and apart for dermatoscopic ones and photographs."""
    cells = []
    columns = ("melanoma sensitivity", "malignant sensitivity", "malignant specificity")
    groups = {"clients 0 to 7": OTHERS, f"client {OUTLIER}": (OUTLIER,)}
    for name in (name for name in names if name in rows and not name.startswith(WITHOUT)):
        found = [sensitivity(line) for line in rows[name].values()]
        other = name == BASE or name in GROUPS["scenarios"].rows
        less = "" if other else shown(apart(rows, name, BASE, sensitivity, ("melanoma sensitivity",)))
        cells.append([name + seeds_of(rows, name), *(f"{fmean(one[key] for one in found):.3f}" for key in columns)])
        for only in groups.values():
            parts = [sensitivity(line, only) for line in rows[name].values()]
            cells[-1] += [f"{fmean(one[key] for one in parts):.3f}" for key in columns[1:]]
        cells[-1].append(less)
    split = [f"{column.removeprefix('malignant ')}, {who}" for who in groups for column in columns[1:]]
    return table(["", *columns, *split, f"melanoma sensitivity less {BASE}'s"], cells)


def choice_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return weighted and macro F1 of the other models that could be reported."""
    chosen = {"each client's best": CHOICE, "the best global one": "global_best", "the last": "last"}
    metrics, cells = ("weighted F1", "macro F1"), []
    for name in (name for name in names if name in rows and not name.startswith(WITHOUT)):
        cells.append([name + seeds_of(rows, name)])
        for metric in metrics:
            for choice in chosen.values():
                there = all(choice in line["results"]["test"] for line in rows[name].values())
                value = over_clients(under({name: rows[name]}, choice), name, METRICS[metric])
                cells[-1].append(f"{value:.3f}" if there else "·")
    return table(["", *(f"{metric}, {title}" for metric in metrics for title in chosen)], cells)


def course_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return how validation macro F1 went over the rounds, and how many unlabelled images taught something."""
    after, cells = (25, 50, 100, 150, 200, 250, 300), []
    for name in names:
        if macro := course(rows, name, "macro_f1"):
            taught = course(rows, name, "accepted")
            numbers = [f"{macro[round]:.3f}" if round in macro else "·" for round in after]
            shares = [f"{100 * taught[round]:.0f}" if round in taught else "·" for round in (after[0], after[-1])]
            cells.append([name + seeds_of(rows, name), *numbers, *shares])
    head = ["validation macro F1 after round", *map(str, after), "taught, %, round 25", "round 300"]
    return table(head, cells)


def split_table() -> list[str]:
    """Return what each client holds, as bench/skin_split.py has written it.

    Raises:
        ConfigError: it is of another split than the runs'.
    """
    path = LINES / "split.json"
    if not path.exists():
        return ["What each client holds is not written down yet (`python bench/skin_split.py`)."]
    found = json.loads(path.read_text())
    dealt = {line["results"]["partition"] for line in every_line()}
    if dealt - {found["partition"], *found["others"]}:
        raise ConfigError(f"{path.name}: is of another split than some runs; wanted bench/skin_split.py run again")
    sources = list(found["clients"][0]["sources"])
    cells = [
        [str(number), *(str(one["parts"][part]) for part in PARTS), *(str(one["sources"][name]) for name in sources)]
        for number, one in enumerate(found["clients"])
    ]
    at_hand = "; ".join(f"{name} {there:,} of {of:,}" for name, (there, of) in found["at_hand"].items())
    head = ["images of client", *PARTS, *(f"of {name}" for name in sources)]
    return [*table(head, cells), "", f"At hand are, of the images that the archives list: {at_hand}."]


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
        inside, alike = (sum(counts[a, helped] for a in some) for some in (own, OTHERS))
        share = [f"{100 * counts[a, helped] / total:.0f}" if total else "·" for a in clients]
        within = ["·", "·"]
        if helped in CHANCE:
            within = [f"{100 * inside / alike:.0f}" if alike else "·", f"{100 * CHANCE[helped]:.0f}"]
        cells.append([f"client {helped}", *share, *within])
    return table(["was helped by", *clients, "own community, of 0 to 7", "by chance"], cells)


def peers_table(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return how many peers clients had, where peers could help."""
    known = [name for name in names if not name.startswith(WITHOUT)]
    found = {name: shares for name in known if (shares := with_peers(rows, name))}
    sizes = sorted({size for shares in found.values() for size in shares})
    cells = [[name, *(f"{100 * shares.get(size, 0):.0f}" for size in sizes)] for name, shares in found.items()]
    return table(["percent of client-rounds with so many peers", *map(str, sizes)], cells)


def outlier_table(rows: Rows) -> list[str]:
    """Return the other clients' F1 where the outlier takes part in training, and where not."""
    cells = []
    for row in (name.removeprefix(WITHOUT) for name in rows if name.startswith(WITHOUT)):
        if row in rows:
            both = {name: {seed: rows[name][seed] for seed in rows[WITHOUT + row]} for name in (row, WITHOUT + row)}
            levels = [f"{over_clients(both, name, 'weighted_f1', OTHERS):.3f}" for name in both]
            gain = apart(rows, WITHOUT + row, row, by_client("weighted_f1"), OTHERS)
            cells.append([row + seeds_of(rows, WITHOUT + row), *levels, shown(gain), f"{paper_gain(row):+.3f}"])
    return table(["weighted F1 of clients 0 to 7", "with client 8", "without", "gain", "paper's gain"], cells)


def unseen_table(rows: Rows) -> list[str]:
    """Return what models that never saw client 8's data set say of it."""
    cells = []
    for name, lines in rows.items():
        if some := [line["unseen"]["malignancy"] for line in lines.values() if "unseen" in line]:
            numbers = [f"{fmean(one[READING][key] for one in some):.3f}" for key in UNSEEN_METRICS.values()]
            numbers.append(f"{fmean(one['auroc'] for one in some):.3f}")
            numbers.append(str(next(line["unseen"]["images"] for line in lines.values() if "unseen" in line)))
            cells.append([name.removeprefix(WITHOUT) + seeds_of(rows, name), *numbers])
    return table(["", *UNSEEN_METRICS, "AUROC", "images"], cells)


UNSEEN_METRICS = {
    "malignant F1": "malignant_f1",
    "malignant precision": "malignant_precision",
    "malignant recall": "malignant_recall",
    "benign F1": "benign_f1",
}


def missing(rows: Rows) -> list[str]:
    """Return what is not trained yet, by group; but for gates above one that never opened."""
    implied = {(row, seed) for gate, higher in never_open(rows).items() for row in higher for seed in rows[gate]}
    found = []
    for name, group in GROUPS.items():
        lines = read(name)
        for row in group.rows:
            for rate in group.rates or (None,):
                title = row if rate is None else f"{row}, lr {rate:g}"
                lacking = [seed for seed in group.seeds if f"{title}, seed {seed}" not in lines]
                if seeds := [str(seed) for seed in lacking if (row, seed) not in implied]:
                    found.append(f"{title} (seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)})")
    return found


def unplanned() -> list[str]:
    """Return the paper's rows on lesions that no group has."""
    planned = {row for group in GROUPS.values() for row in group.rows}
    found = [name for name in paper_runs(find_scale(str(SCALE))) if name not in planned]
    return [f"Not planned, of the paper's rows: {'; '.join(found)}; and the unseen client of ISIC 2020.", ""]


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
    return [line for name in GROUPS for line in own_lines(name).values()]


def skin_page(rows: Rows) -> str:
    """Return the page of all numbers."""
    rest = [
        name for group, chosen in GROUPS.items() if group not in ("rates", "core", "scenarios") for name in chosen.rows
    ]
    core, scenarios = GROUPS["core"].rows, GROUPS["scenarios"].rows
    everyone = (*core, *rest, *scenarios)
    text = [
        "# The paper's experiments on real lesions",
        "",
        f"{find_scale(str(SCALE)).about} Made by `python bench/skin_page.py` from the results of every run in "
        "[skin/](skin); the claims one by one are in [claims.md](claims.md).",
        "",
    ]
    text += [where_and_when(every_line()), ""]
    if gaps := missing(rows):
        text += [f"**Not trained yet:** {'; '.join(gaps)}.", ""]
    if rows:
        text += ["## All clients", "", *NOTES, "", *main_table(rows, core), ""]
        if any(name in rows for name in rest):
            text += [*main_table(rows, rest), ""]
        text += [*steady_note(rows, everyone), ""]
        text += scenario_tables(rows, scenarios)
        if guards := guards_table(rows):
            text += ["## What the guards cost", "", *GUARD_NOTE, *guards, ""]
        text += ["## Clients", "", *client_table(rows, everyone), "", *alone_note(rows)]
        text += ["## Classes", "", "Of the test images of all clients together.", "", *class_table(rows, everyone), ""]
        text += [FINDING_NOTE, *poor_note(rows, everyone), "", *finding_table(rows, everyone), ""]
        text += ["## Which model is reported", "", CHOICE_NOTE, "", *choice_table(rows, everyone), ""]
        text += ["## How training went", "", COURSE_NOTE, "", *course_table(rows, everyone), ""]
        if fallen := fell(rows, (*core, *rest)):
            text += [*fallen, *(irm_note(rows) if any("**FedIRM**" in one for one in fallen) else []), ""]
    if FEDPERL in rows:
        text += ["## Who helped whom", "", f"{FEDPERL}, percent of the helpers that a client had, all seeds.", ""]
        text += [*helper_table(rows, FEDPERL), "", *peers_table(rows, everyone), ""]
        if shut := gates_note(rows):
            text += [*shut, ""]
    if any(name.startswith(WITHOUT) for name in rows):
        text += ["## What the client unlike all others costs", "", *outlier_table(rows), ""]
        text += ["## A client that no model saw", "", UNSEEN_NOTE + unseen_note(rows), "", *unseen_table(rows), ""]
    return (
        "\n".join(
            [
                *text,
                "## Set-up",
                "",
                *SETUP,
                *unplanned(),
                *split_table(),
                "",
                *backbone(),
                *choices(),
                *rates_table(),
                "",
                *COMMANDS,
            ]
        )
        + "\n"
    )


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


def choices() -> list[str]:
    """Return how the runs were trained, and how the learning rate was chosen.

    Raises:
        ConfigError: the file that describes the runs has another one.
    """
    rate, rates = chosen_rate(), GROUPS["rates"].rates
    settings = find_scale(str(SCALE)).settings
    if settings["optimizer"]["lr"] != rate:
        raise ConfigError(
            f"{SCALE.name}: lr = {settings['optimizer']['lr']:g}; wanted the one that was chosen, {rate:g}"
        )
    edge = "" if min(rates) < rate < max(rates) else ", the largest that was tried" if rate == max(rates) else ""
    return [
        "- 300 rounds of 3 clients, 26 steps each; validation every fifth round. The preset is `recommended`, the "
        "privacy `research`.",
        f"- Adam with {rate:g}{edge}; the paper has 0.00005, from ImageNet. It is the smallest whose validation "
        "accuracy, in the mean of two rows with seed 1, is within one standard error of the best; the other rows were "
        "not tuned.",
        "",
    ]


COMMANDS = [
    "```bash",
    "fedperl data prepare isic2019 ham10000 pad_ufes20 --out stores/skin112 --size 112 --allow-missing",
    "fedperl data prepare cifar10 --out stores/cifar32 --size 32",
    "fedperl pretrain stores/cifar32 --size 112 --epochs 10 --device cuda --out stores/backbone.safetensors",
    "python bench/skin.py rates --workers 6   # it goes on where it stopped, and so does the next",
    f"python bench/skin.py {' '.join(name for name in GROUPS if name != 'rates')} --workers 6",
    "python bench/skin_page.py",
    "```",
]


def pages() -> dict[Path, str]:
    """Return both pages; none while nothing is trained."""
    if not every_line():
        return {}
    for name in GROUPS:
        lines: Mapping[str, Line] = own_lines(name)
        if lines:
            check_lines(name, lines, jobs(name, Path(), "cuda", [], []))
    rows = read_rows()
    return {PAGE: skin_page(rows), CLAIMS: claims_page(rows)}


if __name__ == "__main__":
    run_page(__doc__ or "", pages)
