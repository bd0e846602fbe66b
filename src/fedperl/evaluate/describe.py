"""All numbers of one set of predictions that are fit to be told: of the set as a whole, never of one image."""

from fedperl.evaluate.calibration import calibration
from fedperl.evaluate.classification import Labels, Probabilities, classification
from fedperl.evaluate.ranking import auprc, auroc
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
