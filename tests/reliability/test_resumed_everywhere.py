"""A run that is killed at any moment, between rounds or amid one, ends with the bytes of one that never was."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedperl.benchmarking.reliability.dying import Fate, run_apart
from fedperl.config import dump
from fedperl.federation.run_folder import RunFolder
from tests.conftest import artefacts, small_config, small_store
from tests.reliability.victims import train_run

FEW = 4
PIECES = 12


@dataclass(frozen=True)
class Ground:
    """A configuration, what its run writes that nobody disturbs, and at how many moments it could be killed."""

    config: Path
    wanted: dict[str, bytes]
    moments: int


@pytest.fixture(scope="module", name="ground")
def _ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("ground")
    small_store(clients=4, images=16).save(folder / "store")
    settings = small_config(
        data={"source": str(folder / "store")},
        objective={"label_source": "ema", "tau": 0.34},  # clients keep a state
        federation={"rounds": 2, "cohort": 3, "batch_norm": "local"},
    )
    config = folder / "run.toml"
    config.write_text(dump(settings))
    end = run_apart(train_run, config, folder / "whole", report=folder / "report")
    assert end.error == ""
    return Ground(config, artefacts(folder / "whole"), len(end.passed))


def killed_once(ground: Ground, folder: Path, moment: int) -> dict[str, bytes]:
    """Return what a run writes that is killed at a moment and gone on with."""
    out = folder / f"killed_{moment}"
    assert run_apart(train_run, ground.config, out, fate=Fate(die_at=moment), report=folder / "report").killed
    assert not (out / "results.json").exists() or moment > 1
    end = run_apart(train_run, ground.config, out, report=folder / "report")
    assert end.error == "", end
    return artefacts(out)


def test_a_few_moments(ground: Ground, tmp_path: Path) -> None:
    assert ground.moments > 100
    for place in range(FEW):
        moment = 1 + place * (ground.moments - 2) // FEW
        assert killed_once(ground, tmp_path, moment) == ground.wanted, moment


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_every_moment(ground: Ground, tmp_path: Path, piece: int) -> None:
    for moment in range(1 + piece, ground.moments + 1, PIECES):
        assert killed_once(ground, tmp_path, moment) == ground.wanted, moment
    print(f"every {PIECES}th of {ground.moments} moments, from {1 + piece} on: resumed to the same bytes")


@pytest.mark.parametrize("moment", [1, 60, *(pytest.param(m, marks=pytest.mark.slow) for m in (20, 90, 120, -3))])
def test_a_full_disk_stops_the_run_with_the_files_name_and_it_goes_on_when_there_is_space(
    ground: Ground, tmp_path: Path, moment: int
) -> None:
    at = moment if moment > 0 else ground.moments + moment
    end = run_apart(train_run, ground.config, tmp_path / "out", fate=Fate(full_at=at), report=tmp_path / "report")
    assert re.match(r"(OSError|DataError): .*(File too large|cannot be written).*tmp", end.error), end
    assert str(tmp_path / "out") in end.error
    folder = RunFolder(tmp_path / "out")
    if (folder.state / "checkpoint.json").exists():  # the last good one is there, with all its files
        folder.open()
        content = folder.restore()
        assert content is not None
        assert all(len(folder.bank.get(client)) for client in folder.bank.records)
        folder.close()
    assert run_apart(train_run, ground.config, tmp_path / "out", report=tmp_path / "report").error == ""
    assert artefacts(tmp_path / "out") == ground.wanted


@pytest.mark.slow
def test_one_run_killed_again_and_again(ground: Ground, tmp_path: Path) -> None:
    """Each life gets a little further than the one before, until one comes to the end."""
    for lives in range(1, 100):
        end = run_apart(
            train_run, ground.config, tmp_path / "out", fate=Fate(die_at=25 + 5 * lives), report=tmp_path / "report"
        )
        if not end.killed:
            break
    assert end.error == ""
    assert lives > 3
    assert artefacts(tmp_path / "out") == ground.wanted
