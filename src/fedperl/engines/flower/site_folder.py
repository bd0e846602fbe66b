"""The folder of one hospital: its settings, its key, what it keeps between rounds, and whether it has left."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from fedperl.config import check_keys
from fedperl.data.manifest import UNLABELLED
from fedperl.data.partition import PARTS
from fedperl.data.partitions import deal
from fedperl.data.store import Store
from fedperl.engines.flower.environment import environment
from fedperl.engines.flower.keys import SITE, make_site_keys
from fedperl.errors import ConfigError, DataError
from fedperl.evaluate.group_counts import ATTRIBUTES, LEAST
from fedperl.federation.members import EVALUATED, told_part
from fedperl.files import write_durably
from fedperl.machine import cores
from fedperl.settings import Config, Partitioning, Positive, Section, Share, explain

VARIABLE = "FEDPERL_SITE"
"""By which the program that answers a message finds the folder."""
LONGEST = 50
"""Characters of a run's name in that of a model's file: a file's name may have 255 bytes."""
TEMPLATE = """\
# One hospital of a federation. Paths are relative to this file.

# Where the federation's server is, as its operator tells you.
server = {server}

# Its certificate authority: a file that the operator gives you. Without it the server cannot prove who it is.
ca = "ca.crt"

# Your images: a folder that `fedperl data prepare` made. They are read here and never sent.
data = {data}

# How your labelled images are used, where the folder does not say itself (partition.csv): to train on with their
# labels, to train on as if they had none, to choose a model by, to test it on. Images without labels are trained on.
shares = [0.5, 0.0, 0.2, 0.3]

# What trains: "cpu", "cuda" or "cuda:1"; and how many threads, "auto" for all cores.
device = "cpu"
threads = "auto"
"""


class SiteSettings(Section):
    """What `site.toml` says."""

    server: Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-\[\]:]+:\d+$")]
    ca: str = "ca.crt"
    data: str = "store"
    shares: Annotated[tuple[Share, Share, Share, Share], Field(strict=False)] = (0.5, 0.0, 0.2, 0.3)
    device: str = "cpu"
    threads: Literal["auto"] | Positive = "auto"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.shares) <= 0:
            raise ValueError("shares are all 0; wanted the proportions of labelled, unlabelled, validation and test")
        return self


class SiteFolder:
    """What one hospital has on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.file, self.key, self.state = self.path / "site.toml", self.path / f"{SITE}.key", self.path / "state"
        self.models = self.path / "models"
        self.home, self._left, self._told = self.path / "flower", self.path / "left", self.path / "told"

    def create(self, server: str, data: Path) -> None:
        """Make keys and a commented site.toml.

        Raises:
            ConfigError: the folder holds a site already.
        """
        if self.file.exists() or self.key.exists():
            raise ConfigError(f"{self.path}: holds a site already; its key is not replaced")
        make_site_keys(self.path)
        path = json.dumps(os.path.relpath(data, self.path), ensure_ascii=False)
        text = TEMPLATE.format(server=json.dumps(server, ensure_ascii=False), data=path)
        write_durably(self.file, text.encode(), mode=0o644)

    def settings(self) -> SiteSettings:
        """Return what site.toml says.

        Raises:
            ConfigError: it is missing or wrong; the key is named.
        """
        try:
            table = tomllib.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{self.file}: no such file; wanted `fedperl site init` first") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{self.file}: cannot be read as TOML: {error}") from None
        check_keys(table, SiteSettings, str(self.file))
        try:
            return SiteSettings.model_validate(table)
        except ValidationError as error:
            raise ConfigError(f"{self.file}: {explain(error)}") from None

    def open_store(self) -> Store:
        """Return the hospital's images, dealt to their uses as the folder says, or else as site.toml does."""
        settings = self.settings()
        store = Store.open(self.path / settings.data)
        if len(store.partition.clients) == 1:
            return store
        if store.partition.clients:
            raise DataError(
                f"{self.path / settings.data}: is dealt to {len(store.partition.clients)} clients; wanted one "
                "hospital's images (`fedperl data deal` writes a folder for each)"
            )
        dealing = Partitioning(kind="iid", clients=1, shares=settings.shares, server=0.0)
        return store.dealt(deal(store.manifest, dealing, seed=0))

    def own_settings(self, config: Config) -> Config:
        """Return a run's configuration with what this machine decides for itself."""
        settings = self.settings()
        threads = cores() if settings.threads == "auto" else int(settings.threads)
        return config.changed(device=settings.device, threads=threads)

    def model_of(self, name: str, run: str) -> Path:
        """Return the file of the model that the site uses once a run is over, by its name and the run's at sites."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name[:LONGEST])  # the server chose it
        return self.models / f"{plain}_{run[:16]}.safetensors"

    # Taking part

    def certificate(self) -> Path:
        """Return the federation's certificate authority.

        Raises:
            ConfigError: the file is not there.
        """
        path = self.path / self.settings().ca
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; wanted the federation's ca.crt, from the server's operator")
        return path

    def supernode(self) -> tuple[list[str], dict[str, str]]:
        """Return the command that joins the federation, and its environment."""
        command = [
            *("flower-supernode", "--superlink", self.settings().server),
            *("--root-certificates", str(self.certificate()), "--auth-supernode-private-key", str(self.key)),
            *("--host", "127.0.0.1", "--port", str(free_port())),
        ]
        return command, environment(self.home, **{VARIABLE: str(self.path)}) | {"PATH": self._programs()}

    def _programs(self) -> str:
        """Return where programs are found: ours that answers messages before Flower's."""
        ours = self.home / "bin"
        ours.mkdir(parents=True, exist_ok=True, mode=0o700)
        hand_over = Path(__file__).parent / "hand_over.py"
        script = f'#!/bin/sh\nexec "{sys.executable}" -S -E "{hand_over}" "{sys.executable}" "$@"\n'
        write_durably(ours / "flwr-clientapp", script.encode(), mode=0o700)
        return os.pathsep.join([str(ours), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

    def start_worker(self, env: dict[str, str]) -> dict[str, str]:
        """Start what answers messages without starting anew, and return the environment that finds it."""
        path = str(Path(tempfile.mkdtemp(prefix="fedperl_")) / "worker")  # a socket's path may have 100 characters
        env = env | {"FEDPERL_WORKER": path}
        subprocess.Popen([sys.executable, "-m", "fedperl.engines.flower.worker", path], env=env)
        return env

    def leave(self) -> None:
        """Answer nothing from now on but that the site has left, and forget what was kept between rounds.

        The models that it was left with when runs were over are its own to use, and stay.
        """
        self._told.unlink(missing_ok=True)
        write_durably(self._left, b"")
        shutil.rmtree(self.state, ignore_errors=True)

    def come_back(self) -> None:
        """Take part again."""
        self._left.unlink(missing_ok=True)
        self._told.unlink(missing_ok=True)

    def leaving(self) -> bool:
        """Return whether the site has left."""
        return self._left.exists()

    def has_told(self) -> None:
        """Note that the server was told."""
        write_durably(self._told, b"")

    def told(self) -> bool:
        """Return whether the server was told that the site has left."""
        return self._told.exists()


def findings(store: Store) -> dict[str, Any]:
    """Return what a site's engineer wants to know before joining: what there is, and what would leave the building."""
    part, labels = store.partition.clients[0], store.manifest.label
    counts: dict[str, int] = {name: len(getattr(part, name)) for name in PARTS}
    by_class = {
        name: {label: int((labels[getattr(part, name)] == place).sum()) for place, label in enumerate(store.classes)}
        for name in PARTS
    }
    warnings = []
    if not counts["labelled"] and not counts["unlabelled"]:
        warnings.append("no images to train on: the site cannot take part")
    told: dict[str, int] = {name: len(getattr(told_part(part, labels), name)) for name in PARTS}
    for name in EVALUATED:
        few = [f"{label} ({count})" for label, count in by_class[name].items() if 0 < count < LEAST]
        if few:
            warnings.append(f"{name} images of {', '.join(few)}: fewer than {LEAST}, no number is computed on them")
        if not told[name]:
            warnings.append(f"no class has {LEAST} {name} images: no number of them is sent")
        missing = getattr(part, name)[labels[getattr(part, name)] == UNLABELLED]
        if len(missing):
            warnings.append(f"{len(missing)} {name} images have no label; wanted one each")
    empty = [label for label in store.classes if not by_class["labelled"][label] and counts["labelled"]]
    if empty:
        warnings.append(f"no labelled training image of: {', '.join(empty)}")
    dark = int((store.images.reshape(len(store.images), -1).max(axis=1) == 0).sum())
    if dark:
        warnings.append(f"{dark} images are entirely black")
    known = [name for name in ATTRIBUTES if name in store.manifest.about]
    return {
        "images": len(store.images),
        "size": store.size,
        "classes": list(store.classes),
        "counts": counts,
        "by_class": by_class,
        "groups": len(np.unique(store.manifest.group)),
        "known_of_patients": known,
        "warnings": warnings,
        "leaves": leaves(told, known),
    }


def leaves(counts: Mapping[str, int], known: Sequence[str] = ()) -> list[str]:
    """Return everything that is sent to the server, in words.

    Args:
        counts: images by use; for validation and test those of classes with ten or more.
        known: what the list knows of patients.
    """
    groups = f"; the same counts for groups of ten or more by {', '.join(known)}" if known else ""
    return [
        "always: your address, and when you are online",
        f"once: the classes' names, the size, a hash of your lists and of up to 64 images; how many images are "
        f"labelled ({counts['labelled']}), unlabelled ({counts['unlabelled']}), and of classes with ten or more for "
        f"validation ({counts['validation']}) and test ({counts['test']}): no number is computed on the others",
        "each round you train in: the trained model, mean losses, the share of accepted labels; where the run's policy "
        "asks for it (gate.metric) the trained model's accuracy; with FedIRM the relation matrix of your labelled "
        "images, classes by classes",
        "each round: of the global model on your validation images accuracy, F1, precision, recall, loss, and their "
        "count",
        "at the end: the same on your validation and test images, with calibration, the temperature that corrects it, "
        f"counts in bins of ten images or more and by class{groups}",
        "an error's kind, never its text",
        "never: an image, a file's name, a label or a prediction of one image, what a patient is called",
    ]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
