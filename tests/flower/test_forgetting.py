"""Who is gone is forgotten by every run: by those that could not be read at first, too, and whoever reads the words."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from fedperl.cli.federations import remove
from fedperl.engines.flower import server_folder
from fedperl.engines.flower.forgetting import forget
from fedperl.engines.flower.server_folder import ServerFolder
from fedperl.errors import RunError
from fedperl.federation.run_folder import RunFolder

GONE, OTHER = 3, 4


def begun(runs: Path, name: str) -> Path:
    """Return a run that has a model of each of two clients."""
    folder = RunFolder(runs / name)
    folder.open()
    folder.restore()
    for client in (GONE, OTHER):
        folder.bank.put(client, 1, {"weight": torch.full((3,), float(client))})
    (folder.path / "config.toml").touch()
    folder.commit({"round": 1})
    folder.close()
    return folder.path


def banked(run: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (run / "state" / "bank").iterdir())


@pytest.fixture(name="server")
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFolder:
    """A server's folder with one registered site and two runs; Flower unregisters what it is told to."""
    folder = ServerFolder(tmp_path / "server")
    folder.path.mkdir()
    folder.removed.mkdir()
    folder._write_roster({GONE: {"node": 17, "key": "k"}})
    unregistered: list[str] = []

    def flwr(arguments: list[str], _: Any) -> dict[str, Any]:
        if "unregister" in arguments:
            unregistered.append(arguments[2])
        nodes = [] if unregistered else [{"node-id": "17", "status": "online"}]
        return {"nodes": nodes}

    monkeypatch.setattr(server_folder, "flwr", flwr)
    for name in ("a", "b"):
        begun(folder.runs, name)
    return folder


def test_a_run_that_could_not_be_read_lets_go_later(server: ServerFolder) -> None:
    path = server.runs / "a" / "state" / "checkpoint.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    server.note_left(GONE)
    (server.left / "8.tmp").touch()  # of a process that was killed
    for _ in range(2):
        assert any("checkpoint.json" in line for line in server.let_go())
        assert (banked(server.runs / "a"), banked(server.runs / "b")) == ([GONE, OTHER], [OTHER])
    again = begun(server.runs, "c")  # the site has joined again
    path.write_bytes(whole)
    assert len(server.let_go()) == 1
    assert banked(server.runs / "a") == [OTHER]
    assert banked(again) == [GONE, OTHER]
    assert server.let_go() == []
    assert not (server.left / str(GONE)).exists()


def test_a_run_that_is_at_work_lets_go_later(server: ServerFolder) -> None:
    at_work = RunFolder(server.runs / "b")
    at_work.open()
    server.note_left(GONE)
    assert [one.done for one in forget(server.runs, OTHER)] == [True, False]
    assert len(server.let_go()) == 2
    assert (banked(server.runs / "a"), banked(server.runs / "b")) == ([], [GONE, OTHER])
    at_work.close()
    server.let_go()
    assert banked(server.runs / "b") == [OTHER]


def test_who_was_taken_out_is_forgotten_by_a_run_that_could_not_be_read(server: ServerFolder) -> None:
    path = server.runs / "b" / "state" / "checkpoint.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    server.remove(GONE)
    path.write_bytes(whole)
    server.let_go()
    assert banked(server.runs / "b") == [OTHER]


def test_a_full_disk_in_one_run_keeps_nobody_in_the_others(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = RunFolder.commit

    def full(self: RunFolder, content: dict[str, Any]) -> None:
        if self.path.name == "a":
            raise OSError(28, "No space left on device")
        commit(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "commit", full)
        server.remove(GONE)
    assert server.roster() == {}
    assert (banked(server.runs / "a"), banked(server.runs / "b")) == ([GONE, OTHER], [OTHER])
    server.let_go()
    assert banked(server.runs / "a") == [OTHER]


@pytest.mark.parametrize("reader", ["prints to a closed pipe", "ignores it"])
def test_a_site_is_taken_out_whoever_reads_what_was_done(
    reader: str, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reader == "ignores it":
        server.remove(GONE)
    else:

        def broken(*_: object) -> None:
            raise BrokenPipeError

        monkeypatch.setattr("builtins.print", broken)
        with pytest.raises(BrokenPipeError):
            remove(GONE, server.path)
    assert not server.roster()
    assert not server._nodes()
    assert banked(server.runs / "a") == banked(server.runs / "b") == [OTHER]


def test_whoever_ignores_what_was_done_has_it_done(server: ServerFolder) -> None:
    server.note_left(GONE)
    server.let_go()
    forget(server.runs, OTHER)
    assert banked(server.runs / "a") == banked(server.runs / "b") == []


def test_where_the_key_cannot_be_unregistered_what_was_done_is_said(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise RunError("the server does not run")

    with monkeypatch.context() as patch:
        patch.setattr(server_folder, "flwr", down)
        with pytest.raises(RunError, match=r"(?s)a: .* deleted.*b: .* deleted.*the server does not run"):
            server.remove(GONE)
    assert GONE in server.roster()
    assert banked(server.runs / "a") == banked(server.runs / "b") == [OTHER]
    assert server.remove(GONE) == []
    assert server.roster() == {}
