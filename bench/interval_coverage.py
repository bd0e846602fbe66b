"""How often an interval of 95 % holds the truth: `paired_interval` beside a plain percentile bootstrap.

    python bench/interval_coverage.py

Differences are drawn as client effect + seed effect + noise of the cell, around a true difference of 0; the effects
normal, or skewed (exponential: an outlier client, a lucky seed). Width is the mean half width over 1.96 true standard
errors: 1 is what one would take who knew the variances.
"""

import argparse
import datetime

import numpy as np
import numpy.typing as npt

from fedperl.evaluate import paired_interval

Floats = npt.NDArray[np.float64]

SEEDS = (2, 3, 5, 10)
MIXES = [
    (0.0, 0.0, 1.0),
    (0.0, 0.2, 1.0),
    (0.0, 1.0, 1.0),
    (1.0, 1.0, 1.0),
    (1.0, 1.0, 4.0),
    (0.0, 1.0, 0.0),
    (1.0, 0.0, 0.0),
]
"""Variances of seeds, clients and cells. In the demo FedPerl - SSFL is like the first two, Upper - SSFL the third."""


def draw(
    generator: np.random.Generator, shape: tuple[int, int, int], mix: tuple[float, float, float], skewed: bool
) -> Floats:
    """Return differences (replications, seeds, clients) around a true mean of 0."""
    n, seeds, clients = shape
    effect = (lambda size: generator.exponential(size=size) - 1.0) if skewed else generator.standard_normal
    of_seeds, of_clients = effect((n, seeds, 1)), effect((n, 1, clients))
    parts = (of_seeds, of_clients, generator.standard_normal(shape))
    return np.asarray(sum(np.sqrt(variance) * part for variance, part in zip(mix, parts, strict=True)))


def percentile(differences: Floats, resamples: int) -> tuple[Floats, Floats]:
    """Return the bounds of the plain two-way cluster bootstrap: every cell of the drawn seeds and clients."""
    _, seeds, clients = differences.shape
    generator = np.random.default_rng(0)
    rows = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    columns = generator.multinomial(clients, np.full(clients, 1 / clients), size=resamples) / clients
    drawn = np.einsum("bs,nsc,bc->nb", rows, differences, columns, optimize=True)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    return low, high


def ours(differences: Floats, resamples: int) -> tuple[Floats, Floats]:
    """Return the bounds that the package gives."""
    found = [paired_interval(one, resamples=resamples) for one in differences]
    bounds = np.array([(interval.low, interval.high) for interval in found], dtype=np.float64)
    return bounds[:, 0], bounds[:, 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=4000)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    print(
        f"{arguments.replications} replications, {arguments.resamples} resamples, {arguments.clients} clients, seed "
        f"{arguments.seed}, {datetime.date.today()}. Coverage in % (width); in italics a plain percentile bootstrap.\n"
    )
    print("| effects | variances of seeds : clients : cells | " + " | ".join(f"{n} seeds" for n in SEEDS) + " |")
    print("|---" * (2 + len(SEEDS)) + "|")
    for skewed in (False, True):
        for mix in MIXES:
            cells = []
            for seeds in SEEDS:
                shape = (arguments.replications, seeds, arguments.clients)
                differences = draw(generator, shape, mix, skewed)
                true = np.sqrt(mix[0] / seeds + mix[1] / shape[2] + mix[2] / (seeds * shape[2]))
                found = []
                for bounds in (ours, percentile):
                    low, high = bounds(differences, arguments.resamples)
                    coverage, width = 100 * np.mean((low <= 0) & (high >= 0)), np.mean(high - low) / 2 / 1.96 / true
                    found.append(f"{coverage:.0f} ({width:.1f})")
                cells.append(f"{found[0]}, *{found[1]}*")
            kind, variances = "skewed" if skewed else "normal", " : ".join(f"{variance:g}" for variance in mix)
            print(f"| {kind} | {variances} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
