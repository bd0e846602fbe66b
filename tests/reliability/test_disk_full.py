"""A real file system without space: the command says which file, ends with 2, and goes on when there is some."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedperl.config import dump
from tests.conftest import artefacts, small_config, small_store

SCRIPT = """
mount -t tmpfs -o size={small} tmpfs {disk}
{train} {config} --out {disk}/run --quiet 2> {out}/first
echo $? > {out}/code
mount -o remount,size=200m {disk}
{train} --resume --out {disk}/run --quiet 2> {out}/second
echo $? >> {out}/code
cp -r {disk}/run {out}/run
"""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="a file system of one's own needs unshare",
)
@pytest.mark.parametrize("small", ["300k", "3m", "5m"])
def test_a_disk_without_space_ends_the_command_with_2(small: str, tmp_path: Path) -> None:
    small_store().save(tmp_path / "store")
    config, disk = tmp_path / "run.toml", tmp_path / "disk"
    config.write_text(dump(small_config(data={"source": str(tmp_path / "store")}, federation={"rounds": 6})))
    disk.mkdir()
    train = f"{sys.executable} -m fedperl train"
    script = SCRIPT.format(small=small, disk=disk, train=train, config=config, out=tmp_path)
    subprocess.run(["unshare", "-rm", "sh", "-c", script], check=True, timeout=1500)
    assert (tmp_path / "code").read_text().split() == ["2", "0"], (tmp_path / "second").read_text()
    said = (tmp_path / "first").read_text()
    assert said.startswith("fedperl: ")
    assert "No space left on device" in said
    assert str(disk / "run") in said
    assert said.count("\n") == 1
    assert subprocess.run([*train.split(), str(config), "--out", str(tmp_path / "whole"), "--quiet"]).returncode == 0
    assert artefacts(tmp_path / "run") == artefacts(tmp_path / "whole")
