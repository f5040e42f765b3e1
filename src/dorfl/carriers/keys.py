"""Keys and certificates: an authority of the coordinator, one self-signed certificate per site.

The server shows a certificate that the federation's authority signed. The coordinator signs its
requests with a key of its own, certified by the same authority, so a site needs one file, `ca.crt`.
A site's identity is its self-signed certificate, which the coordinator registers under its name.
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

AUTHORITY_YEARS = 10  # validity of ca.crt and of a site's certificate
LEAF_YEARS = 2  # validity of the server's and the coordinator's certificates; see `renew`
COORDINATOR = "dorfl coordinator"  # common name of the certificate that signs requests


def create_authority(folder: Path, host: str) -> None:
    """Create the authority and the certificates of server and coordinator.

    Parameters
    ----------
    folder
        Receives `ca`, `server` and `coordinator`, each as `.key` (mode 0600) and `.crt`.
    host
        The name or address that sites connect to.
    """
    authority = new_key()
    issuer = _name(f"dorfl authority of {host}"[:64])
    root = (
        _certificate(issuer, issuer, authority.public_key(), AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(_identifier(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    write_secret(folder / "ca.key", _private_bytes(authority))
    for name in ("server", "coordinator"):
        write_secret(folder / f"{name}.key", _private_bytes(new_key()))
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    renew(folder, host)


def renew(folder: Path, host: str) -> tuple[datetime.datetime, datetime.datetime]:
    """Renew the certificates of server and coordinator; their keys stay.

    Parameters
    ----------
    folder
        The folder that :func:`create_authority` filled.
    host
        The name or address that sites connect to.

    Returns
    -------
    tuple of datetime
        When the new certificates end, and when the authority ends. The former is never later.
    """
    authority = read_private(folder / "ca.key")
    root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    subjects = {"server": _name(host[:64]), "coordinator": _name(COORDINATOR)}
    for name, subject in subjects.items():
        public = read_private(folder / f"{name}.key").public_key()
        latest = root.not_valid_after_utc
        leaf = (
            _certificate(subject, root.subject, public, LEAF_YEARS, latest)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(_issued_by(authority.public_key()), critical=False)
        )
        if name == "server":
            names, purpose = _alternatives(host), [ExtendedKeyUsageOID.SERVER_AUTH]
            leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
            leaf = leaf.add_extension(x509.ExtendedKeyUsage(purpose), critical=False)
        made = leaf.sign(authority, hashes.SHA256())
        write_whole(folder / f"{name}.crt", made.public_bytes(serialization.Encoding.PEM))
    return made.not_valid_after_utc, root.not_valid_after_utc


def create_site(folder: Path, name: str) -> Path:
    """Create a site's private key and its self-signed certificate; return the certificate's file.

    `NAME.key` (mode 0600) never leaves the site. `NAME.crt` goes to the coordinator.
    """
    write_secret(folder / f"{name}.key", _private_bytes(new_key()))
    return renew_site(folder, name)


def renew_site(folder: Path, name: str) -> Path:
    """Write a new self-signed certificate for a site's key; return its file."""
    key = read_private(folder / f"{name}.key")
    public, subject = key.public_key(), _name(name)
    made = (
        _certificate(subject, subject, public, AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(_identifier(public), critical=False)
        .add_extension(_issued_by(public), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_whole(folder / f"{name}.crt", made.public_bytes(serialization.Encoding.PEM))
    return folder / f"{name}.crt"


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
    """Read a site's self-signed certificate.

    Parameters
    ----------
    text
        The certificate as PEM.
    what
        What to call the file in error messages.

    Raises
    ------
    ValueError
        If it is not a certificate that `dorfl site init` makes: P-384, self-signed, no authority.
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


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(public: bytes) -> str:
    """Return a short name of a key that two people can compare over the telephone.

    >>> fingerprint(b"a key")
    '8fa3:aab2:faa9:b79e'
    """
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public)
    text = digest.finalize().hex()[:16]
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


def _issued_by(key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _alternatives(host: str) -> list[x509.GeneralName]:
    """Return the names in the server's certificate: `host` and the loopback."""
    found: list[x509.GeneralName] = []
    for text in dict.fromkeys([host, "127.0.0.1", "localhost"]):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            found.append(x509.DNSName(text))
    return found
