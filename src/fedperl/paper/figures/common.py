"""What several figures ask of the runs they are made from."""

from collections.abc import Iterable, Sequence

from fedperl.errors import RunError
from fedperl.paper.content import NONE
from fedperl.paper.figures.style import MOST
from fedperl.paper.found import Found, Trained


def wanted(found: Found, names: Sequence[str]) -> list[Trained]:
    """Return those of the runs that are there.

    Raises:
        RunError: none is.
    """
    runs = found.some(names)
    if not runs:
        raise RunError(f"no run to draw; wanted at least one of {', '.join(names)}")
    return runs


def drawn_clients(names: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the clients that are drawn one by one, each once, and a note where some are not."""
    every = sorted(set(names), key=lambda client: (not client.isdigit(), int(client) if client.isdigit() else 0))
    left_out = (f"Of {len(every)} clients the first {MOST} are drawn.",) if len(every) > MOST else ()
    return every[:MOST], left_out


def client_name(client: str) -> str:
    """Return how a holder of images is called."""
    return f"client {client}" if client.isdigit() else client


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"
