"""The commands for sites over a network, in the order in which they are used."""

from __future__ import annotations

import typer

from dorfl.cli import demo, federation, ledger, server, site

NETWORK = "Sites over a network"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(server.app, name="server", rich_help_panel=NETWORK)
    ledger.register(site.app)
    app.add_typer(site.app, name="site", rich_help_panel=NETWORK)
    for command in (
        federation.run, federation.resume, federation.status, federation.watch, federation.stop,
    ):  # fmt: skip
        app.command(rich_help_panel=NETWORK)(command)
    app.add_typer(demo.app, name="demo", rich_help_panel=NETWORK)
