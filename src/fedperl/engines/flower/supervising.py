"""Keeps a site in the federation: Flower's node ends when the server refuses it, ours tries again."""

import signal
import subprocess
import time
from types import FrameType

AGAIN = 10.0
"""Seconds before the next try."""


def keep_running(command: list[str], env: dict[str, str]) -> int:
    """Run a command again and again until this process is asked to end."""
    child: subprocess.Popen[bytes] | None = None
    asked = False

    def end(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while True:
        child = subprocess.Popen(command, env=env)
        if asked:  # before there was a child to tell
            child.terminate()
        code = child.wait()
        if asked:
            return 0
        print(
            f"fedperl: not let in (Flower's exit code {code}): the key is not registered, the server cannot be "
            "reached, or it still waits for a process of this site that was killed, a minute at most; "
            f"next try in {AGAIN:.0f} s",
            flush=True,
        )
        until = time.monotonic() + AGAIN
        while time.monotonic() < until and not asked:
            time.sleep(0.2)
        if asked:
            return 0
