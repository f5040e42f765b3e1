"""Signed envelopes around requests and replies, the same on every carrier.

    envelope = "dorfl1" | length and certificate | length and signature | payload

The coordinator signs each request for one site and encloses a certificate that the federation's
authority issued. The site signs its reply together with the SHA-256 digest of the request that it
answers. What lies between the two (an HTTPS server, a SuperLink, a SuperNode) can therefore drop or
delay a message, but neither forge nor alter one, nor pass an old reply off as a new one. A request
that is sent twice has the same content, and so has the reply to it.
"""

from __future__ import annotations

import datetime
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dorfl.carriers import keys
from dorfl.protocol.messages import Refusal, Reply
from dorfl.site.site import Site
from dorfl.support import wire

OVERHEAD = 2048  # bytes that an envelope adds to its payload at most
LIMIT = wire.LIMIT + OVERHEAD  # bytes of an envelope
_MAGIC = b"dorfl1"
_LENGTHS = struct.Struct(">HH")  # of the certificate and of the signature, in bytes
_SCHEME = ec.ECDSA(hashes.SHA256())


class Parts(NamedTuple):
    """An envelope taken apart; nothing in it has been verified."""

    certificate: bytes
    signature: bytes
    payload: bytes


class CoordinatorSeal:
    """Sign requests and verify replies, with the keys in a federation's `keys` folder."""

    def __init__(self, folder: Path) -> None:
        self._key = keys.read_private(folder / "coordinator.key")
        made = x509.load_pem_x509_certificate((folder / "coordinator.crt").read_bytes())
        self._certificate = made.public_bytes(serialization.Encoding.DER)

    def request(self, site: str, payload: bytes) -> bytes:
        """Return the envelope of a request, which the named site alone accepts."""
        signature = self._key.sign(_request_text(site, payload), _SCHEME)
        return _packed(Parts(self._certificate, signature, payload))

    @staticmethod
    def reply(
        site: str, public: ec.EllipticCurvePublicKey, request: bytes, envelope: bytes
    ) -> bytes:
        """Return the payload of a reply; ValueError if the site did not sign it for this request.

        `request` and `envelope` are the envelopes of both, `public` is the site's registered key.
        """
        found = _unpacked(envelope)
        text = _reply_text(site, request, found.payload)
        if not _signed(public, found.signature, text):
            raise ValueError("is not signed by the site as a reply to this request")
        return found.payload


class SiteEndpoint:
    """Answer envelopes on behalf of a site: verify, respond, sign.

    Parameters
    ----------
    site
        Answers the payloads. Its `note` is called with every request that is turned away.
    key
        The site's own private key.
    authority
        The coordinator's `ca.crt`.
    """

    def __init__(self, site: Site, key: ec.EllipticCurvePrivateKey, authority: Path) -> None:
        self.site, self._key = site, key
        self._authority = read_authority(authority)

    def respond(self, envelope: bytes) -> bytes:
        """Return the signed reply to a request, whatever the request is."""
        try:
            payload = self._opened(envelope)
        except ValueError as error:
            self.site.note(f"turned away: {error}")
            answer = wire.encode(Reply("", self.site.name, "", Refusal(str(error))))
        else:
            answer = self.site.respond(payload)
        signature = self._key.sign(_reply_text(self.site.name, envelope, answer), _SCHEME)
        return _packed(Parts(b"", signature, answer))

    def _opened(self, envelope: bytes) -> bytes:
        """Return a request's payload; ValueError if the coordinator did not sign it."""
        found = _unpacked(envelope)
        try:
            made = x509.load_der_x509_certificate(found.certificate)
            made.verify_directly_issued_by(self._authority)
            public = made.public_key()
        except Exception:  # the library raises many kinds for bytes that are something else
            raise ValueError("the request has no certificate of the authority in --ca") from None
        if keys.common_name(made) != keys.COORDINATOR:
            raise ValueError("the request is not signed by a coordinator")
        now = datetime.datetime.now(datetime.UTC)
        if not made.not_valid_before_utc <= now <= made.not_valid_after_utc:
            raise ValueError(
                "the coordinator's certificate has expired (`dorfl server renew`), or a clock is "
                "wrong"
            )
        text = _request_text(self.site.name, found.payload)
        if not isinstance(public, ec.EllipticCurvePublicKey) or not _signed(
            public, found.signature, text
        ):
            raise ValueError("the request is not signed for this site by the coordinator")
        return found.payload


Respond = Callable[[bytes], bytes]  # an envelope in, the envelope of the reply out


def read_authority(path: Path) -> x509.Certificate:
    """Read a coordinator's `ca.crt`; ValueError names the file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"--ca {path.name}: there is no such file") from None
    except ValueError:
        raise ValueError(f"--ca {path.name}: is not a certificate") from None


def _packed(parts: Parts) -> bytes:
    lengths = _LENGTHS.pack(len(parts.certificate), len(parts.signature))
    return b"".join((_MAGIC, lengths, *parts))


def _unpacked(envelope: bytes) -> Parts:
    """Take an envelope apart; ValueError if it is none."""
    start = len(_MAGIC) + _LENGTHS.size
    if not envelope.startswith(_MAGIC) or len(envelope) < start:
        raise ValueError("the message has no signed envelope")
    if len(envelope) > LIMIT:
        raise ValueError(f"the message has {len(envelope)} bytes, more than the {LIMIT} allowed")
    lengths = _LENGTHS.unpack(envelope[len(_MAGIC) : start])
    signature = start + lengths[0]
    payload = signature + lengths[1]
    if len(envelope) < payload:
        raise ValueError("the message has no whole signed envelope")
    return Parts(envelope[start:signature], envelope[signature:payload], envelope[payload:])


def _request_text(site: str, payload: bytes) -> bytes:
    return b"\0".join((b"dorfl request 1", site.encode(), payload))


def _reply_text(site: str, request: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(request).hexdigest().encode()
    return b"\0".join((b"dorfl reply 1", site.encode(), digest, payload))


def _signed(public: ec.EllipticCurvePublicKey, signature: bytes, text: bytes) -> bool:
    try:
        public.verify(signature, text, _SCHEME)
    except InvalidSignature:
        return False
    return True
