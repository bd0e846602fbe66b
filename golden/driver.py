"""Runs cases with this tree's package: as the first edition's driver does, but for what is named here."""

from pathlib import Path

from golden.first_edition import DOES, REFUSAL, Case, ages, predictions, write_told

__all__ = ["REFUSAL", "run"]


def run(case: Case, folder: Path, scratch: Path) -> None:
    """Run a case; its files lie in the folder afterwards.

    Args:
        scratch: where what several cases use is kept: stores.
    """
    (DOES | {"counts_told": counts_told})[case["does"]](case, folder, scratch)


def counts_told(case: Case, folder: Path, scratch: Path) -> None:
    """Write what a site tells of fixed predictions: images of classes with few are left out before it counts."""
    from fedperl import evaluate

    truth, probabilities = predictions(case["images"], case["classes"], case["seed"])
    kept = evaluate.of_large_classes(truth)
    groups = {"age": ages(len(truth))[kept]}
    every = evaluate.describe_fully(truth[kept], probabilities[kept], groups=groups, fit_on=None)
    write_told(folder, evaluate.without_few(every.sums, every.groups))
