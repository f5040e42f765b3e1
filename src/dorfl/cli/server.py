"""`dorfl server`: the coordinator sets up a federation, lets sites in, and keeps the server up."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorfl.cli.screen import Commands, Screen
from dorfl.flower import require

if TYPE_CHECKING:
    from dorfl.flower.folders import Federation

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Coordinate a federation.")

Folder = Annotated[Path, typer.Argument(help="The federation's folder.", show_default=False)]


def opened(folder: Path) -> Federation:
    """The federation in a folder."""
    require()
    from dorfl.flower.folders import Federation  # noqa: PLC0415

    return Federation.open(folder)


@app.command()
def init(
    folder: Folder,
    host: Annotated[str, typer.Option(help="The name or address that sites connect to.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The public port.")] = 443,
) -> None:
    """Make a federation: an authority, the server's certificate, and a folder for all of it.

    Example: dorfl server init fed/ --host fl.example.org
    """
    require()
    from dorfl.flower.folders import Federation  # noqa: PLC0415

    federation = Federation.create(folder, host, port)
    screen = Screen()
    screen.say(f"{folder}: a federation at {host}:{port}, with no site yet")
    screen.say(f"Send {federation.keys / 'ca.crt'} to every site; the rest of keys/ is secret.")


@app.command("add-site")
def add_site(
    folder: Folder,
    key: Annotated[Path, typer.Argument(help="The site's .pub file.")],
    name: Annotated[str, typer.Option(help="What the site is called.")],
) -> None:
    """Let a site in: bind its name to its public key.

    Compare the fingerprint with the site's, over the telephone say, before you rely on it.

    Example: dorfl server add-site fed/ site-1.pub --name site-1
    """
    public = opened(folder).add_site(name, key.read_bytes())
    from dorfl.flower import keys  # noqa: PLC0415

    Screen().say(f"site {name!r} is registered, with the key {keys.fingerprint(public)}")


@app.command("remove-site")
def remove_site(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="What the site is called.", show_default=False)],
) -> None:
    """Let a site go: it is turned away from now on, and new runs are without it.

    A run that has it on its roster treats it as absent, by the study's rule for that.

    Example: dorfl server remove-site fed/ site-1
    """
    opened(folder).remove_site(name)
    Screen().say(f"site {name!r} is no longer registered")


@app.command()
def renew(folder: Folder) -> None:
    """Renew the server's certificate; a server that runs takes it up by itself.

    Sites need nothing new: the authority stays. Example: dorfl server renew fed/
    """
    federation, screen = opened(folder), Screen()
    from dorfl.flower import keys  # noqa: PLC0415

    end, last = keys.renew(federation.keys, federation.host)
    screen.say(f"the certificate of {federation.host} now holds until {end:%Y-%m-%d}")
    if end == last:
        screen.note(
            f"the authority itself ends then: make a new federation before {last:%Y-%m-%d}, and "
            "send its ca.crt to every site"
        )


@app.command()
def start(
    folder: Folder,
    address: Annotated[str, typer.Option(help="The network address to listen on.")] = "0.0.0.0",
    detach: Annotated[bool, typer.Option(help="Go on in the background.")] = False,
) -> None:
    """Serve: Flower's SuperLink on the loopback, and the TLS front that sites connect to.

    Stays up until Ctrl-C or `dorfl stop`. Example: dorfl server start fed/
    """
    federation, screen = opened(folder), Screen()
    from dorfl.flower.serving import serve  # noqa: PLC0415

    where = f"serving at {federation.host}:{federation.port}"
    if not detach:
        serve(federation, address, lambda: screen.say(f"{where}; Ctrl-C stops"))
        return
    log = folder / "logs" / "server.log"
    command = [sys.executable, "-m", "dorfl", "server", "start", str(folder)]
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*command, "--address", address],
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    while federation.noted("server") is None:
        if child.poll() is not None:
            raise ValueError(f"the server did not start; {log} says why")
        time.sleep(0.1)
    screen.say(f"{where} in the background; `dorfl stop {folder}` stops it")
