"""What was measured, as one table."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

ONCE = {"start": "images to the device, networks", "recording": "warm-up rounds beyond measured ones"}


def bench_table(found: Mapping[str, Any]) -> Table:
    """Return the measured run's numbers, the plain loop's beside where there are some."""
    plain = found.get("plain")
    table = Table(title=_title(found))
    table.add_column("")
    table.add_column("fedperl", justify="right")
    if plain is not None:
        table.add_column(f"plain loop ({plain['workers']} workers)", justify="right")
        table.add_column("ratio", justify="right")

    def row(name: str, ours: str, theirs: str = "", ratio: str = "", *, end: bool = False) -> None:
        table.add_row(name, ours, *([theirs, ratio] if plain is not None else []), end_section=end)

    ratio = "" if plain is None else f"{found['ratio']:.1f}"
    row(
        "ms a client step", f"{found['ms_per_step']:.2f}", "" if plain is None else f"{plain['ms_per_step']:.2f}", ratio
    )
    if plain is not None:
        row("  of it until a client's first images are there", "", f"{plain['ms_waiting_per_step']:.2f}")
    fast = "" if plain is None else f"{plain['images_per_second']:.0f}"
    row("images a second", f"{found['images_per_second']:.0f}", fast, ratio)
    table.add_section()
    seconds = found["seconds_per_round"]
    for name, value in seconds.items():
        images = f" ({found['validation_images']} images)" if name == "validation" else ""
        share = f"{value:.4f}" if name == "wall" else f"{value:.4f}  {value / seconds['wall']:6.1%}"
        row("seconds a round" if name == "wall" else f"  {name}{images}", share, end=name == "other")
    for name, value in found["seconds_once"].items():
        row(f"seconds once: {ONCE[name]}", f"{value:.1f}", end=name == "recording")
    for name, value in found["peak_bytes"].items():
        row(f"peak memory, {name}", f"{value / 2**20:.0f} MiB", end=name != "allocated")
    floor = found["floor"]
    if floor is not None:
        row("memory, measured by a copy", f"{floor['bytes_per_second'] / 1e9:.1f} GB/s")
        row("bytes a step must move, by counting", f"{floor['bytes_per_step'] / 1e6:.1f} MB")
        row("floor by memory, ms a client step", f"{floor['ms_per_step']:.2f}")
        row("floor / measured", f"{floor['share']:.1%}")
    return table


def _title(found: Mapping[str, Any]) -> str:
    chosen, rounds = found["settings"], found["rounds"]
    threads = "" if "reserved" in found["peak_bytes"] else f", threads: {chosen['threads']}"
    small = " (a CPU's small default)" if found["small"] else ""
    peers = f"T = {chosen['T']}{', PA' if chosen['anonymize'] else ''}, " if chosen["T"] else ""
    return (
        f"{chosen['method']} on {found['device']}: {chosen['net']}, {chosen['size']} px{threads}{small}\n"
        f"{peers}cohorts of {chosen['cohort']}, {chosen['steps']} steps of {chosen['batch']} + "
        f"{chosen['unlabelled_batch']} images; "
        f"rounds measured: {rounds['measured']} after {rounds['warm']}, with a peer: {found['with_peer']:.0%}"
    )
