"""`dorfl flower`: what a team needs to carry studies over stock Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorfl.carriers import require
from dorfl.cli.screen import Commands, Screen

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Run studies over an unmodified Flower (flower.ai) network.",
)


@app.callback()
def main() -> None:
    """Run studies over an unmodified Flower network."""


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="A federation's folder, or a site's.", show_default=False)
    ],
    ca: Annotated[
        Path | None, typer.Option(help="A site's copy of the coordinator's ca.crt.")
    ] = None,
) -> None:
    """Write what Flower needs: app, nginx configuration and systemd units, with the commands.

    Example: dorfl flower init fed/
    """
    require("flower")
    from dorfl.carriers import flower
    from dorfl.carriers.folders import Federation, SiteFolder

    screen = Screen()
    if (folder / "site.toml").exists():
        if ca is None:
            raise ValueError("a site needs the coordinator's certificate: --ca ca.crt")
        site = SiteFolder.open(folder)
        made = flower.write_site(site, ca)
        screen.say(f"{made}: the SuperNode's key and units for systemd; fill in HOST:PORT and DATA")
        screen.say(f"send {made / f'{site.name}.pub'} and {site.path / f'{site.name}.crt'}")
        return
    federation = Federation.open(folder)
    made = flower.write_coordinator(federation)
    screen.say(f"{made}: the Flower app, nginx.conf and units for systemd")
    screen.say("for each site, on this machine:")
    screen.say(f"  dorfl server add-site {folder} SITE.crt --name SITE")
    screen.say("  flwr supernode register SITE.pub here --name SITE")
    screen.say("then, with the study in the federation's folder:")
    screen.say(f"""  flwr run {made / "app"} here --stream --run-config 'study="study.toml"'""")
