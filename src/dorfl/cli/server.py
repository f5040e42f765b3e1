"""`dorfl server`: set up a federation, register sites, and serve them by HTTPS."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorfl.carriers import require
from dorfl.cli.screen import Commands, Screen

if TYPE_CHECKING:
    from dorfl.carriers.folders import Federation

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Coordinate a federation.")

Folder = Annotated[Path, typer.Argument(help="The federation's folder.", show_default=False)]


def opened(folder: Path) -> Federation:
    """Return the federation in a folder."""
    require()
    from dorfl.carriers.folders import Federation

    return Federation.open(folder)


@app.command()
def init(
    folder: Folder,
    host: Annotated[str, typer.Option(help="The name or address that sites connect to.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The public port.")] = 443,
) -> None:
    """Create a federation: a folder with an authority and the server's certificate.

    Example: dorfl server init fed/ --host fl.example.org
    """
    require()
    from dorfl.carriers.folders import Federation

    federation = Federation.create(folder, host, port)
    screen = Screen()
    screen.say(f"{folder}: a federation at {host}:{port}, with no site yet")
    screen.say(f"Send {federation.keys / 'ca.crt'} to every site; the rest of keys/ is secret.")


@app.command("add-site")
def add_site(
    folder: Folder,
    certificate: Annotated[Path, typer.Argument(help="The site's .crt file.")],
    name: Annotated[
        str | None, typer.Option(help="The name that the certificate must have.")
    ] = None,
) -> None:
    """Register a site: bind its name to its certificate.

    Compare the fingerprint with the site's over another channel, such as the telephone.

    Example: dorfl server add-site fed/ site-1.crt --name site-1
    """
    federation = opened(folder)
    own = federation.add_site(certificate.read_bytes(), name)
    Screen().say(f"site {own!r} is registered; fingerprint {federation.fingerprints()[own]}")


@app.command("remove-site")
def remove_site(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The site's name.", show_default=False)],
) -> None:
    """Remove a site: the server turns it away from now on, and new runs do not include it.

    A run in progress treats the site as absent, by the study's rule for that.

    Example: dorfl server remove-site fed/ site-1
    """
    opened(folder).remove_site(name)
    Screen().say(f"site {name!r} is no longer registered")


@app.command()
def renew(folder: Folder) -> None:
    """Renew the certificates of server and coordinator; a running server loads its own.

    Sites change nothing: the authority stays the same. Example: dorfl server renew fed/
    """
    federation, screen = opened(folder), Screen()
    from dorfl.carriers import keys

    end, last = keys.renew(federation.keys, federation.host)
    screen.say(f"the certificate of {federation.host} is now valid until {end:%Y-%m-%d}")
    if end == last:
        screen.note(
            f"the authority expires then too: create a new federation before {last:%Y-%m-%d}, "
            "and send its ca.crt to every site"
        )


@app.command()
def start(
    folder: Folder,
    address: Annotated[
        str | None,
        typer.Option(
            help="The network address to listen on.", show_default="all; of a loopback host its own"
        ),
    ] = None,
    detach: Annotated[bool, typer.Option(help="Run in the background.")] = False,
) -> None:
    """Serve the sites by HTTPS with mutual TLS.

    Stays up until Ctrl-C or `dorfl stop`. Example: dorfl server start fed/
    """
    federation, screen = opened(folder), Screen()
    from dorfl.carriers.https import run_until_stopped, serve

    address = address or _address_of(federation.host)
    where = f"serving at {federation.host}:{federation.port} (listening on {address})"
    if not detach:
        work = serve(federation, address, lambda: screen.say(f"{where}; Ctrl-C stops"))
        run_until_stopped(work)
        return
    log = folder / "logs" / "server.log"
    command = [sys.executable, "-m", "dorfl", "server", "start", str(folder)]
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*command, "--address", address],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    while federation.noted("server") is None:
        if child.poll() is not None:
            raise ValueError(f"the server did not start; see {log}")
        time.sleep(0.1)
    screen.say(f"{where} in the background; `dorfl stop {folder}` stops it")


def _address_of(host: str) -> str:
    """Return the address to listen on: every one, unless the host is this machine only."""
    try:
        only_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        only_here = host == "localhost"
    return "127.0.0.1" if only_here else "0.0.0.0"
