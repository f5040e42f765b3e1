"""Codec of messages and files: canonical JSON, arrays bit for bit, checked against a type.

Input is untrusted. :func:`decode` reads it against an expected type, field by field, and refuses a
field that is missing, unknown, repeated, of another type or size, or not finite. The error names
the field and never repeats its content. A field whose type is a union of several records carries
the name of the record as ``"type"``. So does a field of type `Any`, for which the record that has
it lists the types in a method `records`, and a record whose class has a method `is_tagged`.

The standard library is used because records are NamedTuples: msgspec encodes these by position,
cannot tag them, and accepts repeated keys.

>>> from typing import NamedTuple
>>> class Point(NamedTuple):
...     name: str
...     at: Array
>>> encode(Point("a", np.array([0.5])))
b'{"at":{"f8":"AAAAAAAA4D8=","shape":[1]},"name":"a"}'
>>> decode(encode(Point("a", np.array([0.5]))), Point)
Point(name='a', at=array([0.5]))
>>> decode(b'{"name": 3}', Point)
Traceback (most recent call last):
ValueError: Point: has the fields 'name', needs 'at', 'name'
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from dorfl.support.types import Array

LIMIT = 64 * 2**20  # bytes of a message
_MAX_DIMENSIONS = 4  # of an array
_DTYPES: dict[str, Any] = {"f8": np.dtype("<f8"), "f4": np.dtype("<f4"), "i8": np.dtype("<i8")}
_JSON_TYPES = frozenset({type(None), bool, int, str})
_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_TAG = "type"

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Encode records, arrays and JSON types: equal values give equal bytes on every machine."""
    return json.dumps(
        _plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def decode(data: bytes, kind: type[T], *, finite: bool = True, limit: int = LIMIT) -> T:
    """Decode untrusted bytes of :func:`encode`; ValueError names the field that does not fit.

    NaN and infinities are refused if `finite`, and more than `limit` bytes always.
    """
    name = getattr(kind, "__name__", "message")
    if len(data) > limit:
        raise ValueError(f"{name}: {len(data)} bytes, more than the {limit} allowed")
    try:
        plain = json.loads(data, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"{name}: is nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{name}: is not JSON") from None
    return read(plain, kind, name, finite)  # type: ignore[no-any-return]


def _plain(value: Any, tagged: bool = False) -> Any:
    """Convert a value to JSON types; records get their class name as a tag if `tagged`."""
    kind: Any = type(value)
    if kind in _JSON_TYPES:  # most values; the other tests are in order of frequency
        return value
    if is_record(kind):
        tags = _tagged_fields(kind)
        plain = {name: _plain(getattr(value, name), name in tags) for name in _field_names(kind)}
        return {_TAG: kind.__name__, **plain} if tagged or _is_tagged(kind) else plain
    if isinstance(value, tuple | list):
        return [_plain(item, tagged) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, int | str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, np.ndarray):
        code = "f4" if value.dtype == np.float32 else {"f": "f8", "i": "i8"}[value.dtype.kind]
        content = np.ascontiguousarray(value, dtype=_DTYPES[code]).tobytes()
        return {"shape": list(value.shape), code: base64.b64encode(content).decode()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, tagged) for key, item in value.items()}
    raise TypeError(f"{kind.__name__}: cannot be sent")


def read(plain: Any, kind: Any, where: str, finite: bool) -> Any:
    """Convert parsed JSON to a value of type `kind`; errors name it by `where`."""
    origin, arguments = _parts(kind)
    if origin in (Union, types.UnionType):
        return _read_union(plain, arguments, where, finite)
    if kind is np.ndarray or origin is np.ndarray:
        return _read_array(plain, where, finite)
    if isinstance(kind, type) and is_record(kind):
        return _read_record(plain, kind, where, finite)
    if origin is tuple:
        items = _expect(plain, list, where)
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * len(items)
        if len(items) != len(arguments):
            raise ValueError(f"{where}: has {len(items)} items, needs {len(arguments)}")
        return tuple(
            read(x, a, f"{where}[{i}]", finite)
            for i, (x, a) in enumerate(zip(items, arguments, strict=True))
        )
    if origin in (dict, Mapping):
        named = _expect(plain, dict, where)
        # A key is content: errors name an entry by its position.
        return {
            key: read(item, arguments[1], f"{where}[{i}]", finite)
            for i, (key, item) in enumerate(named.items())
        }
    return _read_scalar(plain, kind, where, finite)


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@cache
def _tagged_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a record whose type is open, or has a union of several records in it."""
    return frozenset(
        name for name, hint in hints(kind).items() if hint is Any or _has_record_union(hint)
    )


def _is_tagged(kind: Any) -> bool:
    """Return whether records of this class always carry its name."""
    return hasattr(kind, "is_tagged")


def _has_record_union(kind: Any) -> bool:
    origin, arguments = _parts(kind)
    if origin in (Union, types.UnionType) and sum(map(is_record, arguments)) > 1:
        return True
    return origin is not None and any(map(_has_record_union, arguments))


def _read_union(plain: Any, choices: tuple[Any, ...], where: str, finite: bool) -> Any:
    """Read an optional value, one of several tagged records, or one of several scalars."""
    if plain is None and type(None) in choices:
        return None
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) == 1:
        return read(plain, rest[0], where, finite)
    if isinstance(plain, dict):
        for choice in rest:
            if is_record(choice) and plain.get(_TAG) == choice.__name__:
                return _read_record(plain, choice, where, finite, tagged=True)
    for choice in rest:
        if choice in (bool, int, float, str) and type(plain) is choice:
            return read(plain, choice, where, finite)
    raise ValueError(f"{where}: is none of the types allowed here")


def _read_record(plain: Any, kind: type, where: str, finite: bool, tagged: bool = False) -> Any:
    named, known = _expect(plain, dict, where), hints(kind)
    if tagged or _is_tagged(kind):
        if named.get(_TAG) != kind.__name__:
            raise ValueError(f"{where}: is of another type")
        named = {name: value for name, value in named.items() if name != _TAG}
    if set(named) != set(known):
        raise ValueError(f"{where}: has the fields {_listed(named)}, needs {_listed(known)}")
    fields = {}
    for field, hint in known.items():
        place = f"{where}.{field}"
        if hint is Any:
            choices = tuple(kind.records())  # type: ignore[attr-defined]
            fields[field] = _read_union(named[field], choices, place, finite)
        else:
            fields[field] = read(named[field], hint, place, finite)
    return kind(**fields)


def _read_array(plain: Any, where: str, finite: bool) -> Array:
    named = _expect(plain, dict, where)
    codes = [code for code in _DTYPES if set(named) == {"shape", code}]
    if not codes:
        raise ValueError(f"{where}: is not an array of numbers")
    shape = _expect(named["shape"], list, f"{where}.shape")
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise ValueError(f"{where}: its shape is not a list of sizes")
    content, dtype = _bytes(named[codes[0]], where), _DTYPES[codes[0]]
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{where}: has not as many numbers as its shape says")
    array = np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    if finite and not np.isfinite(array).all():
        raise ValueError(f"{where}: is not made of finite numbers")
    return array


def _read_scalar(plain: Any, kind: Any, where: str, finite: bool) -> Any:
    if kind is float:
        value: Any = _SPECIAL.get(plain, plain) if isinstance(plain, str) else plain
        if type(value) not in (float, int):
            raise ValueError(f"{where}: is not a number")
        if finite and not abs(value) < 1e308:
            raise ValueError(f"{where}: is not a finite number")
        return float(value)
    if kind is bytes:
        return _bytes(plain, where)
    if kind in (bool, int, str, type(None)):
        value = _expect(plain, kind, where)
        if kind is int and not -(2**63) <= value < 2**63:
            raise ValueError(f"{where}: is too large a number")
        if kind is str and not _is_unicode(value):
            raise ValueError(f"{where}: is not text")
        return value
    raise TypeError(f"{where}: {kind} cannot be received")


def _expect(plain: Any, kind: Any, where: str) -> Any:
    if type(plain) is not kind:
        raise ValueError(f"{where}: is a {type(plain).__name__}, needs a {kind.__name__}")
    return plain


def _bytes(plain: Any, where: str) -> bytes:
    try:
        return base64.b64decode(_expect(plain, str, where).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError(f"{where}: is not base64") from None


@cache
def is_record(kind: Any) -> bool:
    """Return whether `kind` is a NamedTuple or a dataclass."""
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


@cache
def hints(kind: type) -> dict[str, Any]:
    """Return the types of a record's fields."""
    found = get_type_hints(kind)
    return {name: found[name] for name in _field_names(kind)}


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """Return the fields of a record, in order."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields)


def _listed(names: Any) -> str:
    shown = ", ".join(repr(name[:40]) for name in sorted(names)[:20])
    return shown or "none"


def _is_unicode(value: str) -> bool:
    """Return whether text can be encoded: JSON may hold half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if not all(map(_is_unicode, named)):
        raise ValueError("the name of a field is not text")
    if len(named) < len(pairs):
        raise ValueError("a field occurs twice")
    return named


def _no_constant(_: str) -> Any:
    raise ValueError("NaN and infinities are not JSON")


# ── single values of parsed JSON ─────────────────────────────────────────────────────────────────


def number(value: Any) -> float:
    """Return a finite number; raise TypeError for anything else, booleans included."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{short(value)} is no number")
    return float(value)


def whole(value: Any) -> int:
    """Return an integer that a double represents exactly; raise TypeError for anything else."""
    if type(value) is not int or abs(value) >= 2**53:
        raise TypeError(f"{short(value)} is no whole number")
    return value


def text(value: Any) -> str:
    """Return a string; raise TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is no text")
    return value


def short(value: Any) -> str:
    """Return the first characters of a value's repr, for error messages."""
    return repr(value)[:40]
