"""Taking one client's model out of runs on the server's disk."""

import json
from collections.abc import Iterator
from pathlib import Path

from fedperl.engines.flower.numbering import numbers_of
from fedperl.errors import BusyError, RunError
from fedperl.federation.run_folder import RunFolder

MEMBERS = "members.json"
"""In a run's state: what each client said of itself when the run began, and the run's own name at the sites."""


def forget(runs: Path, registered: int) -> Iterator[str]:
    """Delete what each run's bank holds of a client, and yield what was done in words."""
    for path in sorted(runs.glob("*/state/checkpoint.json")):
        folder = RunFolder(path.parent.parent)
        try:
            client = numbers_of(folder.path).get(registered, registered)
        except RunError as error:
            yield f"{folder.path.name}: {error}"
            continue
        if not takes_part(folder, client):
            continue
        try:
            folder.open()
        except BusyError:
            yield f"{folder.path.name}: runs now; it lets go of client {registered} in its next round"
            continue
        except RunError as error:
            yield f"{folder.path.name}: {error}"
            continue
        try:
            content = folder.restore()
            if content is None:
                continue
            held = client in folder.bank.records
            if not held and client in content.get("withdrawn", ()):
                continue
            folder.bank.keep_only(k for k in list(folder.bank.records) if k != client)
            folder.ledger.append([{"kind": "withdraw", "round": content["round"], "client": client}])
            gone = sorted({*content.get("withdrawn", ()), client})
            folder.commit(content | {"withdrawn": gone})
            yield f"{folder.path.name}: {'its model and profile are deleted' if held else 'held nothing of it'}"
        except RunError as error:
            yield f"{folder.path.name}: {error}"
        finally:
            folder.close()


def takes_part(folder: RunFolder, client: int) -> bool:
    """Return whether a client is a member of a run."""
    path = folder.state / MEMBERS
    try:
        return not path.exists() or str(client) in json.loads(path.read_text())["members"]
    except (OSError, ValueError, KeyError):
        return True
