"""A site's line to its coordinator: TLS, every request signed with the site's own key."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from dorfl.flower.signing import TOLERANCE, Signer
from dorfl.support import wire
from dorfl.support.text import one_line

HELLO, NEXT, ANSWER = "/v1/dorfl/hello", "/v1/dorfl/next", "/v1/dorfl/answer/"
QUESTION_HEADER = "x-dorfl-question"
_PATIENCE = 45.0  # seconds without a byte, after which the server counts as gone


class Rejected(ValueError):  # noqa: N818 - it is the server's doing, not an error of ours
    """The server, or its certificate, will not do, and trying again will not help."""


class Taken(Rejected):
    """Another process answers for this site."""


class Away(Exception):  # noqa: N818 - it may be back soon
    """The server does not answer, or not now."""


class Hello(NamedTuple):
    """What the server says to a site it knows."""

    site: str
    study: str | None  # the study that runs, as JSON
    ahead: float  # seconds that the site's clock is ahead of the server's


class Question(NamedTuple):
    """What the site is asked."""

    id: str
    content: bytes


class Connection(contextlib.AbstractContextManager["Connection"]):
    """One site's line to its coordinator; every failure names its cause."""

    def __init__(self, server: str, ca: Path, key: ec.EllipticCurvePrivateKey, site: str) -> None:
        self.server, self.signer = _address(server), Signer(key, site)
        try:
            self._trusted = ssl.create_default_context(cadata=ca.read_bytes().decode("ascii"))
        except FileNotFoundError:
            raise ValueError(f"--ca {ca.name}: there is no such file") from None
        except (ssl.SSLError, UnicodeDecodeError):
            raise ValueError(f"--ca {ca.name}: is not a certificate") from None
        self._line: http.client.HTTPSConnection | None = None

    def __exit__(self, *_: object) -> None:
        self._hang_up()

    def hello(self) -> Hello:
        """Whether the server knows this site, and what it plans; changes nothing."""
        began = time.time()
        _, content = self._post(HELLO)
        try:
            told = json.loads(content)
            site, study, there = str(told["site"]), told["study"], float(told["time"])
        except (ValueError, KeyError, TypeError):
            raise Rejected(f"{self.server}: what answers there is no dorfl server") from None
        middle = (began + time.time()) / 2
        return Hello(one_line(site), study if isinstance(study, str) else None, middle - there)

    def receive(self) -> Question | None:
        """The next question, waited for; nothing if none came for a while."""
        name, content = self._post(NEXT)
        return Question(name, content) if name else None

    def reply(self, question: Question, content: bytes) -> bool:
        """Answer a question; False if nobody waits for the answer any more."""
        try:
            self._post(ANSWER + question.id, content)
        except _Over:
            return False
        return True

    def _post(self, path: str, body: bytes = b"") -> tuple[str, bytes]:
        """The question's id, if the response has one, and its content."""
        try:
            line = self._line = self._line or self._connect()
            line.request("POST", path, body, self.signer.headers("POST", path, body))
            with line.getresponse() as response:
                content = response.read(wire.LIMIT + 1)
                status, asked = response.status, response.getheader(QUESTION_HEADER, "")
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            reason = _tls_failure(error)
            if reason is None:
                raise Away(type(error).__name__) from None
            raise Rejected(f"{self.server}: {reason}") from None
        except BaseException:  # a signal: half a response must not be read as another's
            self._hang_up()
            raise
        if status in (200, 204):
            if len(content) > wire.LIMIT or (asked and not asked.isalnum()):
                raise Rejected(f"{self.server}: its message cannot be read")
            return asked, content
        self._hang_up()
        if status == 410:
            raise _Over
        if status in (408, 429) or status >= 500:
            raise Away(f"HTTP {status}")
        try:
            reason = one_line(str(json.loads(content)["error"]))
        except (ValueError, KeyError, TypeError):
            raise Rejected(f"{self.server}: what answers there is no dorfl server") from None
        raise (Taken if status == 409 else Rejected)(reason)

    def _connect(self) -> http.client.HTTPSConnection:
        host, _, port = self.server.rpartition(":")
        host = host.strip("[]")
        proxy = urllib.request.getproxies().get("https")
        if proxy is None or urllib.request.proxy_bypass(host):
            return http.client.HTTPSConnection(
                host, int(port), timeout=_PATIENCE, context=self._trusted
            )
        line = http.client.HTTPSConnection(
            proxy.rpartition("//")[2].rstrip("/"), timeout=_PATIENCE, context=self._trusted
        )
        line.set_tunnel(host, int(port))
        return line

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            if line.sock is not None:
                with contextlib.suppress(OSError):
                    line.sock.shutdown(socket.SHUT_RDWR)  # wakes who waits in it
            line.close()


class _Over(Exception):  # noqa: N818
    """Nobody waits for this answer."""


def clocks(ahead: float) -> str | None:
    """What is to be said of two clocks that differ, if anything.

    >>> clocks(-12.3)
    "this machine's clock is 12 s behind the server's; beyond 60 s the site is turned away"
    """
    if abs(ahead) < 2.0:
        return None
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {way} the server's; "
        f"beyond {TOLERANCE:.0f} s the site is turned away"
    )


def _address(server: str) -> str:
    """host:port from what people type."""
    if server.startswith("http://"):
        raise Rejected(f"{server}: plaintext is refused; the server speaks TLS, give host:port")
    plain = server.removeprefix("https://").rstrip("/")
    host, _, port = plain.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--server {server}: give it as host:port, such as fl.example.org:443")
    return plain


def _tls_failure(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = str(error)
        if "mismatch" in text or "doesn't match" in text or "not valid for" in text:
            return "the server's certificate is for another host than this address"
        if "expired" in text or "not yet valid" in text:
            return "the server's certificate has expired, or a clock is wrong"
        return (
            "the server's certificate was not signed by the authority in --ca: "
            "the wrong file, or not your coordinator's server"
        )
    text = str(error)
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text or "HTTP_REQUEST" in text:
        return "what answers there does not speak TLS; plaintext is refused"
    return None
