"""The command line: `dorfl --help`."""

from __future__ import annotations

from typing import Annotated

import typer

import dorfl
from dorfl.cli import networked, own_table
from dorfl.cli.benchmark import benchmark
from dorfl.cli.reproduce import reproduce
from dorfl.cli.screen import EPILOG, Commands
from dorfl.cli.theory import theory

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
        typer.Option("--version", "-V", is_eager=True, callback=_version, help="Say which dorfl."),
    ] = False,
) -> None:
    pass


own_table.register(app)
networked.register(app)
for command in (reproduce, theory, benchmark):
    app.command(rich_help_panel="The paper")(command)
