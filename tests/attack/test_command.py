"""`fedperl privacy`: what it prints, and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from fedperl.cli.privacy import privacy
from fedperl.errors import RunError
from fedperl.federation.kept_uploads import KeptUploads
from fedperl.federation.ledger import Ledger
from fedperl.federation.run_folder import RunFolder
from tests.attack.test_linear import triangle
from tests.attack.world import World, single
from tests.conftest import small_config

app = typer.Typer()
app.command()(privacy)


def run_folder(path: Path, world: World, *, keep: bool = True, **sections: Any) -> Path:
    (path / "state").mkdir(parents=True)
    RunFolder(path).write_start(small_config(**{"privacy": "research", **sections}), "")
    Ledger(path / "state" / "ledger.jsonl").append(world.entries)
    if keep:
        kept = KeptUploads(path / "state" / "kept", 1000)
        for round, versions in world.kept.models.items():
            kept.model(round, {"w": torch.from_numpy(versions[0])})
        for (client, round), upload in world.kept.uploads.items():
            kept.upload(client, round, {"w": torch.from_numpy(upload)})
        for (client, round), versions in world.kept.peers.items():
            kept.peer(client, round, {"w": torch.from_numpy(versions[0])})
    return path


def printed(*arguments: str | Path, code: int) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def test_what_was_recovered_is_counted_and_is_exit_code_1(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", triangle(rounding=single))
    text = printed(folder, code=1)
    assert "Releases: 6 global models to every client that validates, 3 peers" in text
    assert "Auditor: off" in text
    assert "models: 3 recovered, 3 to within 10 %, 3 solvable, of " in text
    assert "by 1 of 8 receivers; relative error" in text
    assert "changes: 0 recovered" in text
    found = json.loads(printed(folder, "--json", code=1))
    assert found["totals"]["uploads"]["recovered"] == 3
    assert found["receivers"][0]["solvable"] == [[1, 1], [2, 2], [3, 3]]
    assert found["left_out"] == 0
    assert found["audited"] == 0
    assert found["kept"]
    assert found["seconds"] > 0


def test_nothing_recovered_is_exit_code_0_and_two_together_get_more(tmp_path: Path) -> None:
    world = World()
    world.round(1, [1, 2, 3])
    folder = run_folder(tmp_path / "run", world, audit={"coalition": 1})
    assert "Auditor: on, against 1 together" in printed(folder, code=0)
    found = json.loads(printed(folder, "--coalition", "2", "--json", code=1))
    assert [one["receivers"] for one in found["receivers"]] == [[1, 2], [1, 3], [2, 3]]
    assert found["totals"]["uploads"]["recovered"] == 3


def test_clients_of_one_organisation_are_one_receiver(tmp_path: Path) -> None:
    world = World()
    world.round(1, [1, 2, 3])
    folder = run_folder(tmp_path / "run", world, federation={"organisations": [[1, 2]]})
    found = json.loads(printed(folder, "--json", code=1))
    assert [(one["receivers"], one["solvable"]) for one in found["receivers"]] == [([1, 2], [[3, 1]]), ([3], [])]


def test_without_kept_uploads_it_says_so_and_counts_by_algebra(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", triangle(), keep=False)
    text = printed(folder, code=1)
    assert "The run kept no uploads (audit.keep_uploads = 0): solvable by algebra, tried on no tensors" in text
    assert "models: 3 solvable, of" in text
    assert "recovered," not in text
    found = json.loads(printed(folder, "--json", code=1))
    assert found["receivers"][0]["uploads"]["recovered"] is None


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    world = triangle()
    world.kept.peers[0, 4][0] += 0.1
    text = printed(run_folder(tmp_path / "run", world), code=0)
    assert "1 releases left out: not kept, or not the means that the ledger says they are" in text
    assert "were not kept:" not in text
    world.kept.uploads.clear()
    text = printed(run_folder(tmp_path / "other", world), code=0)
    assert "18 uploads were not kept: recovered or not, they count as solvable alone" in text


def test_raw_peers_are_counted_one_by_one(tmp_path: Path) -> None:
    world = World()
    world.round(1, [1, 2, 3])
    world.round(2, [0, 4, 5], {0: [1, 2]})
    folder = run_folder(tmp_path / "run", world, peers={"anonymize": False})
    assert json.loads(printed(folder, "--json", code=1))["releases"] == {"models": 2, "peers": 2}


def test_folders_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    runner = CliRunner()

    def refused(folder: Path, *options: str) -> str:
        error = runner.invoke(app, [str(folder), *options]).exception
        assert isinstance(error, RunError)
        return str(error)

    assert "config.toml is missing" in refused(tmp_path)
    folder = run_folder(tmp_path / "run", triangle())
    assert "--coalition 9; wanted at most as many as there are" in refused(folder, "--coalition", "9")
    ledger = folder / "state" / "ledger.jsonl"
    ledger.unlink()
    assert f"{ledger}: missing; wanted the ledger of a run" in refused(folder)
    ledger.write_text("")
    assert f"{ledger}: nothing was ever sent" in refused(folder)
    ledger.unlink()
    Ledger(ledger).append([{"kind": "send", "round": 1}])
    assert f"{ledger}: an entry is not that of a ledger: KeyError('releases')" in refused(folder)


def test_ctrl_c_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedperl.attack.linear.Attacker.attack", interrupt)
    printed(run_folder(tmp_path / "run", triangle()), code=130)
