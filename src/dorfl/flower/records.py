"""Convert arrays to Flower's records, and validate records that are converted back.

>>> sent = RecordDict({"ways": pack({"values": np.ones(3, np.float32)})})
>>> unpack(sent, "ways", {"values": Form((3,), np.dtype("float32"))})["values"].tolist()
[1.0, 1.0, 1.0]
>>> unpack(sent, "ways", {"values": Form((4,), np.dtype("float32"))})
Traceback (most recent call last):
ValueError: values: is float32 (3,), not float32 (4,)
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy

from dorfl.support.text import one_line
from dorfl.support.types import Array as Numbers

HEADER = "dorfl"  # the record of a message with the step and its settings, or of a reply's figures


class Form(NamedTuple):
    """The shape and type that an array must have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def pack(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Return arrays or tensors, by name, as a record."""
    return ArrayRecord({k: Array(np.array(v, order="C", copy=None)) for k, v in arrays.items()})


def unpack(
    content: RecordDict, key: str, like: Mapping[str, Form] | None = None
) -> dict[str, Numbers]:
    """Return the arrays of a record; ValueError unless they are there, finite and like `like`."""
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"{key}: the message has no arrays of this name")
    if like is not None and set(record) != set(like):
        raise ValueError(f"{key}: must have the arrays {', '.join(like)}")
    return {name: _read(name, array, (like or {}).get(name)) for name, array in record.items()}


def read_header(
    content: RecordDict, kind: type[ConfigRecord | MetricRecord], name: str, of: type
) -> Any:
    """Return one entry of a message's header; ValueError if it is missing or of another type."""
    record = content.get(HEADER)
    value = record.get(name) if isinstance(record, kind) else None
    if type(value) is not of:
        raise ValueError(f"{name}: is missing, or not of type {of.__name__}")
    return value


def _read(name: str, array: Array, wanted: Form | None) -> Numbers:
    """Return `array.numpy()`, but check shape, type and size before memory is allocated."""
    name = one_line(name, 80)
    stream = BytesIO(array.data)
    try:
        npy.read_magic(stream)
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    except (ValueError, SyntaxError, TypeError, OverflowError):
        raise ValueError(f"{name}: is not an array") from None
    found = Form(shape, dtype)
    if wanted is not None and found != wanted:
        raise ValueError(f"{name}: is {_described(found)}, not {_described(wanted)}")
    if fortran or dtype.kind not in "fiu":
        raise ValueError(f"{name}: is not an array of numbers")
    data = array.data[stream.tell() :]
    if len(data) != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"{name}: its data are not as long as its shape implies")
    numbers = np.frombuffer(data, dtype).reshape(shape).copy()
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: has numbers that are not finite")
    return numbers


def _described(form: Form) -> str:
    return f"{form.dtype} {form.shape}"
