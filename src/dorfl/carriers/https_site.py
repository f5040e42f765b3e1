"""The HTTPS carrier at a site: fetch a request, answer it, post the reply."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import secrets
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from dorfl.carriers import envelope
from dorfl.carriers.envelope import Respond
from dorfl.carriers.folders import SiteFolder
from dorfl.carriers.https_server import (
    HELLO,
    NEXT,
    POLL_SECONDS,
    REPLY,
    REQUEST_HEADER,
    SESSION_HEADER,
)
from dorfl.support.text import one_line

SILENCE_SECONDS = 2 * POLL_SECONDS + 5  # without a byte, after which the server counts as gone
DUPLICATE_SECONDS = 5.0  # during which another process of this site may still be ending
PAUSES = (0.2, 5.0)  # seconds between attempts to reach a server that is away: first, longest
TLS_CLOSE_SECONDS = 0.1  # aiohttp closes TLS connections in the background
CLOCK_SECONDS = 60.0  # difference between two clocks from which on it is reported


class RejectedError(ValueError):
    """The server or its certificate is not acceptable, and another attempt would not help."""


class DuplicateSiteError(RejectedError):
    """Another process answers for this site."""


class ServerAwayError(Exception):
    """The server does not answer now."""


class Hello(NamedTuple):
    """The server's greeting to a registered site."""

    site: str
    study: str | None  # the study that runs, as JSON
    ahead: float  # seconds by which the site's clock is ahead of the server's


class Connection(contextlib.AbstractAsyncContextManager["Connection"]):
    """A site's connection to its coordinator's server, by mutual TLS.

    Parameters
    ----------
    server
        The server as host:port.
    ca
        The coordinator's `ca.crt`.
    home
        The site's folder, which has its key and certificate.
    """

    def __init__(self, server: str, ca: Path, home: SiteFolder) -> None:
        self.server = _address(server)
        envelope.read_authority(ca)
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls.load_cert_chain(home.path / f"{home.name}.crt", home.key)
        self._headers = {SESSION_HEADER: secrets.token_hex(8)}

    async def __aenter__(self) -> Connection:
        wait = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=SILENCE_SECONDS)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=1, keepalive_timeout=3600),
            timeout=wait,
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
            reason = tls_failure(error)
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
            if status == 413:
                raise RejectedError("this site's reply is longer than the server accepts") from None
            raise self._no_dorfl() from None
        raise (DuplicateSiteError if status == 409 else RejectedError)(reason)

    def _no_dorfl(self) -> RejectedError:
        return RejectedError(f"{self.server}: is not a dorfl server")


class _GoneError(Exception):
    """The coordinator no longer waits for a reply."""


async def attend(
    respond: Respond, connection: Connection, name: str, note: Callable[[str], object]
) -> None:
    """Answer the coordinator until this task is cancelled.

    A server that goes away is waited for, also one that does not know this site's certificate yet.

    Parameters
    ----------
    respond
        Answers an envelope, such as `SiteEndpoint.respond`.
    connection
        An open connection.
    name
        The site's name, for notes.
    note : callable
        Called with lines for the site's log.

    Raises
    ------
    RejectedError
        If another attempt would not help.
    """
    away, pause, duplicate = True, PAUSES[0], 0.0
    while True:
        try:
            if away:
                differ = clocks((await connection.hello()).ahead)
                note(f"connected to {connection.server} as {name}")
                if differ is not None:
                    note(differ)
                away, pause = False, PAUSES[0]
            request = await connection.receive()
            duplicate = 0.0
            if request is None:
                continue
            if not await connection.reply(request[0], respond(request[1])):
                note("the coordinator no longer waits for the reply just sent")
            continue
        except DuplicateSiteError:
            duplicate = duplicate or time.monotonic()
            if time.monotonic() - duplicate > DUPLICATE_SECONDS:
                raise
        except ServerAwayError as error:
            if not away or pause == PAUSES[0]:
                note(f"{connection.server} does not answer ({error}); trying until it does")
            away, pause = True, min(pause * 1.5, PAUSES[1])
        await asyncio.sleep(pause)


def run_until_stopped(work: Callable[[], Any]) -> None:
    """Run the coroutine that `work` makes until it ends, or until Ctrl-C or SIGTERM."""

    async def main() -> None:
        task = asyncio.ensure_future(work())
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


def tls_failure(error: BaseException) -> str | None:
    """Return what is wrong with the server's TLS, or None if the error is something else."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or isinstance(
        error, aiohttp.ClientConnectorCertificateError
    ):
        if "mismatch" in text or "doesn't match" in text or "not valid for" in text:
            return "the server's certificate is for another host than this address"
        if "expired" in text or "not yet valid" in text:
            return "the server's certificate has expired, or a clock is wrong"
        return (
            "the server's certificate was not signed by the authority in --ca: the wrong file, "
            "or not your coordinator's server"
        )
    if any(mark in text for mark in ("WRONG_VERSION_NUMBER", "RECORD_LAYER", "HTTP_REQUEST")):
        return "the server does not use TLS; plaintext is refused"
    return None
