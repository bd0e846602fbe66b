"""The paper's tables from finished runs: numbers over clients, by client and community, by class, on a stranger."""

import statistics

from fedperl.errors import RunError
from fedperl.paper.content import NONE, Row, TableContent, number
from fedperl.paper.found import Found
from fedperl.paper.parts import (
    CHOICE_NOTE,
    CLIENTS,
    beside,
    by_class,
    cell,
    clients_and_groups,
    collapsed,
    cost,
    difference,
    drawn_tasks,
    f1_by_class,
    groups,
    hard_areas,
    improvement,
    last_accuracy,
    peers_kept,
    percent,
    plain,
    score_areas,
    seed_notes,
    setting_of,
    without,
)
from fedperl.paper.printed import printed
from fedperl.paper.runs import OUTLIER, PA, POC, POLICIES, RAW, SSFL, TASKS

STANDARD = (
    "Local lower",
    "Lower",
    "Local FixMatch",
    SSFL,
    "FedMatch",
    *RAW,
    "FedMatch+",
    *PA,
    "Random peers",
    "Local upper",
    "Upper",
)
COMMITTEES = (SSFL, "FedPerl raw T=1", *PA)
"""T = 0 ... 5."""
UNLABELLED = tuple(f"server: {name}" for name in (SSFL, "FedMatch", *RAW, "FedMatch+", *PA))
STRANGER = ("Lower", SSFL, "FedMatch", *RAW, "FedMatch+", *PA, "Upper")
POLICY_ROWS = ("FedPerl raw T=2", "FedPerl T=2", *(f"{raw}{policy}" for policy in POLICIES for raw in ("raw ", "")))
SERVER_POLICY_ROWS = tuple(f"server: {name}" for name in ("FedPerl T=2", *POLICIES))
THREE = {"f1": "weighted_f1", "precision": "weighted_precision", "recall": "weighted_recall"}


def table1(found: Found) -> TableContent:
    """Return the proof of concept: accuracy of the global model in percent, over seeds."""
    theirs = printed("table1")
    rows = []
    for name in POC:
        ours = [last_accuracy(found.runs.get(f"{task}: {name}")) for task in TASKS]
        paper = [cell(theirs.get(name, {}).get(task), 2) for task in TASKS]
        rows.append(Row(name, tuple(ours), tuple(paper) if name in theirs else ()))
    there = theirs["FedMatch as printed there"]
    blank = (NONE,) * len(TASKS)
    rows.append(Row("FedMatch, in its own paper", blank, tuple(cell(there.get(task), 2) for task in TASKS)))
    over = f"mean ± standard deviation over {found.seeds} seeds" if found.seeds > 1 else "one seed"
    return TableContent(
        ("CIFAR10 IID", "CIFAR10 NonIID", "FMNIST NonIID"),
        tuple(rows),
        (
            f"Accuracy in percent, {over}, of the last round's model; on the server's test images, or averaged over "
            "the clients where they test. Where images stream in, the mean of the clients' own last models.",
            "The row of labelled images alone is ours: without it nobody sees what unlabelled images are worth.",
            *drawn_tasks(found),
        ),
    )


def table2(found: Found) -> TableContent:
    """Return the standard scenario: mean (median) ± deviation over clients, improvement and cost."""
    theirs = printed("table2") | {"Random peers": printed("random_peers")["Random peers"]}
    lower = found.runs.get("Local lower")
    rows = []
    for run in found.some(STANDARD):
        ours = [str(run.spread(metric)) for metric in THREE.values()]
        ours += [improvement(run, lower), cost(run), difference(run, found.runs.get(SSFL))]
        their = theirs.get(run.name, {})
        paper = [
            *(cell(their.get(column)) for column in THREE),
            percent(their.get("ri")),
            percent(their.get("ac"), 0),
        ]
        rows.append(Row(run.name, tuple(ours), (*paper, NONE), setting_of(run.name)))
    return TableContent(
        ("F1", "precision", "recall", "RI %", "AC %", f"F1 less {SSFL}'s [95 %]"),
        tuple(rows),
        (
            CHOICE_NOTE,
            *seed_notes(found),
            "RI: improvement over Local lower. AC: what was sent down beyond one model for each client and round, ours "
            "as counted by the ledger over all rounds, the paper's as defined there.",
            f"The last column is the mean difference to {SSFL} over the same clients, with an interval that resamples "
            f"clients{' and seeds' if found.seeds > 1 else ' alone, since there is one seed'}; * excludes 0. "
            "One comparison in twenty would be starred by chance alone.",
            *collapsed(found.some(STANDARD)),
        ),
    )


def table3(found: Found) -> TableContent:
    """Return F1 by community for T = 0 ... 5."""
    theirs = printed("table3")
    columns = groups(found)
    rows = []
    for t, run in ((COMMITTEES.index(run.name), run) for run in found.some(COMMITTEES)):
        ours = tuple(number(run.mean_of(clients)) for clients in columns.values())
        rows.append(Row(f"T={t} ({run.name})", ours, beside(found, theirs.get(run.name, {}), columns)))
    names = tuple(f"{name} (M={len(clients)})" for name, clients in columns.items())
    return TableContent(names, tuple(rows), (CHOICE_NOTE, *seed_notes(found)))


def table4(found: Found) -> TableContent:
    """Return F1 by client and community, and what the client unlike all others costs the rest."""
    theirs, columns = printed("table4"), clients_and_groups(found)
    outlier = found.outlier
    rows = []
    for run in found.some(CLIENTS):
        ours = [number(run.mean_of(clients)) for clients in columns.values()]
        ours += without(run, found.runs.get(f"without outlier: {run.name}"), outlier)
        their = theirs.get(run.name, {})
        paper = list(beside(found, their, columns))
        if paper:
            anew = run.name in OUTLIER and run.name != "FedMatch"
            left_out = cell(their.get("without_8"))
            paper += [NONE if anew else left_out, left_out if anew else NONE, cell(their.get("avg"))]
            paper += [NONE, percent(their.get("diff"), 1)]
        rows.append(Row(run.name, tuple(ours), tuple(paper), setting_of(run.name)))
    last = ("others, same model", f"others, trained without {outlier}", "Avg", "gain of the others", "Diff. %")
    return TableContent(
        (*columns, *last),
        tuple(rows),
        (
            CHOICE_NOTE,
            *seed_notes(found),
            f"Others: all clients but {outlier}, mean ± deviation; of the very models of this row, or of models that "
            f"were trained without client {outlier}. The paper prints under one name the second, but for FedMatch and "
            "local models the first.",
            f"Diff.: as the paper has it, the others trained without client {outlier} less Avg, which mixes two "
            "effects. Gain of the others: the same clients, trained without it less trained with it. Both in points.",
        ),
    )


def table5(found: Found) -> TableContent:
    """Return F1 by class."""
    return by_class(
        found,
        "table5",
        {"": f1_by_class},
        "F1, the mean over the clients that have the class among their test images; second line: all clients together.",
        pooled=True,
    )


def table6(found: Found) -> TableContent:
    """Return the area under the ROC curve by class, from labels as the paper seems to have it, and from scores."""
    return by_class(
        found,
        "table6",
        {"from labels": lambda sums: hard_areas(sums, "auroc"), "from scores": lambda sums: score_areas(sums, "auroc")},
        "Mean over the clients that have the class. The paper's areas fit those from predicted labels, where a class "
        "has one operating point; those from scores are what is usually meant.",
    )


def table7(found: Found) -> TableContent:
    """Return the area under the precision-recall curve by class, likewise."""
    return by_class(
        found,
        "table7",
        {"from labels": lambda sums: hard_areas(sums, "auprc"), "from scores": lambda sums: score_areas(sums, "auprc")},
        "Mean over the clients that have the class; from labels as in the table of ROC areas, from scores as average "
        "precision. From labels a class that is never predicted gets the area from (0, 1) to its share, above 0.5.",
    )


def table8(found: Found) -> TableContent:
    """Return the scenario in which the server alone has labels."""
    theirs, base = printed("table8"), found.runs.get(f"server: {SSFL}")
    rows = []
    for run in found.some(UNLABELLED):
        ours = [*(str(run.spread(metric)) for metric in THREE.values()), difference(run, base)]
        paper = (*(cell(theirs.get(run.name, {}).get(column)) for column in THREE), NONE)
        rows.append(Row(plain(run.name), tuple(ours), paper, setting_of(plain(run.name))))
    return TableContent(
        (*THREE, f"F1 less {SSFL}'s [95 %]"),
        tuple(rows),
        (
            CHOICE_NOTE + " They are chosen by labels that the clients do not train on.",
            *seed_notes(found),
            "Last column as in the table of standard results; * excludes 0.",
            *collapsed(found.some(UNLABELLED)),
        ),
    )


def table9(found: Found) -> TableContent:
    """Return how global models tell malignant from benign on a client that none of them saw."""
    theirs = printed("table9")
    for run in found.some(STRANGER):
        if not all("malignancy" in one for one in run.unseen):
            raise RunError(f"{run.first.folder}: its classes are not the paper's: which are malignant is not known")
    columns = tuple(f"{side}_{metric}" for side in ("malignant", "benign") for metric in ("f1", "precision", "recall"))
    rows = []
    for run in found.some(STRANGER):
        for reading, text in (("argmax_then_group", "argmax"), ("sum_then_threshold", "sum")):
            ours = [statistics.fmean(one["malignancy"][reading][key] for one in run.unseen) for key in columns]
            ranked = [one["malignancy"]["auroc"] for one in run.unseen]
            area = None if None in ranked else statistics.fmean(ranked)
            cells = (*map(number, ours), number(area) if text == "sum" else NONE)
            their = tuple(cell(theirs.get(run.name, {}).get(key)) for key in columns)
            rows.append(
                Row(f"{run.name}, {text}", cells, (*their, NONE) if text == "argmax" else (), setting_of(run.name))
            )
    first = found.some(STRANGER)[0].unseen[0]
    return TableContent(
        (*(name.replace("_", " ") for name in columns), "AUROC"),
        tuple(rows),
        (
            f"The best global model on the validation images of all clients, on {first['images']} images "
            f"({first['malignancy']['malignant']} malignant).",
            "argmax: the most probable class decides. sum: malignant if the malignant classes have at least half the "
            "probability together. The paper does not say which; its numbers stand beside the first.",
            *seed_notes(found, clients=False),
        ),
    )


def table10(found: Found) -> TableContent:
    """Return the dynamic policies, by client and community, in both scenarios."""
    theirs, columns = printed("table10"), clients_and_groups(found)
    rows = []
    for names, setting, base in (
        (POLICY_ROWS, "labels at clients", "FedPerl T=2"),
        (SERVER_POLICY_ROWS, "labels at the server", "server: FedPerl T=2"),
    ):
        for run in found.some(names):
            ours = [number(run.mean_of(clients)) for clients in columns.values()]
            ours += [number(run.spread().mean), difference(run, found.runs.get(base)), peers_kept(run)]
            their = theirs.get(run.name, {})
            paper = beside(found, their, columns) or (NONE,) * len(columns)
            rows.append(Row(plain(run.name), tuple(ours), (*paper, cell(their.get("avg")), NONE, NONE), setting))
    return TableContent(
        (*columns, "Avg", "Avg less FedPerl T=2's [95 %]", "peers kept"),
        tuple(rows),
        (
            CHOICE_NOTE,
            *seed_notes(found),
            "raw: peers travel without anonymization. The number is rho in percent.",
            "Peers kept: mean over the client-rounds in which peers could help, of at most 2. With anonymization a "
            "single peer left is none: the mean of one model would be that client's model.",
            "Gated similarity compares profiles scaled over the clients, since plain cosines all lie near 1: where the "
            "baseline's are not scaled (preset paper), the difference is of the scale too.",
            *(f"Labels at the server: {note}" for note in collapsed(found.some(SERVER_POLICY_ROWS))),
        ),
    )
