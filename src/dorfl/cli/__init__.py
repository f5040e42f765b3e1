"""The command line: `dorfl --help`."""

from __future__ import annotations

import typer

from dorfl.cli import networked, own_table
from dorfl.cli.reproduce import reproduce
from dorfl.cli.screen import EPILOG, Commands
from dorfl.cli.theory import theory

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    help="Federated learning that holds up when clients differ, data shift and rows are wrong.",
)

own_table.register(app)
networked.register(app)
for command in (reproduce, theory):
    app.command(rich_help_panel="The paper")(command)
