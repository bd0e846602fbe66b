"""Runs cases with this tree's package; nothing has changed yet since the first edition that a driver must know."""

from golden.first_edition import run

__all__ = ["run"]
