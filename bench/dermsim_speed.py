"""Drawn images a second on one core, all classes and styles mixed, by size.

python bench/dermsim_speed.py
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported

import importlib
import time

import numpy as np

from fedperl.data.dermsim import CLASSES, STYLES, draw


def main() -> None:
    importlib.import_module("fedperl.data.dermsim.draw").THREADS = 1  # type: ignore[attr-defined]
    for size, n in ((32, 2000), (64, 2000), (128, 600), (224, 200)):
        generator = np.random.default_rng(0)
        labels, styles = generator.integers(0, len(CLASSES), n), generator.integers(0, len(STYLES), n)
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            draw(labels, np.arange(n), np.arange(n), styles, size=size)
            best = max(best, n / (time.perf_counter() - start))
        print(f"{size:4} px: {best:6.0f} images a second")


if __name__ == "__main__":
    main()
