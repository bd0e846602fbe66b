"""When a model abstains: below a confidence that was given, or that kept a wanted risk on the run's validation images.

It is what those images showed (paper, 3.6), no promise.
"""

import re
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from fedperl.errors import ConfigError, RunError
from fedperl.evaluate import BinnedSums
from fedperl.federation.run_folder import RunFolder
from fedperl.predicting.model import Predictor
from fedperl.report.page_counts import read_counts


@dataclass(frozen=True)
class Abstention:
    """The confidence below which no class is given, and what it came from."""

    threshold: float
    risk: float | None = None
    """The risk that was asked for; None where the threshold itself was given, and all below is None then too."""
    validation_images: int | None = None
    validation_holders: tuple[str, ...] | None = None
    """The clients (or the server) whose validation images it was chosen on."""
    validation_coverage: float | None = None
    validation_risk: float | None = None


def abstention(predictor: Predictor, *, risk: float | None = None, threshold: float | None = None) -> Abstention | None:
    """Return from which confidence on a class is given; None where neither is asked for: always.

    Args:
        risk: the largest share of wrong ones among the validation images that are kept.
        threshold: the confidence itself.
    Raises:
        ConfigError: both are given, or one is outside 0 to 1.
        RunError: the run has no counts of this model on validation images, or no threshold reaches that risk.
    """
    for option, value in (("--risk", risk), ("--threshold", threshold)):
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{option} {value}; wanted 0 to 1")
    if risk is None:
        return None if threshold is None else Abstention(threshold)
    if threshold is not None:
        raise ConfigError("--risk and --threshold are two ways to say when to abstain; wanted one of them")
    holders, sums = validation_sums(predictor)
    coverages, risks, thresholds = sums.risk_coverage()
    found = sums.threshold_at_risk(risk)
    if found is None:
        least = int(risks.argmin())
        kept = f"at a threshold of {thresholds[least]:g} that keeps {100 * coverages[least]:.1f} %"
        raise RunError(
            f"--risk {risk}: no threshold reaches it on the {sums.images} validation images of {predictor.path}; the "
            f"least is {risks[least]:.3f}, {kept}"
        )
    place = int(np.flatnonzero(thresholds == found)[0])
    return Abstention(found, risk, sums.images, holders, float(coverages[place]), float(risks[place]))


def validation_sums(predictor: Predictor) -> tuple[tuple[str, ...], BinnedSums]:
    """Return on whose validation images a run's model was measured, and the counts of all of them together.

    A client's own best model was measured on that client's; the others on every client's, or on the server's where it
    alone has any.

    Raises:
        RunError: the model lies in no run folder, or the run has no such counts of it.
    """
    if predictor.run is None:
        raise RunError(
            f"{predictor.path}: lies in no run folder, so its validation images are not known; wanted the file in its "
            "run's folder models/, or --threshold instead of --risk"
        )
    folder = RunFolder(predictor.run)
    own = re.fullmatch(r"client_(\d+)_(best|last)", predictor.name)
    personal = folder.read_config().federation.personal
    if own is None and personal:
        raise RunError(
            f"{predictor.path}: every client validated this model with {personal}, which the file does not have; "
            "wanted a client_K_best model, or --threshold"
        )
    choice = predictor.name if own is None else "per_client_best" if own[2] == "best" else "last"
    counted, where = read_counts(folder, len(predictor.classes)), folder.path / "curves.json"
    keys = {holder: key for holder, key in counted.chosen.get(choice, {}).items() if own is None or holder == own[1]}
    rounds = {key.partition("@")[2] for key in keys.values()}
    if rounds and rounds != {str(predictor.round)}:
        raise RunError(
            f"{predictor.path}: is the model of round {predictor.round}; {where} measured that of round "
            f"{', '.join(sorted(rounds))}; wanted the run's own model"
        )
    parts = {holder: counted.sums[key] for holder, key in keys.items()}
    sums = {holder: one["validation"] for holder, one in parts.items() if "validation" in one}
    clients = {holder: one for holder, one in sums.items() if holder != "server"} or sums
    total = reduce(add, clients.values()) if clients else None
    if total is None or not total.images:
        raise RunError(f"{where}: has no counts of {predictor.name!r} on validation images; wanted --threshold")
    return tuple(clients), total
