"""The paper's figures from finished runs, and a few it has no picture of."""

from fedperl.paper.figures.communities import early_late, figure3
from fedperl.paper.figures.curves import precision_recall, roc
from fedperl.paper.figures.data import figure2
from fedperl.paper.figures.examples import figure6
from fedperl.paper.figures.few import figure8
from fedperl.paper.figures.reliability import figure7, figure9, reliability_local
from fedperl.paper.figures.training import figure4, time
from fedperl.paper.figures.trust import figure5

__all__ = [
    "early_late",
    "figure2",
    "figure3",
    "figure4",
    "figure5",
    "figure6",
    "figure7",
    "figure8",
    "figure9",
    "precision_recall",
    "reliability_local",
    "roc",
    "time",
]
