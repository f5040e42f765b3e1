"""The HTTPS carrier: a server with mutual TLS, its coordinator on a Unix socket, and its sites.

A registered site fetches its request by a long poll and posts its reply. Its certificate, which TLS
has verified, identifies the site. `dorfl run` hands over requests and takes replies by a Unix
socket that only the owner of the federation's folder can open.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dorfl.carriers import envelope, keys
from dorfl.carriers.driver import Carrier, CarrierLostError, Exchanged, Outgoing
from dorfl.carriers.envelope import Respond
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.support import wire
from dorfl.support.text import one_line

HELLO, NEXT, REPLY = "/v1/hello", "/v1/next", "/v1/reply/"
REQUEST_HEADER, SESSION_HEADER = "x-dorfl-request", "x-dorfl-session"
POLL_SECONDS = 20.0  # how long a site's poll waits for a request
AWAY_SECONDS = 2 * POLL_SECONDS  # silence after which another process may answer for a site
SILENCE_SECONDS = AWAY_SECONDS + 5  # without a byte, after which the server counts as gone
MAX_FILES = 2048  # open at once; a connection takes 0.25 MB before it has shown a certificate
SLOWEST_UPLOAD = 32 * 1024  # bytes a second at which a reply has to arrive
LOOK_SECONDS = 0.5  # between looks for changed certificates
DUPLICATE_SECONDS = 5.0  # during which another process of this site may still be ending
PAUSES = (0.2, 5.0)  # seconds between attempts to reach a server that is away: first, longest
TLS_CLOSE_SECONDS = 0.1  # aiohttp closes TLS connections in the background
CLOCK_SECONDS = 60.0  # difference between two clocks from which on it is reported
_EXPIRED = "the server's certificate has expired, or a clock is wrong"
_OTHER_HOST = "the server's certificate is for another host than this address"
_CERTIFICATE_ERRORS = {9: _EXPIRED, 10: _EXPIRED, 62: _OTHER_HOST, 64: _OTHER_HOST}  # of OpenSSL


class Turn(NamedTuple):
    """What the coordinator hands to its server, for an :class:`Exchanged` in return."""

    open: tuple[str, ...]  # ids of all requests without a reply; others are dropped
    new: tuple[Outgoing, ...]  # those that the server does not have
    patience: float


@dataclass
class Presence:
    """The process that answers for a site."""

    session: str
    transport: asyncio.BaseTransport
    since: float
    seen: float
    warned: str = ""  # the session of another process that was turned away last

    @property
    def has_ended(self) -> bool:
        """Whether the connection is closed, or silent for long."""
        return self.transport.is_closing() or time.time() - self.seen > AWAY_SECONDS


class Mailbox:
    """Requests that wait for their sites, and replies that wait for the coordinator.

    All of it is in memory: after a restart the coordinator sends its requests again. A site gets
    its request at every poll until it has replied, so nothing is lost with a connection or a
    process. A site can reply to its own request only, and one process at a time answers for it.
    """

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self.present: dict[str, Presence] = {}
        self.uploads = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by site
        self._changed = changed  # called when a site connects or leaves
        self._open: dict[str, Outgoing] = {}  # by site
        self._given: dict[str, str] = {}  # the request that a site got last
        self._replies: dict[str, bytes] = {}
        self._events: list[dict[str, str]] = []
        self._asked, self._replied = asyncio.Event(), asyncio.Event()

    def claim(self, site: str, request: web.Request) -> None:
        """Note that a process answers for a site; 409 if another one does."""
        session, now = request.headers.get(SESSION_HEADER, "")[:64], time.time()
        assert request.transport is not None
        known = self.present.get(site)
        if known is None or known.has_ended:
            known = self.present[site] = Presence(session, request.transport, now, now)
            self._changed()
        elif known.session != session:
            if known.warned != session:
                known.warned = session
                self._note("two processes under one key", site)
            raise _refusal(
                web.HTTPConflict,
                f"another process answers for site {site!r} since "
                f"{time.strftime('%H:%M:%S', time.gmtime(known.since))} UTC: stop it first. If it "
                "is not yours, the key was copied: inform the coordinator",
            )
        known.seen, known.transport = now, request.transport

    def sweep(self) -> None:
        """Forget sites whose connection has ended."""
        for site, known in list(self.present.items()):
            if known.has_ended:
                del self.present[site]
                self._changed()

    async def next(self, site: str) -> Outgoing | None:
        """Return the request of a site, or None if none comes within the poll."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                while site not in self._open:
                    await self._asked.wait()
                self._given[site] = self._open[site].id
                return self._open[site]
        return None

    def check(self, site: str, id_: str, size: int) -> None:
        """Raise an HTTP error if a reply of this size is not awaited from the site."""
        sent = self._open.get(site)
        if sent is None or sent.id != id_:
            if self._given.get(site) == id_:
                del self._given[site]
                self._note("late reply", site)
            raise _refusal(web.HTTPGone, "the coordinator does not wait for this reply")
        if size > sent.limit:
            reason = f"has {size} bytes, more than the {sent.limit} allowed"
            self._note("reply refused", site, reason=reason)
            raise _refusal(
                partial(web.HTTPRequestEntityTooLarge, sent.limit, size),
                f"this site's reply {reason}",
            )

    def reply(self, site: str, id_: str, content: bytes) -> None:
        """Accept a reply; an HTTP error if it is not awaited."""
        self.check(site, id_, len(content))
        del self._open[site]
        self._replies[id_] = content
        self._replied.set()

    async def exchange(self, turn: Turn) -> Exchanged:
        """Accept requests and return replies; see :meth:`dorfl.carriers.driver.Carrier`."""
        kept, wanted = [*self._open.values(), *turn.new], set(turn.open)
        self._open = {sent.site: sent for sent in kept if sent.id in wanted}
        self._replies = {id_: reply for id_, reply in self._replies.items() if id_ in wanted}
        self._asked.set()
        self._asked = asyncio.Event()
        if not self._replies:
            self._replied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(turn.patience):
                    await self._replied.wait()
        found = Exchanged(self._replies, tuple(self._events))
        self._replies, self._events = {}, []
        return found

    def _note(self, event: str, site: str, **details: str) -> None:
        self._events = [*self._events[-999:], {"event": event, "site": site, **details}]


def public_app(federation: Federation, mailbox: Mailbox) -> web.Application:
    """Return the application for sites: `hello`, `next` and `reply/ID`."""

    async def hello(request: web.Request) -> web.Response:
        greeting = {"site": _site_of(federation, request), "time": time.time()}
        return web.json_response(greeting | {"study": _current_study(federation)})

    async def next_(request: web.Request) -> web.Response:
        site = _site_of(federation, request)
        mailbox.claim(site, request)
        found = await mailbox.next(site)
        if found is None:
            return web.Response(status=204)
        return web.Response(body=found.content, headers={REQUEST_HEADER: found.id})

    async def reply(request: web.Request) -> web.Response:
        site, id_, size = _site_of(federation, request), request.match_info["id"], _size(request)
        mailbox.claim(site, request)
        mailbox.check(site, id_, size)
        if mailbox.uploads[site].locked():
            raise _refusal(web.HTTPTooManyRequests, "another reply of this site is on its way")
        async with mailbox.uploads[site]:
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


def _site_of(federation: Federation, request: web.Request) -> str:
    """Return the site whose certificate the connection has shown; 403 if it was removed."""
    if request.transport is None:
        raise _refusal(web.HTTPBadRequest, "the connection has ended")
    line = request.transport.get_extra_info("ssl_object")
    made = x509.load_der_x509_certificate(line.getpeercert(binary_form=True))
    name = keys.common_name(made)
    if federation.sites().get(name) == made:
        return name
    raise _refusal(
        web.HTTPForbidden,
        "this site's certificate is not registered; the coordinator does so with `dorfl server "
        "add-site`",
    )


def _size(request: web.Request) -> int:
    if request.content_length is None:
        raise _refusal(web.HTTPLengthRequired, "the length of the reply is missing")
    return request.content_length


def _refusal(kind: Callable[..., web.HTTPException], reason: str) -> web.HTTPException:
    text = json.dumps({"error": reason})
    return kind(text=text, content_type="application/json", headers={"connection": "close"})


def _current_study(federation: Federation) -> str | None:
    """Return the study that runs now, as JSON, or None."""
    running = federation.noted("run")
    if running is not None and "folder" in running:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((Path(running["folder"]) / "record.json").read_text())
            return json.dumps(record["study"])
    return None


def control_app(mailbox: Mailbox) -> web.Application:
    """Return the application for the coordinator, on its Unix socket."""

    async def exchange(request: web.Request) -> web.Response:
        turn = wire.decode(await request.read(), Turn, limit=sys.maxsize)
        return web.Response(body=wire.encode(await mailbox.exchange(turn)))

    app = web.Application(client_max_size=0)  # no limit: the coordinator is trusted here
    app.router.add_post("/exchange", exchange)
    return app


async def serve(federation: Federation, address: str, ready: Callable[[], object]) -> None:
    """Serve until this task is cancelled; `ready` is called when sites can connect.

    ValueError if the port at this network address is taken, or a server is running already.
    """

    def note_presence() -> None:
        present = {site: known.since for site, known in mailbox.present.items()}
        federation.note("server", sites=present)

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if most == resource.RLIM_INFINITY else min(MAX_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    mailbox, trusted = Mailbox(note_presence), Certificates(federation)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(federation.holding("server"))
        public = await start_app(stack, public_app(federation, mailbox))
        try:
            await web.TCPSite(public, address, federation.port, ssl_context=trusted.context).start()
        except OSError as error:
            raise ValueError(
                f"port {federation.port} at {address}: {error.strerror}; federation.toml sets the "
                "port (one below 1024 needs special rights)"
            ) from None
        control = await start_app(stack, control_app(mailbox))
        federation.socket.unlink(missing_ok=True)
        await web.UnixSite(control, str(federation.socket)).start()
        federation.socket.chmod(0o600)
        note_presence()
        ready()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            mailbox.sweep()
            trusted.refresh()


async def start_app(stack: contextlib.AsyncExitStack, app: web.Application) -> web.AppRunner:
    """Return the runner of an application, which ends with the stack."""
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
        chain = self._federation.keys / "server.crt"
        watched = (chain, self._federation.path / "sites")
        changed = tuple(os.stat(path).st_mtime_ns for path in watched)
        if changed == self._read_at:
            return
        self._read_at = changed
        self.context.load_cert_chain(chain, self._federation.keys / "server.key")
        for made in self._federation.sites().values():
            text = made.public_bytes(serialization.Encoding.PEM).decode()
            self.context.load_verify_locations(cadata=text)


class Link(Carrier):
    """The coordinator's end: carry envelopes through the server of a federation."""

    def __init__(self, federation: Federation) -> None:
        self._line = _UnixConnection(federation.socket)
        self._sent: set[str] = set()  # requests that the server has, while the connection lasts

    def close(self) -> None:
        """Close the connection to the server."""
        self._line.close()
        self._sent.clear()

    def exchange(self, requests: Sequence[Outgoing], patience: float) -> Exchanged:
        """Exchange requests for replies with the server."""
        new = tuple(sent for sent in requests if sent.id not in self._sent)
        turn = Turn(tuple(sent.id for sent in requests), new, patience)
        try:
            self._line.request("POST", "/exchange", wire.encode(turn))
            with self._line.getresponse() as response:
                content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise CarrierLostError(type(error).__name__) from None
        if response.status != http.HTTPStatus.OK:
            self.close()
            raise CarrierLostError(f"the server answers with HTTP {response.status}")
        self._sent = set(turn.open)
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


# ── a site's end ─────────────────────────────────────────────────────────────────────────────────


class RejectedError(ValueError):
    """The server or its certificate is not acceptable, and another attempt would not help."""


class DuplicateSiteError(RejectedError):
    """Another process answers for this site."""


class ServerAwayError(Exception):
    """The server does not answer now."""


class _GoneError(Exception):
    """The coordinator no longer waits for a reply."""


class Hello(NamedTuple):
    """The server's greeting to a registered site."""

    site: str
    study: str | None  # the study that runs, as JSON
    ahead: float  # seconds by which the site's clock is ahead of the server's


class Connection(contextlib.AbstractAsyncContextManager["Connection"]):
    """A site's connection to its coordinator's server at host:port, by mutual TLS.

    `ca` is the coordinator's `ca.crt`. The site's folder has its key and certificate.
    """

    def __init__(self, server: str, ca: Path, home: SiteFolder) -> None:
        self.server = _address(server)
        envelope.read_authority(ca)
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls.load_cert_chain(home.path / f"{home.name}.crt", home.key)
        self._headers = {SESSION_HEADER: secrets.token_hex(8)}

    async def __aenter__(self) -> Connection:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=1, keepalive_timeout=3600),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=SILENCE_SECONDS),
            headers=self._headers,
            trust_env=True,  # proxies
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await asyncio.sleep(TLS_CLOSE_SECONDS)

    async def hello(self) -> Hello:
        """Return whether the server knows this site, and the study that runs; changes nothing."""
        began = time.time()
        _, content = await self._post(HELLO)
        try:
            greeting = json.loads(content)
            site, study = str(greeting["site"]), greeting["study"]
            there = float(greeting["time"])
        except (ValueError, KeyError, TypeError):
            raise self._no_dorfl() from None
        half = (began + time.time()) / 2
        return Hello(one_line(site), study if isinstance(study, str) else None, half - there)

    async def receive(self) -> tuple[str, bytes] | None:
        """Return the id and the envelope of the next request, or None if none came in time."""
        id_, content = await self._post(NEXT)
        return (id_, content) if id_ else None

    async def reply(self, id_: str, content: bytes) -> bool:
        """Post a reply; return False if the coordinator no longer waits for it."""
        try:
            await self._post(REPLY + id_, content)
        except _GoneError:
            return False
        return True

    async def _post(self, path: str, body: bytes = b"") -> tuple[str, bytes]:
        """Return the request's id, if the response has one, and its content."""
        try:
            async with self._http.post(
                f"https://{self.server}{path}", data=io.BytesIO(body), allow_redirects=False
            ) as response:
                status, id_ = response.status, response.headers.get(REQUEST_HEADER, "")
                content = await response.content.read(envelope.LIMIT + 1)
                while more := await response.content.read(envelope.LIMIT + 1 - len(content)):
                    content += more
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = _tls_failure(error)
            if reason is not None:
                raise RejectedError(f"{self.server}: {reason}") from None
            raise ServerAwayError(_cause(error)) from None
        if status in (200, 204):
            if len(content) > envelope.LIMIT or (id_ and not id_.isalnum()):
                raise RejectedError(f"{self.server}: its message cannot be read")
            return id_, content
        if status == 410:
            raise _GoneError
        if status in (408, 429) or status >= 500:
            raise ServerAwayError(f"HTTP {status}")
        try:
            reason = one_line(str(json.loads(content)["error"]))
        except (ValueError, KeyError, TypeError):
            raise self._no_dorfl() from None
        raise (DuplicateSiteError if status == 409 else RejectedError)(reason)

    def _no_dorfl(self) -> RejectedError:
        return RejectedError(f"{self.server}: is not a dorfl server")


async def attend_server(
    server: str, ca: Path, home: SiteFolder, respond: Respond, note: Callable[[str], object]
) -> None:
    """Answer the coordinator's server at host:port until this task is cancelled.

    A server that goes away is waited for, also one that does not know this site's certificate yet.
    RejectedError if another attempt would not help.
    """
    away, pause, duplicate = True, PAUSES[0], 0.0
    async with Connection(server, ca, home) as connection:
        while True:
            try:
                if away:
                    differ = clocks((await connection.hello()).ahead)
                    note(f"connected to {server} as {home.name}")
                    if differ is not None:
                        note(differ)
                    away, pause = False, PAUSES[0]
                request = await connection.receive()
                duplicate = 0.0
                if request is not None:
                    id_, content = request
                    if not await connection.reply(id_, respond(content)):
                        note("the coordinator no longer waits for the reply just sent")
                continue
            except DuplicateSiteError:
                duplicate = duplicate or time.monotonic()
                if time.monotonic() - duplicate > DUPLICATE_SECONDS:
                    raise
            except ServerAwayError as error:
                if not away or pause == PAUSES[0]:
                    note(f"{server} does not answer ({error}); trying until it does")
                away, pause = True, min(pause * 1.5, PAUSES[1])
            await asyncio.sleep(pause)


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends, or until Ctrl-C or SIGTERM."""

    async def main() -> None:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def clocks(ahead: float) -> str | None:
    """Return a warning about two clocks that differ, or None if they differ by little.

    >>> clocks(-75.3)
    "this machine's clock is 75 s behind the server's; set it: certificates depend on it"
    """
    if abs(ahead) < CLOCK_SECONDS:
        return None
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {direction} the server's; set it: "
        "certificates depend on it"
    )


def _address(server: str) -> str:
    """Return host:port without a scheme; an error if `server` is something else."""
    if server.startswith("http://"):
        raise RejectedError(f"{server}: plaintext is refused, as the server has TLS; use host:port")
    plain = server.removeprefix("https://").rstrip("/")
    host, _, port = plain.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--server {server}: must be host:port, such as fl.example.org:443")
    return plain


def _cause(error: BaseException) -> str:
    """Return what may be wrong if a connection fails without a reason."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return "it ended the connection: it stops, or this site's certificate is not registered"
    return type(error).__name__


def _tls_failure(error: BaseException) -> str | None:
    """Return what is wrong with the server's TLS, or None if the error is something else."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        code = getattr(error.certificate_error, "verify_code", 0)
        return _CERTIFICATE_ERRORS.get(
            code,
            "the server's certificate was not signed by the authority in --ca: the wrong file, or "
            "not your coordinator's server",
        )
    marks = ("WRONG_VERSION_NUMBER", "RECORD_LAYER", "HTTP_REQUEST")
    if any(mark in str(error) for mark in marks):
        return "the server does not use TLS; plaintext is refused"
    return None
