"""Golden runs notice a formula that is broken, each in the part where it shows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

FORMULAS = {
    "tau": (
        "learn/objectives/fixmatch.py",
        "            return self.settings.tau\n",
        "            return 2 * self.settings.tau\n",
        "^method: fedperl$",
        "models",
    ),
    "beta": (
        "learn/objectives/fixmatch.py",
        "self.settings.beta * unlabelled",
        "self.settings.beta**2 * unlabelled",
        "^method: ssfl$",
        "models",
    ),
    "gamma": (
        "learn/objectives/fixmatch.py",
        "self.settings.gamma * consistency",
        "2 * self.settings.gamma * consistency",
        "^method: fedperl$",
        "models",
    ),
    "T": (
        "federation/choosing.py",
        "sizes.get(client, peers.T)",
        "sizes.get(client, peers.T + 1)",
        "^anonymized: T 2$",
        "ledger",
    ),
    "scaling of the similarity": (
        "peers/similarity.py",
        "    unit = scale_profiles(profiles, scale)\n",
        "    unit = profiles\n",
        "^method: fedperl$",
        "metrics",
    ),
    "gate": (
        "peers/policies.py",
        "score / best if best > 0",
        "score if best > 0",
        "^gated by validation: fedperl_gated_validation_raw, rho 0.85$",
        "ledger",
    ),
    "weights of the average": (
        "federation/aggregate.py",
        "alpha=weight / total",
        "alpha=1 / len(weights)",
        "^weighed by size$",
        "models",
    ),
    "bytes of a sparse model": (
        "learn/sparse.py",
        "changed * (VALUE + POSITION)",
        "changed * VALUE",
        "^method: fedmatch$",
        "bytes",
    ),
    "sharpening": (
        "learn/objectives/uda.py",
        "torch.log(scores.clamp_min(1e-12)) / temperature",
        "torch.log(scores.clamp_min(1e-12)) * temperature",
        "^method: uda$",
        "models",
    ),
    "steps behind epsilon": (
        "learn/accounting.py",
        "gaussian), one.steps)",
        "gaussian), one.steps + 1)",
        "differentially private: unit record",
        "privacy",
    ),
    "threshold of malignancy": (
        "evaluate/malignancy.py",
        "THRESHOLD = 0.5",
        "THRESHOLD = 0.4",
        "^numbers of fixed predictions: classes 8$",
        "numbers",
    ),
    "macro F1": (
        "evaluate/classification.py",
        "values[present].mean()",
        "values.mean()",
        "^method: fedperl$",
        "results",
    ),
    "FedMatch's class chances": (
        "data/partitions/fedmatch.py",
        "chances[kind] = 0.5",
        "chances[kind] = 0.4",
        "^split as FedMatch: cifar10, fedmatch_noniid",
        "split",
    ),
}
"""By formula: its file, the line and the broken line, the case that must differ, and in which part."""


@pytest.fixture(scope="module", name="checkout")
def _checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with this tree's package as its only commit."""
    folder = tmp_path_factory.mktemp("broken") / "tree"
    for name in ("src", "golden"):
        shutil.copytree(TREE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "as it is"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def golden(checkout: Path, only: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FEDPERL_GOLDEN_CACHE": str(checkout.parent / "cache"), "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "golden", "HEAD", "--only", only]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def test_the_same_tree_is_equal(checkout: Path) -> None:
    found = golden(checkout, "^method: ssfl$|^killed")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 parts differ" in found.stdout


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_broken_formula_shows(checkout: Path, formula: str) -> None:
    name, line, broken, only, part = FORMULAS[formula]
    file = checkout / "src" / "fedperl" / name
    before = file.read_text()
    assert before.count(line) == 1, f"{name}: the line of {formula} is another now"
    try:
        file.write_text(before.replace(line, broken))
        found = golden(checkout, only)
    finally:
        file.write_text(before)
    assert found.returncode == 1, found.stdout + found.stderr
    assert any(row.endswith(f"| {part}") for row in found.stdout.splitlines()), found.stdout
