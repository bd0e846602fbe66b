"""What differential privacy a client has spent: its private steps, counted durably, and the epsilon they come to.

A step is a Gaussian mechanism on a Poisson sample of the client's units; steps compose by their Renyi divergences
(Mironov, Talwar and Zhang 2019). The arithmetic is that of Google's dp_accounting.
"""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedperl.errors import ConfigError, FedPerlError, RunError
from fedperl.files import digest, sync_folder, write_durably
from fedperl.settings import DP

ADJACENCY, ACCOUNTANT = "add or remove one", "RDP"


class PrivacyBudgetSpent(FedPerlError):  # noqa: N818
    """A client declines a task: its name is what the server is told."""


@dataclass(frozen=True)
class Spent:
    """Some private steps of one kind."""

    rate: float
    """The chance of each unit to be in a step."""
    noise: float
    """The standard deviation of the noise over the clipping norm."""
    steps: int


def epsilon(spent: Iterable[Spent], delta: float) -> float:
    """Return the epsilon of steps taken one after the other, for one unit added or removed; 0 without any.

    Raises:
        ConfigError: dp_accounting is not installed.
    """
    dp_accounting, rdp = library()
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    with _quiet("absl"):  # it tells of each order that it leaves out, which makes epsilon no smaller
        for one in spent:
            if one.steps:
                gaussian = dp_accounting.GaussianDpEvent(one.noise)
                accountant.compose(dp_accounting.PoissonSampledDpEvent(one.rate, gaussian), one.steps)
        return float(accountant.get_epsilon(delta))


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def library() -> tuple[Any, Any]:
    """Return dp_accounting and its part `rdp`, which take a while to import.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError:
        raise ConfigError("dp.unit: no epsilon without dp_accounting; wanted: pip install '.[dp]'") from None
    return dp_accounting, rdp


class StepCount:
    """The private steps that a client has taken, over all attempts of all rounds, in a file of its own.

    The file is no part of a checkpoint: a run that goes back to an earlier round has released what it released.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Spent]:
        """Return all steps so far, one entry a kind.

        Raises:
            RunError: the file cannot be used.
        """
        if not self.path.exists():
            return []
        try:
            outer = json.loads(self.path.read_text())
            text = json.dumps(outer["spent"])
            if digest(text.encode()) != outer["sha256"]:
                raise ValueError("its hash is not the one it states")
            found = [Spent(float(one["rate"]), float(one["noise"]), int(one["steps"])) for one in outer["spent"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{self.path}: cannot be read as a count of private steps: {error!r}") from None
        return found

    def add(self, spent: Spent) -> int:
        """Count more steps and return how many there are; when this returns, the disk has them."""
        kinds = {(one.rate, one.noise): one.steps for one in self.read()}
        kind = spent.rate, spent.noise
        kinds[kind] = kinds.get(kind, 0) + spent.steps
        content = [asdict(Spent(*kind, steps)) for kind, steps in kinds.items()]
        outer = {"sha256": digest(json.dumps(content).encode()), "spent": content}
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self.path, json.dumps(outer).encode())
        sync_folder(self.path.parent)
        return sum(kinds.values())


def count_of(folder: Path, client: int) -> StepCount:
    """Return the count of one client; `folder` holds those of all clients of a run."""
    return StepCount(folder / f"client-{client:05d}.json")


def figures(folder: Path, settings: DP, taken: Mapping[int, int]) -> dict[str, Any]:
    """Return epsilon of each client's steps, and the worst, beside all that it is meaningless without.

    Args:
        taken: by client, the steps that it knows it has taken: all of them must have been counted.
    Raises:
        FedPerlError: a count cannot be read or has lost steps, or dp_accounting is not installed.
    """
    spent = {client: count_of(folder, client).read() for client in taken}
    for client, of in spent.items():
        check_count(count_of(folder, client), of, taken[client])
    found = {
        str(client): {
            "epsilon": epsilon(of, settings.delta),
            "steps": sum(one.steps for one in of),
            "rate": max((one.rate for one in of), default=0.0),
        }
        for client, of in spent.items()
    }
    worst = max((one["epsilon"] for one in found.values()), default=0.0)
    return {
        "epsilon": worst,
        "delta": settings.delta,
        "unit": settings.unit,
        "adjacency": ADJACENCY,
        "accountant": ACCOUNTANT,
        "noise": settings.noise,
        "clip": settings.clip,
        "clients": found,
        "text": figure_text(worst, settings.delta, settings.unit),
    }


def check_count(count: StepCount, spent: Iterable[Spent], taken: int) -> None:
    """Refuse a count that has lost steps.

    Raises:
        RunError: it has.
    """
    counted = sum(one.steps for one in spent)
    if counted < taken:
        raise RunError(f"{count.path}: {counted} private steps; the client has taken {taken}: some are lost")


def figure_text(value: float, delta: float, unit: str) -> str:
    """Return an epsilon with what belongs to it, in words."""
    return f"epsilon {rounded_up(value)} (delta {delta:g}, per {unit}, {ADJACENCY}, {ACCOUNTANT})"


def rounded_up(value: float) -> str:
    """Return an epsilon as text that never says less than it is."""
    return f"{math.ceil(value * 100) / 100:.2f}" if math.isfinite(value) else "infinite"
