"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write what becomes `path` when the block ends well, and nothing otherwise.

    The new file takes the old one's place in one step, after it is on disk, so whoever reads or
    whatever stops the machine finds the one or the other.
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
    """Write `content` to `path` in one step: a reader sees the old file or the new one.

    >>> note = Path(tempfile.mkdtemp()) / "new" / "note.txt"
    >>> write_whole(note, b"whole")
    >>> note.read_text()
    'whole'
    """
    with replacing(path) as draft:
        draft.write_bytes(content)


def _umask() -> int:
    """What the user takes away from new files (temporary ones are private otherwise)."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # a system where folders cannot be opened
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
