"""Data from the packages of others, which are not shipped with dorfl.

pip downloads a package once. It is checked before it is read, and kept in
a cache folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dorfl.data.tables import DataError


class UnavailableError(DataError):
    """The data could not be had; the message says what to do."""


def cache_folder() -> Path:
    """Return the folder of fetched tables: $DORFL_CACHE, or the user's cache folder."""
    given = os.environ.get("DORFL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dorfl"


def wheel(package: str, checksum: str) -> Path:
    """Return the wheel of a package ("name==version"); `checksum` is its SHA-256."""
    path = cache_folder() / f"{package.replace('==', '-')}.whl"
    if not (path.is_file() and sha256(path.read_bytes()) == checksum):
        content = download(package)
        if sha256(content) != checksum:
            raise UnavailableError(f"{package} is another file than dorfl was tested with")
        keep(content, path)
    return path


def download(package: str) -> bytes:
    """Download the wheel of a package by pip, or raise an error with pip's reason."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--dest", ".", package),
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        left = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not left:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UnavailableError(f"pip could not download {package} ({reason})")
        return left[0].read_bytes()


def keep(content: bytes, path: Path) -> None:
    """Put a file in place atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(part).replace(path)


def sha256(content: bytes) -> str:
    """Return the checksum of a file's content."""
    return hashlib.sha256(content).hexdigest()
