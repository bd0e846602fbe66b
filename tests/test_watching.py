"""The live view where something is wrong, what the page is never written over, and how a stopped training goes on."""

import http.client
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedperl import train
from fedperl.cli import main
from fedperl.config import dump
from fedperl.data.store import Store
from fedperl.watching import Watch, hosts_at
from tests.conftest import small_config

Command = Callable[..., tuple[int, str]]


@pytest.fixture(name="command")
def _command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedperl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0), capsys.readouterr().err

    return run


def test_damaged_files_are_an_answer_that_the_page_asks_on_after(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(dump(small_config()))
    (tmp_path / "metrics.jsonl").write_text("[1]\n")  # JSON, but no round
    with Watch(tmp_path) as watch:
        for path in ("/", "/state.json"):
            connection = http.client.HTTPConnection(watch.address.split("/")[2], timeout=300)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 503
            assert answer.read().startswith(b"cannot be shown now: ")
        (tmp_path / "metrics.jsonl").write_text("")
        connection.request("GET", "/state.json")
        assert json.loads(connection.getresponse().read())["runs"][0]["done"] == 0


def test_a_browser_leaves_out_port_80_and_no_other() -> None:
    assert hosts_at(80) == {"127.0.0.1", "127.0.0.1:80", "localhost", "localhost:80"}
    assert hosts_at(8080) == {"127.0.0.1:8080", "localhost:8080"}


def test_a_port_without_the_live_view_is_refused(tmp_path: Path, command: Command) -> None:
    code, error = command("train", "--out", tmp_path / "run", "--port", 8000)
    assert code == 2
    assert "no effect without --watch" in error
    assert not (tmp_path / "run").exists()


def test_the_page_is_written_over_a_page_alone(tmp_path: Path, store: Store, command: Command) -> None:
    run = tmp_path / "run"
    train(small_config(federation={"rounds": 1}), run, store=store)
    (tmp_path / "device").symlink_to(os.devnull)
    before = (run / "results.json").read_bytes()
    for out in (run / "results.json", tmp_path / "device"):
        code, error = command("report", run, "--out", out)
        assert code == 2
        assert error.startswith(f"fedperl: {out}: is there already and is no page")
    assert (run / "results.json").read_bytes() == before
    assert (tmp_path / "device").is_symlink()
    for _ in range(2):  # the second over the first
        assert command("report", run, "--quiet") == (0, "")


def test_the_command_that_goes_on_can_be_pasted(tmp_path: Path, store: Store, command: Command) -> None:
    store.save(tmp_path / "store")
    (tmp_path / "stop.py").write_text("raise KeyboardInterrupt\n")
    settings = {"data": {"source": str(tmp_path / "store")}, "objective": {"kind": f"{tmp_path}/stop.py:Stop"}}
    (tmp_path / "tiny.toml").write_text(dump(small_config(**settings)))
    code, error = command("train", tmp_path / "tiny.toml", "--out", tmp_path / "my run")
    assert code == 130
    told = shlex.split(error.partition("go on with: ")[2])
    assert told == ["fedperl", "train", "--resume", "--out", str(tmp_path / "my run")]
