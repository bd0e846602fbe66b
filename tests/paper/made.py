"""Finished runs without training: random predictions of each client, counted and described as a client would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedperl.data.store import Store
from fedperl.evaluate import BinnedSums, binned_sums, describe
from fedperl.paper.found import Found, Trained
from fedperl.report.page_counts import Counted
from fedperl.report.page_data import PageRun
from tests.conftest import small_config

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
SOURCES = ("ISIC19",) * 5 + ("HAM10000",) * 3 + ("PAD-UFES", "Derm7pt")


@dataclass(frozen=True)
class Answers:
    """One client's test images: true classes and probabilities."""

    truth: np.ndarray[Any, np.dtype[np.int64]]
    probabilities: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def sums(self) -> BinnedSums:
        return binned_sums(self.truth, self.probabilities)


def answers(seed: int, images: int = 60, classes: int = 8, known: Sequence[int] | None = None) -> Answers:
    """Predictions that are right about half the time, of the known classes only."""
    generator = np.random.default_rng(seed)
    truth = generator.choice(np.arange(classes) if known is None else np.array(known), size=images)
    logits = generator.normal(size=(images, classes)) + 2.0 * np.eye(classes)[truth]
    found = np.exp(logits)
    return Answers(truth.astype(np.int64), found / found.sum(axis=1, keepdims=True))


def page_run(name: str, clients: Mapping[int, Answers], *, sources: Sequence[str] = SOURCES, **results: Any) -> PageRun:
    """A run whose best and last models gave these answers."""
    tested = {str(n): describe(one.truth, one.probabilities) | {"round": 3} for n, one in clients.items()}
    keys = {str(n): f"{n}@3" for n in clients}
    whole = {
        "test": {"per_client_best": tested, "last": tested},
        "classes": list(CLASSES),
        "partition": "one",
        "seconds": {"training": 7.0, "validation": 3.0},
        "totals": {"peers": {"0": 2, "1": 0, "2": 6}, "bytes_down": 300, "bytes_evaluation": 20, "client_rounds": 2},
    }
    lines = tuple((None, {"round": r, "validation": {"0": {"accuracy": 0.1 * r}}, "committees": {}}) for r in (1, 2))
    sums = {f"{n}@3": {"test": one.sums} for n, one in clients.items()}
    chosen = {"per_client_best": keys, "last": keys}
    counted = Counted(chosen, sums)
    return PageRun(name, Path(name), small_config(), tuple(sources), lines, whole | results, counted, {})


def trained(name: str, *seeds: Mapping[int, Answers], **results: Any) -> Trained:
    return Trained(name, tuple(page_run(name, one, **results) for one in seeds))


def ten(seed: int) -> dict[int, Answers]:
    """Ten clients; client 8 lacks two classes."""
    return {n: answers(100 * seed + n, known=[0, 1, 2, 3, 4, 7] if n == 8 else None) for n in range(10)}


def found(*runs: Trained, scale: str = "", outlier: str | None = "8") -> Found:
    def no_images(run: str) -> Store:
        raise AssertionError(f"{run}: no images here")

    return Found({run.name: run for run in runs}, scale, no_images, outlier)
