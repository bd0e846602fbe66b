"""Arrays in, numbers out."""

from fedperl.evaluate.classification import Classification, classification, confusion_matrix
from fedperl.evaluate.communities import peer_share
from fedperl.evaluate.summary import Spread, spread

__all__ = ["Classification", "Spread", "classification", "confusion_matrix", "peer_share", "spread"]
