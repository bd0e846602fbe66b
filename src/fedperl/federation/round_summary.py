"""What happened in one round, as far as the server knows: for the ledger and the numbers of the run."""

from dataclasses import dataclass, field

from fedperl.federation.ledger import Entry


@dataclass
class RoundSummary:
    """What happened in one round, as far as the server knows."""

    round: int
    cohort: list[int]
    committees: dict[int, list[int]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    """How many peers the policy kept for each client; empty in rounds without peers."""
    similarity: dict[int, list[float]] = field(default_factory=dict)
    """Of each client's T candidates, before the policy; empty where nothing compares them."""
    swapped: dict[int, int] = field(default_factory=dict)
    """How many of those the auditor left out or replaced, where it did."""
    accepted: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    """Those of the accepted whose training changed nothing: they are neither averaged nor banked."""
    rejected: dict[int, str] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    """Of the accepted updates in the average."""
    residual: int | None = None
    """The round of the earlier model that was averaged in, half of the new one."""
    void: bool = False
    profile_age: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    numbers: dict[int, dict[str, float]] = field(default_factory=dict)

    def received(self) -> Entry:
        """Return what came back, as the ledger has it."""
        return {
            "kind": "receive",
            "round": self.round,
            "accepted": self.accepted,
            "rejected": {str(client): reason for client, reason in sorted(self.rejected.items())},
            "void": self.void,
            "weights": {str(client): weight for client, weight in sorted(self.weights.items())},
            "residual": self.residual,
            "bytes": self.bytes_up,
        }
