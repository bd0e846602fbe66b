"""Tables for the terminal, made from the results of runs and from stores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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
    """Return one row a run: its numbers on the clients' test images, mean (median) ± std over clients."""
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
        cells += [f"{over[other]['weighted_f1']['mean']:.3f}" for other in others]
        cells.append(f"{totals['bytes_down'] / 1e6:.0f}/{totals['bytes_up'] / 1e6:.0f}")
        table.add_row(name, *cells)
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
    if found["left_out_as_seen"]:
        left_out = f"{found['left_out_as_seen']} others left out: the run's clients held them, their lesion or patient"
        shown.append(left_out)
    if "classes" in found:
        table = Table(title="All classes")
        names = ("weighted_f1", "macro_f1", "balanced_accuracy", "accuracy")
        for name in names:
            table.add_column(name.replace("_", " "), justify="right")
        table.add_row(*(f"{found['classes'][name]:.3f}" for name in names))
        shown.append(table)
    if "malignancy" in found:
        shown.append(_malignancy_table(found["malignancy"]))
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
