"""What a client minimises. An objective is built from settings and context and called on (network, batch): one a file.

A researcher's own is named by its file, `my_objective.py:MyObjective` (docs/extending.md).
"""

from inspect import isabstract
from typing import get_args

from fedperl.errors import ConfigError
from fedperl.learn.objectives.base import Batch, Context, Losses, Objective, View
from fedperl.learn.objectives.cbafed import CBAFed
from fedperl.learn.objectives.fedirm import FedIRM, FixMatchIRM
from fedperl.learn.objectives.fedmatch import FedMatch
from fedperl.learn.objectives.fixmatch import FixMatch
from fedperl.learn.objectives.mean_teacher import MeanTeacher
from fedperl.learn.objectives.supervised import Supervised
from fedperl.learn.objectives.uda import UDA
from fedperl.plugins import load
from fedperl.settings import OBJECTIVES
from fedperl.settings import Objective as ObjectiveSettings

__all__ = [
    "UDA",
    "Batch",
    "CBAFed",
    "Context",
    "FedIRM",
    "FedMatch",
    "FixMatch",
    "FixMatchIRM",
    "Losses",
    "MeanTeacher",
    "Objective",
    "Supervised",
    "View",
    "build_objective",
    "find_objective",
]

_BY_KIND: dict[str, type[Objective]] = {
    "supervised": Supervised,
    "fixmatch": FixMatch,
    "uda": UDA,
    "mean_teacher": MeanTeacher,
    "fedirm": FedIRM,
    "fixmatch_irm": FixMatchIRM,
    "fedmatch": FedMatch,
    "cbafed": CBAFed,
}


def find_objective(kind: str) -> type[Objective]:
    """Return the class of an objective, ours or from a file.

    Raises:
        ConfigError: it is to come from a file, and the file has no such class.
    """
    if kind in OBJECTIVES:
        return _BY_KIND[kind]
    found = load(kind, Objective)  # type: ignore[type-abstract]
    unknown = sorted(set(found.views) - set(get_args(View)))
    if unknown or isabstract(found):
        what = f"views has {unknown[0]!r}; wanted of {', '.join(get_args(View))}" if unknown else "it has no __call__"
        raise ConfigError(f"{kind!r}: {what}")
    return found


def build_objective(settings: ObjectiveSettings, context: Context) -> Objective:
    """Return the objective the settings name, for one local round."""
    return find_objective(settings.kind)(settings, context)
