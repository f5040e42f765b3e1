"""The coordinator's and a site's folders: what lies where, and who may read it.

fed/    federation.toml   keys/   sites/NAME.pub   runs/RUN/   logs/   state/
site/   site.toml         NAME.key   NAME.pub   results/RUN/   site.log   ledger.json   asked.json
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dorfl.flower import keys
from dorfl.oracle.curvature import RESOLUTIONS
from dorfl.study.limits import DEFAULT, Limits
from dorfl.support.files import write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def check_name(name: str) -> str:
    """A name that can be a file's; ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a name has letters, digits, '.', '_' and '-', at most 60")
    return name


@dataclass(frozen=True)
class Federation:
    """A coordinator's folder."""

    path: Path
    host: str
    port: int
    connections: int = 64  # from one address at once

    @classmethod
    def create(cls, path: Path, host: str, port: int) -> Federation:
        """A new folder with an authority, a certificate for `host`, and no site."""
        if (path / "federation.toml").exists():
            raise ValueError(f"{path}: there is a federation already; its keys would be lost")
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
            raise ValueError(f"--host {host}: is neither a name nor an address")
        for part in ("keys", "sites", "runs", "logs", "state"):
            (path / part).mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        keys.create_authority(path / "keys", host)
        text = f'host = "{host}"  # the name in the certificate, which sites connect to\n'
        text += f"port = {port}\n"
        text += "connections = 64  # from one address; more if many sites are behind one\n"
        write_whole(path / "federation.toml", text.encode())
        return cls(path, host, port)

    @classmethod
    def open(cls, path: Path) -> Federation:
        """An existing folder."""
        told = _read_toml(path / "federation.toml", f"{path}: is no federation; see `server init`")
        if not isinstance(told.get("host"), str) or not isinstance(told.get("port"), int):
            raise ValueError(f"{path / 'federation.toml'}: needs host and port")
        connections = told.get("connections", cls.connections)
        if not isinstance(connections, int) or connections < 1:
            raise ValueError(f"{path / 'federation.toml'}: connections must be a number ≥ 1")
        return cls(path, told["host"], told["port"], connections)

    @property
    def keys(self) -> Path:
        """The authority's and the server's keys and certificates."""
        return self.path / "keys"

    def add_site(self, name: str, public: bytes) -> bytes:
        """Bind a site's name to its key; neither may be taken."""
        key = keys.read_public(public, f"the key of {check_name(name)}")
        for other, known in self.sites().items():
            if known == key and other != name:
                raise ValueError(f"this key is registered already, for site {other!r}")
            if other == name and known != key:
                raise ValueError(
                    f"site {name!r} is registered with another key; remove sites/{name}.pub first "
                    "if it was lost"
                )
        write_whole(self.path / "sites" / f"{name}.pub", public)
        return key

    def remove_site(self, name: str) -> None:
        """Forget a site: it is turned away from now on, and no new run has it."""
        if name not in self.sites():
            listed = ", ".join(self.sites()) or "none"
            raise ValueError(f"site {name!r} is not registered; registered: {listed}")
        (self.path / "sites" / f"{name}.pub").unlink()

    def sites(self) -> dict[str, bytes]:
        """The registered keys by site."""
        folder = self.path / "sites"
        return dict(_public_keys(folder, folder.stat().st_mtime_ns))

    def runs(self) -> list[Path]:
        """The folders of all runs, oldest first."""
        return sorted(p for p in (self.path / "runs").iterdir() if (p / "record.json").exists())

    @contextlib.contextmanager
    def holding(self, what: str, content: dict[str, Any]) -> Iterator[None]:
        """Be the one process that is this federation's "server" or "run", and say so.

        A lock, which dies with its process, tells the living from the dead; a process id alone
        would not, since another process may have it by now.
        """
        file = self.path / "state" / f"{what}.json"
        with _locked(file.with_suffix(".lock"), f"{self.path}: a {what} is going on already"):
            self.note(what, content)
            try:
                yield
            finally:
                file.unlink(missing_ok=True)

    def note(self, what: str, content: dict[str, Any]) -> None:
        """Say something of the "server" or the "run" that this process is."""
        told = {"pid": os.getpid(), **content}
        write_whole(self.path / "state" / f"{what}.json", json.dumps(told).encode())

    def present(self) -> dict[str, dict[str, Any]]:
        """The sites whose processes are connected, as the server that runs has noted."""
        file = self.path / "state" / "sites.json"
        if self.noted("server") is None or not file.exists():
            return {}
        told: dict[str, dict[str, Any]] = json.loads(file.read_text())
        return told

    def noted(self, what: str) -> dict[str, Any] | None:
        """What the "server" or the "run" said of itself, if it lives."""
        file = self.path / "state" / f"{what}.json"
        if _taken(file.with_suffix(".lock")):
            with contextlib.suppress(OSError, ValueError):
                told: dict[str, Any] = json.loads(file.read_text())
                return told
        return None


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder."""

    path: Path
    name: str
    released: tuple[str, ...]  # the columns that studies may use
    least: int
    approve: tuple[str, ...] = ()  # studies approved in advance, by their names
    limits: Limits = DEFAULT
    epsilon: float | None = None  # takes part with no weaker differential privacy than this
    curvature: str = "full"  # tells no finer curvature than this

    @classmethod
    def create(
        cls, path: Path, name: str, released: Sequence[str] = (), approve: Sequence[str] = ()
    ) -> SiteFolder:
        """A new folder with a key pair of the site's own."""
        check_name(name)
        if (path / "site.toml").exists():
            raise ValueError(f"{path}: there is a site already; its key would be lost")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        keys.create_pair(path, name)
        text = (
            f'name = "{name}"\n'
            "least = 5  # no statistic of fewer rows leaves this site, whatever a study says\n"
            '# Name the columns that studies may use, such as ["age", "pressure"], the label too:\n'
            f"released = {json.dumps(list(released))}\n"
            "# A person here approves of each study, once: dorfl site approve. In advance, by\n"
            '# name ("heart-*", or "*" for any):\n'
            f"approve = {json.dumps(list(approve))}\n"
            "# Take part only with differential privacy, all studies together within this ε:\n"
            "# epsilon = 4.0\n"
            "# The finest curvature this site tells: full, blocks, diagonal or none; with less,\n"
            "# training takes more rounds (docs/privacy.md says what it tells of rows):\n"
            '# curvature = "full"\n'
            "# What all studies together may learn, and how much one row may show:\n"
            "# [limits]\n"
            f"{DEFAULT.written}"
        )
        write_whole(path / "site.toml", text.encode())
        return cls(path, name, tuple(released), 5, tuple(approve))

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """An existing folder."""
        told = _read_toml(path / "site.toml", f"{path}: is no site's folder; see `dorfl site init`")
        name, least = told.get("name"), told.get("least", 5)
        if not isinstance(name, str) or not isinstance(least, int) or least < 1:
            raise ValueError(f"{path / 'site.toml'}: needs a name, and least as a whole number ≥ 1")
        lists = {key: told.get(key, []) for key in ("released", "approve")}
        for key, given in lists.items():
            if not (isinstance(given, list) and all(isinstance(word, str) for word in given)):
                raise ValueError(f"{path / 'site.toml'}: {key} must be a list of names")
        epsilon = told.get("epsilon")
        if epsilon is not None and not (isinstance(epsilon, float | int) and epsilon > 0):
            raise ValueError(f"{path / 'site.toml'}: epsilon must be a positive number")
        curvature = told.get("curvature", "full")
        if curvature not in RESOLUTIONS:
            listed = ", ".join(RESOLUTIONS)
            raise ValueError(f"{path / 'site.toml'}: curvature must be one of {listed}")
        limits = Limits.read(told.get("limits", {}), path / "site.toml")
        released, approve = (tuple(given) for given in lists.values())
        return cls(path, check_name(name), released, least, approve, limits, epsilon, curvature)

    def attending(self) -> contextlib.AbstractContextManager[None]:
        """Be the one process that answers for this site."""
        return _locked(self.path / "site.lock", f"{self.path}: the site is running already")

    def attended(self) -> bool:
        """Whether a process answers for this site."""
        return _taken(self.path / "site.lock")

    @property
    def key(self) -> Path:
        """The private key's file."""
        return self.path / f"{self.name}.key"


@contextlib.contextmanager
def _locked(path: Path, taken: str) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(taken) from None
        yield


def _taken(path: Path) -> bool:
    """Whether a living process has the lock."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


@lru_cache(maxsize=8)
def _public_keys(folder: Path, _changed: int) -> tuple[tuple[str, bytes], ...]:
    """The keys in a folder, read again when it has changed: every request asks for them."""
    return tuple(
        (file.stem, keys.read_public(file.read_bytes(), file.name))
        for file in sorted(folder.glob("*.pub"))
    )


def _read_toml(path: Path, missing: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(missing) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not valid TOML: {error}") from None
