"""The folders of a coordinator and of a site: what lies where, and who may read it.

fed/    federation.toml   keys/   sites/NAME.crt   runs/RUN/   logs/   state/
site/   site.toml   NAME.key   NAME.crt   results/RUN/   site.log   ledger.json   replies/
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography import x509

from dorfl.carriers import keys
from dorfl.site.policy import Policy
from dorfl.support.files import write_whole

LOCK_SECONDS = 1.0  # to wait for a lock; a process that looks whether it is taken holds it for ms
MAX_SOCKET_PATH = 100  # bytes; Linux allows 107, macOS 103
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def check_name(name: str) -> str:
    """Return `name` if it can be a file's name; raise ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a name has letters, digits, '.', '_' and '-', at most 60")
    return name


@dataclass(frozen=True)
class Federation:
    """A coordinator's folder."""

    path: Path
    host: str  # the public address that sites connect to, and the name in the certificate
    port: int

    @classmethod
    def create(cls, path: Path, host: str, port: int) -> Federation:
        """Create a coordinator's folder, with an authority and no site."""
        if (path / "federation.toml").exists():
            raise ValueError(f"{path}: there is a federation already; its keys would be lost")
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
            raise ValueError(f"--host {host}: is neither a name nor an address")
        for part in ("keys", "sites", "runs", "logs", "state"):
            (path / part).mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        keys.create_authority(path / "keys", host)
        text = f'host = "{host}"  # the name in the certificate, which sites connect to\n'
        write_whole(path / "federation.toml", f"{text}port = {port}\n".encode())
        return cls(path, host, port)

    @classmethod
    def open(cls, path: Path) -> Federation:
        """Open an existing folder."""
        found = _read_toml(path / "federation.toml", f"{path}: is no federation; see `server init`")
        if not isinstance(found.get("host"), str) or not isinstance(found.get("port"), int):
            raise ValueError(f"{path / 'federation.toml'}: needs host and port")
        return cls(path, found["host"], found["port"])

    @property
    def keys(self) -> Path:
        """The folder with the keys of authority, server and coordinator."""
        return self.path / "keys"

    @property
    def socket(self) -> Path:
        """The Unix socket by which `dorfl run` reaches `dorfl server start`."""
        return short_path(self.path / "state" / "server.sock")

    def add_site(self, text: bytes, name: str | None = None) -> str:
        """Register a site's certificate, which is PEM, under its own name; return that name.

        ValueError if it is not the expected `name`, or name or key are registered already.
        """
        made = keys.read_certificate(text, "the certificate" if name is None else name)
        own = check_name(keys.common_name(made))
        if name is not None and name != own:
            raise ValueError(f"the certificate is for site {own!r}, not for {name!r}")
        public = keys.public_of(made)
        for other, known in self.sites().items():
            if keys.public_of(known) == public and other != own:
                raise ValueError(f"this key is registered already, for site {other!r}")
            if other == own and keys.public_of(known) != public:
                raise ValueError(
                    f"site {own!r} is registered with another key; `dorfl server remove-site` "
                    "first if the key was lost"
                )
        write_whole(self.path / "sites" / f"{own}.crt", text)
        return own

    def remove_site(self, name: str) -> None:
        """Remove a site: the server turns it away from now on, and no new run includes it."""
        if name not in self.sites():
            listed = ", ".join(self.sites()) or "none"
            raise ValueError(f"site {name!r} is not registered; registered: {listed}")
        (self.path / "sites" / f"{name}.crt").unlink()

    def sites(self) -> dict[str, x509.Certificate]:
        """Return the registered certificates by site."""
        folder = self.path / "sites"
        return dict(_certificates(folder, folder.stat().st_mtime_ns))

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the registered keys by site."""
        return {site: keys.fingerprint(keys.public_of(c)) for site, c in self.sites().items()}

    def runs(self) -> list[Path]:
        """Return the folders of all runs, oldest first."""
        return sorted(p for p in (self.path / "runs").iterdir() if (p / "record.json").exists())

    @contextlib.contextmanager
    def holding(self, what: str, patience: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold the lock of this federation's "server" or "run".

        The lock ends with its process. A process id alone could belong to another process by now.
        ValueError if another process keeps it for `patience` seconds, or meanwhile calls
        :meth:`touch`.
        """

        def refusal() -> str:
            holder = (self.noted(what) or {}).get("pid", "unknown")
            return f"{self.path}: a {what} is going on already (process {holder})"

        with _locked(self.path / "state" / f"{what}.lock", refusal, patience):
            self._note_of(what).unlink(missing_ok=True)  # of a process that has ended
            yield

    def note(self, what: str, **content: Any) -> None:
        """Write what the "server" or the "run" is that this process is; it holds its lock."""
        note = {"pid": os.getpid(), **content}
        write_whole(self._note_of(what), json.dumps(note).encode())

    def touch(self, what: str) -> None:
        """Show to processes that wait for the lock of "server" or "run" that its holder works."""
        os.utime(self.path / "state" / f"{what}.lock")

    def present(self) -> dict[str, float]:
        """Return since when sites are connected, as the running server has noted them."""
        present: dict[str, float] = (self.noted("server") or {}).get("sites", {})
        return present

    def noted(self, what: str) -> dict[str, Any] | None:
        """Return the note of the "server" or the "run", or None if there is no such process."""
        if _taken(self.path / "state" / f"{what}.lock"):
            with contextlib.suppress(OSError, ValueError):
                note: dict[str, Any] = json.loads(self._note_of(what).read_text())
                return note
        return None

    def _note_of(self, what: str) -> Path:
        return self.path / "state" / f"{what}.json"


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder, with the settings of its `site.toml`."""

    path: Path
    name: str  # as in its certificate
    policy: Policy

    @classmethod
    def create(
        cls,
        path: Path,
        name: str,
        released: Sequence[str] = (),
        approve: Sequence[str] = (),
        **rules: Any,
    ) -> SiteFolder:
        """Create a site's folder with a key, a certificate and a policy.

        `rules` are the fields of :class:`dorfl.site.policy.Policy` beside `released` and `approve`.
        """
        check_name(name)
        if (path / "site.toml").exists():
            raise ValueError(f"{path}: there is a site already; its key would be lost")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        keys.create_site(path, name)
        policy = Policy(tuple(released), tuple(approve), **rules)
        write_whole(path / "site.toml", f'name = "{name}"\n{policy.written}'.encode())
        return cls(path, name, policy)

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """Open an existing folder."""
        found = _read_toml(
            path / "site.toml", f"{path}: is no site's folder; see `dorfl site init`"
        )
        if not isinstance(found.get("name"), str):
            raise ValueError(f"{path / 'site.toml'}: needs a name")
        policy = Policy.read(found, path / "site.toml")
        return cls(path, check_name(found["name"]), policy)

    def attending(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one process that answers for this site."""
        return _locked(self.path / "site.lock", lambda: f"{self.path}: the site is running already")

    def attended(self) -> bool:
        """Return whether a process answers for this site."""
        return _taken(self.path / "site.lock")

    @property
    def key(self) -> Path:
        """The file of the private key."""
        return self.path / f"{self.name}.key"


@contextlib.contextmanager
def _locked(
    path: Path, refusal: Callable[[], str], patience: float = LOCK_SECONDS
) -> Iterator[None]:
    """Hold the lock of a file; ValueError if it is not free after `patience`, or is touched."""
    end = time.monotonic() + patience
    with path.open("a") as lock:
        before = os.fstat(lock.fileno()).st_mtime_ns
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                touched = os.fstat(lock.fileno()).st_mtime_ns != before
                if touched or time.monotonic() > end:
                    raise ValueError(refusal()) from None
                time.sleep(0.02)
        yield


def _taken(path: Path) -> bool:
    """Return whether a living process has the lock."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def short_path(path: Path) -> Path:
    """Return the shorter of the absolute and the relative form of a socket's path.

    The operating system allows some 100 bytes for the path of a Unix socket.
    """
    whole = path.absolute()
    near = Path(os.path.relpath(whole))
    found = min(whole, near, key=lambda form: len(os.fsencode(form)))
    if len(os.fsencode(found)) > MAX_SOCKET_PATH:
        raise ValueError(f"{whole}: is too long for a socket; use a shorter path")
    return found


@lru_cache(maxsize=8)
def _certificates(folder: Path, _changed: int) -> tuple[tuple[str, x509.Certificate], ...]:
    """Read the certificates in a folder, again whenever the folder has changed."""
    return tuple(
        (file.stem, keys.read_certificate(file.read_bytes(), file.name))
        for file in sorted(folder.glob("*.crt"))
    )


def _read_toml(path: Path, missing: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(missing) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not valid TOML: {error}") from None
