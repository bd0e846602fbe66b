"""Taking one client's model out of runs on the server's disk."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fedperl.engines.flower.numbering import numbers_of
from fedperl.errors import BusyError, RunError
from fedperl.federation.run_folder import RunFolder

MEMBERS = "members.json"
"""In a run's state: what each client said of itself when the run began, and the run's own name at the sites."""


@dataclass(frozen=True)
class Forgetting:
    """What became of a client in one run."""

    run: str
    done: bool
    """Whether the run holds nothing of the client any more."""
    said: str

    def __str__(self) -> str:
        return f"{self.run}: {self.said}"


def forget(runs: Path, registered: int, names: Collection[str] | None = None) -> list[Forgetting]:
    """Delete what each run's bank holds of a client; return what was done, of runs that it was a member of.

    A run that cannot be read or written does not keep the client in the others.

    Args:
        names: of the runs that are looked at; None for all.
    """
    found = []
    for path in sorted(runs.glob("*/state/checkpoint.json")):
        run = path.parent.parent
        if names is not None and run.name not in names:
            continue
        try:
            said = _forget(run, registered)
        except BusyError:
            said = f"runs now; it lets go of client {registered} in its next round"
            found.append(Forgetting(run.name, False, said))
        except (RunError, OSError) as error:
            found.append(Forgetting(run.name, False, str(error)))
        else:
            found += [Forgetting(run.name, True, said)] if said else []
    return found


def _forget(run: Path, registered: int) -> str:
    """Return what was done with what one run holds of a client; nothing where it knows of none.

    Raises:
        BusyError: it runs now.
        RunError: it cannot be read.
    """
    folder = RunFolder(run)
    client = numbers_of(run).get(registered, registered)
    if not takes_part(folder, client):
        return ""
    folder.open()
    try:
        content = folder.restore()
        if content is None:
            return ""
        held = client in folder.bank.records
        if not held and client in content.get("withdrawn", ()):
            return ""
        folder.bank.keep_only(k for k in list(folder.bank.records) if k != client)
        folder.ledger.append([{"kind": "withdraw", "round": content["round"], "client": client}])
        folder.commit(content | {"withdrawn": sorted({*content.get("withdrawn", ()), client})})
        return "its model and profile are deleted" if held else "held nothing of it"
    finally:
        folder.close()


def takes_part(folder: RunFolder, client: int) -> bool:
    """Return whether a client is a member of a run."""
    path = folder.state / MEMBERS
    try:
        return not path.exists() or str(client) in json.loads(path.read_text())["members"]
    except (OSError, ValueError, KeyError, TypeError):
        return True
