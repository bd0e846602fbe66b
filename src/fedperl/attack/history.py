"""What was ever sent to whom, read from a run's ledger: each release as a weighted sum of uploads."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedperl.errors import RunError
from fedperl.federation.ledger import Ledger

Upload = tuple[int, int]
"""A client, and the round that it trained in."""
Sum = dict[Upload, float]

RESIDUAL = 0.5
"""Share of the stored global model, where one is averaged in."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Release:
    """One model that was sent, of several uploads; what of it is earlier global models everyone can take off."""

    kind: Literal["model", "peer"]
    round: int
    to: frozenset[int] | None
    """None: every client, also one that sent nothing and had no task."""
    sum: Sum
    earlier: dict[int, float] = field(default_factory=dict)
    """Global models that are in it, by round: half of a stored one, or what the weights leave of the last one."""


@dataclass(frozen=True)
class History:
    """All releases of a run."""

    releases: list[Release]
    starts: dict[Upload, int]
    """The round of the global model that each upload was trained from."""
    clients: list[int]
    """Those that were sent something or sent something."""


def read_history(path: Path, *, anonymized: bool = True) -> History:
    """Return what a ledger says was sent.

    Args:
        anonymized: false: peers were sent as they are, each a release of its own.
    Raises:
        RunError: there is no ledger, nothing was sent, or the file is something else.
    """
    if not path.is_file():
        raise RunError(f"{path}: missing; wanted the ledger of a run")
    try:
        history = history_of(Ledger(path).entries(), anonymized=anonymized)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: an entry is not that of a ledger: {error!r}") from None
    if not history.clients:
        raise RunError(f"{path}: nothing was ever sent; wanted the ledger of a run with at least one round")
    return history


def history_of(entries: Iterable[dict[str, Any]], *, anonymized: bool = True) -> History:
    """Return what the entries of a ledger say was sent, in all lives of a run: a repeated round counts every time.

    A global model counts as sent to all who validate it, or, where they are shown a running mean of them, to everyone;
    one that a void round left in place is no new one.
    """
    models: dict[tuple[int, str], tuple[Sum, dict[int, float], set[int] | None]] = {}
    peers: dict[tuple[int, int, tuple[Upload, ...]], None] = {}
    starts: dict[Upload, int] = {}
    tasks: dict[int, set[int]] = {}
    latest = 0
    for entry in entries:
        round = entry.get("round", 0)
        if entry["kind"] == "send":
            for release in entry["releases"]:
                latest = starts[release["to"], round] = release["global"]
                tasks.setdefault(latest, set()).add(release["to"])
                members = sorted((client, of) for client, of in release["committee"])
                for committee in [members] if anonymized else [[member] for member in members]:
                    if committee:
                        peers[release["to"], round, tuple(committee)] = None
        elif entry["kind"] == "receive" and not entry["void"]:
            average = _average(round, entry["weights"], latest, entry["residual"])
            by, key = entry["validated"]["by"], (round, repr(average))
            if "average" in entry["validated"]:  # what is shown later has a part of it
                by = "every client"
            before = models[key][2] if key in models else set[int]()
            models[key] = (*average, None if by == "every client" or before is None else before | set(by))
    releases = [
        Release("model", round, None if by is None else frozenset(by | tasks.get(round, set())), average, earlier)
        for (round, _), (average, earlier, by) in models.items()
    ]
    releases += [
        Release("peer", round, frozenset({to}), dict.fromkeys(committee, 1 / len(committee)))
        for to, round, committee in peers
    ]
    clients = {client for client, _ in starts} | {client for release in releases for client in release.to or ()}
    return History(releases, starts, sorted(clients))


def _average(round: int, weights: dict[str, float], start: int, residual: int | None) -> tuple[Sum, dict[int, float]]:
    """Return a global model as a sum of uploads and of earlier global models.

    Where updates were shortened, their weights do not sum to 1: the rest is the model that they started from.
    """
    share = 1.0 if residual is None else 1.0 - RESIDUAL
    earlier = {start: share * (1.0 - sum(weights.values()))}
    if residual is not None:
        earlier[residual] = earlier.get(residual, 0.0) + RESIDUAL
    uploads = {(int(client), round): share * weight for client, weight in sorted(weights.items()) if weight}
    return uploads, {of: part for of, part in earlier.items() if abs(part) > ROUNDING}
