"""Thresholds that differ by class: rare classes are seldom predicted with the confidence that common ones reach."""

from torch import Tensor

FLOOR = 0.5  # of tau: the largest of many probabilities is above chance by itself, so chance would bar nothing


def class_aware_thresholds(shares: Tensor, tau: float) -> Tensor:
    """Return (classes,) thresholds, tau * share / largest share, never less than half of tau.

    As FreeMatch scales its threshold (Wang et al. 2023), with tau in place of its running mean confidence: the most
    common class needs tau, the others less. Flat shares give every class exactly tau.
    """
    return ((shares / shares.max()) * tau).clamp_min(FLOOR * tau)


def class_balanced_thresholds(shares: Tensor, base: float, cap: float) -> Tensor:
    """Return (classes,) thresholds, share + base - standard deviation of the shares, capped (CBAFed, Li et al. 2023).

    The deviation is the population's: where shares are flat every class needs base + 1 / classes or the cap.
    """
    return (shares + base - shares.std(correction=0)).clamp_max(cap)
