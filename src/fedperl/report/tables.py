"""Tables for the terminal, made from the results of runs and from stores."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from fedperl.data.partition import PARTS
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
    table = Table(title=f"{len(store.manifest)} images of {store.images.shape[-1]} px")
    table.add_column("client", justify="right")
    table.add_column("images like")
    for name in ("label", "unlab", "valid", "test", *store.classes):
        table.add_column(name, justify="right")
    labels = store.manifest.label
    for number, client in enumerate(store.partition.clients):
        sizes = [str(len(getattr(client, part))) for part in PARTS]
        table.add_row(str(number), client.source, *sizes, *_class_counts(labels[client.rows()], len(store.classes)))
    counts = _class_counts(labels[store.partition.server], len(store.classes))
    table.add_row("server", "", *[""] * (len(PARTS) - 1), str(len(store.partition.server)), *counts)
    return table


def _class_counts(labels: np.ndarray[Any, np.dtype[np.int64]], classes: int) -> list[str]:
    return [str(n) if n else "·" for n in np.bincount(labels[labels >= 0], minlength=classes)]


def _spread(values: Mapping[str, float]) -> str:
    return str(Spread(values["mean"], values["median"], values["std"]))
