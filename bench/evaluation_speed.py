"""Every metric of `fedperl.evaluate` on many predictions, with 200 bootstraps of the main ones: seconds and memory.

    python bench/evaluation_speed.py [--images 100000] [--classes 8] [--resamples 200]

Predictions are drawn: over-confident, in single precision as a network gives them, with unbalanced classes.
Fails above 20 s or 1 GB.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from fedperl.evaluate import (
    age_bands,
    auprc,
    auroc,
    calibration,
    classification,
    main_intervals,
    operating_points,
    precision_recall_curves,
    risk_coverage,
    roc_curves,
    selective_guaranteed_risk,
    softmax,
    subgroups,
    temperature_scaling,
)
from fedperl.evaluate.malignancy import malignancy, malignant_score

SECONDS, BYTES = 20.0, 1e9


def draw(images: int, classes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return truth and probabilities; the classes' shares fall by a third from one to the next."""
    generator = np.random.default_rng(0)
    shares = 0.66 ** np.arange(classes)
    truth = generator.choice(classes, size=images, p=shares / shares.sum())
    logits = 2.5 * generator.normal(size=(images, classes))
    logits[np.arange(images), truth] += 3.5
    return truth, softmax(logits).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--resamples", type=int, default=200)
    arguments = parser.parse_args()
    truth, prob = draw(arguments.images, arguments.classes)
    half = len(truth) // 2
    sick = np.arange(arguments.classes) % 2 == 0
    score = malignant_score(prob, sick)
    ages = np.random.default_rng(1).integers(0, 90, size=len(truth))
    lesions = np.arange(len(truth)) // 2
    tasks: dict[str, Callable[[], object]] = {
        "classification": lambda: classification(truth, prob).to_full_dict(),
        "auroc": lambda: auroc(truth, prob).to_dict(),
        "auprc": lambda: auprc(truth, prob).to_dict(),
        "auroc and auprc, hard": lambda: (auroc(truth, prob, "hard").to_dict(), auprc(truth, prob, "hard").to_dict()),
        "ROC curves": lambda: roc_curves(truth, prob),
        "precision-recall curves": lambda: precision_recall_curves(truth, prob),
        "calibration, adaptive": lambda: calibration(truth, prob).to_dict(),
        "calibration, equal width": lambda: calibration(truth, prob, "equal_width").to_dict(),
        "calibration, equal mass": lambda: calibration(truth, prob, "equal_mass").to_dict(),
        "risk and coverage": lambda: risk_coverage(truth, prob).to_dict(),
        "guaranteed risk": lambda: selective_guaranteed_risk(truth, prob, 0.1).to_dict(),
        "malignancy": lambda: malignancy(sick[truth], prob, sick).to_dict(),
        "operating points": lambda: operating_points(sick[truth], score).to_dict(),
        "temperature": lambda: temperature_scaling(truth[:half], prob[:half], truth[half:], prob[half:]).to_dict(),
        "subgroups by age": lambda: subgroups(truth, prob, age_bands(ages)).to_dict(),
        "bootstrap": lambda: main_intervals(truth, prob, resamples=arguments.resamples),
        "bootstrap by lesion": lambda: main_intervals(truth, prob, resamples=arguments.resamples, groups=lesions),
    }
    total = 0.0
    for name, task in tasks.items():
        began = time.perf_counter()
        task()
        taken = time.perf_counter() - began
        total += taken
        print(f"{name:<26}{taken:8.3f} s", flush=True)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'all':<26}{total:8.3f} s   peak memory {peak / 1e6:.0f} MB")
    if total > SECONDS or peak > BYTES:
        sys.exit(f"wanted at most {SECONDS:.0f} s and {BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
