"""From what models say to who is found: attacks on each release, for each kind of members and by class."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedperl.data.manifest import Indices
from fedperl.errors import RunError
from fedperl.evaluate import paired_interval
from fedperl.evaluate.bootstrap import BootstrapInterval
from fedperl.evaluate.classification import Floats
from fedperl.evaluate.membership import (
    NUMBERS,
    Attack,
    Mask,
    Repeats,
    drawn_images,
    even_weights,
    logit_confidence,
    mean_interval,
    offline_lira,
    ratio_interval,
    within,
)
from fedperl.leakage.attacking import F1
from fedperl.leakage.bench import Bench
from fedperl.leakage.files import Arrays

FEW = 5
"""A class with fewer members, or fewer others, gets no number."""
RARE = 0.05
"""Classes with a smaller share of the members are looked at together, too."""
SORTS = ("raw", "static", "differenced", "global")
"""Of releases; the middle ones of a committee of T."""
SCORES = ("lira", "calibrated")
KINDS = ("labelled", "unlabelled", "new labelled", "new unlabelled", "together")
"""Of members; the first two were there from the start."""

Leakage = dict[str, Any]


class Asked:
    """The images that every run has a score of, and attacks on them."""

    def __init__(self, bench: Bench, known: Arrays, labels: Indices, runs: Sequence[Arrays], resamples: int) -> None:
        names = [name for name in runs[0] if not name.startswith(F1) and all(name in run for run in runs)]
        self.names = sorted(names, key=lambda name: (SORTS.index(_sort(name)[0]), _sort(name)[1] or 0))
        asked = np.all([np.isfinite(run[name]) for run in runs for name in names], axis=0)
        if not (asked & bench.member).any() or not (asked & ~bench.member).any():
            raise RunError("no client has both images that it trained on and others; nothing can be measured")
        self.runs = [{name: run[name][asked] for name in names} for run in runs]
        self.f1 = {name: np.stack([run[F1 + name] for run in runs]) for name in names}  # (runs, 1)
        self.client, self.member = bench.client[asked], bench.member[asked]
        part, new = bench.part[asked], bench.new[asked]
        self.truth = bench.store.manifest.label[bench.row][asked]
        self.stratum = self.client * len(bench.classes) + labels[asked]
        """Of a client and class: members are compared with others of the same."""
        self.kinds = {
            "labelled": (part == 0) & ~new,
            "unlabelled": (part == 1) & ~new,
            "new labelled": (part == 0) & new,
            "new unlabelled": (part == 1) & new,
            "together": self.member,
        }
        self.reference = np.stack([logit_confidence(said[asked], labels[asked]) for said in known["probabilities"]])
        self.without = known["without"][:, asked]
        self.draws = drawn_images(bench.store.manifest.group[bench.row[asked]], resamples)
        self.raw = {(score, kind): self.repeats("raw", score, kind) for score in SCORES for kind in KINDS}

    def images(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        return {kind: int(of.sum()) for kind, of in self.kinds.items()} | {"others": int((~self.member).sum())}

    def repeats(self, name: str, score: str, kind: str, among: Mask | None = None) -> Repeats | None:
        """Return the attack on one release by one score, for all runs; None where there is nobody to tell apart.

        Args:
            kind: of the members.
            among: some of the images; by default all.
        """
        members = self.kinds[kind]
        kept = (members | ~self.member) & (True if among is None else among)
        weight = even_weights(members[kept], self.stratum[kept])
        if not weight.any():
            return None
        attacks = [
            Attack(members[kept], within(self._score(run, name, score), self.client)[kept], weight) for run in self.runs
        ]
        return Repeats(attacks, self.draws[:, kept])

    def _score(self, run: Arrays, name: str, score: str) -> Floats:
        if score == "lira":
            return offline_lira(run[name], self.reference, self.without)
        return run[name] if name == "global" else run[name] - run["global"]

    def classes(self, names: Sequence[str]) -> Iterable[tuple[str, Mask]]:
        """Yield each class that has members, with its images, and the rare ones together."""
        shares = np.array([(self.truth[self.member] == label).mean() for label in range(len(names))])
        for label in np.flatnonzero(shares).tolist():
            yield names[label], self.truth == label
        rare = np.flatnonzero((shares > 0) & (shares < RARE))
        if len(rare):
            yield f"all under {RARE:.0%}", np.isin(self.truth, rare)


def _sort(name: str) -> tuple[str, int | None]:
    """Return what kind of release a name means, and the committee's size."""
    sort, _, T = name.partition(" ")
    return sort, int(T) if T else None


def of_release(asked: Asked, name: str) -> Leakage:
    """Return how well members are found by one release, for each score and kind, and its F1."""
    attacks: Leakage = {}
    for (score, kind), raw in asked.raw.items():
        one = raw if name == "raw" else asked.repeats(name, score, kind)
        if one is not None and raw is not None:
            numbers = {number: mean_interval(one, number) for number in NUMBERS}
            numbers["ratio"] = ratio_interval(one, raw, "tpr_1")
            attacks.setdefault(score, {})[kind] = {key: value.to_dict() for key, value in numbers.items()}
    sort, T = _sort(name)
    f1 = asdict(paired_interval(asked.f1[name])) if np.isfinite(asked.f1[name]).all() else None
    return {"name": name, "kind": sort, "T": T, "f1": f1, "attacks": attacks}


def of_class(asked: Asked, what: str, among: Mask) -> Leakage:
    """Return how many images a class has, and the AUC of LiRA among them, by release."""
    others = int((among & ~asked.member).sum())
    found: Leakage = {"name": what, "others": others, "members": {}, "auc": {}}
    for kind in ("labelled", "new labelled", "together"):
        found["members"][kind] = many = int((among & asked.kinds[kind]).sum())
        for name in (name for name in ("raw", "static 2", "global") if name in asked.names):
            one = asked.repeats(name, "lira", kind, among) if min(many, others) >= FEW else None
            value = BootstrapInterval(None, None, None, 0.95, 0, 0) if one is None else mean_interval(one, "auc")
            found["auc"].setdefault(name, {})[kind] = value.to_dict()
    return found
