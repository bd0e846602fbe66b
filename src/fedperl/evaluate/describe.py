"""All numbers of one set of predictions that are fit to be told: of the set as a whole, never of one image."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedperl.evaluate.binned import BinnedSums, binned_sums
from fedperl.evaluate.calibration import calibration, confidences, ece_and_mce, log_losses, squared_distances
from fedperl.evaluate.classification import Labels, Probabilities, checked, classification
from fedperl.evaluate.group_counts import GroupCounts, group_counts
from fedperl.evaluate.ranking import auprc, auroc
from fedperl.evaluate.scaling import apply_temperature, fit_temperature
from fedperl.evaluate.selective import risk_coverage

FULL_NUMBERS = frozenset(
    {
        "ece",
        "mce",
        "equal_width_ece",
        "classwise_ece",
        "brier",
        "nll",
        "aurc",
        "e_aurc",
        "coverage_at_5",
        "coverage_at_10",
        "coverage_at_20",
        "macro_auroc",
        "macro_auprc",
        "hard_auroc",
        "hard_auprc",
    }
)
"""What `describe` adds to the numbers of a classification."""
SCALED_NUMBERS = frozenset({"temperature", "ece_scaled", "nll_scaled", "brier_scaled"})
"""What `describe_scaled` gives."""


@dataclass(frozen=True)
class Description:
    """What may be told of a reported model: numbers, counts in bins, and counts of groups by attribute."""

    numbers: dict[str, float]
    sums: BinnedSums
    groups: dict[str, GroupCounts]


def describe_fully(
    truth: Labels,
    probabilities: Probabilities,
    *,
    groups: Mapping[str, npt.NDArray[np.str_]],
    fit_on: tuple[Labels, Probabilities] | None,
) -> Description:
    """Return all that may be told of a model's predictions.

    Args:
        groups: attribute -> (n,) group of each image, "" where unknown; an attribute of which nothing is known is
            left out.
        fit_on: truth and probabilities of the validation images that a temperature is fitted on, if there are any.
    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    numbers = describe(truth, probabilities)
    if fit_on is not None:
        numbers |= describe_scaled(*fit_on, truth, probabilities)
    predicted, classes = probabilities.argmax(axis=1), probabilities.shape[1]
    counts = {
        attribute: group_counts(truth, predicted, names, classes)
        for attribute, names in groups.items()
        if (names != "").any()
    }
    return Description(numbers, binned_sums(truth, probabilities), counts)


def describe(truth: Labels, probabilities: Probabilities) -> dict[str, float]:
    """Return classification, calibration, risk-coverage and ranking in numbers; what is undefined is left out.

    `ece` and `mce` are over adaptive bins, as the paper has them; `hard_...` are from labels, as its tables show.
    """
    adaptive, equal = (calibration(truth, probabilities, binning=binning) for binning in ("adaptive", "equal_width"))
    selective = risk_coverage(truth, probabilities)
    found = {
        "ece": adaptive.ece,
        "mce": adaptive.mce,
        "equal_width_ece": equal.ece,
        "classwise_ece": equal.classwise_ece,
        "brier": adaptive.brier,
        "nll": adaptive.nll,
        "aurc": selective.aurc,
        "e_aurc": selective.e_aurc,
        "macro_auroc": auroc(truth, probabilities).macro,
        "macro_auprc": auprc(truth, probabilities).macro,
        "hard_auroc": auroc(truth, probabilities, mode="hard").macro,
        "hard_auprc": auprc(truth, probabilities, mode="hard").macro,
    }
    for point in selective.at_risk:
        found[f"coverage_at_{round(100 * point.wanted)}"] = point.coverage
    numbers = classification(truth, probabilities).to_dict()
    return numbers | {name: float(value) for name, value in found.items() if value is not None}


def describe_scaled(
    validation_truth: Labels, validation_probabilities: Probabilities, truth: Labels, probabilities: Probabilities
) -> dict[str, float]:
    """Return the temperature of the validation images, and ECE, NLL and Brier score of the others with it.

    Raises:
        ValueError: no image, shapes that do not fit, a label that is no class, or rows that are not probabilities.
    """
    temperature = fit_temperature(validation_truth, validation_probabilities)
    truth, probabilities = checked(truth, probabilities)
    after = apply_temperature(probabilities, temperature)
    return {
        "temperature": temperature,
        "ece_scaled": ece_and_mce(confidences(truth, after))[0],
        "nll_scaled": float(log_losses(truth, after).mean()),
        "brier_scaled": float(squared_distances(truth, after).mean()),
    }
