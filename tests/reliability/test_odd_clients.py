"""Clients with hardly any images, images that are cut or far too large, and a clock that is wrong."""

import dataclasses
import io
import itertools
import json
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from fedperl.benchmarking.reliability.dying import run_apart
from fedperl.config import load_config
from fedperl.data.dermsim.draw import draw
from fedperl.data.packed import BadImageError, decode, unpack, write_offsets
from fedperl.data.partition import Partition
from fedperl.data.store import Store
from fedperl.errors import ConfigError, DataError
from fedperl.training import train
from tests.conftest import artefacts, small_config, small_store

# Clients


def with_part(store: Store, client: int, **rows: Any) -> Store:
    """Return the store in which one client holds other rows for some use."""
    clients = list(store.partition.clients)
    clients[client] = dataclasses.replace(clients[client], **rows)
    return store.dealt(Partition(tuple(clients), store.partition.server))


def odd_store() -> Store:
    """Five clients: one with one class, one without labels, one with labels alone, one with an image of each, one."""
    store = small_store()
    parts, label, nothing = store.partition.clients, store.manifest.label, np.empty(0, dtype=np.int64)
    one_class = parts[0].labelled[label[parts[0].labelled] == 1]
    store = with_part(store, 0, labelled=one_class)
    store = with_part(store, 1, labelled=nothing)
    store = with_part(store, 2, unlabelled=nothing)
    return with_part(store, 3, labelled=parts[3].labelled[:1], unlabelled=parts[3].unlabelled[:1])


@pytest.mark.parametrize("method", ["fedperl", "fedirm", "lower"])
def test_clients_with_hardly_any_images_train_and_nothing_is_undefined(method: str, tmp_path: Path) -> None:
    store, nothing = odd_store(), np.empty(0, dtype=np.int64)
    if method == "lower":  # without labels there is nothing for it to learn from
        store = with_part(store, 1, labelled=store.partition.clients[1].unlabelled, unlabelled=nothing)
    objective = {"fedperl": {"tau": 0.34}, "fedirm": {"start": 1}}.get(
        method, {}
    )  # something is accepted, from round 2
    config = small_config(method=method, objective=objective, federation={"rounds": 3, "cohort": 5, "quorum": 3})
    results = train(config, tmp_path, store=store)
    assert results["totals"]["rejected"] == 0
    assert results["totals"]["accepted"] == {"fedirm": 14}.get(method, 15)  # one has nothing to do before the start
    for model in (tmp_path / "models").glob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(model).values())
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line
        assert "Infinity" not in line
        json.loads(line)


@pytest.mark.parametrize("net", ["small_cnn", pytest.param("efficientnet_b0", marks=pytest.mark.slow)])
def test_batches_are_never_of_one_image(net: str, tmp_path: Path) -> None:
    """Of one image batch norm has no statistics: a client with fewer images than a batch sees them more than once."""
    with pytest.raises(ConfigError, match=r"federation\.batch = 1"):
        load_config(None, ["federation.batch=1"])
    with pytest.raises(ConfigError, match=r"federation\.unlabelled_batch = 1"):
        load_config(None, ["federation.unlabelled_batch=1"])
    store = small_store(clients=3, size=32)
    for client in range(3):
        part = store.partition.clients[client]
        store = with_part(store, client, labelled=part.labelled[:1], unlabelled=part.unlabelled[:1])
    config = small_config(
        data={"size": 32}, model={"net": net}, federation={"rounds": 1, "batch": 2, "steps": 1}, peers={"T": 2}
    )
    results = train(config, tmp_path, store=store)
    assert results["totals"]["accepted"] == 3
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "models" / "last.safetensors").values())


# Settings


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gate.rho=1.5", "gate.rho = 1.5"),
        ("gate.rho=-0.1", "gate.rho = -0.1"),
        ("gate.rho='0.9'", "gate.rho = '0.9'"),
        ("peers.k_min=3", "peers.T = 2 is less than peers.k_min = 3"),
        ("peers.k_min=1", "peers.k_min = 1"),
        ("peers.T=-1", "peers.T = -1"),
        ("peers.anonymize='no'", "peers.anonymize = 'no'"),
        ("federation.server_validation=0", "federation.server_validation = 0"),
        ("is_PA=False", "unknown key 'is_PA'"),
        ("peers.is_PA=False", "unknown key 'peers.is_PA'"),
        ("include_C8=False", "unknown key 'include_C8'"),
    ],
)
def test_settings_that_would_mean_something_else_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=".") as error:
        load_config(None, [setting])
    assert message in str(error.value)


# Images


def picture() -> Image.Image:
    return Image.fromarray(draw([1], [3], [0], [0], size=96)[0].transpose(1, 2, 0))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "TIFF", "WEBP"])
def test_an_image_cut_anywhere_is_refused_or_whole(kind: str) -> None:
    out = io.BytesIO()
    picture().save(out, kind)
    content, refused = out.getvalue(), 0
    whole = np.asarray(decode(content, 32))
    for length in range(0, len(content), 64):
        try:
            found = np.asarray(decode(content[:length], 32))
        except BadImageError:
            refused += 1
            continue
        # What can be spared is behind the pixels: what is decoded is never half a picture.
        assert np.array_equal(found, whole), length
    assert refused >= len(content) // 64 - 40


MEMORY = 400 * 2**20


def refuse_bombs(folder: Path) -> None:
    """Open pictures that would need gigabytes, in a process that may not have them."""
    import resource

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    for path in sorted(folder.glob("*.png")):
        with pytest.raises(BadImageError, match="pixels"):
            decode(path.read_bytes(), 32)
    with pytest.raises(DataError, match=r"image 1 .* 10001 x 10001 pixels; wanted at most 4096"):
        unpack(folder)


def bomb(edge: int, rows: int) -> bytes:
    """Return a PNG that says it is of so many pixels along an edge, with some of its rows."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    header = edge.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    pixels = zlib.compress(bytes(rows * (1 + 3 * edge)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_pictures_that_unpack_to_gigabytes_are_refused_from_their_header(tmp_path: Path) -> None:
    for edge, rows in ((10_001, 1000), (20_000, 200), (65_535, 20)):
        (tmp_path / f"{edge}.png").write_bytes(bomb(edge, rows))
    out = io.BytesIO()
    picture().resize((16, 16)).save(out, "PNG")
    stored = [out.getvalue(), (tmp_path / "10001.png").read_bytes()]
    (tmp_path / "images.bin").write_bytes(b"".join(stored))
    write_offsets(tmp_path, map(len, stored))
    assert run_apart(refuse_bombs, tmp_path, report=tmp_path / "report").error == ""


# Clocks


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is only ever told, in seconds of a round: neither a draw nor an order depends on it."""
    store, config = small_store(), small_config(federation={"rounds": 3})
    train(config, tmp_path / "usual", store=store)
    jumps = itertools.cycle([-1e9, 3.0, 1e9, 0.0])
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps)))
    train(config, tmp_path / "odd", store=store)
    assert artefacts(tmp_path / "odd") == artefacts(tmp_path / "usual")
