"""Who is who: a certificate authority of the coordinator's own, and one key pair per site.

The server shows a certificate that its authority signed; a site shows that it holds the private key
whose public half the coordinator has on file under the site's name. No password is ever sent.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dorfl.support.files import write_whole

_YEARS = {"authority": 10, "server": 2}


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner can read, from the moment it exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def create_authority(folder: Path, host: str) -> None:
    """The authority and a certificate for `host`: ca.key, ca.crt, server.key, server.crt."""
    authority = new_key()
    issuer = _name(f"dorfl authority of {host}"[:64])
    root = (
        _certificate(issuer, issuer, authority.public_key(), _YEARS["authority"])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(_identifier(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    write_secret(folder / "ca.key", _private_bytes(authority))
    write_secret(folder / "server.key", _private_bytes(new_key()))
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    renew(folder, host)


def renew(folder: Path, host: str) -> tuple[datetime.datetime, datetime.datetime]:
    """A new certificate for the server's key; until when it holds, and until when the authority.

    It ends no later than the authority does, whose successor every site would have to be sent.
    """
    authority = read_private(folder / "ca.key")
    root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    leaf = (
        _certificate(
            _name(host[:64]), root.subject, read_private(folder / "server.key").public_key(),
            _YEARS["server"], root.not_valid_after_utc,
        )
        .add_extension(x509.SubjectAlternativeName(_alternatives(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )  # fmt: skip
    write_whole(folder / "server.crt", leaf.public_bytes(serialization.Encoding.PEM))
    return leaf.not_valid_after_utc, root.not_valid_after_utc


def create_pair(folder: Path, name: str) -> Path:
    """A site's key pair: `NAME.key`, which never leaves the site, and `NAME.pub`, one line."""
    private = new_key()
    write_secret(folder / f"{name}.key", _private_bytes(private))
    line = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public = folder / f"{name}.pub"
    public.write_bytes(line + f" {name}\n".encode())
    return public


def read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """A site's own private key."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise ValueError(f"{path.name}: there is no such key; run `dorfl site init`") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{path.name}: is not a private key made by `dorfl site init`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name}: is not an elliptic-curve key")
    return key


def read_public(text: bytes, what: str) -> bytes:
    """A public key from the line of a .pub file, in the form (PEM) that travels with requests."""
    try:
        key = serialization.load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{what}: is not a public key made by `dorfl site init`") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{what}: the key must be on the curve P-384, as `dorfl site init` makes")
    return public_bytes(key)


def public_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    """A public key from its PEM."""
    key = serialization.load_pem_public_key(pem)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(public: bytes) -> str:
    """A short name for a key that two people can compare over the telephone.

    >>> fingerprint(b"a key")
    '8fa3:aab2:faa9:b79e'
    """
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public)
    text = digest.finalize().hex()[:16]
    return ":".join(text[k : k + 4] for k in range(0, 16, 4))


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key pair on the curve that all keys here are on."""
    return ec.generate_private_key(ec.SECP384R1())


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    years: int,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=365 * years)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ a little
        .not_valid_after(end if latest is None else min(end, latest))
    )


def _identifier(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _alternatives(host: str) -> list[x509.GeneralName]:
    """`host` as an address or a name, and the loopback, where the SuperLink listens."""
    found: list[x509.GeneralName] = []
    for text in dict.fromkeys([host, "127.0.0.1", "localhost"]):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            found.append(x509.DNSName(text))
    return found
