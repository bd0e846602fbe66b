"""Speed: a short run of the real thing, measured. And reliability: faults and bad inputs, really tried."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from fedperl.cli.common import AsJson, Settings, bar, console, stopped

bench_app = typer.Typer(help="Speed on this machine; `bench reliability`: faults and bad inputs.")


@bench_app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    method: Annotated[str, typer.Option(help="What is trained; see `fedperl methods`.")] = "fedperl",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default a GPU if there is one.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count, after two that do not.")] = 6,
    net: Annotated[str | None, typer.Option(help="efficientnet_b0; small_cnn without a GPU.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels along an edge: 224; 32 without a GPU.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps a client and round.")] = 26,
    batch: Annotated[int, typer.Option(min=2, help="Labelled images a step, and as many unlabelled ones.")] = 16,
    cohort: Annotated[int, typer.Option(min=2, help="Clients a round.")] = 3,
    settings: Settings = None,
    plain: Annotated[bool, typer.Option(help="Time a plain PyTorch loop on the same images beside.")] = True,
    beside: Annotated[
        Path, typer.Option(help="The plain loop; by default the one of the repository that fedperl is installed from.")
    ] = Path(__file__).parents[3] / "bench" / "plain_loop.py",
    as_json: AsJson = False,
) -> None:
    """Measure speed on this machine, beside a plain PyTorch loop: about a minute, no download."""
    if context.invoked_subcommand is not None:
        return
    from fedperl.benchmarking import bench_config, bench_table, floor, images_of, measure, run_beside
    from fedperl.benchmarking.beside import why_not

    given = {
        "method": method,
        "device": device,
        "model.net": net,
        "data.size": size,
        "federation.steps": steps,
        "federation.batch": batch,
        "federation.cohort": cohort,
    }
    config = bench_config(given, settings or [], rounds=rounds)
    missing = why_not(config, beside) if plain else ""
    if missing:
        print(f"fedperl: {missing}", file=sys.stderr)
    try:
        with TemporaryDirectory(prefix="fedperl-bench-") as name, bar("done", hidden=as_json) as progress:
            folder = Path(name)
            task = progress.add_task("images", total=None)
            store, images = images_of(config, folder / "images")
            progress.update(task, description="rounds", total=config.federation.rounds)
            found: dict[str, Any] = measure(
                config, store, folder / "run", lambda done, of: progress.update(task, completed=done, total=of)
            )
            found["floor"] = floor(config, len(store.classes), folder / "run", found["ms_per_step"])
            found["small"] = config.device == "cpu" and (net, size) == (None, None)
            found["plain"] = None
            if plain and not missing:
                other = progress.add_task("plain loop, steps", total=None)
                found["plain"] = run_beside(
                    config,
                    beside,
                    images,
                    store,
                    folder,
                    lambda done, of: progress.update(other, completed=done, total=of),
                )
                found["ratio"] = found["plain"]["ms_per_step"] / found["ms_per_step"]
    except KeyboardInterrupt:
        stopped("nothing was kept")
    if as_json:
        print(json.dumps(found))
    else:
        console.print(bench_table(found))


@bench_app.command("reliability")
def reliability(as_json: AsJson = False) -> None:
    """Count what faults and bad inputs do, beside the same without guards and Flower's FedAvg: about a minute."""
    from fedperl.benchmarking.reliability import measure_reliability
    from fedperl.benchmarking.reliability.table import faults_table, inputs_table, totals_table

    try:
        with TemporaryDirectory(prefix="fedperl-bench-") as name, bar("trials", hidden=as_json) as progress:
            task = progress.add_task("faults, bad inputs", total=None)
            found = measure_reliability(Path(name), lambda done, of: progress.update(task, completed=done, total=of))
    except KeyboardInterrupt:
        stopped("nothing was kept")
    if as_json:
        print(json.dumps(found))
    else:
        for table in (totals_table(found), faults_table(found), inputs_table(found)):
            console.print(table)
