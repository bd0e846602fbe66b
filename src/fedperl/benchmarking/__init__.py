"""How fast the real thing is: a short run measured, beside a floor by counting and a plain PyTorch loop."""

from fedperl.benchmarking.beside import run_beside
from fedperl.benchmarking.speed import bench_config, floor, images_of, measure
from fedperl.benchmarking.table import bench_table
from fedperl.benchmarking.traffic import Passes, Traffic, network_traffic, passes_of, step_bytes

__all__ = [
    "Passes",
    "Traffic",
    "bench_config",
    "bench_table",
    "floor",
    "images_of",
    "measure",
    "network_traffic",
    "passes_of",
    "run_beside",
    "step_bytes",
]
