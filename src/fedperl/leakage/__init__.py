"""Leakage measured: membership inference against what clients are sent (docs/leakage.md)."""

from fedperl.leakage.measuring import (
    FOUND,
    PRINTED,
    leakage_config,
    measure_leakage,
    read_leakage,
    write_picture,
)

__all__ = ["FOUND", "PRINTED", "leakage_config", "measure_leakage", "read_leakage", "write_picture"]
