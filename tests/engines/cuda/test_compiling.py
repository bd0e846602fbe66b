"""One process at a time compiles kernels into the folder that all share."""

import contextlib
import fcntl
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton, in which the kernels are written, is not installed")

from fedperl.engines.cuda import kernels
from fedperl.engines.cuda.kernels_common import one_compiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def others_wait(folder: Path) -> bool:
    with (folder / "fedperl.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_others_wait_until_the_same_was_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    with contextlib.suppress(OSError), one_compiles("passes", (16, 112)):
        assert others_wait(folder)
        raise OSError("no compiler")
    assert not others_wait(folder)
    with one_compiles("passes", (16, 112)):  # it failed: nothing is there yet
        assert others_wait(folder)
    with one_compiles("passes", (16, 112)):
        assert not others_wait(folder)
    with one_compiles("passes", (16, 224)):
        assert others_wait(folder)


def test_kernels_are_tried_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial leaves its mark that all of it was compiled; those of a trial that fails are not there."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert kernels.pooling_works.__wrapped__(DEVICE)
    assert not kernels.b0_works.__wrapped__((), 16, DEVICE)  # no pass to compare
    assert len([*tmp_path.glob("fedperl-*")]) == 1
    assert (tmp_path / "fedperl.lock").exists()


def test_a_folder_that_cannot_be_written_is_tritons_to_complain_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    compiled = []
    with one_compiles("passes"):
        compiled.append("all")
    assert compiled
