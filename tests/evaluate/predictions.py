"""Predictions to test metrics on: random ones, and every degenerate kind."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KINDS = ("random", "sharp", "tied", "constant", "one class", "absent class", "all right", "all wrong")


def predictions(seed: int, n: int, classes: int, kind: str) -> tuple[Labels, Floats]:
    """Return truth and probabilities: sure ones ("sharp"), in eighths ("tied"), all the same ("constant")."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(classes, size=n)
    probabilities = generator.dirichlet(np.full(classes, 0.2 if kind == "sharp" else 1.0), size=n)
    if kind == "tied":
        probabilities = generator.multinomial(8, np.full(classes, 1 / classes), size=n) / 8
    if kind == "constant":
        probabilities = np.full((n, classes), 1 / classes)
    if kind == "one class":
        truth[:] = classes - 1
    if kind == "absent class":
        truth = np.minimum(truth, classes - 2)
    if kind == "all right":
        truth = probabilities.argmax(axis=1)
    if kind == "all wrong":
        truth = probabilities.argmin(axis=1)
    return truth, probabilities


def drawn(most: int = 80, least: int = 1) -> st.SearchStrategy[tuple[Labels, Floats]]:
    """Return a strategy of predictions of every kind, of one image too."""
    seeds, kinds = st.integers(0, 10_000), st.sampled_from(KINDS)
    return st.builds(predictions, seeds, st.integers(least, most), st.integers(2, 6), kinds)
