"""`dorfl site`: a site makes its key, looks at what a study would send, and takes part."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from dorfl.cli.screen import Commands, Screen
from dorfl.flower import require
from dorfl.oracle.curvature import RESOLUTIONS, coarser
from dorfl.support.text import one_line_each

if TYPE_CHECKING:
    from dorfl.flower.fleet import Connection
    from dorfl.study.messages import Request
    from dorfl.study.settings import Study
    from dorfl.study.site import Site

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Take part in a federation.")

Folder = Annotated[Path, typer.Argument(help="The site's folder.", show_default=False)]
Data = Annotated[Path, typer.Option(help="The site's table, CSV or Parquet.", show_default=False)]
Server = Annotated[str, typer.Option(help="host:port of the coordinator.", show_default=False)]
Authority = Annotated[Path, typer.Option(help="The coordinator's ca.crt.", show_default=False)]
Finest = Annotated[
    str | None,
    typer.Option(
        help="The finest curvature to tell, instead of site.toml's.",
        click_type=click.Choice(RESOLUTIONS),
    ),
]
_SENT = {
    "enrol": "the number of rows, and the names of the columns",
    "columns": "counts, sums and sketches of the columns, and their frequent levels",
    "spreads": "how far numbers are from the middles agreed on",
    "center": "where rows are, and how far they spread",
    "edge": "a sketch of how far rows are from their centre",
    "round": "a risk and its slope",
    "network": "a network's update and its risk; at the end the risk alone",
    "judge": "how two models serve rows held back, and how many rows lie far out",
    "residuals": "a sketch of how far predictions are off",
    "finish": "how the model serves the site",
    "levels": "of which kind columns are, and the names of their frequent levels",
    "sum keys": "public keys for a secure sum",
    "sum shares": "sealed shares of this site's secrets for the sum",
    "sum masked": "masked numbers, of which only the sum over sites can be read",
    "sum open": "shares that open the sum",
}
_TOLD = {
    "diagonal": "one number per parameter",
    "blocks": "a matrix of pairs of columns for each class",
    "full": "a matrix of all pairs of parameters",
}


@app.command()
def init(
    folder: Folder, name: Annotated[str, typer.Option(help="What the site is called.")]
) -> None:
    """Make the site's key pair. Send the .pub file to the coordinator; the .key stays.

    Example: dorfl site init site-1/ --name site-1
    """
    require()
    from dorfl.flower import keys  # noqa: PLC0415
    from dorfl.flower.folders import SiteFolder  # noqa: PLC0415

    site, screen = SiteFolder.create(folder, name), Screen()
    public = folder / f"{site.name}.pub"
    screen.say(f"send {public} to the coordinator; the .key stays here")
    mark = keys.fingerprint(keys.read_public(public.read_bytes(), public.name))
    screen.say(f"its fingerprint, for comparing: {mark}")


@app.command()
def check(
    folder: Folder, data: Data, server: Server, ca: Authority, curvature: Finest = None
) -> None:
    """Connect, look whether the columns fit, and say what would be sent. Sends nothing of them.

    Example: dorfl site check site-1/ --data records.csv --server fl.example.org:443 --ca ca.crt
    """
    require()
    from dorfl.flower.fleet import clocks  # noqa: PLC0415
    from dorfl.study import guard  # noqa: PLC0415
    from dorfl.study.consent import Refused  # noqa: PLC0415
    from dorfl.study.messages import Agreement  # noqa: PLC0415
    from dorfl.study.settings import Study  # noqa: PLC0415
    from dorfl.support import wire  # noqa: PLC0415

    screen = Screen()
    site, connection = _open(folder, data, server, ca, curvature)
    with connection:
        hello = connection.hello()
    screen.say(f"{connection.server} knows this site as {hello.site!r}")
    differ = clocks(hello.ahead)
    if differ is not None:
        screen.note(differ)
    released = ", ".join(site.released) or "nothing; name columns in site.toml: released = [...]"
    screen.say(f"{data.name}: {site.table.num_rows} rows; released: {released}")
    if hello.study is None:
        screen.say("no study is running; when one is, this command says whether it fits")
        return
    study = wire.decode(hello.study.encode(), Study)
    try:
        asked = Agreement("check", site.name, study)
        site.consent(asked)
        reason = guard.few(study, site.rows(asked).num_rows, site.least)
    except Refused as refusal:
        reason = str(refusal)
    if reason is not None:
        raise ValueError(f"study {study.name!r}: {reason}")
    if not site.ledger.allows(study, site.approve):
        screen.say(f"study {study.name!r} is not approved yet: dorfl site approve {folder}")
    if study.privacy.secure_sum:
        _say_sums(screen, study)
        return
    columns, least = ", ".join(study.columns.use) or "every released column", study.privacy.least
    screen.say(f"study {study.name!r} fits. What would be sent:")
    screen.say(f"  once: how many rows there are; of {columns} and {study.data.label}: counts, and")
    screen.say(f"        sums or means of at least {least} values, levels of at least {least} rows")
    private = study.privacy.epsilon is not None
    noise = f", with noise (ε = {study.privacy.epsilon:g})" if private else ""
    if study.training.model != "linear":
        _say_network(screen)
        return
    screen.say(
        f"  every round: one number (the risk) and one per parameter (its slope){noise}; no row"
    )
    finest = site.curvature
    if not private and study.training.curvature != "auto":
        finest = coarser(finest, study.training.curvature)
    if not private and finest != "none":
        screen.say(
            f"  in some rounds: how the slope changes with the model, at most {_TOLD[finest]}"
        )
    end = (
        "nothing" if private else "how the model serves the site: loss, score, counts, certificate"
    )
    screen.say(f"  at the end: {end}")


def _say_network(screen: Screen) -> None:
    """What the study of a network would have this site send."""
    screen.say(
        "  before training: the same of a linear model, in some rounds, where it decides what"
    )
    screen.say("        rows far out are worth, or how far residuals scatter")
    screen.say("  every round, hundreds of them: one number (the risk) and one per parameter of a")
    screen.say("        network, made of all rows. These are more numbers than the rows have: the")
    screen.say("        coordinator could work rows out of them (docs/privacy.md)")
    screen.say("  at the end: how the model serves the site: loss, score, counts")


def _say_sums(screen: Screen, study: Study) -> None:
    """What a study of secure sums would have this site send, and with whom it sums."""
    from dorfl.flower import keys  # noqa: PLC0415
    from dorfl.study import summing  # noqa: PLC0415

    screen.say(f"study {study.name!r} fits, and sums among these sites and keys:")
    for name, key in summing.peers_of(study.privacy.peers).items():
        screen.say(f"  {name}: {keys.fingerprint(keys.public_bytes(key))}")
    screen.say("  once, in the open: how many rows there are, of which kind columns are, levels'")
    screen.say("  names; counts, sums and every round's numbers masked: only sums can be read")


@app.command()
def start(
    folder: Folder, data: Data, server: Server, ca: Authority, curvature: Finest = None
) -> None:
    """Take part: answer the coordinator until Ctrl-C. The rows stay here.

    Example: dorfl site start site-1/ --data records.csv --server fl.example.org:443 --ca ca.crt
    """
    require()
    from dorfl.flower.attending import attend, stop_on_signals  # noqa: PLC0415
    from dorfl.flower.folders import SiteFolder  # noqa: PLC0415
    from dorfl.study.results import write_site  # noqa: PLC0415

    with SiteFolder.open(folder).attending():
        note = _noting(folder / "site.log", Screen())
        site, connection = _open(folder, data, server, ca, curvature)
        site.note = note
        site.told = lambda request, reply: note(*_progress(request, reply))
        site.done = lambda agreed, *told: note(
            write_site(folder / "results" / agreed.run, agreed, *told)
        )
        stop = stop_on_signals()
        try:
            with connection:
                attend(site, connection, stop, note)
        except KeyboardInterrupt:
            if not stop.is_set():
                raise


def _progress(request: Request, reply: bytes) -> tuple[str, dict[str, Any]]:
    """What was just answered, in words and as fields of the log."""
    agreed, sent = request.agreement, request.broadcast
    told: dict[str, Any] = {
        "event": "answered", "study": agreed.study.name, "run": agreed.run, "step": request.step,
        "round": None if sent is None else sent.round, "bytes": len(reply),
        "what": _SENT.get(request.step, request.step),
    }  # fmt: skip
    if sent is not None and sent.task.curvature != "none":
        told["what"] += f", curvature ({sent.task.curvature} was asked for)"
    step = request.step if sent is None else f"round {sent.round}"
    return f"{agreed.study.name}, {step}: sent {told['what']}; {len(reply):,} bytes", told


def _open(
    folder: Path, data: Path, server: str, ca: Path, curvature: str | None
) -> tuple[Site, Connection]:
    from dorfl.data import tables  # noqa: PLC0415
    from dorfl.flower import keys  # noqa: PLC0415
    from dorfl.flower.fleet import Connection  # noqa: PLC0415
    from dorfl.flower.folders import SiteFolder  # noqa: PLC0415
    from dorfl.study.ledger import Ledger  # noqa: PLC0415
    from dorfl.study.memory import Memory  # noqa: PLC0415
    from dorfl.study.site import Site  # noqa: PLC0415

    home = SiteFolder.open(folder)
    connection = Connection(server, ca, keys.read_private(home.key), home.name)
    # Noise from the key: the same after a restart, and as secret.
    secret = hashlib.sha256(home.key.read_bytes()).digest()
    table = tables.read(data)
    with data.open("rb") as file:
        rows = hashlib.file_digest(file, "sha256").hexdigest()
    site = Site(
        home.name, table, home.released, home.least, home.approve,
        epsilon=home.epsilon, limits=home.limits, secret=secret,
        memory=Memory(folder / "asked.json", data=rows), ledger=Ledger(folder / "ledger.json"),
        curvature=curvature or home.curvature, key=keys.read_private(home.key),
    )  # fmt: skip
    return site, connection


def _noting(log: Path, screen: Screen) -> Callable[..., None]:
    """Notes to the screen and, as JSON lines, to the site's own log."""

    def note(text: str, fields: dict[str, Any] | None = None) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = one_line_each({"time": stamp, "note": text, **(fields or {})})
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        screen.say(line["note"])

    return note
