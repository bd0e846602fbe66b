"""Small things that many tests use: a drawn store of a few images, a short configuration, the real archives."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from fedperl.config import resolve
from fedperl.data.manifest import Manifest
from fedperl.data.partition import ClientPart, Partition, ServerPart
from fedperl.data.store import Store
from fedperl.learn.local_images import LocalImages
from fedperl.learn.objectives import Context
from fedperl.settings import Config

signal.signal(signal.SIGINT, signal.default_int_handler)  # begun in the background it is ignored, and so by children
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start: networks here are too small for two threads

# No deadline: a busy machine is no failure. A test that needs more examples, or can afford only fewer, says so itself.
settings.register_profile("tests", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("tests"), max_examples=200)  # `make test-slow`
settings.load_profile("tests")


LONG = (
    "test_methods.py",
    "test_fused_b0.py",
    "test_cli.py",
    "test_cli_data.py",
    "test_compare.py",
    "test_making.py",
    "test_leakage.py",
    "test_recorded.py",
    "test_dp_runs.py",
    "test_equivalences.py",
    "test_private.py",
    "test_resumed_everywhere.py",
)
"""Files that take longest: begun last, they would keep one worker busy while the others have nothing left to do."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order below: pytest-xdist would begin with the files of most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def small_store(clients: int = 5, images: int = 24, size: int = 16, classes: int = 3, seed: int = 0) -> Store:
    """Noise with a class-coloured corner: enough to learn from, made in milliseconds."""
    generator = np.random.default_rng(seed)
    n = clients * images + 8
    labels = np.arange(n) % classes
    pixels = generator.integers(0, 256, size=(n, 3, size, size), dtype=np.uint8)
    pixels[np.arange(n), labels % 3, : size // 2] = 250
    names = np.array([f"image_{i}" for i in range(n)])
    manifest = Manifest(tuple("ABCDEFGH"[:classes]), names, labels.astype(np.int64), names, np.array(["test"] * n))
    parts = []
    for number in range(clients):
        rows = np.arange(number * images, (number + 1) * images)
        parts.append(ClientPart("test", *np.split(rows, [images // 4, images // 2, 3 * images // 4])))
    server = ServerPart(validation=np.arange(clients * images, n))
    return Store(pixels, manifest, Partition(tuple(parts), server), {"source": "test"})


def small_config(**sections: Any) -> Config:
    """A run of seconds on the small store; keyword tables are laid over it."""
    table: dict[str, Any] = {
        "threads": 1,
        "data": {"size": 16},
        "model": {"net": "small_cnn", "weights": "none"},
        "peers": {"warmup": 1},
        "federation": {"rounds": 4, "cohort": 3, "steps": 2, "batch": 4},
        "optimizer": {"lr": 1e-3},
    }
    for name, value in sections.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return resolve(table)


def artefacts(folder: Path) -> dict[str, bytes]:
    """All that must not depend on interruptions: everything a run writes but timings."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}
    for path in [*folder.rglob("ledger.jsonl"), *folder.rglob("partition.csv")]:
        found[str(path.relative_to(folder))] = path.read_bytes()
    for path in [*folder.rglob("metrics.jsonl"), *folder.rglob("results.json")]:
        text = path.read_text()
        lines = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
        kept = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]
        found[str(path.relative_to(folder))] = json.dumps(kept).encode()
    return found


def context(classes: int = 4, labelled: int = 8, unlabelled: int = 8, **parts: Any) -> Context:
    """What surrounds a local round, with images nobody looks at; keyword parts are fields of Context."""
    n = labelled + unlabelled
    images = torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    every = torch.arange(n)
    data = LocalImages(images, every % classes, every[:labelled], every[labelled:], classes)
    return Context(**({"data": data} | parts))


@pytest.fixture(scope="session", name="published")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Real archives in their publishers' layouts, where a folder `shared` beside the checkout has them."""
    unpack = Path(__file__).parents[2] / "shared" / "tools" / "unpack_data.py"
    if not unpack.exists():
        pytest.skip("the published data sets are not beside the checkout (their licences do not allow shipping them)")
    several = "PYTEST_XDIST_WORKER" in os.environ  # processes side by side unpack once for all
    out = (tmp_path_factory.getbasetemp().parent if several else tmp_path_factory.getbasetemp()) / "published"

    def of(name: str) -> Path:
        """Unpack a set when it is first asked for."""
        with out.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (out / name).exists():
                subprocess.run([sys.executable, unpack, out, name], check=True, stdout=subprocess.DEVNULL)
        return out / name

    return of


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """What a test leaves behind in the process would be found by another: it fails here."""
    umask = os.umask(0o022)
    os.umask(umask)
    before = Path.cwd(), torch.get_num_threads(), torch.get_default_dtype(), signal.getsignal(signal.SIGINT)
    yield
    os.umask(umask)  # the command line narrows it for a hospital's run
    assert (Path.cwd(), torch.get_num_threads(), torch.get_default_dtype(), signal.getsignal(signal.SIGINT)) == before


@pytest.fixture(name="store")
def _store() -> Store:
    return small_store()
