"""The command line: `dorfl --help`."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

import dorfl
from dorfl.cli import demo, federation, flower, server, site
from dorfl.cli.screen import EPILOG, Commands

_NETWORK = "Sites over a network"

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning that holds up when clients differ, data shift and rows are wrong.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dorfl {dorfl.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool,
        typer.Option(
            "--version", "-V", is_eager=True, callback=_version, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def _add(panel: str, *names: str) -> None:
    """Add commands with the names of their modules."""
    for name in names:
        command = getattr(import_module(f"dorfl.cli.{name}"), name)
        app.command(name, rich_help_panel=panel)(command)


# In the order of the help page.
_add("Your own table", "init", "train", "compare", "tune", "predict", "evaluate", "certify")
_add("Your own table", "outliers", "report", "info")
app.add_typer(server.app, name="server", rich_help_panel=_NETWORK)
app.add_typer(site.app, name="site", rich_help_panel=_NETWORK)
for of_coordinator in ("run", "resume", "status", "watch", "stop"):
    app.command(rich_help_panel=_NETWORK)(getattr(federation, of_coordinator))
app.add_typer(flower.app, name="flower", rich_help_panel=_NETWORK)
app.add_typer(demo.app, name="demo", rich_help_panel=_NETWORK)
