"""Privacy: what clients could solve for from what a run has sent them, tried out by an attacker."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedperl.cli.common import AsJson, bar, console, stopped

if TYPE_CHECKING:
    from fedperl.attack import Count, Findings

TARGETS = {"uploads": "models", "changes": "changes", "distant": "distant changes"}


def privacy(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    coalition: Annotated[
        int, typer.Option(min=1, help="How many clients, or organisations, put together what they were sent.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Replay a run's ledger as an attacker would: exit code 1 if it gets at any client's model or change.

    On the tensors that were sent where the run kept them (audit.keep_uploads), otherwise by algebra alone.
    """
    from fedperl.attack import Attacker, coalitions, read_history
    from fedperl.errors import RunError
    from fedperl.federation.kept_uploads import FOLDER, read_kept
    from fedperl.federation.run_folder import RunFolder

    begun, folder = time.perf_counter(), RunFolder(run)
    config = folder.read_config()
    history = read_history(run / "state" / "ledger.jsonl", anonymized=not config.raw_peers)
    together = coalitions(history.clients, coalition, config.federation.organisations)
    if not together:
        raise RunError(f"{run}: --coalition {coalition}; wanted at most as many as there are clients or organisations")
    findings = []
    try:
        with bar("receivers", hidden=as_json) as progress:
            task = progress.add_task("attacks", total=len(together))
            attacker = Attacker(history, read_kept(run / "state" / FOLDER))
            for receivers in together:
                findings.append(attacker.attack(receivers))
                progress.advance(task)
    except KeyboardInterrupt:
        stopped("nothing was written; the same command starts again")
    kinds = [release.kind for release in history.releases]
    found: dict[str, Any] = {
        "coalition": coalition,
        "audited": config.coalition,
        "kept": attacker.tensors is not None,
        "releases": {"models": kinds.count("model"), "peers": kinds.count("peer")},
        "left_out": attacker.left_out,
        "unverified": attacker.unverified,
        "receivers": [asdict(one) for one in findings],
        "totals": {kind: _totals([getattr(one, kind) for one in findings]) for kind in TARGETS},
        "seconds": round(time.perf_counter() - begun, 2),
    }
    if as_json:
        print(json.dumps(found))
    else:
        console.print(_table(findings))
        for line in _lines(found):
            console.print(line, markup=False, highlight=False)
    if any(total["recovered" if found["kept"] else "solvable"] for total in found["totals"].values()):
        raise typer.Exit(1)


def _totals(counts: list["Count"]) -> dict[str, Any]:
    """Return the counts of all receivers added up, the best of their errors, and how many had any."""
    best = [count.best for count in counts if count.best is not None]
    return {
        "of": sum(count.of for count in counts),
        "solvable": sum(count.solvable for count in counts),
        "recovered": sum(count.recovered or 0 for count in counts),
        "close": sum(count.close or 0 for count in counts),
        "best": min(best, default=None),
        "receivers": sum((count.recovered if count.recovered is not None else count.solvable) > 0 for count in counts),
    }


def _table(findings: list["Findings"]) -> Table:
    table = Table(title="Recovered (solvable by algebra) of all; errors of all estimates of models")
    for name in ("receiver", "global models", "peers", *TARGETS.values(), "error: best", "median"):
        table.add_column(name, justify="right")
    for one in findings:
        counts = [getattr(one, kind) for kind in TARGETS]
        cells = [f"{'·' if c.recovered is None else c.recovered} ({c.solvable}) of {c.of}" for c in counts]
        errors = ["·" if value is None else f"{value:.2g}" for value in (one.uploads.best, one.uploads.median)]
        table.add_row("+".join(map(str, one.receivers)), str(one.models), str(one.peers), *cells, *errors)
    return table


def _lines(found: dict[str, Any]) -> list[str]:
    releases, audited, left_out = found["releases"], found["audited"], found["left_out"]
    lines = [
        f"Releases: {releases['models']} global models to every client that validates, {releases['peers']} peers",
        f"Auditor: on, against {audited} together" if audited else "Auditor: off",
    ]
    if not found["kept"]:
        lines.append("The run kept no uploads (audit.keep_uploads = 0): solvable by algebra, tried on no tensors")
    if left_out:
        lines.append(f"{left_out} releases left out: not kept, or not the means that the ledger says they are")
    if found["unverified"]:
        lines.append(f"{found['unverified']} uploads were not kept: recovered or not, they count as solvable alone")
    for kind, name in TARGETS.items():
        total = found["totals"][kind]
        tried = f"{total['recovered']} recovered, {total['close']} to within 10 %, " if found["kept"] else ""
        best = "" if total["best"] is None else f"; relative error {total['best']:.2g} at best"
        lines.append(
            f"{name}: {tried}{total['solvable']} solvable, of {total['of']}, by {total['receivers']} of "
            f"{len(found['receivers'])} receivers{best}"
        )
    return [*lines, f"{found['seconds']:.1f} s"]
