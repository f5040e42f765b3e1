"""Named arrays in one file, in the safetensors format: a JSON header, then plain numbers.

No code in such a file can run, and any library for the format reads it. A file is untrusted: sizes
and offsets are checked before any number is read. (The package `safetensors` would be a compiled
dependency for reading a model folder, which otherwise needs NumPy alone.)

>>> data = pack({"weight": np.arange(3, dtype=np.float32)}, {"model": "mlp"})
>>> arrays, texts = unpack(data)
>>> arrays["weight"].tolist(), texts
([0.0, 1.0, 2.0], {'model': 'mlp'})
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from dorfl.support.types import Array

_CODES: dict[str, Any] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
MAX_BYTES = 4 * 2**30  # of a file that is read: a billion numbers of four bytes
_HEADER = 100_000_000  # bytes, the format's own limit


def pack(arrays: Mapping[str, Array], texts: Mapping[str, str] | None = None) -> bytes:
    """Return arrays by name, and text about them, as bytes."""
    header: dict[str, Any] = {"__metadata__": dict(texts)} if texts else {}
    parts, place = [], 0
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<")
        code = next((code for code, known in _CODES.items() if known == kind), None)
        if code is None:
            raise ValueError(f"safetensors: {name!r} is {array.dtype}, unknown to the format")
        content = np.ascontiguousarray(array, dtype=_CODES[code]).tobytes()
        ends = [place, place + len(content)]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": ends}
        parts.append(content)
        place += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def unpack(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """Return arrays and text of :func:`pack`; ValueError if the bytes are not in the format."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else _HEADER
    if size > min(_HEADER, len(data) - 8):
        raise ValueError("safetensors: the file is shorter than its header says")
    try:
        header = json.loads(data[8 : 8 + size])
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("safetensors: the header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("safetensors: the header is no object")
    texts = header.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
        raise ValueError("safetensors: the metadata are not text")
    body, arrays, place = data[8 + size :], {}, 0
    for name, entry in header.items():
        arrays[name], place = _array(name, entry, body, place)
    if place != len(body):
        raise ValueError("safetensors: there is more in the file than the header says")
    return arrays, texts


def _array(name: str, entry: Any, body: bytes, place: int) -> tuple[Array, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"safetensors: {name!r} is not described as an array")
    shape, ends, dtype = entry["shape"], entry["data_offsets"], _CODES.get(str(entry["dtype"]))
    whole = all(
        isinstance(part, list) and all(type(n) is int and 0 <= n < 2**48 for n in part)
        for part in (shape, ends)
    )
    if dtype is None or not whole or len(ends) != 2 or len(shape) > 16:
        raise ValueError(f"safetensors: {name!r} has a type or a shape that is not known here")
    size = math.prod(shape) * dtype.itemsize
    if ends != [place, place + size] or ends[1] > len(body):
        raise ValueError(f"safetensors: {name!r} does not lie where its shape needs it to")
    content = np.frombuffer(body, dtype, math.prod(shape), place).reshape(shape)
    return content.astype(dtype.newbyteorder("=")), ends[1]
