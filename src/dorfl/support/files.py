"""Atomic writes: a file is replaced whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` if the block ends without an exception.

    The new file is synced to disk and then renamed, so readers and crashes see the old or the new
    content, never a part. Folders above it are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
        _sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically; folders above it are made.

    >>> note = Path(tempfile.mkdtemp()) / "new" / "note.txt"
    >>> write_whole(note, b"whole")
    >>> note.read_text()
    'whole'
    """
    with replacing(path) as draft:
        draft.write_bytes(content)


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of an untrusted file.

    Raises
    ------
    ValueError
        If the file has more than `limit` bytes, or is a pipe, a device or a folder.
    OSError
        If the file cannot be read.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if about.st_size > limit:
        raise ValueError(f"{path.name} is too large for a model: more than {limit:,} bytes")
    with path.open("rb") as file:
        return file.read(about.st_size)


def _umask() -> int:
    """Return the process's umask; temporary files ignore it and are private."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # folders cannot be opened on this system
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
