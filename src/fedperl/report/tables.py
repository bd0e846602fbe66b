"""Tables for the terminal, made from the results of runs and from stores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from fedperl.data.audit import Audit
from fedperl.data.partition import PARTS
from fedperl.data.readers.base import Listing
from fedperl.data.store import Store
from fedperl.evaluate import Spread, peer_share

Results = Mapping[str, Any]

CHOICES = {"per_client_best": "best/client", "global_best": "best overall", "last": "last round"}
"""Which round's global model is tested; the best ones are chosen on validation images."""


def runs_table(runs: Mapping[str, Results], choice: str = "per_client_best") -> Table:
    """Return one row a run: its numbers on the clients' test images, mean (median) ± std over clients.

    A choice that some run does not have, as where clients trained alone or the server alone tests, is left for another.
    """
    shared = [name for name in (choice, *CHOICES) if all(name in results["over_clients"] for results in runs.values())]
    choice = shared[0]
    table = Table(title=f"Test images, mean (median) ± std over clients; model: {CHOICES[choice]}")
    others = [other for other in CHOICES if other != choice]
    table.add_column("method", no_wrap=True)
    table.add_column("weighted F1", justify="right", no_wrap=True)
    for name in ("macro F1", "precision", "recall", "bal. acc.", *(f"F1, {CHOICES[other]}" for other in others)):
        table.add_column(name, justify="right")
    table.add_column("MB down/up", justify="right")
    columns = ("weighted_f1", "macro_f1", "weighted_precision", "weighted_recall", "balanced_accuracy")
    for name, results in runs.items():
        over, totals = results["over_clients"], results["totals"]
        cells = [_spread(over[choice][columns[0]])]
        cells += [f"{over[choice][column]['mean']:.3f}" for column in columns[1:]]
        cells += [f"{over[other]['weighted_f1']['mean']:.3f}" if other in over else "·" for other in others]
        cells.append(f"{totals['bytes_down'] / 1e6:.0f}/{totals['bytes_up'] / 1e6:.0f}")
        table.add_row(name, *cells)
    private = [f"{name}: {results['dp']['text']}" for name, results in runs.items() if "dp" in results]
    table.caption = escape("\n".join(private)) or None
    return table


def clients_table(runs: Mapping[str, Results], sources: list[str], choice: str = "per_client_best") -> Table:
    """Return one row a client: its weighted F1 under each run, so that one sees who gained."""
    table = Table(title="Weighted F1 by client")
    table.add_column("client", justify="right")
    table.add_column("images like")
    for name in runs:
        table.add_column(name, justify="right")
    for number, source in enumerate(sources):
        values = [results["test"][choice][str(number)]["weighted_f1"] for results in runs.values()]
        best = max(values)
        table.add_row(str(number), source, *(f"[bold]{v:.3f}[/]" if v == best else f"{v:.3f}" for v in values))
    return table


def peers_table(results: Results, clients: int) -> Table:
    """Return who helped whom: the share of each client's peers (row) that each other client was (column)."""
    table = Table(title="Peers after the warm-up: % of a client's (row) peers that were client (column)")
    table.add_column("client", justify="right")
    for k in range(clients):
        table.add_column(str(k), justify="right")
    for m in range(clients):
        row = results["peer_frequency"].get(str(m), {})
        total = sum(row.values())
        cells = [f"{100 * row.get(str(k), 0) / total:.0f}" if total and k != m else "·" for k in range(clients)]
        table.add_row(str(m), *cells)
    return table


def community_lines(results: Results, sources: list[str]) -> list[str]:
    """Return one sentence a community of two or more clients: how many of its peers came from inside, and chance."""
    frequency = {int(m): {int(k): n for k, n in row.items()} for m, row in results["peer_frequency"].items()}
    lines = []
    for source in dict.fromkeys(sources):
        members = [m for m, other in enumerate(sources) if other == source]
        share = peer_share(frequency, members)
        if len(members) > 1 and share is not None:
            chance = (len(members) - 1) / (len(sources) - 1)
            lines.append(
                f"{100 * share:.0f} % of the peers of clients {members[0]} to {members[-1]} ({source}) "
                f"came from among them (chance {100 * chance:.0f} %)"
            )
    return lines


def time_line(seconds: Mapping[str, float]) -> str:
    """Return where a run's time went, in one line."""
    total = sum(seconds.values()) or 1.0
    around = sum(value for name, value in seconds.items() if name not in ("training", "validation"))
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    return f"{parts}; the loop around training and validation took {100 * around / total:.1f} %"


def store_table(store: Store) -> Table:
    """Return one row a client and one for the server: how many images for what, and of which class."""
    table = Table(title=f"{len(store.images)} images of {store.size} px")
    table.add_column("client", justify="right")
    table.add_column("images like")
    for name in ("label", "unlab", "valid", "test", *store.classes):
        table.add_column(name, justify="right")
    labels = store.manifest.label
    for number, client in enumerate(store.partition.clients):
        sizes = [str(len(getattr(client, part))) for part in PARTS]
        table.add_row(str(number), client.source, *sizes, *_class_counts(labels[client.rows()], len(store.classes)))
    if not store.partition.clients:
        for source in np.unique(store.manifest.source):
            counts = _class_counts(labels[store.manifest.source == source], len(store.classes))
            table.add_row("not dealt", str(source), *[""] * len(PARTS), *counts)
    own = store.partition.server
    sizes = [str(len(own.labelled)), "", str(len(own.validation)), str(len(own.test))]
    table.add_row("server", "", *sizes, *_class_counts(labels[own.rows()], len(store.classes)))
    return table


def _class_counts(labels: np.ndarray[Any, np.dtype[np.int64]], classes: int) -> list[str]:
    return [str(n) if n else "·" for n in np.bincount(labels[labels >= 0], minlength=classes)]


def _spread(values: Mapping[str, float]) -> str:
    return str(Spread(values["mean"], values["median"], values["std"]))


def sets_table(made: Mapping[str, Any], listings: Sequence[Listing], classes: Sequence[str]) -> Table:
    """Return one row a data set: what it lists, what could be read, and of which class."""
    table = Table(title=f"Images of {made['size']} px, {made['codec']}")
    table.add_column("set")
    for name in ("listed", "missing", "dropped", "skipped", "read", *classes, "no label"):
        table.add_column(name, justify="right")
    for about, listing in zip(made["sets"], listings, strict=True):
        found = Counter(row.label for row in listing.rows)
        counts = [about["listed"], about["missing"], sum(about["dropped"].values()), about["skipped"], about["read"]]
        cells = [str(n) if n else "·" for n in (*counts, *(found[name] for name in classes), found[""])]
        table.add_row(about["source"], *cells)
    return table


def audit_tables(store: Store, found: Audit) -> list[Table | str]:
    """Return who holds what, and what of it is held twice."""
    table = Table(title="Where the two of a pair, or all images of a group, are held")
    for name in ("", "one part", "two parts of a client", "two holders", "of these, trained on and held out"):
        table.add_column(name, justify="left" if not name else "right")
    for name, sides in (("same image", found.same), ("twins", found.twins), ("lesion or patient", found.groups)):
        cells = (sides.together, sides.parts, sides.clients, sides.training_and_held_out)
        table.add_row(name, *(str(n) if n else "·" for n in cells))
    lines = [f"{count} pairs of rows are one image: {sets}" for sets, count in found.in_two_sets.items()]
    lines += [f"{count} of these pairs have two labels: {labels}" for labels, count in found.other_label.items()]
    for name, sides in (("same image", found.same), ("twins", found.twins), ("lesion or patient", found.groups)):
        lines += [f"apart, {name}: {line}" for line in sides.examples[:3]]
    return [store_table(store), table, *lines]


def evaluation_tables(found: Results) -> list[Table | str]:
    """Return what a model reached on a client it never saw."""
    sets = ", ".join(f"{name} {count}" for name, count in found["sets"].items())
    shown: list[Table | str] = [f"Model {found['model']} (round {found['round']}) on {found['images']} images: {sets}"]
    if found["left_out_as_seen"] is None:
        shown.append(
            "Not checked: whether the run's sites held these images, their lesions or patients (--trust-unseen)"
        )
    elif found["left_out_as_seen"]:
        left_out = f"{found['left_out_as_seen']} others left out: the run's clients held them, their lesion or patient"
        shown.append(left_out)
    if found.get("fit") is not None:
        own = "not known: their store is not at hand" if found["fit_of_run"] is None else f"by {found['fit_of_run']}"
        shown.append(f"Images made square by {found['fit']}; the run's own {own}")
    if "classes" in found:
        table = Table(title="All classes")
        names = ("weighted_f1", "macro_f1", "balanced_accuracy", "accuracy")
        for name in names:
            table.add_column(name.replace("_", " "), justify="right")
        table.add_row(*(f"{found['classes'][name]:.3f}" for name in names))
        shown.append(table)
    if "malignancy" in found:
        shown.append(_malignancy_table(found["malignancy"]))
    views = {"classes": "all classes", "malignancy": "malignant against benign"}
    known = {name: found["calibration"][view] for view, name in views.items() if view in found.get("calibration", {})}
    if known:
        table = Table(title="Calibration; ECE and MCE over adaptive bins")
        table.add_column("view")
        for name in ("ECE", "MCE", "Brier", "NLL"):
            table.add_column(name, justify="right")
        for name, numbers in known.items():
            table.add_row(name, *(f"{numbers[key]:.3f}" for key in ("ece", "mce", "brier", "nll")))
        shown.append(table)
    return shown


def _malignancy_table(found: Results) -> Table:
    table = Table(title=f"Malignant ({found['malignant']} of {found['images']}) against benign")
    columns = (
        "malignant_f1",
        "malignant_precision",
        "malignant_recall",
        "benign_f1",
        "weighted_f1",
        "balanced_accuracy",
    )
    table.add_column("reading")
    for name in (*columns, "AUROC", "AUPRC"):
        table.add_column(name.replace("_", " "), justify="right")
    for reading in ("argmax_then_group", "sum_then_threshold"):
        ranked = [found["auroc"], found["auprc"]] if reading == "sum_then_threshold" else ["", ""]
        cells = [f"{found[reading][name]:.3f}" for name in columns]
        cells += ["undefined" if v is None else f"{v:.3f}" if v != "" else "" for v in ranked]
        table.add_row(reading.replace("_", " "), *cells)
    return table


CHOSEN = {
    "per_client_best": "for each client the round that was best on its validation images",
    "global_best": "the round that was best on the validation images of all clients",
    "server_best": "the round that was best on the server's validation images",
    "last": "the last round",
}


def comparison_table(found: Results) -> Table:
    """Return one row a run of a suite, beside its baseline."""
    title, header, rows = _comparison_cells(found)
    table = Table(title=escape(title))
    for place, name in enumerate(header):
        table.add_column(escape(name), justify="right" if place else "left", no_wrap=place < 4)
    for row, run in zip(rows, found["runs"], strict=True):
        sure = run["difference"] is not None and run["difference"]["excludes_zero"]
        table.add_row(
            *(f"[bold]{escape(cell)}[/]" if sure and place == 3 else escape(cell) for place, cell in enumerate(row))
        )
    return table


def comparison_markdown(found: Results) -> str:
    """Return the same table and the lines below it as Markdown."""
    title, header, rows = _comparison_cells(found)
    header = [name.replace("\n", " ") for name in header]
    lines = [f"{title}:", "", *_markdown([header, ["---"] + ["---:"] * (len(header) - 1), *rows]), ""]
    lines += [f"- {line}" for line in comparison_notes(found)]
    return "\n".join(lines).replace("*", "\\*") + "\n"


def comparison_notes(found: Results) -> list[str]:
    """Return what must be known to read the table: what the interval is, what it rests on, how models were chosen."""
    runs, baseline = found["runs"], next(run for run in found["runs"] if run["name"] == found["baseline"])
    seeds = len(found["seeds"])
    on = "the server's test images" if baseline["clients"] == ["server"] else _many(len(baseline["clients"]), "client")
    lines = [f"{_many(seeds, 'seed')} ({', '.join(map(str, found['seeds']))}), {on}; model: {CHOSEN[found['choice']]}."]
    drawn = [name for name, n in (("seeds", seeds), ("clients", len(baseline["clients"]))) if n > 1]
    if drawn:
        lines.append(
            f"Difference: the mean over the same {' and '.join(drawn)}; in brackets its 95 % interval, which resamples "
            f"{' and '.join(drawn)} as clusters{'' if len(drawn) > 1 else ' alone'}, each row for itself; * excludes 0."
        )
    else:
        lines.append("Difference: of a single pair of numbers, so without an interval.")
    if any(run["peers"] for run in runs):
        lines.append("Peers: of the client-rounds in which peers could help. MB down: to train, mean over the seeds.")
    for run in runs:
        pairs = None if run["difference"] is None else run["difference"]["paired_on"]
        if run is not baseline and pairs is None:
            lines.append(
                f"{run['name']}: no difference, since it and the baseline were tested on other clients or images."
            )
        elif pairs is not None and (pairs != run["clients"] or pairs != baseline["clients"]):
            lines.append(f"{run['name']}: the difference is over the {_many(len(pairs), 'client')} that both have.")
        if run["grid"] is not None:
            values = ", ".join(f"{key} = {value}" for key, value in run["grid"]["chosen"].items())
            lines.append(
                f"{run['name']}: {values}, chosen on validation images out of {len(run['grid']['points'])} points "
                f"(accuracy {run['grid']['validation_accuracy']:.3f}{_tied(run['grid'])})."
            )
            lines += [f"{run['name']}: {point} failed and was not chosen from." for point in run["grid"]["failed"]]
        if run["rejected"] or run["void"]:
            lines.append(
                f"{run['name']}: {run['rejected']} updates rejected or missing, {run['void']} rounds void; see metrics."
            )
        if run["research"]:
            lines.append(f"{run['name']}: privacy = 'research', not for real patients; {run['research']}.")
    return lines


def _tied(grid: Mapping[str, Any]) -> str:
    best = sum(point["validation_accuracy"] == grid["validation_accuracy"] for point in grid["points"])
    return f", as {best - 1} other{'s' if best > 2 else ''}; the first was taken" if best > 1 else ""


def _comparison_cells(found: Results) -> tuple[str, list[str], list[list[str]]]:
    """Return the title, the header and the rows of a comparison."""
    sizes = sorted({int(size) for run in found["runs"] for size in run["peers"]})
    header = [
        "run",
        "over clients:\nmean (median) ± std",
        "over seeds:\nmean ± std",
        f"difference\nto {found['baseline']}",
    ]
    header += [f"% of client-rounds\nwith {'/'.join(map(str, range(sizes[-1] + 1)))} peers"] if sizes else []
    header.append("MB down")
    rows = []
    for run in found["runs"]:
        over, seeds = run["over_clients"], run["over_seeds"]
        row = [run["name"], _spread(over) if len(run["clients"]) > 1 else f"{over['mean']:.3f}"]
        row.append(f"{seeds['mean']:.3f}" + (" (n = 1)" if seeds["std"] is None else f" ± {seeds['std']:.3f}"))
        row.append(_difference(run["difference"]))
        if sizes:
            total = sum(run["peers"].values())
            counts = [run["peers"].get(str(size), 0) for size in range(sizes[-1] + 1)]
            row.append("/".join(f"{100 * count / total:.0f}" for count in counts) if total else "·")
        rows.append([*row, f"{run['bytes_down'] / 1e6:.1f}"])
    return f"{found['suite']}: {found['metric'].replace('_', ' ').replace('f1', 'F1')} on test images", header, rows


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "·"
    interval = "" if found["low"] is None else f" [{found['low']:+.3f}, {found['high']:+.3f}]"
    return f"{found['mean']:+.3f}{interval}{' *' if found['excludes_zero'] else ''}"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
