"""Keys and certificates: an authority of the coordinator, one self-signed certificate per site.

The server shows a certificate that the federation's authority signed. The coordinator signs its
requests with a key of its own, certified by the same authority, so a site needs one file, `ca.crt`.
A site's identity is its self-signed certificate, which the coordinator registers under its name.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dorfl.support.files import write_whole

AUTHORITY_YEARS = 10  # validity of ca.crt and of a site's certificate
LEAF_YEARS = 2  # validity of the server's and the coordinator's certificates; see `renew`
COORDINATOR = "dorfl coordinator"  # common name of the certificate that signs requests


def create_authority(folder: Path, host: str) -> None:
    """Create the authority and the certificates of server and coordinator.

    The folder receives `ca`, `server` and `coordinator`, each as `.key` (mode 0600) and `.crt`.
    Sites connect to the name or address `host`.
    """
    authority, name = new_key(), _name(f"dorfl authority of {host}"[:64])
    end = _end(AUTHORITY_YEARS)
    root = _certificate(name, authority.public_key(), name, authority, end, is_authority=True)
    write_secret(folder / "ca.key", _private_bytes(authority))
    for part in ("server", "coordinator"):
        write_secret(folder / f"{part}.key", _private_bytes(new_key()))
    (folder / "ca.crt").write_bytes(root)
    renew(folder, host)


def renew(folder: Path, host: str) -> tuple[datetime.datetime, datetime.datetime]:
    """Renew the certificates of server and coordinator; their keys stay.

    Return when the new certificates end, and when the authority ends. The former is never later.
    """
    authority = read_private(folder / "ca.key")
    root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    end = min(_end(LEAF_YEARS), root.not_valid_after_utc)
    of_server = (
        x509.SubjectAlternativeName(_alternatives(host)),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    for part, name, more in (("server", host[:64], of_server), ("coordinator", COORDINATOR, ())):
        public = read_private(folder / f"{part}.key").public_key()
        made = _certificate(_name(name), public, root.subject, authority, end, *more)
        write_whole(folder / f"{part}.crt", made)
    return end, root.not_valid_after_utc


def create_site(folder: Path, name: str) -> None:
    """Create a site's private key and its self-signed certificate.

    `NAME.key` (mode 0600) never leaves the site. `NAME.crt` goes to the coordinator.
    """
    write_secret(folder / f"{name}.key", _private_bytes(new_key()))
    renew_site(folder, name)


def renew_site(folder: Path, name: str) -> None:
    """Write a new self-signed certificate for a site's key."""
    key, subject = read_private(folder / f"{name}.key"), _name(name)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    made = _certificate(subject, key.public_key(), subject, key, _end(AUTHORITY_YEARS), purpose)
    write_whole(folder / f"{name}.crt", made)


def create_ssh_pair(private: Path, public: Path) -> None:
    """Create the key pair of a SuperNode, in the OpenSSH form that Flower reads."""
    key = new_key()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
    write_secret(private, key.private_bytes(*form, serialization.NoEncryption()))
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public.write_bytes(line + b"\n")


def read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key that dorfl made; ValueError names the file and the remedy."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise ValueError(f"{path.name}: there is no such key; run `dorfl site init`") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{path.name}: is not a private key made by `dorfl site init`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name}: is not an elliptic-curve key")
    return key


def read_certificate(text: bytes, what: str) -> x509.Certificate:
    """Read a site's self-signed certificate from PEM; `what` names it in errors.

    Raise ValueError if `dorfl site init` does not make such: P-384, self-signed, no authority.
    """
    try:
        made = x509.load_pem_x509_certificate(text)
        made.verify_directly_issued_by(made)
        basic = made.extensions.get_extension_for_class(x509.BasicConstraints).value
    except Exception:  # the library raises many kinds for a file that is something else
        raise ValueError(f"{what}: is not a certificate made by `dorfl site init`") from None
    public = made.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(
        public.curve, ec.SECP384R1
    ):
        raise ValueError(f"{what}: the key must be on the curve P-384, as `dorfl site init` makes")
    if basic.ca:
        raise ValueError(f"{what}: is an authority, and a site's certificate must not be one")
    return made


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate's subject, or an empty text."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def public_of(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate that :func:`read_certificate` accepted."""
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return a short name of a key, such as 8fa3:aab2:faa9:b79e, to compare over the telephone."""
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    text = hashlib.sha256(key.public_bytes(*form)).hexdigest()[:16]
    return ":".join(text[k : k + 4] for k in range(0, 16, 4))


def new_key() -> ec.EllipticCurvePrivateKey:
    """Create a key pair on P-384, the curve of all keys here."""
    return ec.generate_private_key(ec.SECP384R1())


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, from the moment it exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _end(years: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365 * years)


def _certificate(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    end: datetime.datetime,
    *more: x509.ExtensionType,
    is_authority: bool = False,
) -> bytes:
    """Return a certificate as PEM."""
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    path_length = 0 if is_authority else None
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_end(0) - datetime.timedelta(hours=1))  # clocks differ a little
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(is_authority, path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issued_by, critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _alternatives(host: str) -> list[x509.GeneralName]:
    """Return the names in the server's certificate: `host` and the loopback."""
    found: list[x509.GeneralName] = []
    for text in dict.fromkeys([host, "127.0.0.1", "localhost"]):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            found.append(x509.DNSName(text))
    return found
