"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step: a reader sees the old file or the new one.

    >>> import tempfile
    >>> note = Path(tempfile.mkdtemp()) / "new" / "note.txt"
    >>> write_whole(note, b"whole")
    >>> note.read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
