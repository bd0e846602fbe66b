"""Where the time of a round goes: seconds by name, measured without nesting."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds under a name; an inner measurement is taken out of the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time of the block, less what it measures itself, under the name."""
        self._inner.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            own = passed - self._inner.pop()
            self._inner[-1] += passed
            self.seconds[name] = self.seconds.get(name, 0.0) + own

    def take(self) -> dict[str, float]:
        """Return the seconds so far and start again from zero."""
        taken, self.seconds = self.seconds, {}
        return taken
