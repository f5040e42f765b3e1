"""Secure sums: whoever adds up what sites send learns the sum, and nothing else of what they sent.

The protocol is that of *Practical Secure Aggregation for Privacy-Preserving Machine Learning*
(K. Bonawitz and others, 2017), with two masks on every number, modulo 2⁶⁴:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)

1. *keys*: a site tells two X25519 public keys and SHA-256 of its own seed b_u; a signature of its
   registered key goes with them.
2. *shares*: it splits b_u and its private mask key among all sites, by Shamir's scheme; each share
   is sealed for one site.
3. *masked*: it sends y_u. s_uv is what the mask keys of u and v agree on, so over all sites the
   second mask adds up to nothing.
4. *open*: of a site whose y_u arrived, the others give their shares of b_u; of one that is gone,
   those of its mask key. Nobody ever gives both for one site: y_u stays hidden although it be late.

Every mask also depends on a digest of the *question*: where two sites are asked different ones,
their masks do not cancel and the sum is noise. `threshold` shares open a secret. With more than
two thirds of the sites neither the server nor the server with less than a third of the sites on its
side can collect both kinds of shares of one site.

X25519, HKDF, ChaCha20 (the masks) and ChaCha20-Poly1305 (the seals) are `cryptography`'s; Shamir's
scheme is `pycryptodome`'s, in GF(2¹²⁸): a secret of 32 bytes is two of its secrets.

Numbers are fixed point: x is sent as round(x 2^bits). Integer sums do not depend on the order they
are taken in, so results repeat to the last bit. A number too large for the sum is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dorfl.federated.messages import Advert
from dorfl.support.types import Array

LEAST = 3  # sites: of two, each would know the other's part
_KEY, _HALF = 32, 16
_MOST = 2.0**62  # that a sum may be: half of what 64 bits hold, with a sign
_SHARE = 2 * 2 * _HALF  # bytes: two halves of two secrets
_TRIES = 200  # sets of shares that are tried where some are lies


class Secrets(NamedTuple):
    """What a site keeps to itself for one sum."""

    mask: bytes  # X25519: agrees on pairwise masks
    seal: bytes  # X25519: agrees on what shares are sealed with
    seed: bytes  # b_u


class Opened(NamedTuple):
    """A secret put together from shares, and who gave shares that do not fit it."""

    secret: bytes
    liars: tuple[str, ...]


def threshold(sites: int) -> int:
    """How many of all sites have to open a sum: more than two thirds, and three at least.

    >>> [threshold(n) for n in (3, 4, 5, 6, 9, 30)]
    [3, 3, 4, 5, 7, 21]
    """
    return max(2 * sites // 3 + 1, LEAST)


def encode(numbers: Array, bits: int, sites: int) -> Array:
    """Numbers as integers modulo 2⁶⁴, in units of 2^−bits; ValueError where a sum could overflow.

    >>> encode(np.array([1.5, -0.25]), 2, 3)
    array([                   6, 18446744073709551615], dtype=uint64)
    """
    scaled = np.rint(np.ldexp(np.asarray(numbers, dtype=np.float64), bits))
    if not (np.abs(scaled) < _MOST / sites).all():  # also where it is not a number
        raise ValueError("a number is too large for a secure sum")
    return scaled.astype(np.int64).view(np.uint64)


def decode(total: Array, bits: int) -> Array:
    """The sum that integers modulo 2⁶⁴ stand for.

    >>> three = [encode(np.array([x]), 40, 3) for x in (0.1, 0.2, -0.7)]
    >>> decode(sum(three), 40).round(11)
    array([-0.4])
    """
    return np.ldexp(np.asarray(total, dtype=np.uint64).view(np.int64).astype(np.float64), -bits)


def impossible(total: Array) -> bool:
    """Whether a sum has a number that no sites' numbers within range add up to.

    >>> impossible(np.array([1, 2**62], dtype=np.uint64)), impossible(encode(np.ones(2), 40, 3))
    (True, False)
    """
    whole = np.asarray(total, dtype=np.uint64).view(np.int64)
    return bool((np.abs(whole.astype(np.float64)) >= _MOST).any())


def rounding(bits: int, sites: int) -> float:
    """How far the sum of so many sites' numbers is from the exact one at most."""
    return float(np.ldexp(0.5 * sites, -bits))


def secrets_of(secret: bytes, context: bytes) -> Secrets:
    """A site's secrets for one sum, from its lasting one; the same again after a restart."""
    return Secrets(*(_derive(secret, word, context) for word in (b"mask", b"seal", b"seed")))


def advertise(own: Secrets) -> Advert:
    """What is told of them, not signed yet."""
    return Advert(_public(own.mask), _public(own.seal), _digest(own.seed))


def signed(advert: Advert, site: str, context: bytes) -> bytes:
    """What the signature of an advert is of."""
    told = (b"dorfl sum", context, site.encode(), advert.mask, advert.seal, advert.promise)
    return b"".join(len(part).to_bytes(4, "big") + part for part in told)


def deal(
    own: Secrets, me: str, adverts: Mapping[str, Advert], least: int, context: bytes
) -> dict[str, bytes]:
    """For every site, itself too, a sealed share of the own seed and mask key."""
    names = sorted(adverts)
    parts = [
        Shamir.split(least, len(names), half, ssss=False)
        for secret in (own.seed, own.mask)
        for half in (secret[:_HALF], secret[_HALF:])
    ]
    return {
        name: _seal(own, adverts[name], me, name, context).encrypt(
            bytes(12), b"".join(part[i][1] for part in parts), None
        )
        for i, name in enumerate(names)
    }


def mask(
    numbers: Array, own: Secrets, me: str, adverts: Mapping[str, Advert], question: bytes
) -> Array:
    """Integers modulo 2⁶⁴ with both masks; `adverts` are those of all who take part."""
    total = numbers + _stream(_derive(own.seed, b"self", question), numbers.size)
    for name in adverts:
        if name != me:
            total = total + _pairwise(own.mask, me, name, adverts[name], question, numbers.size)
    return np.asarray(total)


def reveal(
    own: Secrets,
    me: str,
    adverts: Mapping[str, Advert],
    boxes: Mapping[str, bytes],
    alive: Iterable[str],
    context: bytes,
) -> dict[str, bytes]:
    """Of every dealer in `boxes` one share: of its seed if it is alive, else of its mask key."""
    told, living = {}, set(alive)
    for name, box in boxes.items():
        try:
            seal = _seal(own, adverts[name], name, me, context)
            share = seal.decrypt(bytes(12), box, None)
        except InvalidTag:
            continue  # nobody can blame this site for a share it cannot read
        if len(share) == _SHARE:
            told[name] = share[:_KEY] if name in living else share[_KEY:]
    return told


def total(
    masked: Mapping[str, Array],
    adverts: Mapping[str, Advert],
    told: Mapping[str, Mapping[str, bytes]],
    least: int,
    question: bytes,
    dealt: Sequence[str],
) -> tuple[Array, tuple[str, ...]]:
    """The sum of those whose numbers arrived, and who lied about shares.

    Args:
        masked: what arrived, by site.
        adverts: of all who took part when masks were put on.
        told: by site, its shares of the others' secrets.
        least: how many shares open a secret.
        question: what the sum answers.
        dealt: all that shares were dealt to, some of whom may have gone before masks were put on.

    Raises:
        ValueError: where a secret cannot be opened; it says whose. A wrong sum is never returned.
    """
    size = next(iter(masked.values())).size
    found, liars = np.zeros(size, dtype=np.uint64), set[str]()
    for name, numbers in masked.items():
        seed = _open(name, dealt, told, least, _digest, adverts[name].promise)
        liars.update(seed.liars)
        found = found + numbers - _stream(_derive(seed.secret, b"self", question), size)
    for name in set(adverts) - set(masked):
        key = _open(name, dealt, told, least, _public, adverts[name].mask)
        liars.update(key.liars)
        for other in masked:  # what the site that is gone would have added, of pairs with others
            pair = _pairwise(key.secret, name, other, adverts[other], question, size)
            found = found + pair
    return found, tuple(sorted(liars))


def _open(
    name: str,
    dealt: Sequence[str],
    told: Mapping[str, Mapping[str, bytes]],
    least: int,
    image: Callable[[bytes], bytes],
    promised: bytes,
) -> Opened:
    """A secret of site `name` that fits what it promised, from as many sets of shares as needed."""
    places = {site: i + 1 for i, site in enumerate(sorted(dealt))}
    shares = {
        site: own[name]
        for site, own in told.items()
        if site in places and len(own.get(name, b"")) == _KEY
    }
    if len(shares) < least:
        raise ValueError(f"site {name!r}: too few shares of its secret to open the sum")
    for tried, chosen in enumerate(_choices(sorted(shares), least)):
        secret = _combine({places[site]: shares[site] for site in chosen})
        if image(secret) != promised:
            continue
        if tried == 0:
            return Opened(secret, ())
        rest = [site for site in shares if site not in chosen]  # one of them lied
        held = {site: {places[s]: shares[s] for s in (*chosen[1:], site)} for site in rest}
        return Opened(secret, tuple(s for s in rest if _combine(held[s]) != secret))
    raise ValueError(f"site {name!r}: the shares of its secret do not fit what it promised")


def _choices(names: list[str], count: int) -> Iterator[tuple[str, ...]]:
    """Sets of so many: first neighbours in a ring, of which one liar spoils few; then any."""
    ring = [tuple((names * 2)[i : i + count]) for i in range(len(names))]
    return islice(chain(ring, combinations(names, count)), _TRIES)


def _combine(shares: Mapping[int, bytes]) -> bytes:
    halves = (slice(None, _HALF), slice(_HALF, None))
    return b"".join(
        Shamir.combine([(i, s[half]) for i, s in shares.items()], ssss=False) for half in halves
    )


def _pairwise(own: bytes, me: str, other: str, advert: Advert, question: bytes, size: int) -> Array:
    """PRG(s_uv), added by the first of two names and taken off by the second."""
    first, second = sorted((me, other))
    label = b"pair" + len(first.encode()).to_bytes(4, "big") + (first + second).encode()
    stream = _stream(_derive(_agree(own, advert.mask), label, question), size)
    return stream if me == first else np.uint64(0) - stream


def _seal(own: Secrets, peer: Advert, sender: str, to: str, context: bytes) -> ChaCha20Poly1305:
    """The seal between two sites in one direction: a key that is used once."""
    label = b"seal" + len(sender.encode()).to_bytes(4, "big") + (sender + to).encode()
    return ChaCha20Poly1305(_derive(_agree(own.seal, peer.seal), label, context))


def _agree(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _derive(secret: bytes, label: bytes, context: bytes) -> bytes:
    info = b"dorfl secure sum " + label + b"\0" + context
    return HKDF(hashes.SHA256(), _KEY, salt=None, info=info).derive(secret)


def _stream(key: bytes, size: int) -> Array:
    """`size` numbers modulo 2⁶⁴ from ChaCha20; every key is used for one stream."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)
