"""How a federation stands: what `fedperl server status` shows."""

import json
from pathlib import Path
from typing import Any

from fedperl.engines.flower.numbering import Numbers, numbers_of, registered_number
from fedperl.engines.flower.server_folder import ServerFolder, Serving
from fedperl.errors import RunError

LATE = 2
"""Rounds in a row without an update that was asked for."""


def standing(server: ServerFolder) -> dict[str, Any]:
    """Return the server, its sites and its runs, as far as files and a running server tell."""
    address = server.address()
    try:
        online, says = server.online(), f"serving on 127.0.0.1:{address.port}"
    except RunError as error:
        online, says = dict.fromkeys(server.roster(), False), f"not running ({str(error)[:200]})"
    return {
        "server": says,
        "clients": {number: "online" if there else "offline" for number, there in online.items()},
        "runs": {path.parent.name: _run(path.parent) for path in sorted(server.runs.glob("*/serving.json"))},
    }


def _run(out: Path) -> dict[str, Any]:
    serving = Serving(out / "serving.json")
    said = serving.read()
    metrics = out / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    state = str(said.get("state"))
    if state == "running" and not serving.alive():
        state = "interrupted; go on with --resume"
    if state == "failed":
        state = f"failed: {said.get('why')}"
    last = lines[-1] if lines else None
    found = [
        numbers["accuracy"] for numbers in (last or {"validation": {}})["validation"].values() if "accuracy" in numbers
    ]
    accuracy = sum(found) / len(found) if found else None
    shown = "" if accuracy is None else f", mean validation accuracy {accuracy:.3f}"
    return {
        "state": state,
        "round": last["round"] if last else 0,
        "accuracy": accuracy,
        "line": f"{state}, round {last['round'] if last else 0}{shown}",
        "lagging": lagging(lines, numbers_of(out)),
    }


def lagging(lines: list[dict[str, Any]], numbers: Numbers) -> list[str]:
    """Return the clients whose last tasks brought nothing, with the reason of the last, as they are registered."""
    missed: dict[int, list[str]] = {}
    for line in lines:
        for client in line["cohort"]:
            reason = line["rejected"].get(str(client))
            missed[registered_number(numbers, client)] = (
                [] if reason is None else [*missed.get(registered_number(numbers, client), []), reason]
            )
    return [
        f"client {client}: no update in its last {len(reasons)} tasks ({reasons[-1]})"
        for client, reasons in sorted(missed.items())
        if len(reasons) >= LATE
    ]
