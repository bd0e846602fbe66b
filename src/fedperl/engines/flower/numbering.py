"""Numbers of clients that mean nothing outside of one run.

Under `privacy = "hospital"` the registered sites are numbered anew for every run, at random. Which site has which
number is in the run's `state`, for the operator alone; what is handed out of a run, its metrics, results, models and
report, does not tell it, and two runs' reports cannot be put side by side by number.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedperl.errors import RunError
from fedperl.files import write_durably
from fedperl.settings import Config

FILE = "numbers.json"

Numbers = Mapping[int, int]
"""By registered number, the number in a run; others have the same in both."""


def numbers_of(run: Path) -> Numbers:
    """Return the numbers of a run; none where it has those that were registered.

    Raises:
        RunError: the file is damaged.
    """
    path = run / "state" / FILE
    if not path.exists():
        return {}
    try:
        found = {int(number): int(inside) for number, inside in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    if sorted(found) != sorted(found.values()):
        raise RunError(f"{path}: two sites have one number; wanted another for each")
    return found


def draw_numbers(run: Path, registered: Iterable[int]) -> Numbers:
    """Return the numbers of a run, drawn now if it has not begun yet; the registered ones are shuffled."""
    path = run / "state" / FILE
    if not (path.exists() and (run / "config.toml").exists()):
        numbers = sorted(registered)
        inside = list(numbers)
        secrets.SystemRandom().shuffle(inside)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(path, json.dumps(dict(zip(numbers, inside, strict=True))).encode())
    return numbers_of(run)


def renumbered(config: Config, numbers: Numbers) -> Config:
    """Return a configuration that means the same clients by their numbers in the run."""

    def inside(clients: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(numbers.get(client, client) for client in clients))

    organisations = tuple(sorted(map(inside, config.federation.organisations)))
    return config.changed(
        federation=config.federation.changed(exclude=inside(config.federation.exclude), organisations=organisations),
        peers=config.peers.changed(exclude=inside(config.peers.exclude)),
        scenario=config.scenario.changed(labelled_clients=inside(config.scenario.labelled_clients)),
    )


def registered_number(numbers: Numbers, client: int) -> int:
    """Return the registered number of a client of a run."""
    return next((number for number, inside in numbers.items() if inside == client), client)
