"""Ten thousand damaged or hostile model files, configurations and lists of images: each is refused by name, or sound.

No reader raises anything but its own errors, and none runs what it reads: Python reports every process started, every
class looked up by a pickle and every plugin run to an audit hook, and the file that hostile content would create is
never there.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from fedperl.benchmarking.reliability.mutations import Mutations
from fedperl.config import dump, load_config
from fedperl.data.packed import encode, write_offsets
from fedperl.data.store import Store
from fedperl.errors import ConfigError, DataError, FedPerlError, RunError
from fedperl.federation.messages import Update
from fedperl.federation.schema import find_fault
from fedperl.federation.state_files import StateFiles
from fedperl.federation.wire import Parcel, WireError, read_update, update_parcel
from fedperl.learn.nets import build_net
from fedperl.learn.state import state_of
from fedperl.learn.weights import load_backbone, write_weights
from fedperl.predicting import open_predictor
from tests.conftest import small_config, small_store

CASES = {"model": 4000, "configuration": 3000, "list": 3000}
"""In the slow tier; in the fast one a thirtieth of each."""
PIECES = 4
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class", "os.fork")


class Guard:
    """While it is on, notes what would run something."""

    def __init__(self) -> None:
        self.on, self.seen = False, list[str]()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and (event in FORBIDDEN or (event == "exec" and "fedperl_plugin" in repr(arguments))):
            self.seen.append(f"{event} {arguments!r:.200}")


@cache  # an audit hook cannot be taken away again
def the_guard() -> Guard:
    found = Guard()
    sys.addaudithook(found)
    return found


@contextmanager
def guarded() -> Iterator[None]:
    guard = the_guard()
    guard.seen.clear()
    guard.on = True
    try:
        yield
    finally:
        guard.on = False
    assert not guard.seen


@dataclass
class Case:
    """One kind of file: how it is damaged, and who reads it."""

    folder: Path
    draw: Mutations
    outcomes: Counter[str] = field(default_factory=Counter)

    def read(self, what: str, reader: Callable[..., Any], *given: Any) -> Any:
        """Return what a reader makes of the file; None where it is refused, with a sentence that says so."""
        with guarded():
            try:
                found = reader(*given)
            except (FedPerlError, WireError) as error:
                said = len(str(error)) in range(10, 100_000)
                self.outcomes[f"{what}: refused" if said else f"{what}: no sentence"] += 1
                return None
        self.outcomes[f"{what}: read"] += 1
        return found


# Model files

NET = build_net("small_cnn", 3, seed=0)
STATE = state_of(NET)
PART = "head."
ABOUT = {"net": "small_cnn", "input": "unit", "classes": '["A", "B", "C"]', "size": "16", "round": "4", "by": "test"}


def sound(state: dict[str, torch.Tensor]) -> bool:
    """Whether a state is one of the network: names, shapes, types, and no value that is not finite."""
    return state.keys() == STATE.keys() and all(
        state[name].shape == wanted.shape and state[name].dtype == wanted.dtype and bool(state[name].isfinite().all())
        for name, wanted in STATE.items()
    )


def models(case: Case, cases: Iterator[int]) -> None:
    path = case.folder / "model.safetensors"
    write_weights(path, STATE, ABOUT)
    content = path.read_bytes()
    bank = StateFiles(case.folder / "bank", "client", PART)
    bank.put(0, 1, STATE)
    part = bank.get_part(0, PART)
    kept = bank.to_json()
    banked = bank.folder / bank.records[0].file
    whole = banked.read_bytes()
    parcel = update_parcel(Update("abc", 4, 2, STATE, {"loss": 0.5}))
    for _ in cases:
        change = case.draw.chance.choice([case.draw.damaged, case.draw.safetensors])
        path.write_bytes(change(content))
        found = case.read("predict", open_predictor, path)
        assert found is None or all(tensor.isfinite().all() for tensor in found.net.state_dict().values())
        net = build_net("small_cnn", 3, seed=1)
        before = state_of(net)
        if case.read("start from", load_backbone, net, path, "small_cnn") is None:
            assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        assert sound(state_of(net))

        sent = Parcel(parcel.text, {"model": change(parcel.pieces["model"])})
        update = case.read("update", read_update, sent)
        if update is not None and find_fault(update.state, STATE) is None:
            assert sound(update.state)
            case.outcomes["update: accepted"] += 1

        damaged = change(whole)
        banked.write_bytes(damaged)
        files = StateFiles(bank.folder, "client", PART)
        files.restore(kept)
        if damaged == whole:
            assert sound(files.get(0))
        else:  # where a hash is known, nothing else is taken
            with guarded(), pytest.raises(RunError, match="its hash is not the one in the checkpoint"):
                files.get(0)
            case.outcomes["hash: refused"] += 1
        found_part = case.read("part", files.get_part, 0, PART)
        assert found_part is None or all(torch.equal(found_part[name], tensor) for name, tensor in part.items())


# Configurations


def configurations(case: Case, cases: Iterator[int]) -> None:
    path = case.folder / "run.toml"
    texts = [
        dump(small_config()),
        dump(small_config(preset="paper", privacy="research")),
        dump(load_config(None, ["method=fedirm"])),
        'method = "fedperl"\n[federation]\nrounds = 3\n[peers]\nT = 3\n',
    ]
    for _ in cases:
        text = case.draw.chance.choice(texts)
        content = case.draw.damaged(text.encode())
        if case.draw.chance.random() < 0.6:
            with suppress(TypeError, ValueError, AttributeError):  # TOML has no such value
                content = tomli_w.dumps(case.draw.structure(tomllib.loads(text))).encode()
        path.write_bytes(content)
        config = case.read("configuration", load_config, path)
        if config is not None:
            path.write_text(dump(config))
            again = load_config(path)
            assert again.model_copy(update={"written_by": config.written_by}) == config
            assert type(config.peers.anonymize) is bool
            assert config.privacy == "research" or not config.raw_peers


# Lists of images


def packed_store(folder: Path, store: Store) -> None:
    """Write a store whose images are encoded, as `fedperl data prepare` does."""
    from PIL import Image

    store.save(folder)
    (folder / "images.npy").unlink()
    pictures = [encode(Image.fromarray(pixels.transpose(1, 2, 0)), "png") for pixels in store.images]
    (folder / "images.bin").write_bytes(b"".join(pictures))
    write_offsets(folder, map(len, pictures))


def lists(case: Case, cases: Iterator[int]) -> None:
    store = small_store(clients=3, images=8)
    store.save(case.folder / "plain")
    packed_store(case.folder / "packed", store)
    files = sorted(path for path in case.folder.glob("*/*") if path.is_file())
    whole = {path: path.read_bytes() for path in files}
    assert {path.name for path in files} == {
        "store.json", "manifest.csv", "partition.csv", "images.npy", "images.bin", "offsets.npy",
    }  # fmt: skip
    listed = [path for path in files if path.suffix == ".csv"]
    for _ in cases:
        path = case.draw.chance.choice([*files, *listed, *listed])
        change = {".csv": case.draw.table, ".json": case.draw.json}.get(path.suffix, case.draw.damaged)
        path.write_bytes(case.draw.chance.choice([change, case.draw.damaged])(whole[path]))
        found = case.read(path.name, Store.open, path.parent)
        if found is not None:
            check_store(found)
        path.write_bytes(whole[path])


def check_store(store: Store) -> None:
    """Assert that a store is sound: nothing here is taken from the code that has read it."""
    rows = len(store.manifest.image)
    assert rows
    assert len(set(store.classes)) == len(store.classes) > 0
    assert all(type(name) is str and name for name in store.classes)
    assert all(-1 <= label < len(store.classes) for label in store.manifest.label.tolist())
    names = list(zip(store.manifest.source.tolist(), store.manifest.image.tolist(), strict=True))
    assert len(set(names)) == rows
    held = np.concatenate([part for _, part in store.partition.places()] or [np.empty(0, np.int64)]).tolist()
    assert len(set(held)) == len(held)
    assert all(0 <= row < rows for row in held)
    pixels = store.pixels(np.arange(rows))
    assert pixels.shape[1] == 3
    assert pixels.dtype == np.uint8


KINDS: dict[str, Callable[[Case, Iterator[int]], None]] = {
    "model": models,
    "configuration": configurations,
    "list": lists,
}


def mutate(kind: str, folder: Path, cases: int, seed: int = 0) -> Counter[str]:
    """Read as many damaged files, and return what became of them."""
    sentinel = folder / "sentinel"
    case = Case(folder, Mutations(f"{kind} {seed}", sentinel))
    numbers = iter(range(cases))
    try:
        KINDS[kind](case, numbers)
    except BaseException as error:
        error.add_note(f"{kind} {seed}, case {cases - 1 - sum(1 for _ in numbers)}")
        raise
    assert not sentinel.exists()
    return case.outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_some(kind: str, tmp_path: Path) -> None:
    found = mutate(kind, tmp_path, CASES[kind] // 30)
    check_spread(found)


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand(kind: str, piece: int, tmp_path: Path) -> None:
    found = mutate(kind, tmp_path, CASES[kind] // PIECES, seed=1 + piece)
    print(dict(found))
    check_spread(found)


def check_spread(found: Counter[str]) -> None:
    """A fuzz whose every case is refused at once, or read, would show nothing."""
    refused = sum(count for name, count in found.items() if name.endswith("refused"))
    read = sum(count for name, count in found.items() if name.endswith("read"))
    assert min(refused, read) > (refused + read) // 30, found
    assert not [name for name in found if name.endswith("no sentence")]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"seed = {DEEP}", id="deep"),
        pytest.param(f"seed = {'9' * 5000}", id="a number of many digits"),
        pytest.param(f'method = "{"a" * 5000}"', id="a name too long for a file"),
        pytest.param(f"[{'.'.join(['a'] * 5000)}]", id="many tables"),
        pytest.param('method = "../../secret"', id="a path"),
        pytest.param('name = "a/../b"', id="a name that is a path"),
        pytest.param('name = "a\\u0000b"', id="a name with a NUL"),
        pytest.param("seed = 340282366920938463463374607431768211456", id="a seed beyond 64 bits"),
        pytest.param("seed = 2020-01-01", id="a date"),
    ],
)
def test_configurations_that_a_mutation_seldom_hits(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with guarded(), pytest.raises(ConfigError, match=".{10}"):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("store.json", DEEP.encode()),
        ("store.json", b'{"format": 2, "classes": "ABC", "made": {}}'),
        ("store.json", b'{"format": 2, "classes": ["A", "B", "C", "A"], "made": {}}'),
        ("store.json", b'{"format": 2, "classes": ["A", "B", "C", 3], "made": {}}'),
        ("store.json", b'{"format": 2, "classes": [], "made": {}}'),
        ("partition.csv", f"# {DEEP}\n".encode()),
        ("partition.csv", ("change", b"0,unlabelled,,", b"0,unlabelled," + b"9" * 30 + b",")),
        ("manifest.csv", ("change", b",test,5\r\n", b",test," + b"9" * 30 + b"\r\n")),
        ("manifest.csv", ("change", b",test,5\r\n", b",test,-5\r\n")),
        ("images.npy", b""),
        ("images.npy", b"PK\x03\x04" + bytes(100)),
        ("images.npy", ("change", b"{'descr'", b"(((((((('")),
        ("images.npy", ("change", b"'|u1'", b"'|O1'")),
    ],
)
def test_lists_that_a_mutation_seldom_hits(name: str, content: Any, tmp_path: Path) -> None:
    small_store(clients=3, images=8).save(tmp_path)
    path = tmp_path / name
    if isinstance(content, tuple):
        _, old, new = content
        assert old in path.read_bytes()
        content = path.read_bytes().replace(old, new)
    path.write_bytes(content)
    with guarded(), pytest.raises(DataError, match=".{10}"):
        Store.open(tmp_path)


@pytest.mark.parametrize(
    "offsets",
    [np.array([0.0, 1.0]), np.array(["0", "1"]), np.array([0, 1], dtype=complex), np.array([[0, 1]]), np.array([0])],
)
def test_offsets_that_are_none(offsets: Any, tmp_path: Path) -> None:
    packed_store(tmp_path, small_store(clients=3, images=8))
    np.save(tmp_path / "offsets.npy", offsets)
    with guarded(), pytest.raises(DataError, match="do not belong together"):
        Store.open(tmp_path)


def test_the_payload_runs_where_it_is_unpickled(tmp_path: Path) -> None:
    """The hostile content is hostile, and the guard sees it."""
    import pickle

    draw = Mutations("", tmp_path / "sentinel")
    with pytest.raises(AssertionError), guarded():
        pickle.loads(draw.pickled).close()  # noqa: S301
    assert (tmp_path / "sentinel").exists()
    assert sum(CASES.values()) == 10_000
