"""Hands one message's work to the site's worker: what Flower starts at a site as `flwr-clientapp`.

It imports nothing but the standard library, without site-packages, so that it is there in 20 ms. Without a worker it
becomes the program itself.
"""

import json
import os
import socket
import sys


def main() -> None:
    """Let the worker do it, and end as it ends."""
    python, *arguments = sys.argv[1:]
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(os.environ["FEDPERL_WORKER"])
        line.sendall(json.dumps(arguments).encode() + b"\n")
    except (OSError, KeyError):
        os.execv(python, [python, "-m", "fedperl.engines.flower.site_program", *arguments])
    sys.exit(int(line.recv(16) or b"1"))


if __name__ == "__main__":
    main()
