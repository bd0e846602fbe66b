"""Taking one client's model out of runs on the server's disk."""

from collections.abc import Iterator
from pathlib import Path

from fedperl.errors import BusyError, RunError
from fedperl.federation.run_folder import RunFolder


def forget(runs: Path, client: int) -> Iterator[str]:
    """Delete what each run's bank holds of a client, and yield what was done in words."""
    for path in sorted(runs.glob("*/state/checkpoint.json")):
        folder = RunFolder(path.parent.parent)
        try:
            folder.open()
        except BusyError:
            yield f"{folder.path.name}: runs now; it lets go of client {client} in its next round"
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
