"""What a client could learn of others from all it was sent, tried out by an attacker: nothing here is part of a run."""

from fedperl.attack.history import History, Release, history_of, read_history
from fedperl.attack.linear import Attacker, Count, Findings, coalitions

__all__ = ["Attacker", "Count", "Findings", "History", "Release", "coalitions", "history_of", "read_history"]
