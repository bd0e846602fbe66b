"""What is trained for the paper: every run by the name that tables and figures know it by, at one of several scales."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from fedperl.config import Table, merged, methods, named, nearest, read_toml
from fedperl.errors import ConfigError
from fedperl.settings import Section, explain
from fedperl.suite import SuiteRun

SSFL = "SSFL"
RAW = tuple(f"FedPerl raw T={t}" for t in range(1, 6))
PA = tuple(f"FedPerl T={t}" for t in range(2, 6))
LOCAL = ("Local lower", "Local FixMatch", "Local upper")
STANDARD = {
    "Local lower": "local_lower",
    "Lower": "lower",
    "Local FixMatch": "local_fixmatch",
    SSFL: "ssfl",
    "FedMatch": "fedmatch_lite",
    "FedMatch+": "fedmatch_lite_pa",
    "Local upper": "local_upper",
    "Upper": "upper",
    "Random peers": "random_peers",
}
POLICIES = ("validation", *(f"gated {kind} {rho}" for kind in ("validation", "similarity") for rho in (75, 85, 95)))
OUTLIER = ("Lower", SSFL, "FedMatch", "FedMatch+", "FedPerl raw T=2", "FedPerl T=2", "Upper")
"""Runs that are trained once more without the client that is unlike all others."""
SERVER = (SSFL, "FedMatch", *RAW, "FedMatch+", *PA, *POLICIES)
"""Runs of the scenario in which the server alone has labels."""
FEW = {"Lower": "lower", "SSFL": "ssfl", "FedIRM": "fedirm", "FedPerl raw": "fedperl_raw", "FedPerl": "fedperl"}
PARTICIPATION = ("30%", "100%")
POC = {
    "FedAvg-SL": "upper",
    "FedProx-SL": "fedprox_upper",
    "FedAvg, labelled images": "lower",
    "FedAvg-UDA": "uda",
    "FedProx-UDA": "fedprox_uda",
    "FedAvg-FixMatch": "ssfl",
    "FedProx-FixMatch": "fedprox_ssfl",
    "FedMatch": "fedmatch",
    "FedMatch PA": "fedmatch_pa",
    "FedPerl raw": "fedperl_raw",
    "FedPerl": "fedperl",
    "FedPerl raw, sigma + psi": "fedmatch_fedperl_raw",
    "FedPerl, sigma + psi": "fedmatch_fedperl",
}
TASKS = ("cifar10_iid", "cifar10_noniid", "fmnist_noniid")
"""The columns of the proof of concept."""
POC_KEYS = ["all", *TASKS, *POC.values(), *(f"{task} {method}" for task in TASKS for method in POC.values())]


ROWS = (
    "peers.T",
    "peers.selector",
    "peers.policy",
    "peers.anonymize",
    "gate.rho",
    "objective.kind",
    "objective.labels",
    "federation.alone",
    "federation.cohort",
    "federation.exclude",
    "scenario.labels",
    "scenario.labelled_clients",
    "privacy",
)
"""Settings that make one row another."""


class Scale(Section):
    """How large the paper's experiments are made here."""

    about: str = ""
    """What differs from the paper, in a sentence that stands on every page; empty where nothing does."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)] = (1,)
    unseen: str = "dermsim"
    """The client that no model saw: a store, or `dermsim`."""
    clients: Annotated[int, Field(ge=2)] = 10
    """How many there are, for the runs in which all take part in every round."""
    outlier: Annotated[int, Field(ge=0)] | None = 8
    """The client that is unlike all others; None: no run is repeated without it."""
    settings: dict[str, Any] = Field(default={})
    """Of every run."""
    methods: dict[str, dict[str, Any]] = Field(default={})
    """Of the runs of one method."""
    poc: dict[str, dict[str, Any]] = Field(default={})
    """Of the proof of concept, instead of `settings`: "all", by task, by method, and by both: "TASK METHOD"."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for table, known in (("methods", list(methods())), ("poc", POC_KEYS)):
            for key in getattr(self, table):
                if key not in known:
                    raise ValueError(f"[{table}.{key}] is of nothing that is trained{nearest(key, known)}")
        if self.outlier is not None and self.outlier >= self.clients:
            raise ValueError(f"outlier = {self.outlier} is none of the {self.clients} clients, 0 to {self.clients - 1}")
        return self


def find_scale(name: str) -> Scale:
    """Return a scale that ships with the package, or that of a TOML file.

    Raises:
        ConfigError: there is none of that name, or a key of the file is unknown or its value of another type.
    """
    table = read_toml(Path(name)) if name.endswith(".toml") else named("paper/scales", name)
    try:
        return Scale.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{name}: {explain(error)}") from None


def paper_runs(scale: Scale) -> dict[str, SuiteRun]:
    """Return every run of the paper by name, its settings laid over those of the scale; T only as there are others."""
    most = min(5, scale.clients - 1)
    found: dict[str, tuple[str, Table]] = {name: (method, {}) for name, method in STANDARD.items()}
    found |= {f"FedPerl raw T={t}": ("fedperl_raw", {"peers": {"T": t}}) for t in range(1, most + 1)}
    found |= {f"FedPerl T={t}": ("fedperl", {"peers": {"T": t}}) for t in range(2, most + 1)}
    for policy in POLICIES:
        found |= {policy: _policy(policy, ""), f"raw {policy}": _policy(policy, "_raw")}
    if scale.outlier is not None:
        for name in (name for name in OUTLIER if name in found):
            method, own = found[name]
            found[f"without outlier: {name}"] = method, own | {"federation": {"exclude": [scale.outlier]}}
    for name in (name for name in SERVER if name in found):
        method, own = found[name]
        found[f"server: {name}"] = method, own | {"scenario": {"labels": "server"}}
    for name, method in FEW.items():
        for share in PARTICIPATION:
            own = {"scenario": {"labels": "few_clients"}, **_participation(name, share, scale.clients)}
            found[f"few: {name} {share}"] = method, own
    runs = {
        name: SuiteRun(name=name, method=method, settings=merged(scale.settings, scale.methods.get(method, {}), own))
        for name, (method, own) in found.items()
    }
    for task in TASKS if scale.poc else ():
        for name, method in POC.items():
            shared = merged(*(scale.poc.get(key, {}) for key in ("all", task, method, f"{task} {method}")))
            runs[f"{task}: {name}"] = SuiteRun(name=f"{task}: {name}", method=method, settings=shared)
    return runs


def _policy(name: str, suffix: str) -> tuple[str, Table]:
    kind, _, rho = name.rpartition(" ") if name.startswith("gated") else (name, "", "")
    own: Table = {"peers": {"T": 2}}
    if rho:
        own["gate"] = {"rho": int(rho) / 100}
    return f"fedperl_{kind.replace(' ', '_')}{suffix}", own


def _participation(name: str, share: str, clients: int) -> Table:
    """Return who takes part: 3 in 10, or all; with labelled images alone one of the two that have them, or both."""
    if name == "Lower":
        few = 1 if share == "30%" else 2
        return {"federation": {"cohort": few, "quorum": few}, "privacy": "research"}
    # Two have labels, and FedIRM begins with them alone.
    cohort = max(2, round(0.3 * clients)) if share == "30%" else clients
    return {"federation": {"cohort": cohort, "quorum": 2}, "privacy": "research"}
