"""The scoreboard: totals, then every fault and every bad input by itself."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

NONE = "-"
"""It cannot happen there, or was not tried."""
FAULTS: dict[str, Callable[[Mapping[str, int]], str]] = {
    "faults injected": lambda of: str(of["injected"]),
    "  survived, with the right model": lambda of: str(of["survived"]),
    "  stopped with an error that names the file": lambda of: str(of["stopped"]),
    "  crashed": lambda of: str(of["crashed"]),
    "  silent corruptions": lambda of: str(of["corrupted"]),
    "restarted runs that end byte-identical": lambda of: f"{of['same']} of {of['restarted']}",
    "rounds trained again after restarts": lambda of: str(of["repeated"]),
}
INPUTS: dict[str, str] = {
    "bad inputs tried": "tried",
    "  refused with a named error, the round goes on": "refused",
    "  named, and too few are left: the old model stays": "void",
    "  taken in, the model moves no further than by honest ones": "bounded",
    "  ended the run": "ended",
    "  silently accepted": "accepted",
}
MODEL_FILES = ("damaged model files read", "  refused", "  crashed", "  silently accepted")
RECOVERED = "models recovered by pairs of clients"
OUTCOMES = {
    "refused": "refused",
    "void": "no new model",
    "bounded": "bounded",
    "ended": "ends the run",
    "accepted": "accepted",
}


def totals_table(found: Mapping[str, Any]) -> Table:
    """Return the sums, a column a way to federate."""
    names = found["columns"]
    table = Table(title=_title(found))
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row, text in FAULTS.items():
        table.add_row(
            row, *(text(found["totals"][name]["faults"]) for name in names), end_section=row.startswith("rounds")
        )
    for row, key in INPUTS.items():
        table.add_row(
            row, *(str(found["totals"][name]["inputs"][key]) for name in names), end_section=key == "accepted"
        )
    files = [found["model_files"].get(name) for name in names]
    for row, keys in zip(MODEL_FILES, ((), ("refused",), ("crashed",), ("accepted",)), strict=True):
        cells = [NONE if of is None else str(sum(of.get(key, 0) for key in keys or of)) for of in files]
        table.add_row(row, *cells, end_section=keys == ("accepted",))
    table.add_row(RECOVERED, *(str(found["recovered"].get(name, NONE)) for name in names))
    return table


def faults_table(found: Mapping[str, Any]) -> Table:
    """Return every fault: how often it was injected, and how many each way survived."""
    names = found["columns"]
    table = Table(title="Faults survived, and what became of the others")
    table.add_column("fault")
    table.add_column("injected", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for fault, ours in found["faults"][names[0]].items():
        table.add_row(fault, str(ours["injected"]), *(_survived(found["faults"][name][fault]) for name in names))
    return table


def inputs_table(found: Mapping[str, Any]) -> Table:
    """Return every bad input, and what became of it."""
    names = found["columns"]
    table = Table(title="What becomes of one client's bad answer")
    table.add_column("bad input")
    for name in names:
        table.add_column(name, justify="right")
    for bad in found["inputs"][names[0]]:
        table.add_row(bad, *(OUTCOMES[found["inputs"][name][bad]["outcome"]] for name in names))
    return table


def _survived(of: Mapping[str, Any]) -> str:
    if not of["injected"]:
        return NONE
    others = {"stopped": of["stopped"], "crashed": of["crashed"], "wrong": of["corrupted"]}
    return "; ".join([str(of["survived"]), *(f"{count} {name}" for name, count in others.items() if count)])


def _title(found: Mapping[str, Any]) -> str:
    flower = f"Flower {found['flower']}" if found["flower"] else "Flower is not installed"
    return f"Faults and bad inputs, each really tried; fedperl with privacy = 'hospital'; {flower}"
