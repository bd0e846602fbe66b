"""What faults and bad inputs do to ours, to ours without guards, and to Flower's FedAvg: each is really tried."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedperl.benchmarking.reliability.columns import Column, columns
from fedperl.benchmarking.reliability.faults import Result, faults, inject, undisturbed
from fedperl.benchmarking.reliability.inputs import BAD, judge
from fedperl.benchmarking.reliability.model_files import GUARDED, PLAIN, damaged_models
from fedperl.benchmarking.reliability.recovering import recovered

__all__ = ["measure_reliability"]

FILES = 400
"""Damaged model files."""

Tick = Callable[[int, int], None]
"""Told how many trials are done, of how many."""


def measure_reliability(folder: Path, tick: Tick = lambda done, of: None) -> dict[str, Any]:
    """Try every fault and every bad input on every column, and return what became of each.

    Args:
        folder: for what the federations write.
    """
    tried, injected = columns(), list(faults())
    of, done = len(tried) * (len(injected) + len(BAD)) + 1, 0
    found: dict[str, Any] = {"columns": [column.name for column in tried], "inputs": {}, "faults": {}}
    for number, column in enumerate(tried):
        inputs, results = {}, dict[str, list[Result]]()
        for bad in BAD:
            inputs[bad.name] = judge(column, bad)
            tick(done := done + 1, of)
        clean = undisturbed(column, folder / str(number) / "clean")
        for place, fault in enumerate(injected):
            result = inject(column, fault, clean, folder / str(number) / str(place))
            results.setdefault(fault.name, []).extend([] if result is None else [result])
            tick(done := done + 1, of)
        found["inputs"][column.name] = {name: {"outcome": o, "said": said} for name, (o, said) in inputs.items()}
        found["faults"][column.name] = {name: _counted(of_name) for name, of_name in results.items()}
    files = damaged_models(folder / "files", FILES)
    found["model_files"] = {tried[0].name: dict(files[GUARDED]), tried[1].name: dict(files[PLAIN])}
    found["recovered"] = {
        column.name: recovered(folder / "recovered" / str(guards), guards=guards)
        for column, guards in zip(tried, (True, False), strict=False)
    }
    found["flower"] = _version(tried)
    tick(of, of)
    return found | {"totals": {column.name: _totals(found, column.name) for column in tried}}


def _counted(results: list[Result]) -> dict[str, Any]:
    outcomes = Counter(result.outcome for result in results)
    return {
        "injected": len(results),
        **{name: outcomes[name] for name in ("survived", "stopped", "crashed", "corrupted")},
        "restarted": sum(result.restarted for result in results),
        "same": sum(result.same for result in results),
        "repeated": sum(result.repeated for result in results),
        "said": sorted({result.said for result in results if result.said})[:3],
    }


def _totals(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    faults, inputs = found["faults"][name].values(), found["inputs"][name].values()
    keys = ("injected", "survived", "stopped", "crashed", "corrupted", "restarted", "same", "repeated")
    outcomes = Counter(one["outcome"] for one in inputs)
    return {
        "faults": {key: sum(of_name[key] for of_name in faults) for key in keys},
        "inputs": {"tried": len(inputs)}
        | {key: outcomes[key] for key in ("refused", "void", "bounded", "ended", "accepted")},
    }


def _version(tried: list[Column]) -> str | None:
    return next((str(column.version) for column in tried if hasattr(column, "version")), None)
