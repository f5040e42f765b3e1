"""The file format of MNIST and its kin: one array of numbers, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from dorfl.support.types import Array

_KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> Array:
    """Return the array in an idx file: two zero bytes, type, dimensions, their sizes, numbers.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([9, 0, 2]))
    >>> read_idx(path).tolist()
    [9, 0, 2]
    """
    path = Path(path)
    return parse_idx(path.read_bytes(), path.name)


def parse_idx(content: bytes, name: str) -> Array:
    """Return the array in the content of an idx file; `name` is for errors."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise ValueError(f"{name}: is cut short or damaged") from None
    kind, dims = (content[2], content[3]) if len(content) >= 4 else (0, 0)
    start = 4 + 4 * dims
    if content[:2] != b"\0\0" or kind not in _KINDS or len(content) < start:
        raise ValueError(f"{name}: is no idx file")
    shape = np.frombuffer(content, ">u4", dims, offset=4).tolist()
    dtype = np.dtype(_KINDS[kind])
    if len(content) != start + dtype.itemsize * math.prod(shape):
        raise ValueError(f"{name}: holds another number of values than it says")
    array: Array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))
