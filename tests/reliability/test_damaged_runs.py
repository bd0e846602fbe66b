"""A run folder whose files were damaged, or changed by hand, is refused by name and never gone on with as if whole."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedperl.data.store import Store
from fedperl.errors import DataError, RunError
from fedperl.federation.known import EXTRA, PROFILE
from fedperl.federation.ledger import Ledger
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.state_files import StateFiles
from fedperl.files import digest
from fedperl.training import train
from tests.conftest import small_config, small_store
from tests.test_training import Stop, stop_at

CONFIG, STORE = small_config(federation={"rounds": 3}), small_store()
DEEP = b"[" * 100_000


@pytest.fixture(scope="module", name="begun")
def _begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after two of three rounds."""
    out = tmp_path_factory.mktemp("damaged") / "run"
    with pytest.raises(Stop):
        train(CONFIG, out, store=STORE, watchers=[stop_at(2)])
    return out


def go_on(begun: Path, out: Path, damage: Callable[[Path], None]) -> None:
    """Go on with a copy of the run in which something was changed."""
    shutil.copytree(begun, out)
    damage(out)
    train(CONFIG, out, store=STORE, resume=True)


def signed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change a checkpoint and write the hash of what it then says: whoever can write the folder can do that."""

    def damage(out: Path) -> None:
        path = out / "state" / "checkpoint.json"
        content = json.loads(path.read_bytes())["content"]
        change(content)
        text = json.dumps(content, sort_keys=True)
        path.write_text(f'{{"sha256": "{digest(text.encode())}", "content": {text}}}')

    return damage


def put(name: str, content: bytes, *gone: str) -> Callable[[Path], None]:
    def damage(out: Path) -> None:
        (out / name).write_bytes(content)
        for other in gone:
            (out / other).unlink()

    return damage


DAMAGE = {
    "checkpoint nested without end": put("state/checkpoint.json", DEEP),
    "checkpoint of another kind": put("state/checkpoint.json", b"[]"),
    "bank is a list": signed(lambda c: c.update(bank=[])),
    "bank of no client": signed(lambda c: c["bank"].update(x={})),
    "ledger lines are a text": signed(lambda c: c.update(ledger_lines="a")),
    "metrics of less than nothing": signed(lambda c: c.update(metrics_bytes=-1)),
    "ledger nested without end": put("state/ledger.jsonl", DEEP + b"\n"),
    "ledger of no text": put("state/ledger.jsonl", b"\xff\xfe\n"),
    "configuration of no text": put("config.toml", b"\xff"),
    "results of no text": put("results.json", b"\xff"),
    "round is missing": signed(lambda c: c.pop("round")),
    "round is a text": signed(lambda c: c.update(round="2")),
    "model that is not there": signed(lambda c: c.update(model=17)),
    "selection is a number": signed(lambda c: c.update(selection=3)),
    "totals are empty": signed(lambda c: c.update(totals={})),
    "ledger of no text, no checkpoint": put("state/ledger.jsonl", b"\xff\xfe\n", "state/checkpoint.json"),
    "results nested without end": put("results.json", DEEP),
    "results that are a list": put("results.json", b"[]"),
    "results that are empty": put("results.json", b"{}"),
}


@pytest.mark.parametrize("damage", [pytest.param(change, id=name) for name, change in DAMAGE.items()])
def test_what_was_damaged_is_refused(damage: Callable[[Path], None], begun: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=str(tmp_path)):
        go_on(begun, tmp_path / "run", damage)


def test_undamaged_it_goes_on(begun: Path, tmp_path: Path) -> None:
    go_on(begun, tmp_path / "run", lambda out: None)
    go_on(begun, tmp_path / "again", signed(lambda c: c))


def test_a_changed_number_of_an_earlier_round_is_noticed(begun: Path, tmp_path: Path) -> None:
    def damage(out: Path) -> None:
        path = out / "metrics.jsonl"
        text = path.read_text()
        at = text.index('"accuracy": 0.') + len('"accuracy": 0.')
        path.write_text(text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :])

    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        go_on(begun, tmp_path / "run", damage)


def test_metrics_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        RunFolder(tmp_path).read_metrics()


@pytest.mark.parametrize("part", ["", EXTRA])
def test_a_profile_that_was_changed_on_disk_is_not_compared(part: str, tmp_path: Path) -> None:
    written = StateFiles(tmp_path, "client", part)
    written.put(0, 1, {"weight": torch.ones(5), PROFILE: torch.tensor([1.0, 2.0], dtype=torch.float64)})
    files = StateFiles(tmp_path, "client", part)
    files.restore(written.to_json())
    assert files.get_part(0, EXTRA)[PROFILE].tolist() == [1.0, 2.0]
    path = tmp_path / files.records[0].file
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    start = json.loads(content[8 : 8 + header])[PROFILE]["data_offsets"][0]
    content[8 + header + start + 7] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="its hash is not the one in the checkpoint"):
        files.get_part(0, EXTRA)


def change_models(out: Path) -> None:
    for path in (out / "state" / "bank").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")


def test_a_model_that_was_changed_on_disk_helps_nobody(begun: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"client-.*: its hash is not the one in the checkpoint"):
        go_on(begun, tmp_path / "run", change_models)


def test_models_that_nobody_asks_for_are_not_read(tmp_path: Path) -> None:
    """On resume the server reads what it knows of each client; without peers nobody needs the models."""
    config = small_config(method="ssfl", federation={"rounds": 2})
    with pytest.raises(Stop):
        train(config, tmp_path, store=STORE, watchers=[stop_at(1)])
    change_models(tmp_path)
    assert train(config, tmp_path, store=STORE, resume=True)["totals"]["accepted"] == 6


def test_a_checkpoint_names_files_of_its_own_folder_alone(tmp_path: Path) -> None:
    """Otherwise what it no longer names would be deleted wherever it lies."""
    (tmp_path / "precious").write_bytes(b"x")
    files = StateFiles(tmp_path / "bank", "client")
    with pytest.raises(RunError, match="precious"):
        files.restore({"0": {"round": 1, "file": "../precious", "sha256": digest(b"x")}})


@pytest.mark.parametrize(
    "setting",
    [
        {"model": {"weights": "a\0b"}},
        {"objective": {"kind": "a\0b.py:A"}},
        {"partition": {"file": "a\0b"}},
        {"data": {"source": "a\0b"}},
    ],
)
def test_names_that_no_file_can_have_are_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    from fedperl.errors import FedPerlError

    store: Store | None = None if {"partition", "data"} & setting.keys() else STORE
    with pytest.raises(FedPerlError, match="null byte|NUL|is not there"):
        train(small_config(**setting), tmp_path / "run", store=store)


def test_an_odd_name_of_a_folder_is_refused() -> None:
    with pytest.raises(RunError, match="null byte"):
        train(CONFIG, "a\0b", store=STORE)
    with pytest.raises(DataError, match="null byte"):
        Store.open(Path("a\0b"))


def test_the_ledger_goes_on_where_a_line_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.open()
    ledger.append([{"round": r} for r in range(3)])
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        again = Ledger(path)
        again.open()
        kept = path.read_bytes()
        assert kept == whole[: whole.rfind(b"\n", 0, cut) + 1]
        again.append([{"round": r} for r in range(3)])
        assert path.read_bytes() == whole
