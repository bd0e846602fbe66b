"""Arrays in, numbers out."""

from fedperl.evaluate.classification import Classification, classification, confusion_matrix
from fedperl.evaluate.communities import peer_share
from fedperl.evaluate.paired import Interval, paired_interval
from fedperl.evaluate.summary import Spread, spread

__all__ = [
    "Classification",
    "Interval",
    "Spread",
    "classification",
    "confusion_matrix",
    "paired_interval",
    "peer_share",
    "spread",
]
