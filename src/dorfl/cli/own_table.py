"""The commands for a table of one's own, in the order in which they are used."""

from __future__ import annotations

import typer

from dorfl.cli import certify, compare, evaluate, info, init, outliers, predict, report, train, tune

TABLE = "Your own table"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for module in (init, train, compare, tune, predict, evaluate, certify, outliers, report, info):
        name = module.__name__.rsplit(".", maxsplit=1)[-1]
        app.command(name, rich_help_panel=TABLE)(getattr(module, name))
