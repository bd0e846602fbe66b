"""The folder of a federation's server: keys, Flower's own files, who is registered, runs, who was taken out."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedperl.engines.flower.environment import CONNECTION, connect_to, environment, flwr
from fedperl.engines.flower.forgetting import forget
from fedperl.engines.flower.keys import make_authority
from fedperl.errors import ConfigError, RunError
from fedperl.files import PRIVATE, digest, lock, write_durably

VARIABLE = "FEDPERL_SERVER"
"""By which the program that Flower starts finds the folder."""
PROXY = """\
# Hospitals reach the server through this alone. Flower serves its fleet API, which checks every site's key, and its
# control API, which checks nothing and can start a run, on one port: only the first is let through.
# nginx -c FILE, or put the server block into your own configuration.
worker_processes auto;
pid "{folder}/nginx.pid";
error_log "{folder}/nginx.log";
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_temp_path "{folder}/nginx_body";
    proxy_temp_path "{folder}/nginx_proxy";
    fastcgi_temp_path "{folder}/nginx_fastcgi";
    uwsgi_temp_path "{folder}/nginx_uwsgi";
    scgi_temp_path "{folder}/nginx_scgi";
    server {{
        listen {listen} ssl;
        ssl_certificate "{folder}/keys/server.crt";
        ssl_certificate_key "{folder}/keys/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;
        location /v1/fleet/ {{
            proxy_pass https://127.0.0.1:{port};
            proxy_ssl_trusted_certificate "{folder}/keys/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name {name};
            proxy_set_header Host $http_host;
            proxy_http_version 1.1;
            proxy_read_timeout 1h;
        }}
        location = /health {{
            proxy_pass https://127.0.0.1:{port};
            proxy_ssl_trusted_certificate "{folder}/keys/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name {name};
        }}
        location / {{ return 403; }}
    }}
}}
"""


@dataclass(frozen=True)
class Address:
    """Where the SuperLink listens on this machine, and where hospitals reach it."""

    host: str
    """The server's name or address, as hospitals have it."""
    port: int
    """On loopback, of the SuperLink."""
    public: int
    """Of the reverse proxy."""


class ServerFolder:
    """What one federation's server has on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.keys, self.home, self.runs = self.path / "keys", self.path / "flower", self.path / "runs"
        self.removed, self.left = self.path / "removed", self.path / "left"

    # Keys and address

    def create(self, address: Address) -> bool:
        """Make keys and files that are not there yet; return whether it is a new federation.

        Raises:
            ConfigError: the server's certificate is for another name.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = not (self.keys / "ca.crt").exists()
        if new:
            make_authority(self.keys, [address.host, *(name for name in LOOPBACK if name != address.host)])
        elif self.address().host != address.host:
            raise ConfigError(
                f"{self.keys}: the server's certificate is for {self.address().host!r}; wanted {address.host!r}: "
                "use that name, or another folder with keys of its own"
            )
        self.removed.mkdir(exist_ok=True)
        self.left.mkdir(exist_ok=True)
        write_durably(self.path / "server.json", json.dumps(vars(address)).encode())
        connect_to(self.home, f"127.0.0.1:{address.port}", self.keys / "ca.crt")
        proxy = PROXY.format(folder=self.path, port=address.port, listen=address.public, name="localhost")
        write_durably(self.path / "nginx.conf", proxy.encode(), mode=0o644)
        return new

    def address(self) -> Address:
        """Return the server's address.

        Raises:
            ConfigError: no server was ever started in the folder.
        """
        try:
            return Address(**json.loads((self.path / "server.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise ConfigError(f"{self.path}: no server's folder; wanted `fedperl server start` first") from None

    def environment(self) -> dict[str, str]:
        """Return the environment of the server's programs."""
        return environment(self.home, **{VARIABLE: str(self.path)})

    def superlink(self) -> list[str]:
        """Return the command that serves the federation on loopback, over TLS, to registered keys alone."""
        keys = self.keys
        return [
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.address().port)),
            *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
            *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
            *("--disable-runtime-dependency-installation", "--database", str(self.path / "superlink.db")),
        ]

    def note_superlink(self) -> None:
        """Note that this process becomes the SuperLink."""
        write_durably(self.path / "superlink.pid", str(os.getpid()).encode())

    def superlink_pid(self) -> int:
        """Return the process that is or was the SuperLink."""
        return int((self.path / "superlink.pid").read_text())

    # Sites

    def roster(self) -> dict[int, dict[str, Any]]:
        """Return the registered sites: by client number, the node and the hash of its public key."""
        path = self.path / "roster.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return {int(number): entry for number, entry in found.items()}

    def register(self, key: Path, number: int | None = None) -> int:
        """Let the site with this public key take part, and return its client number.

        Cut short, it can be called again: the nodes that Flower had before are noted, so that one that came since and
        is nobody's is this key's.

        Raises:
            BusyError: another process registers or removes a site.
            ConfigError: the number or the key is taken.
            RunError: the server does not run, or refuses the key.
        """
        try:
            hash = digest(key.read_bytes().strip())
        except OSError as error:
            raise ConfigError(f"{key}: cannot be read: {error.strerror}; wanted a site's site.pub") from None
        with lock(self.path / "roster.lock"):
            roster, begun, nodes = self.roster(), self.path / f"registering_{hash[:16]}", set(self._nodes())
            number = self._free_number(roster, key, hash, number)
            if not begun.exists():
                write_durably(begun, json.dumps(sorted(nodes)).encode())
            made = sorted(nodes - set(json.loads(begun.read_text())) - {entry["node"] for entry in roster.values()})
            if len(made) > 1:
                raise RunError(f"{key}: one of Flower's nodes {made} is its; unregister them all, and try again")
            if not made:
                asked = ["supernode", "register", str(key), CONNECTION, "--name", f"client-{number}"]
                made = [int(flwr(asked, self.environment())["node-id"])]
            roster[number] = {"node": made[0], "key": hash}
            self._write_roster(roster)
            begun.unlink()
        return number

    def _free_number(self, roster: Mapping[int, Mapping[str, Any]], key: Path, hash: str, number: int | None) -> int:
        """Return the number of a new site.

        Raises:
            ConfigError: the number or the key is taken.
        """
        twice = [client for client, entry in roster.items() if entry["key"] == hash]
        if twice:
            raise ConfigError(f"{key}: is registered already, as client {twice[0]}")
        if number is None:
            number = max({*roster, *self.taken_out()}, default=-1) + 1
        if number in self.taken_out():
            raise ConfigError(f"client {number} was taken out, and its number is not given again; wanted another")
        if number in roster:
            raise ConfigError(f"client {number} is registered already, with another key; remove it first")
        return number

    def remove(self, number: int) -> list[str]:
        """Take a site out: its key is refused from now on, and every run forgets its model; return what was done.

        Raises:
            BusyError: another process registers or removes a site.
            ConfigError: there is no such site.
            RunError: the key could not be unregistered; what was done by then is said, too.
        """
        with lock(self.path / "roster.lock"):
            roster = self.roster()
            if number not in roster and number not in self.taken_out():
                raise ConfigError(f"client {number} is not registered; registered: {sorted(roster)}")
            write_durably(self.removed / str(number), b"")
            found = self._forget(number)
            if number not in roster:
                return found
            node = roster.pop(number)["node"]
            try:
                if node in self._nodes():
                    flwr(["supernode", "unregister", str(node), CONNECTION], self.environment())
            except RunError as error:
                raise RunError("\n".join([*found, f"client {number}'s key is not refused yet: {error}"])) from None
            self._write_roster(roster)
        return found

    def taken_out(self) -> set[int]:
        """Return the clients that were taken out."""
        return _numbered(self.removed)

    def note_left(self, number: int) -> None:
        """Write down that a site has withdrawn, until every run has let go of it."""
        self.left.mkdir(exist_ok=True)
        write_durably(self.left / str(number), b"")

    def let_go(self) -> list[str]:
        """Delete what runs still hold of sites that are gone; return what was done."""
        said: list[str] = []
        for number in sorted(_numbered(self.left)):
            try:
                names = json.loads((self.left / str(number)).read_text())
            except (OSError, ValueError):  # gone meanwhile, new, or damaged: all runs are asked
                names = []
            said += self._forget(number, names)
        return said

    def _forget(self, number: int, runs: Sequence[str] = ()) -> list[str]:
        """Have runs let go of a site, all where none is named; those that could not are noted, to be tried again.

        By name, so that a site that has joined again is forgotten in those alone.
        """
        found, mark = forget(self.runs, number, runs or None), self.left / str(number)
        if later := [one.run for one in found if not one.done]:
            self.left.mkdir(exist_ok=True)
            write_durably(mark, json.dumps(later).encode())
        else:
            mark.unlink(missing_ok=True)
        return list(map(str, found))

    def online(self) -> dict[int, bool]:
        """Return which sites are there; asks the running server.

        Raises:
            RunError: it does not run.
        """
        nodes = self._nodes()
        return {client: nodes.get(entry["node"]) == "online" for client, entry in sorted(self.roster().items())}

    def _nodes(self) -> dict[int, str]:
        """Return the status of every node that Flower lets in."""
        said = flwr(["supernode", "list", CONNECTION], self.environment())
        found = {int(node["node-id"]): str(node["status"]) for node in said["nodes"]}
        return {node: status for node, status in found.items() if status != "unregistered"}

    def _write_roster(self, roster: dict[int, dict[str, Any]]) -> None:
        content = json.dumps({str(number): entry for number, entry in sorted(roster.items())}, indent=1)
        write_durably(self.path / "roster.json", content.encode(), mode=PRIVATE)


def _numbered(folder: Path) -> set[int]:
    """Return the numbers that a folder has a file for; one that is half-written does not count."""
    return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()} if folder.exists() else set()


LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Serving:
    """What the program that serves a run says of itself, for those who follow it."""

    path: Path

    def say(self, **what: object) -> None:
        """Write it."""
        me = {"pid": os.getpid(), "began": began(os.getpid()), "at": time.time()}
        write_durably(self.path, json.dumps(what | me).encode())

    def read(self) -> dict[str, Any]:
        """Return what was said last; nothing before the first word."""
        try:
            found: dict[str, Any] = json.loads(self.path.read_text())
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path}: cannot be read: {error}") from None

    def alive(self) -> bool:
        """Return whether the program that spoke last still runs."""
        said = self.read()
        pid = int(said.get("pid", 0))
        return is_alive(pid) and began(pid) == said.get("began")


def began(pid: int) -> str:
    """Return when a process began, as Linux counts; nothing elsewhere. Numbers of processes are given again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that was killed and not yet buried does not."""
    try:
        os.kill(pid, 0)
        return (
            not Path("/proc/self").exists()
            or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except PermissionError:
        return True
    except (OSError, IndexError):
        return False
