"""A process of a site that has imported everything, and becomes two for each message."""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
from pathlib import Path

from fedperl.engines.flower import site_program

PR_SET_PDEATHSIG = 1
LOOK = 1.0
"""Seconds between two looks whether the site is still there."""


def main() -> None:
    """Serve the socket until the process that started this one is gone."""
    path, parent = sys.argv[1], os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that do the work
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        while os.getppid() == parent:
            if select.select([door], [], [], LOOK)[0]:
                line, _ = door.accept()
                if os.fork() == 0:
                    door.close()
                    _work(line)
                line.close()
    shutil.rmtree(Path(path).parent, ignore_errors=True)


def _end_with_parent() -> None:
    """Have Linux kill this process when the worker ends; elsewhere it ends with its task."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _work(line: socket.socket) -> None:
    """Answer one message and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_with_parent()
    code = 1
    try:
        with line.makefile() as text:
            sys.argv = ["flwr-clientapp", *json.loads(text.readline())]
        site_program.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            line.sendall(str(code).encode())
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()
