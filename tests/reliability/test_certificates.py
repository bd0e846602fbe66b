"""Who is no server of the federation is not spoken to: an expired certificate, another's, or one for another name."""

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedperl.engines.flower.keys import YEARS, make_authority


@contextmanager
def listening(folder: Path) -> Iterator[int]:
    """Serve TLS with the certificate of a folder on a port of this machine, for one caller after the other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    with connection, context.wrap_socket(connection, server_side=True) as secure:
                        secure.sendall(b"hello")
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.close()


def greeting(port: int, ca: Path, name: str = "localhost") -> bytes:
    """Return what a site hears that trusts a certificate authority."""
    trust = ssl.create_default_context(cafile=str(ca))
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    with connection, trust.wrap_socket(connection, server_hostname=name) as secure:
        return secure.recv(5)


LONG_AGO = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=366 * YEARS)


class Earlier(datetime.datetime):
    """A time at which today's certificates have long expired."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "Earlier":
        return cls.fromtimestamp(LONG_AGO.timestamp(), tz)


def test_only_the_federations_own_server_is_spoken_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ours", "other"):
        make_authority(tmp_path / name, ["localhost"])
    with monkeypatch.context() as patch:
        patch.setattr(datetime, "datetime", Earlier)
        make_authority(tmp_path / "expired", ["localhost"])
    with listening(tmp_path / "ours") as port:
        assert greeting(port, tmp_path / "ours" / "ca.crt") == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer|self.signed|verify failed"):
            greeting(port, tmp_path / "other" / "ca.crt")
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            greeting(port, tmp_path / "ours" / "ca.crt", "elsewhere")
    with listening(tmp_path / "expired") as port, pytest.raises(ssl.SSLCertVerificationError, match="has expired"):
        greeting(port, tmp_path / "expired" / "ca.crt")
