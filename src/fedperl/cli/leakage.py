"""Leakage: what a released model tells about who was trained on."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedperl.cli.common import AsJson, Quiet, Settings, bar, console, stopped


def leakage(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file, as for `fedperl train`; a short run on drawn images without one."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("runs/leakage"),
    repeats: Annotated[int, typer.Option(min=1, help="How many runs, with as many seeds.")] = 5,
    references: Annotated[int, typer.Option(min=4, help="Models that the attacker trains; an even number.")] = 16,
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of another measurement, such as with DP-SGD, to draw too."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds, to see it work: the numbers say nothing.")] = False,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure how well images that a client trained on can be told from others, by what other clients are sent.

    About 25 minutes of one core without a configuration; the same command goes on where it was stopped.
    """
    from fedperl.errors import ConfigError
    from fedperl.leakage import FOUND, PRINTED, leakage_config, measure_leakage, read_leakage, write_picture
    from fedperl.report.leakage_table import leakage_table

    others = [read_leakage(folder) for folder in beside or []]
    asked = leakage_config(config, settings or [], quick=quick)
    try:
        with bar("done", hidden=quiet or as_json) as progress:
            bars = {
                stage: progress.add_task(stage, total=None) for stage in ("rounds", "references", "attacks", "numbers")
            }
            found = measure_leakage(
                asked,
                out,
                repeats=repeats,
                references=references,
                tick=lambda stage, done, total: progress.update(bars[stage], completed=done, total=total),
            )
    except KeyboardInterrupt:
        stopped("the same command goes on where it stopped")
    try:
        written = write_picture(found, out, others)
    except ConfigError as error:  # without matplotlib; the tables are there
        print(f"fedperl: {error}", file=sys.stderr)
        written = []
    if as_json:
        print(json.dumps(found))
    elif not quiet:
        console.print(leakage_table(found))
        where = ", ".join(map(str, [out / PRINTED, out / FOUND, *written]))
        console.print(f"All numbers, and by class: {where}", markup=False, highlight=False, soft_wrap=True)
