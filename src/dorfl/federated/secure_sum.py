"""Secure sums: the coordinator that adds up the numbers of sites learns their sum alone.

Every number x_u of a site u is sent with two masks, modulo 2⁶⁴:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)

1. *keys*, once in a run: a site publishes an X25519 key. s_uv is derived from what the keys of u
   and v agree on, and from the *label* of the sum. Over all sites the pairwise masks add up to
   zero [1]_.
2. *masked*: the site sends y_u and SHA-256 of its own seed b_u.
3. *open*: the sites whose y_u arrived send b_u, and for every site v that is gone, s_uv.

A site either opens its own seed or is gone. A coordinator that claims that a site is gone although
its y_v arrived learns the pairwise masks on y_v but not PRG(b_v): that is the double mask of [2]_.
If a site drops out between the two exchanges, the sum cannot be opened and the step is repeated
without it. Seeds are not shared with other sites, so a coordinator with any number of sites on its
side learns the sum over the other sites, and nothing about its parts.

The label is the head of the run's transcript (:mod:`dorfl.protocol.transcript`): two sites
that were shown different replies have masks that do not cancel. A site uses a label once.

X25519, HKDF and ChaCha20 (the masks) are from the `cryptography` package. Numbers are fixed point:
x is sent as round(x 2^bits). Integer sums do not depend on their order, so results repeat to the
last bit. A number too large for the sum is an error.

References
----------
.. [1] G. Ács, C. Castelluccia, "I have a DREAM! (Differentially privatE smArt Metering)", IH 2011.
.. [2] K. Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning",
   CCS 2017.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dorfl.support.types import Array

KEY = 32  # bytes of a key, a seed and a digest
_MOST = 2.0**62  # largest sum: half of what 64 bits hold, with a sign


def private_key(secret: bytes, run: bytes) -> bytes:
    """Return a site's X25519 key for a run, which is the same after a restart."""
    return _derive(secret, b"key", run)


def public_key(private: bytes) -> bytes:
    """Return the public part of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seed(secret: bytes, label: bytes) -> bytes:
    """Return b_u, the seed of a site's own mask for one sum."""
    return _derive(secret, b"seed", label)


def promise(own: bytes) -> bytes:
    """Return the digest of a seed, which is sent before the seed."""
    return hashlib.sha256(own).digest()


def mask(
    numbers: Array, own: bytes, private: bytes, me: str, keys: Mapping[str, bytes], label: bytes
) -> Array:
    """Return the numbers with both masks, modulo 2⁶⁴."""
    total = numbers + _stream(own, numbers.size)
    for other in keys:
        if other != me:
            stream = _stream(pair_seed(private, me, other, keys[other], label), numbers.size)
            total = total + stream if me < other else total - stream
    return np.asarray(total)


def pair_seed(private: bytes, me: str, other: str, key: bytes, label: bytes) -> bytes:
    """Return s_uv, the seed of the mask that two sites share in one sum."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(key)
    )
    names = sorted(part.encode() for part in (me, other))
    return _derive(shared, b"pair" + len(names[0]).to_bytes(4, "big") + b"".join(names), label)


def total(
    masked: Mapping[str, Array],
    seeds: Mapping[str, bytes],
    pairs: Mapping[str, Mapping[str, bytes]],
    gone: Iterable[str],
) -> Array:
    """Return the sum, modulo 2⁶⁴, over the sites in `masked`, from y_u, b_u and s_uv by site."""
    found = np.zeros(next(iter(masked.values())).size, dtype=np.uint64)
    away = tuple(gone)
    for name, numbers in masked.items():
        found = found + numbers - _stream(seeds[name], numbers.size)
        for other in away:
            stream = _stream(pairs[name][other], numbers.size)
            found = found - stream if name < other else found + stream
    return found


def encode(numbers: Array, bits: int, sites: int) -> Array:
    """Return numbers as integers modulo 2⁶⁴ of 2^−bits; ValueError if a sum could overflow.

    >>> encode(np.array([1.5, -0.25]), 2, 3)
    array([                   6, 18446744073709551615], dtype=uint64)
    """
    scaled = np.rint(np.ldexp(np.asarray(numbers, dtype=np.float64), bits))
    if not (np.abs(scaled) < _MOST / sites).all():  # false for NaN
        raise ValueError("a number is too large for a secure sum")
    return scaled.astype(np.int64).view(np.uint64)


def decode(total: Array, bits: int) -> Array:
    """Return the numbers that integers modulo 2⁶⁴ encode; the inverse of :func:`encode`.

    >>> three = [encode(np.array([x]), 40, 3) for x in (0.1, 0.2, -0.7)]
    >>> decode(sum(three), 40).round(11)
    array([-0.4])
    """
    return np.ldexp(np.asarray(total, dtype=np.uint64).view(np.int64).astype(np.float64), -bits)


def impossible(total: Array) -> bool:
    """Return whether a sum is out of the range that the sites' numbers can add up to.

    >>> impossible(np.array([1, 2**62], dtype=np.uint64)), impossible(encode(np.ones(2), 40, 3))
    (True, False)
    """
    whole = np.asarray(total, dtype=np.uint64).view(np.int64)
    return bool((np.abs(whole.astype(np.float64)) >= _MOST).any())


def _derive(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    info = b"dorfl secure sum " + len(purpose).to_bytes(2, "big") + purpose + context
    return HKDF(hashes.SHA256(), KEY, salt=None, info=info).derive(secret)


def _stream(key: bytes, size: int) -> Array:
    """Return `size` numbers modulo 2⁶⁴ from ChaCha20; every key is used for one stream."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)
