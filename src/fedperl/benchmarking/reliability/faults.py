"""Faults of clients, server and disk, put into whole federations, and how each of them ends."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import safetensors.torch

from fedperl.benchmarking.reliability.columns import FINAL, TRAINED, Column, NamedError, federate
from fedperl.benchmarking.reliability.dying import End, Fate, run_apart
from fedperl.benchmarking.reliability.toy import CLIENTS, ROUNDS, STEP, TRAINING, Script, apart, expected

NEAR = 1e-3
"""Of an honest step: how far a model may be from a plain loop's and still be the same."""

Outcome = Literal["survived", "stopped", "crashed", "corrupted"]
"""Ends with the right model; stops with an error that says what is wrong; with another error; with a wrong model."""
Damage = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Fault:
    """Something that happens to a federation, at a moment that the seed draws."""

    name: str
    script: Script
    server: Literal["runs on", "killed", "killed writing", "disk full"] = "runs on"
    damage: Damage | None = None
    """Done to one of the files that it left, before it is started again."""
    seed: int = 0

    @property
    def needs_files(self) -> bool:
        """Whether it can only happen to who writes some."""
        return self.damage is not None or self.server in ("killed writing", "disk full")


@dataclass(frozen=True)
class Result:
    """What became of a fault."""

    outcome: Outcome
    said: str = ""
    restarted: bool = False
    same: bool = False
    """Whether the model is, byte for byte, that of a federation to which nothing happened."""
    repeated: int = 0
    """Rounds that were trained once more."""


@dataclass(frozen=True)
class Clean:
    """A column's federation to which nothing happens: what it gives, and the moments at which it could be killed."""

    model: bytes
    record: object
    moments: tuple[str, ...]


def faults() -> Iterator[Fault]:
    """Yield every fault that is tried."""
    chance, clients = random.Random(0), range(CLIENTS)
    for round in range(2, ROUNDS + 1):
        yield Fault("a client's answer is lost", {(round, chance.choice(clients)): "lost"})
        yield Fault("a client answers with an error", {(round, chance.choice(clients)): "error"})
        yield Fault("a client's answer comes a round late", {(round - 1, chance.choice(clients)): "late"})
        yield Fault("two of six answers are lost", _lost(round, chance.sample(clients, 2)))
        yield Fault("five of six answers are lost", _lost(round, chance.sample(clients, 5)))
        yield Fault("no answer comes at all", _lost(round, list(clients)))
    for seed in range(12):
        yield Fault("the server is killed", {}, "killed", seed=seed)
    for seed in range(24):
        yield Fault("the server is killed while it writes", {}, "killed writing", seed=seed)
    for seed in range(4):
        yield Fault("the disk is full", {}, "disk full", seed=seed)
    for seed in range(20):
        yield Fault("killed; a bit on disk changes meanwhile", {}, "killed", _flipped, seed)
    for seed in range(10):
        yield Fault("killed; a file is cut short meanwhile", {}, "killed", _cut, seed)


def _lost(round: int, clients: list[int]) -> Script:
    return {(round, client): "lost" for client in clients}


def _flipped(content: bytes, chance: random.Random) -> bytes:
    found = bytearray(content)
    found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


# How it ends


def undisturbed(column: Column, folder: Path) -> Clean:
    """Return what a column gives when nothing happens.

    Raises:
        RuntimeError: not even then it gives the model of a plain loop.
    """
    end = _run(column, folder, {})
    found = _final(folder)
    if found is None or _distance(found, {}, column.quorum) > NEAR:
        raise RuntimeError(f"{column.name}: without any fault it ended with {end.error or 'another model'}")
    return Clean(found, column.record(folder), end.passed)


def inject(column: Column, fault: Fault, clean: Clean, folder: Path) -> Result | None:
    """Return what becomes of a fault; None where it cannot happen."""
    if fault.needs_files and not column.writes:
        return None
    chance = random.Random(f"{fault.name} {fault.seed}")
    end = _run(column, folder, fault.script, _fate(fault, clean, chance))
    again = fault.server != "runs on"
    if again:
        if fault.damage is not None:
            _spoil(folder, fault.damage, chance)
        end = _run(column, folder, fault.script)
    model = _final(folder)
    repeated = max(0, len((folder / TRAINED).read_text()) - ROUNDS)
    if model is None:
        named = end.error.startswith(NamedError.__name__)
        return Result("stopped" if named else "crashed", end.error, again, repeated=repeated)
    if not again:
        wrong = _distance(model, fault.script, column.quorum) > NEAR
        return Result("corrupted" if wrong else "survived")
    same = model == clean.model and _record(column, folder) == clean.record
    return Result("survived" if same else "corrupted", "", again, same, repeated)


def _run(column: Column, folder: Path, script: Script, fate: Fate | None = None) -> End:
    folder.mkdir(parents=True, exist_ok=True)
    return run_apart(federate, column.name, folder, script, fate=fate or Fate(), report=folder / "report")


def _fate(fault: Fault, clean: Clean, chance: random.Random) -> Fate:
    """Return when it happens: between the second and the last round, where all is on its way."""
    places = range(len(clean.moments) // ROUNDS, len(clean.moments) - 1)
    if fault.server == "killed":
        return Fate(die_at=1 + chance.choice(places))
    writing = [place for place in places if clean.moments[place] != TRAINING]
    if fault.server == "killed writing":
        return Fate(die_at=1 + chance.choice(writing))
    return Fate(full_at=1 + chance.choice(writing)) if fault.server == "disk full" else Fate()


def _spoil(folder: Path, damage: Damage, chance: random.Random) -> None:
    """Damage one file; of many of a kind, all models of a folder, one is as likely as a file of another kind."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (FINAL, TRAINED, "report", "lock") and path.stat().st_size:
            kinds.setdefault(path.parent.name if path.suffix == ".safetensors" else path.name, []).append(path)
    chosen = chance.choice(chance.choice(list(kinds.values())))
    chosen.write_bytes(damage(chosen.read_bytes(), chance))


def _final(folder: Path) -> bytes | None:
    return (folder / FINAL).read_bytes() if (folder / FINAL).exists() else None


def _record(column: Column, folder: Path) -> object:
    try:
        return column.record(folder)
    except Exception as error:  # it finished, and nobody has noticed
        return f"cannot be read: {error}"


def _distance(model: bytes, script: Script, quorum: int) -> float:
    """Return how far a model is from that of a plain loop, in honest steps."""
    return apart(safetensors.torch.load(model), expected(script, quorum)) / STEP
