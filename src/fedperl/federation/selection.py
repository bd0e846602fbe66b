"""Which global model is reported: the last, the best of all clients together, the best of each client (row 37)."""

from typing import Any


class Selection:
    """Remembers the best validation accuracy and the round it came from; a tie goes to the later round."""

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, int]] = {}

    def observe(
        self, round: int, accuracy: dict[int, float], server: float | None = None, *, whole: bool = True
    ) -> None:
        """Take the accuracies of one round's global model, by client and on the server's own images, into account.

        Args:
            whole: whether every client is among them; a mean over some is not comparable with that over others.
        """
        values = {str(client): value for client, value in accuracy.items()}
        if accuracy and whole:
            values["global"] = sum(accuracy.values()) / len(accuracy)
        if server is not None:
            values["server"] = server
        for key, value in values.items():
            if key not in self.best or value >= self.best[key][0]:
                self.best[key] = (value, round)

    def rounds(self) -> set[int]:
        """Return the rounds whose models are still needed."""
        return {round for _, round in self.best.values()}

    def to_json(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {key: list(value) for key, value in self.best.items()}

    def restore(self, content: dict[str, Any]) -> None:
        """Take the state of a checkpoint over."""
        self.best = {key: (float(value), int(round)) for key, (value, round) in content.items()}
