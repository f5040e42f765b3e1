"""`dorfl site`: make a site's key, check what a study would send, and take part."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorfl.carriers import require
from dorfl.cli.screen import Commands, Screen
from dorfl.support.files import write_whole
from dorfl.support.text import one_line, one_line_each

if TYPE_CHECKING:
    from dorfl.carriers.envelope import SiteEndpoint
    from dorfl.carriers.folders import SiteFolder
    from dorfl.protocol.messages import Request
    from dorfl.protocol.settings import Study
    from dorfl.site.ledger import Ledger
    from dorfl.site.site import Site

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Take part in a federation.")

Folder = Annotated[Path, typer.Argument(help="The site's folder.", show_default=False)]
Data = Annotated[Path, typer.Option(help="The site's table, CSV or Parquet.", show_default=False)]
Server = Annotated[str | None, typer.Option(help="host:port of the coordinator's HTTPS server.")]
Authority = Annotated[Path, typer.Option(help="The coordinator's ca.crt.", show_default=False)]


def _opened(folder: Path) -> SiteFolder:
    require()
    from dorfl.carriers.folders import SiteFolder

    return SiteFolder.open(folder)


@app.command()
def init(folder: Folder, name: Annotated[str, typer.Option(help="The site's name.")]) -> None:
    """Make the site's key and certificate. Send the .crt file to the coordinator; the .key stays.

    Example: dorfl site init site-1/ --name site-1
    """
    require()
    from dorfl.carriers.folders import SiteFolder

    _show_certificate(folder, SiteFolder.create(folder, name).name)


@app.command()
def renew(folder: Folder) -> None:
    """Renew the site's certificate; its key stays. The coordinator adds the new one again.

    Example: dorfl site renew site-1/
    """
    name = _opened(folder).name
    from dorfl.carriers import keys

    keys.renew_site(folder, name)
    _show_certificate(folder, name)


def _show_certificate(folder: Path, name: str) -> None:
    from dorfl.carriers import keys

    screen, file = Screen(), folder / f"{name}.crt"
    made = keys.read_certificate(file.read_bytes(), file.name)
    mark = keys.fingerprint(keys.public_of(made))
    screen.say(f"send {file} to the coordinator; the .key stays here")
    screen.say(f"it is valid until {made.not_valid_after_utc:%Y-%m-%d}")
    screen.say(f"its fingerprint, for comparing: {mark}")


@app.command()
def check(
    folder: Folder,
    data: Data,
    ca: Authority,
    server: Server = None,
    superlink: Annotated[
        str | None, typer.Option(help="host:port of the coordinator's SuperLink.")
    ] = None,
) -> None:
    """Check table, server and study, and show what would be sent. Sends nothing of the rows.

    Example: dorfl site check site-1/ --data records.csv --server fl.example.org:443 --ca ca.crt
    """
    screen, home = Screen(), _opened(folder)
    site, _ = _open(home, data, ca)
    if superlink is not None:
        _check_superlink(screen, superlink, ca)
    study = None if server is None else _hello(screen, server, ca, home)
    released = (
        ", ".join(site.policy.released) or "nothing; name columns in site.toml: released = [...]"
    )
    screen.say(f"{data.name}: {site.table.num_rows} rows; released: {released}")
    if study is None:
        screen.say("no study is running; when one is, this command says whether it fits")
        return
    _check_study(screen, site, study, folder)


def _hello(screen: Screen, server: str, ca: Path, home: SiteFolder) -> Study | None:
    """Check that the server knows this site; return the study that runs there, or None."""
    from dorfl.carriers.https import Connection, Hello, ServerAwayError, clocks
    from dorfl.protocol.settings import Study
    from dorfl.support import wire

    async def greet() -> Hello:
        async with Connection(server, ca, home) as connection:
            return await connection.hello()

    try:
        hello = asyncio.run(greet())
    except ServerAwayError as error:
        raise ValueError(
            f"{server} does not answer ({error}): check the address and the port, and whether "
            "`dorfl server start` is running there"
        ) from None
    screen.say(f"{server} knows this site as {hello.site!r}")
    differ = clocks(hello.ahead)
    if differ is not None:
        screen.note(differ)
    return None if hello.study is None else wire.decode(hello.study.encode(), Study)


def _check_superlink(screen: Screen, address: str, ca: Path) -> None:
    """Warn if the SuperLink accepts runs from all who can connect to it."""
    from dorfl.carriers.flower import control_answers

    if control_answers(address, ca):
        screen.alarm(
            f"{address}: /v1/control/ answers, so all who can connect to it can run code at "
            "the coordinator and in every SuperNode. The coordinator has to put nginx in front "
            "(`dorfl flower init`)"
        )
    else:
        screen.say(f"{address}: /v1/control/ does not answer from here, as it should be")


def _check_study(screen: Screen, site: Site, study: Study, folder: Path) -> None:
    """Show what a study would have this site send; ValueError if the study does not fit."""
    from dorfl.protocol.messages import Agreement, Refused
    from dorfl.site import approval, rules

    try:
        agreement = Agreement("check", site.name, study)
        site.consent(agreement)
        rows = site.rows(agreement)
        reason = rules.rows_objection(study, site.policy, rows.num_rows)
        reason = reason or rules.identifier_objection(study, rows.column_names, rows)
    except Refused as refusal:
        reason = str(refusal)
    if reason is not None:
        raise ValueError(f"study {study.name!r}: {reason}")
    if not site.ledger.allows(study, site.policy.approve):
        screen.say(f"study {study.name!r} is not approved yet: dorfl site approve {folder}")
    screen.say(f"study {study.name!r} fits:")
    _show_page(screen, approval.summary(study, site.policy))
    if study.privacy.summed:
        show_keys(screen, study.privacy.peers)


def _show_page(screen: Screen, page: str) -> None:
    """Show what a person reads before approving; its indents tell wrapped text from new lines."""
    for line in page.splitlines():
        text = one_line(line)
        screen.say(f"    {text}" if line.startswith(" ") else text)


def show_keys(screen: Screen, peers: tuple[str, ...]) -> None:
    """Show the fingerprints of the sites' keys in a summed study, for comparing."""
    from dorfl.carriers import keys
    from dorfl.protocol import site_keys
    from dorfl.site import approval

    screen.say("it sums among these sites and keys:")
    for name, key in site_keys.peers_of(peers).items():
        screen.say(f"  {one_line(approval.quoted([name]))}: {keys.fingerprint(key)}")


@app.command()
def ledger(
    folder: Folder,
    export: Annotated[Path | None, typer.Option(help="Write all of it here, as JSON.")] = None,
) -> None:
    """Show the studies and runs of this site, and what is left.

    Example: dorfl site ledger site-1/
    """
    policy, book, screen = _opened(folder).policy, _ledger(folder), Screen()
    for mark, seen in book.studies.items():
        state = "approved" if book.permits(mark, seen, policy.approve) else "NOT approved"
        screen.say(f"study {seen['name']} {mark[:12]}: {state}; {len(seen['runs'])} run(s)")
    more = max(policy.max_runs - book.runs, 0)
    screen.say(f"{book.runs} of {policy.max_runs} runs, {more} left (max_runs in site.toml)")
    if book.private:
        spent, most = book.spent(policy.delta), policy.epsilon
        rest = "no limit is set" if most is None else f"left: {max(most - spent, 0.0):.3g}"
        screen.say(
            f"{len(book.private)} private run(s): ε = {spent:.3g} at δ = {policy.delta:g}; {rest}"
        )
    if export is not None:
        kept = {name: getattr(book, name) for name in book.written}
        write_whole(export, json.dumps({**kept, "approved": sorted(book.approved)}).encode())
        screen.say(f"written to {export}")


@app.command()
def approve(
    folder: Folder,
    study: Annotated[str | None, typer.Argument(help="Its mark, or a part of it.")] = None,
) -> None:
    """Show the studies that wait for approval, half a page each, or approve one.

    Example: dorfl site approve site-1/ 3f9c2a
    """
    policy, book, screen = _opened(folder).policy, _ledger(folder), Screen()
    waiting = {
        mark: seen
        for mark, seen in book.studies.items()
        if not book.permits(mark, seen, policy.approve)
    }
    if study is None:
        for mark, seen in waiting.items():
            screen.say(f"{mark[:12]} {seen['name']}, first asked {seen['first']}:")
            _show_page(screen, seen["summary"])
            if peers := seen["text"]["privacy"].get("peers"):
                show_keys(screen, tuple(peers))
        screen.say(
            f"approve one: dorfl site approve {folder} MARK" if waiting else "no study waits"
        )
        return
    found = [mark for mark in waiting if mark.startswith(study)]
    if not found and any(mark.startswith(study) for mark in book.studies):
        screen.say(f"study {study} is approved already")
        return
    if len(found) != 1:
        raise ValueError(f"{study!r} is the mark of {len(found)} studies that wait; name one")
    book.approve(found[0])
    screen.say(f"study {waiting[found[0]]['name']} {found[0][:12]} is approved, as it is written")


def _ledger(folder: Path) -> Ledger:
    from dorfl.site.ledger import Ledger

    return Ledger(folder / "ledger.json")


@app.command()
def start(
    folder: Folder,
    data: Data,
    ca: Authority,
    server: Server = None,
    socket: Annotated[
        Path | None, typer.Option(help="Answer on this Unix socket instead, for a SuperNode.")
    ] = None,
) -> None:
    """Take part: answer the coordinator until Ctrl-C. The rows stay here.

    Example: dorfl site start site-1/ --data records.csv --server fl.example.org:443 --ca ca.crt
    """
    if (server is None) == (socket is None):
        raise ValueError("needs either --server host:port (HTTPS) or --socket PATH (Flower)")
    home = _opened(folder)
    from dorfl.carriers.flower import attend_socket
    from dorfl.carriers.https import attend_server, run_until_stopped
    from dorfl.tabular.results import write_site

    with home.attending():
        note = _noting(folder / "site.log", Screen())
        site, endpoint = _open(home, data, ca)
        site.note = note
        site.answered = lambda request, reply: note(*_progress(request, reply))
        site.done = lambda agreed, *ending: note(
            write_site(folder / "results" / agreed.run, agreed, *ending)
        )
        if server is not None:
            run_until_stopped(attend_server(server, ca, home, endpoint.respond, note))
        elif socket is not None:
            run_until_stopped(attend_socket(socket, endpoint.respond, note))


def _progress(request: Request, reply: bytes) -> tuple[str, dict[str, Any]]:
    """Describe a reply, as a sentence and as fields of the log."""
    from dorfl.protocol import sums

    agreed, sent = request.agreement, request.broadcast
    fields: dict[str, Any] = {
        "event": "answered",
        "study": agreed.study.name,
        "run": agreed.run,
        "step": request.step,
        "round": None if sent is None else sent.round,
        "bytes": len(reply),
        "what": sums.sends(request.step),
    }
    if sent is not None and sent.task.curvature != "none":
        fields["what"] += f", curvature ({sent.task.curvature} was requested)"
    step = request.step if sent is None else f"round {sent.round}"
    return f"{agreed.study.name}, {step}: sent {fields['what']}; {len(reply):,} bytes", fields


def _open(home: SiteFolder, data: Path, ca: Path) -> tuple[Site, SiteEndpoint]:
    """Open a site's table, ledger and journal; return the site and its endpoint."""
    from dorfl.carriers import keys
    from dorfl.carriers.envelope import SiteEndpoint
    from dorfl.data import tables
    from dorfl.site.journal import Journal
    from dorfl.site.site import Site

    key = keys.read_private(home.key)
    table = tables.read(data)
    with data.open("rb") as file:
        rows = hashlib.file_digest(file, "sha256").hexdigest()
    site = Site(
        home.name,
        table,
        home.policy,
        secret=hashlib.sha256(home.key.read_bytes()).digest(),  # noise that restarts keep
        ledger=_ledger(home.path),
        journal=Journal(home.path / "replies", rows),
        key=key,
    )
    return site, SiteEndpoint(site, key, ca)


def _noting(log: Path, screen: Screen) -> Callable[..., None]:
    """Return a function that writes notes to the screen and, as JSON lines, to the site's log."""

    def note(text: str, fields: dict[str, Any] | None = None) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = one_line_each({"time": stamp, "note": text, **(fields or {})})
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        screen.say(line["note"])

    return note
