"""Keys of sites in a summed study: as the study names them, and for the sums of a run."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import TYPE_CHECKING

from dorfl.protocol.messages import Agreement
from dorfl.support import wire

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


def peer(name: str, key: ec.EllipticCurvePublicKey) -> str:
    """Return a site and its registered key, as a study names them."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra

    point = key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    return f"{name} {b64encode(point).decode()}"


@lru_cache(maxsize=64)
def peers_of(listed: tuple[str, ...]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Return the registered keys by site; ValueError if the study's list is malformed."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra

    found = {}
    for line in listed:
        name, _, point = line.rpartition(" ")
        try:
            key = ec.EllipticCurvePublicKey.from_encoded_point(
                ec.SECP384R1(), b64decode(point, validate=True)
            )
        except ValueError:
            raise ValueError("privacy.peers: is no list of sites with their keys") from None
        found[name] = key
    return found


def run_key(secret: bytes, agreement: Agreement) -> bytes:
    """Return a site's private key for the sums of one run."""
    from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

    run = hashlib.sha256(wire.encode((agreement.run, agreement.study))).digest()
    return secure_sum.private_key(secret, run)


def public_run_key(secret: bytes, agreement: Agreement) -> bytes:
    """Return the public key that belongs to :func:`run_key`."""
    from dorfl.federated import secure_sum  # noqa: PLC0415 - an extra

    return secure_sum.public_key(run_key(secret, agreement))
