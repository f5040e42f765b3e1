"""What a site signs, and what the front makes of it: who, what, when, and only once.

A signature covers the method, the path, a digest of the body, the time, a number used once, the
process that asks, and the site's name. It therefore serves for one request and no other, and it is
judged before a byte of the body is read.
"""

from __future__ import annotations

import binascii
import hashlib
import secrets
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dorfl.flower import keys

TOLERANCE = 60.0  # seconds that two clocks, and a request's way, may differ: the one such number
_FIELDS = ("site", "key", "session", "time", "nonce", "digest")
_SCHEME = ec.ECDSA(hashes.SHA256())
_RATE, _BURST = 50.0, 200.0  # requests a second of one site, and how many at once


class Turned(Exception):  # noqa: N818 - the caller's doing, not an error of ours
    """A request that is turned away: the status, and the reason in words for the caller."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Caller(NamedTuple):
    """Who asks: the site, which of its processes, and the digest its body must have."""

    site: str
    session: str
    digest: str


@dataclass(frozen=True)
class Signer:
    """Signs for a site; `session` tells this process from a second one with the same key."""

    key: ec.EllipticCurvePrivateKey
    site: str
    session: str = field(default_factory=lambda: secrets.token_hex(8))
    clock: Callable[[], float] = time.time

    def headers(self, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        """What goes with a request."""
        told = {
            "site": self.site,
            "key": keys.fingerprint(keys.public_bytes(self.key.public_key())),
            "session": self.session,
            "time": f"{self.clock():.3f}",
            "nonce": secrets.token_hex(16),
            "digest": hashlib.sha256(body).hexdigest(),
        }
        signature = self.key.sign(_signed(method, path, told), _SCHEME)
        named = {f"x-dorfl-{name}": value for name, value in told.items()}
        return {**named, "x-dorfl-signature": b64encode(signature).decode()}


@dataclass
class Judge:
    """Decides whose a request is; remembers every number used once for as long as it matters."""

    sites: Callable[[], dict[str, bytes]]  # the registered keys by site
    clock: Callable[[], float] = time.time
    _began: float = 0.0
    _used: set[tuple[str, str]] = field(default_factory=set)
    _order: deque[tuple[float, tuple[str, str]]] = field(default_factory=deque)
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # requests, as of when

    def __post_init__(self) -> None:
        self._began = self.clock()

    def who(self, method: str, path: str, headers: Mapping[str, str]) -> Caller:
        """The caller; Turned says why there is none."""
        told, signature = _read(headers)
        marks = {keys.fingerprint(key): name for name, key in self.sites().items()}
        name = marks.get(told["key"])
        if name is None:
            raise Turned(
                401,
                "this site's key is not registered; the coordinator does so with `dorfl server "
                "add-site`",
            )
        public = serialization.load_pem_public_key(self.sites()[name])
        assert isinstance(public, ec.EllipticCurvePublicKey)
        try:
            public.verify(signature, _signed(method, path, told), _SCHEME)
        except InvalidSignature:
            raise Turned(401, "the signature does not fit the key or the request") from None
        if told["site"] != name:
            raise Turned(
                403, f"this key is registered for site {name!r}, not for {told['site'][:60]!r}"
            )
        self._once(name, told)
        self._slowly(name)
        return Caller(name, told["session"], told["digest"])

    def _once(self, name: str, told: dict[str, str]) -> None:
        now, signed = self.clock(), float(told["time"])
        if not abs(now - signed) <= TOLERANCE:  # nor where it is no number
            way = "behind" if signed < now else "ahead of"
            raise Turned(
                401,
                f"the site's clock is {abs(now - signed):.0f} s {way} the server's; at most "
                f"{TOLERANCE:.0f} s are allowed: set the site's clock",
            )
        if signed < self._began - 1.0 and now - self._began < TOLERANCE:
            # What was used before this server began is not known any more.
            raise Turned(503, "the request was signed before the server began; try again")
        while self._order and self._order[0][0] < now - 2 * TOLERANCE:
            self._used.discard(self._order.popleft()[1])
        used = (name, told["nonce"])
        if used in self._used:
            raise Turned(401, "the signature was used before")
        self._used.add(used)
        self._order.append((now, used))

    def _slowly(self, name: str) -> None:
        now = self.clock()
        left, then = self._left.get(name, (_BURST, now))
        left = min(_BURST, left + _RATE * max(now - then, 0.0)) - 1.0
        self._left[name] = (max(left, 0.0), now)
        if left < 0.0:
            raise Turned(429, f"more than {_RATE:.0f} requests a second from one site")


def _read(headers: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    try:
        told = {name: headers[f"x-dorfl-{name}"] for name in _FIELDS}
        signature = b64decode(headers["x-dorfl-signature"], validate=True)
        float(told["time"])
    except (KeyError, ValueError, binascii.Error):
        raise Turned(401, "the request is not signed with a site's key") from None
    if any(len(value) > 80 for value in told.values()) or len(signature) > 200:
        raise Turned(401, "the request is not signed with a site's key")
    if any("\n" in value for value in told.values()):
        raise Turned(401, "the request is not signed with a site's key")
    return told, signature


def _signed(method: str, path: str, told: dict[str, str]) -> bytes:
    return "\n".join(["dorfl 1", method, path, *(told[name] for name in _FIELDS)]).encode()
