"""The live view of `fedperl train --watch`: the report's page, served on this machine alone while a run trains."""

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from fedperl.errors import FedPerlError
from fedperl.report.page import runs_page
from fedperl.report.page_data import PageRun, embedded, read_run

HOST = "127.0.0.1"
LINGER = 5.0
"""Seconds a page that still asks is waited for at the end, so that it shows the results."""


@dataclass(frozen=True)
class Answer:
    """What is sent, and what is called once it is."""

    status: int
    kind: str
    content: bytes
    sent: Callable[[], None] | None = None


class Watch:
    """Serves two things to this machine, and changes nothing: the page, and what it draws from as JSON.

    A request that fails is answered with an error; the run does not hear of it.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Listen on a port, by default one that is free.

        Raises:
            OSError: the port cannot be used.
        """
        self._folder, self._asked = folder, -math.inf
        self._shown = threading.Event()  # the page has been sent with the results
        self._server = _Server((HOST, port), _handler(self._answer))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="watch", daemon=True)

    @property
    def address(self) -> str:
        """Where a browser on this machine finds the page."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Stop; after a run that ended well, a page that is open is given the results first."""
        asks = time.monotonic() - self._asked < LINGER
        if kind is None and asks and (self._folder / "results.json").is_file():
            self._shown.wait(LINGER)
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, host: str) -> Answer:
        """Return what a request is answered with."""
        if host not in hosts_at(self._server.server_address[1]):  # another site's name that leads here
            return Answer(403, "text/plain", b"only for this machine\n")
        if path not in ("/", "/state.json"):
            return Answer(404, "text/plain", b"only the page is here\n")
        try:
            runs = self._runs()
            if path == "/":
                finished = any(run.results is not None for run in runs)
                page = runs_page(runs, live=True).encode()
                return Answer(200, "text/html; charset=utf-8", page, self._shown.set if finished else None)
            self._asked = time.monotonic()
            return Answer(200, "application/json", json.dumps(embedded(runs, live=True)).encode())
        except Exception as error:  # half-written, about to be, or damaged: no matter of the run's
            said = str(error) if isinstance(error, FedPerlError | OSError) else repr(error)
            return Answer(503, "text/plain; charset=utf-8", f"cannot be shown now: {said}\n".encode())

    def _runs(self) -> list[PageRun]:
        return [read_run(self._folder)] if (self._folder / "config.toml").is_file() else []


def hosts_at(port: int) -> set[str]:
    """Return what a browser on this machine calls the server; at port 80 it leaves the port out."""
    names = (HOST, "localhost")
    return {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a browser that went away is no matter of the run's."""


def _handler(answered: Callable[[str, str], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET; everything else is refused by the base."""

        server_version, sys_version, timeout = "fedperl", "", 10

        def do_GET(self) -> None:
            """Send the page or its numbers."""
            answer = answered(self.path.partition("?")[0], self.headers.get("Host", ""))
            self.send_response(answer.status)
            for name, value in (
                ("Content-Type", answer.kind),
                ("Content-Length", str(len(answer.content))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("X-Frame-Options", "DENY"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)
            if answer.sent is not None:
                answer.sent()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal shows the training."""

    return Handler
