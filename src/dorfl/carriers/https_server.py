"""The HTTPS carrier's server: aiohttp with mutual TLS, and a Unix socket for the coordinator.

A registered site fetches its request by a long poll and posts its reply. Its certificate, which TLS
has verified, identifies the site. `dorfl run` hands over requests and takes replies by a Unix
socket that only the owner of the federation's folder can open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import signal
import socket
import ssl
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from cryptography.hazmat.primitives import serialization

from dorfl.carriers import envelope
from dorfl.carriers.driver import CarrierLostError, Exchanged, Incoming, Outgoing
from dorfl.carriers.folders import Federation
from dorfl.support import wire
from dorfl.support.files import write_whole

HELLO, NEXT, REPLY = "/v1/hello", "/v1/next", "/v1/reply/"
REQUEST_HEADER, SESSION_HEADER = "x-dorfl-request", "x-dorfl-session"
POLL_SECONDS = 20.0  # how long a site's poll waits for a request
AWAY_SECONDS = 2 * POLL_SECONDS  # silence after which another process may answer for a site
HANDSHAKE_SECONDS = 10.0  # until a connection has shown a registered certificate
SLOWEST_UPLOAD = 32 * 1024  # bytes a second at which a reply has to arrive
MAX_OPEN = 8  # requests kept for one site; older ones are dropped
MAX_BATCH = 32 * 2**20  # bytes of replies handed to the coordinator at once, if there are several
LOOK_SECONDS = 0.5  # between looks for changed certificates


class Turn(NamedTuple):
    """What the coordinator hands to its server, for an :class:`Exchanged` in return."""

    run: str  # if it changes, requests and replies of the former run are dropped
    requests: tuple[Outgoing, ...]
    awaited: tuple[str, ...]
    patience: float


@dataclass
class Presence:
    """The process that answers for a site."""

    session: str
    transport: asyncio.BaseTransport
    since: float
    seen: float
    warned: str = ""  # the session of another process that was turned away last


@dataclass
class Mailbox:
    """Requests that wait for their sites, and replies that wait for the coordinator.

    All of it is in memory: after a restart the coordinator sends its requests again. A site gets
    its oldest open request at every poll, so nothing is lost with a connection or a process. A site
    can reply to its own requests only, and only one process at a time answers for it.
    """

    changed: Callable[[], object] = lambda: None  # called when a site connects or leaves
    present: dict[str, Presence] = field(default_factory=dict)
    _run: str = ""
    _open: dict[str, dict[str, Outgoing]] = field(default_factory=dict)  # by site
    _given: dict[str, float] = field(default_factory=dict)  # request → when its site got it
    _replies: deque[Incoming] = field(default_factory=deque)
    _events: list[dict[str, str | int]] = field(default_factory=list)
    _uploading: set[str] = field(default_factory=set)  # sites
    _awaited: set[str] = field(default_factory=set)
    _bells: dict[str, asyncio.Event] = field(default_factory=dict)  # by site: a request is open
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    def claim(self, site: str, session: str, transport: asyncio.BaseTransport) -> None:
        """Note that a process answers for a site.

        Parameters
        ----------
        site
            The site, by its certificate.
        session
            What the process calls itself, the same for all its connections.
        transport
            Its connection, whose end frees the site for another process.

        Raises
        ------
        HTTPConflict
            If another process answers for the site.
        """
        now = time.time()
        known = self._presence(site)
        if known is not None and known.session != session:
            if known.warned != session:
                known.warned = session
                self._note("two processes under one key", site)
            raise _refusal(
                web.HTTPConflict,
                f"another process answers for site {site!r} since "
                f"{time.strftime('%H:%M:%S', time.gmtime(known.since))} UTC: stop it first. If it "
                "is not yours, the key was copied: inform the coordinator",
            )
        if known is None:
            known = self.present[site] = Presence(session, transport, now, now)
            self.changed()
        known.seen, known.transport = now, transport

    def sweep(self) -> None:
        """Forget sites whose connection has ended."""
        for site in list(self.present):
            self._presence(site)

    def _presence(self, site: str) -> Presence | None:
        known = self.present.get(site)
        if known is None:
            return None
        if known.transport.is_closing() or time.time() - known.seen > AWAY_SECONDS:
            del self.present[site]
            self.changed()
            return None
        return known

    async def next(self, site: str) -> Outgoing | None:
        """Return the oldest open request of a site, or None if none comes within the poll."""
        bell = self._bells.setdefault(site, asyncio.Event())
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await bell.wait()
        except TimeoutError:
            return None
        found = next(iter(self._open[site].values()), None)
        if found is not None:  # None if another run has begun since the bell rang
            if found.id in self._given:
                self._note("request repeated", site)
            self._given[found.id] = time.monotonic()
        return found

    @contextlib.contextmanager
    def upload(self, site: str, id_: str, size: int) -> Any:
        """Reserve the upload of a reply, for the length of a block.

        Parameters
        ----------
        site
            The site, by its certificate.
        id_
            The request that it replies to.
        size
            Bytes that the site announces.

        Raises
        ------
        HTTPException
            If the coordinator does not wait for the reply, the reply is too long, or the site
            uploads another one.
        """
        sent = self._open.get(site, {}).get(id_)
        if sent is None or id_ not in self._given:
            raise _refusal(web.HTTPGone, "the coordinator does not wait for this reply")
        if size > sent.limit:
            self._note("reply too long", site, bytes=size)
            raise web.HTTPRequestEntityTooLarge(sent.limit, size)
        if site in self._uploading:
            raise _refusal(web.HTTPTooManyRequests, "another reply of this site is on its way")
        self._uploading.add(site)
        try:
            yield
        finally:
            self._uploading.discard(site)

    def reply(self, site: str, id_: str, content: bytes) -> None:
        """Accept a reply; an HTTP error if the coordinator does not wait for it."""
        if id_ not in self._open.get(site, {}):
            raise _refusal(web.HTTPGone, "the coordinator does not wait for this reply")
        seconds = time.monotonic() - self._given[id_]
        self._close(site, id_)
        self._replies.append(Incoming(id_, site, content, seconds))
        if not self._awaited:
            self._complete.set()

    async def exchange(self, turn: Turn) -> Exchanged:
        """Accept requests and return replies; see :meth:`dorfl.carriers.driver.Carrier`."""
        if turn.run != self._run:  # drop requests and replies of the former run
            self._run = turn.run
            for site, waiting in self._open.items():
                for old in list(waiting):
                    self._close(site, old)
            self._replies.clear()
        for sent in turn.requests:
            waiting = self._open.setdefault(sent.site, {})
            waiting[sent.id] = sent
            while len(waiting) > MAX_OPEN:
                self._close(sent.site, next(iter(waiting)))
            self._bells.setdefault(sent.site, asyncio.Event()).set()
        self._awaited = {
            id_ for waiting in self._open.values() for id_ in waiting if id_ in turn.awaited
        }
        self._complete.clear()
        if self._awaited:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(turn.patience):
                    await self._complete.wait()
        taken, size = list[Incoming](), 0
        while self._replies and (not taken or size + len(self._replies[0].content) <= MAX_BATCH):
            taken.append(self._replies.popleft())
            size += len(taken[-1].content)
        events, self._events = tuple(self._events), []
        return Exchanged(tuple(taken), events)

    def _note(self, event: str, site: str, **details: int) -> None:
        self._events = [*self._events[-999:], {"event": event, "site": site, **details}]

    def _close(self, site: str, id_: str) -> None:
        del self._open[site][id_]
        self._given.pop(id_, None)
        self._awaited.discard(id_)
        if not self._open[site] and site in self._bells:
            self._bells[site].clear()


def public_app(federation: Federation, mailbox: Mailbox) -> web.Application:
    """Return the application for sites: `hello`, `next` and `reply/ID`."""

    async def hello(request: web.Request) -> web.Response:
        site = _site_of(federation, request)
        return web.json_response(
            {"site": site, "study": _current_study(federation), "time": time.time()}
        )

    async def next_(request: web.Request) -> web.Response:
        site = _site_of(federation, request)
        mailbox.claim(site, _session(request), _transport(request))
        found = await mailbox.next(site)
        if found is None:
            return web.Response(status=204)
        return web.Response(body=found.content, headers={REQUEST_HEADER: found.id})

    async def reply(request: web.Request) -> web.Response:
        site, id_, size = _site_of(federation, request), request.match_info["id"], _size(request)
        mailbox.claim(site, _session(request), _transport(request))
        with mailbox.upload(site, id_, size):
            try:
                async with asyncio.timeout(POLL_SECONDS + size / SLOWEST_UPLOAD):
                    content = await request.read()
            except TimeoutError:
                raise _refusal(web.HTTPRequestTimeout, "the reply came too slowly") from None
        mailbox.reply(site, id_, content)
        return web.Response(status=204)

    app = web.Application(client_max_size=envelope.LIMIT)
    app.router.add_post(HELLO, hello)
    app.router.add_post(NEXT, next_)
    app.router.add_post(REPLY + "{id}", reply)
    return app


def control_app(mailbox: Mailbox) -> web.Application:
    """Return the application for the coordinator, on its Unix socket."""

    async def exchange(request: web.Request) -> web.Response:
        turn = wire.decode(await request.read(), Turn, limit=sys.maxsize)
        return web.Response(body=wire.encode(await mailbox.exchange(turn)))

    app = web.Application(client_max_size=0)  # no limit: the coordinator is trusted here
    app.router.add_post("/exchange", exchange)
    return app


def serve(federation: Federation, address: str, ready: Callable[[], object]) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Parameters
    ----------
    federation
        Whose server to be.
    address
        The network address to listen on.
    ready
        Called when sites can connect.

    Raises
    ------
    ValueError
        If the port cannot be had, or a server is running already.
    """
    asyncio.run(_serve(federation, address, ready))


async def _serve(federation: Federation, address: str, ready: Callable[[], object]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    mailbox, trusted = Mailbox(), Certificates(federation)
    mailbox.changed = lambda: _write_presence(federation, mailbox)
    async with contextlib.AsyncExitStack() as stack:
        public = await _runner(stack, public_app(federation, mailbox))
        listener = await _listen(federation, address, public, trusted.context)
        stack.callback(listener.close)
        # `noted("server")` means that sites can connect, so it is written last.
        with federation.holding("server", {}):
            control = await _runner(stack, control_app(mailbox))
            federation.socket.unlink(missing_ok=True)
            await web.UnixSite(control, str(federation.socket)).start()
            federation.socket.chmod(0o600)
            _write_presence(federation, mailbox)
            ready()
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
                mailbox.sweep()
                trusted.refresh()
            await stack.aclose()


async def _runner(stack: contextlib.AsyncExitStack, app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,  # a site that hangs up frees its poll
        keepalive_timeout=3600,  # a site keeps one connection, also while it computes
        shutdown_timeout=0.5,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


async def _listen(
    federation: Federation, address: str, runner: web.AppRunner, context: ssl.SSLContext
) -> asyncio.Server:
    assert runner.server is not None
    try:
        return await asyncio.get_running_loop().create_server(
            runner.server,
            address,
            federation.port,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            reuse_address=True,
        )
    except OSError as error:
        raise ValueError(
            f"port {federation.port} at {address}: {error.strerror}; federation.toml sets the "
            "port (one below 1024 needs special rights)"
        ) from None


class Certificates:
    """The TLS settings of a server; certificates that change are read again.

    Registered certificates are the trust anchors. One that is removed stays an anchor until the
    server restarts, but :func:`_site_of` no longer finds a site for it.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._read_at: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Take up new certificates of the server and of sites."""
        files = [str(self._federation.keys / name) for name in ("server.crt", "server.key")]
        watched = (files[0], str(self._federation.path / "sites"))
        changed = tuple(os.stat(path).st_mtime_ns for path in watched)
        if changed == self._read_at:
            return
        self._read_at = changed
        self.context.load_cert_chain(files[0], files[1])
        for made in self._federation.sites().values():
            text = made.public_bytes(serialization.Encoding.PEM).decode()
            self.context.load_verify_locations(cadata=text)


class Link(contextlib.AbstractContextManager["Link"]):
    """The coordinator's end: carry envelopes through the server of a federation."""

    rejoin_seconds = 0.0

    def __init__(self, federation: Federation) -> None:
        self._run = uuid.uuid4().hex
        self._line = _UnixConnection(federation.socket)

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def exchange(self, requests: list[Outgoing], awaited: set[str], patience: float) -> Exchanged:
        """Exchange requests for replies with the server."""
        turn = Turn(self._run, tuple(requests), tuple(awaited), patience)
        try:
            self._line.request("POST", "/exchange", wire.encode(turn))
            with self._line.getresponse() as response:
                content = response.read()
                if response.status != 200:
                    raise CarrierLostError(f"the server answers with HTTP {response.status}")
        except (OSError, http.client.HTTPException) as error:
            self._line.close()
            raise CarrierLostError(type(error).__name__) from None
        return wire.decode(content, Exchanged, limit=sys.maxsize)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def free_port() -> int:
    """Return a port of the loopback that is unused now, and that no outgoing connection takes."""
    while True:
        port = secrets.choice(range(20_000, 32_768))  # below the ephemeral ports of Linux and macOS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _site_of(federation: Federation, request: web.Request) -> str:
    """Return the site whose certificate the connection has shown; 403 if it was removed."""
    line = _transport(request).get_extra_info("ssl_object")
    shown = hashlib.sha256(line.getpeercert(binary_form=True)).digest()
    for name, made in federation.sites().items():
        if hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).digest() == shown:
            return name
    raise _refusal(
        web.HTTPForbidden,
        "this site's certificate is not registered; the coordinator does so with `dorfl server "
        "add-site`",
    )


def _transport(request: web.Request) -> asyncio.BaseTransport:
    if request.transport is None:
        raise _refusal(web.HTTPBadRequest, "the connection has ended")
    return request.transport


def _session(request: web.Request) -> str:
    return request.headers.get(SESSION_HEADER, "")[:64]


def _size(request: web.Request) -> int:
    if request.content_length is None:
        raise _refusal(web.HTTPLengthRequired, "the length of the reply is missing")
    return request.content_length


def _refusal(kind: type[web.HTTPException], reason: str) -> web.HTTPException:
    text = json.dumps({"error": reason})
    return kind(text=text, content_type="application/json", headers={"connection": "close"})


def _write_presence(federation: Federation, mailbox: Mailbox) -> None:
    present = {site: {"since": known.since} for site, known in mailbox.present.items()}
    write_whole(federation.path / "state" / "sites.json", json.dumps(present).encode())


def _current_study(federation: Federation) -> str | None:
    """Return the study that runs now, as JSON, or None."""
    running = federation.noted("run")
    if running is not None and "folder" in running:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((Path(running["folder"]) / "record.json").read_text())
            return json.dumps(record["study"])
    return None
