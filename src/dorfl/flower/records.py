"""Arrays as Flower's records, and back: what arrives is of the wanted form, or refused.

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

ASK = "dorfl"  # the record of a message that says what it asks, and of a reply what it answers


class Form(NamedTuple):
    """What an array must be like."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def pack(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Arrays or tensors, by name, as a record."""
    return ArrayRecord({k: Array(np.array(v, order="C", copy=None)) for k, v in arrays.items()})


def unpack(
    content: RecordDict, key: str, like: Mapping[str, Form] | None = None
) -> dict[str, Numbers]:
    """The arrays of a record, all of finite numbers, and of the form they must have where known."""
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"{key}: the message has no such arrays")
    if like is not None and set(record) != set(like):
        raise ValueError(f"{key}: has not the arrays {', '.join(like)}")
    return {name: _read(name, array, (like or {}).get(name)) for name, array in record.items()}


def said(content: RecordDict, kind: type[ConfigRecord | MetricRecord], name: str, of: type) -> Any:
    """One word of the record in which a message says what it is."""
    record = content.get(ASK)
    value = record.get(name) if isinstance(record, kind) else None
    if type(value) is not of:
        raise ValueError(f"{name}: is not said, or no {of.__name__}")
    return value


def _read(name: str, array: Array, wanted: Form | None) -> Numbers:
    """As `array.numpy()`, but that nothing is made room for before it is known to fit."""
    name = one_line(name, 80)
    stream = BytesIO(array.data)
    try:
        npy.read_magic(stream)
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    except (ValueError, SyntaxError, TypeError, OverflowError):
        raise ValueError(f"{name}: is no array") from None
    found = Form(shape, dtype)
    if wanted is not None and found != wanted:
        raise ValueError(f"{name}: is {_words(found)}, not {_words(wanted)}")
    if fortran or dtype.kind not in "fiu":
        raise ValueError(f"{name}: is no array of numbers")
    data = array.data[stream.tell() :]
    if len(data) != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"{name}: has not as many numbers as it says")
    numbers = np.frombuffer(data, dtype).reshape(shape).copy()
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: is not made of finite numbers")
    return numbers


def _words(form: Form) -> str:
    return f"{form.dtype} {form.shape}"
