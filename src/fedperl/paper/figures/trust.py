"""What could be left to a person: figure 5, the risk among the images that a model keeps, the surest first."""

from collections.abc import Mapping

import numpy as np

from fedperl.evaluate import BinnedSums
from fedperl.paper.content import NONE, FigureContent, Row, TableContent
from fedperl.paper.figures.common import client_name, drawn_clients, listed, percent, wanted
from fedperl.paper.figures.style import Space, client_line, drawn, outer_labels, panels
from fedperl.paper.found import Found, Trained
from fedperl.paper.printed import Value, printed
from fedperl.paper.runs import SSFL

MODELS = (
    "Local lower",
    "Lower",
    "Local FixMatch",
    SSFL,
    "FedMatch",
    "FedMatch+",
    "FedPerl raw T=2",
    "FedPerl T=2",
    "Local upper",
    "Upper",
)
RISK = 0.10
"""At which the paper compares coverages."""

Counts = Mapping[str, Mapping[str, BinnedSums]]
"""Run -> client -> counts of its test images."""


@drawn
def figure5(found: Found) -> FigureContent:
    """Return the share of wrong answers among the images kept, against the share kept; a line a client."""
    runs = wanted(found, MODELS)
    clients, left_out = drawn_clients(client for run in runs for client in run.clients)
    every = {run.name: _counts(run) for run in runs}
    counts = {name: {client: one[client] for client in clients if client in one} for name, one in every.items()}
    columns = min(2, len(runs))
    figure, axes = panels(len(runs), columns, 1.35, Space(right=1.05, across=1.4, down=0.45))
    highest = 0.0
    for one, run in zip(axes, runs, strict=True):
        for client, sums in counts[run.name].items():
            coverages, risks, _ = sums.risk_coverage()
            if len(risks):
                highest = max(highest, float(risks.max()))
                label = f"{client_name(client)} ({percent(risks[-1])})"
                one.plot(100 * coverages, 100 * risks, label=label, **client_line(client, found.sources()))
        one.set_title(run.name)
        one.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=5.5, handlelength=1.8)
    for one in axes:
        one.set_xlim(0, 101)
        one.set_ylim(0, min(102.0, 105 * highest + 1))
    outer_labels(axes, columns, "coverage: images kept (%)", "risk: wrong (%)")
    notes = (
        "In brackets: the risk at full coverage, one minus accuracy, in percent.",
        "Images of one step of confidence, 0.005 wide, count as equally sure.",
        *(["The images of all seeds together."] if found.seeds > 1 else []),
        *_ranges(found),
        *left_out,
    )
    return FigureContent(figure, _alt(every), _values(found, counts), notes)


def _counts(run: Trained) -> dict[str, BinnedSums]:
    """Return the counts of those clients that have test images."""
    every = {client: run.sums(client) for client in run.clients}
    return {client: sums for client, sums in every.items() if sums is not None and sums.images}


def full_risk(sums: BinnedSums) -> float:
    """Return the share of wrong answers among all images."""
    return int(sums.confidence[:, 0].sum()) / sums.images


def coverage_at(sums: BinnedSums, risk: float) -> float:
    """Return the largest share of images that can be kept with at most this risk."""
    coverages, risks, _ = sums.risk_coverage()
    return float(np.max(coverages[risks <= risk], initial=0.0))


def _alt(counts: Counts) -> str:
    means = []
    for name, of_clients in counts.items():
        if of_clients:
            risk = np.mean([full_risk(sums) for sums in of_clients.values()])
            kept = np.mean([coverage_at(sums, RISK) for sums in of_clients.values()])
            means.append(f"{name} {100 * risk:.1f} % and {100 * kept:.0f} %")
    return f"Risk-coverage curves by client. Mean risk at full coverage and coverage at 10 % risk: {'; '.join(means)}."


def _values(found: Found, counts: Counts) -> TableContent:
    theirs = printed("figure5") if found.as_printed() else {}
    rows = []
    for name, of_clients in counts.items():
        for client, sums in of_clients.items():
            ours = (percent(full_risk(sums)), percent(coverage_at(sums, RISK)), str(sums.images))
            rows.append(Row(client_name(client), ours, _beside(theirs.get(name, {}), client), name))
    return TableContent(("risk at full coverage %", "coverage at 10 % risk", "images"), tuple(rows))


def _beside(their: Mapping[str, Value], client: str) -> tuple[str, ...]:
    cells = [their.get(f"{column}_{client}") for column in ("risk", "coverage")]
    if all(cell is None for cell in cells):
        return ()
    return (*(NONE if cell is None or isinstance(cell, list) else f"{cell:.1f}" for cell in cells), NONE)


def _ranges(found: Found) -> tuple[str, ...]:
    """Return the paper's coverages at 10 % risk that hold for several clients at once."""
    said = []
    for name, row in printed("figure5").items() if found.as_printed() else ():
        for column, value in row.items():
            if isinstance(value, list):
                clients = column.removeprefix("coverage_").split("_")
                said.append(f"{value[0]:g} to {value[1]:g} % of clients {listed(clients)} in {name}")
    return (f"The paper's coverage at 10 % risk: {'; '.join(said)}.",) if said else ()
