"""The command line: parse, call, print. Torch is imported inside the commands that need it."""

import io
import sys
from typing import Annotated

import typer

from fedperl import __version__
from fedperl.cli import bench, data, federations, leakage, models, paper, privacy, reports, runs, suites
from fedperl.errors import FedPerlError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Semi-supervised federated peer learning.",
)
data_app = typer.Typer(no_args_is_help=True, help="Images: archives into a store, what is there and who holds it.")
weights_app = typer.Typer(no_args_is_help=True, help="Backbone weights that training starts from.")
server_app = typer.Typer(no_args_is_help=True, help="A federation across real sites: its server.")
site_app = typer.Typer(no_args_is_help=True, help="A federation across real sites: one hospital.")

app.command("demo")(runs.demo)
app.command("train")(runs.train)
app.command("compare")(suites.compare)
app.command("paper")(paper.paper)
app.command("methods")(runs.list_methods)
app.command("evaluate")(models.evaluate)
app.command("predict")(models.predict)
app.command("pretrain")(models.pretrain)
app.command("report")(reports.report)
app.command("privacy")(privacy.privacy)
app.command("leakage")(leakage.leakage)
app.add_typer(bench.bench_app, name="bench")
app.add_typer(data_app, name="data")
data_app.command("prepare")(data.prepare)
data_app.command("audit")(data.audit)
data_app.command("partition")(data.partition)
data_app.command("show")(data.show)
data_app.command("deal")(data.deal)
app.add_typer(weights_app, name="weights")
weights_app.command("import")(models.import_weights)
app.add_typer(server_app, name="server")
for name in ("start", "register", "run", "status", "stop", "remove"):
    server_app.command(name)(getattr(federations, name))
app.add_typer(site_app, name="site")
for name in ("init", "check", "join", "leave"):
    site_app.command(name)(getattr(federations, name))


@weights_app.callback()
def weights_options() -> None:
    """Backbone weights that training starts from."""


def main() -> None:
    """Run the command line; an error a person can act on is one sentence and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "±" still gets its table
    try:
        app()
    except (FedPerlError, OSError) as error:
        print(f"fedperl: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedperl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Semi-supervised federated peer learning for medical images."""
