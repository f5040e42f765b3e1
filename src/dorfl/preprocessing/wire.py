"""What passes between clients and server as plain JSON, and what each side refuses.

Whatever arrives is untrusted: types, sizes, order and least counts are checked before anything is
used, and a message that fails is refused whole with a reason that names the column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from dorfl.preprocessing.sketch import BLOCKS, Sketch
from dorfl.preprocessing.summaries import Column, Deviation, Plan

_MOST_COLUMNS = 100_000
_MOST_PARTS = 50  # floats of an exact sum: two for ordinary columns, never more than some forty
_LONGEST_NAME = 1000

T = TypeVar("T")


def write(told: Mapping[str, Column] | Mapping[str, Deviation]) -> dict[str, Any]:
    """A client's message.

    >>> write({"age": Deviation(5, (2.5,))})
    {'age': {'rows': 5, 'squares': [2.5], 'distances': {'rows': 0, 'means': []}}}
    """
    return {name: _plain(entry) for name, entry in told.items()}


def read_summary(message: Any, plan: Plan) -> dict[str, Column]:
    """A client's first message, checked."""
    return _read(message, lambda entry: _column(entry, plan))


def read_deviations(message: Any, plan: Plan) -> dict[str, Deviation]:
    """A client's second message, checked."""
    return _read(message, lambda entry: _deviation(entry, plan))


def write_plan(plan: Plan) -> dict[str, Any]:
    """The server's first message."""
    return {**asdict(plan), "kinds": dict(plan.kinds)}


def read_plan(message: Any) -> Plan:
    """The server's first message, checked.

    >>> read_plan(write_plan(Plan(kinds={"zip": "category"}))).kinds
    {'zip': 'category'}
    """
    fields = {"scaling": str, "kinds": dict, "least": int, "most_levels": int, "flags": bool}
    if not isinstance(message, dict) or message.keys() != fields.keys():
        raise ValueError("preprocessing: the plan is damaged")
    if any(type(message[name]) is not kind for name, kind in fields.items()):
        raise ValueError("preprocessing: the plan is damaged")
    if not all(isinstance(text, str) for pair in message["kinds"].items() for text in pair):
        raise ValueError("preprocessing: the plan is damaged")
    return Plan(**message)


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(field) for name, field in value._asdict().items()}
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _read(message: Any, check: Callable[[Any], T]) -> dict[str, T]:
    if not isinstance(message, dict) or len(message) > _MOST_COLUMNS:
        raise ValueError("preprocessing: the message is not a table of columns")
    out: dict[str, T] = {}
    for name, entry in message.items():
        if not isinstance(name, str) or len(name) > _LONGEST_NAME:
            raise ValueError("preprocessing: a column's name is no text of ordinary length")
        try:
            out[name] = check(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise ValueError(f"preprocessing: column {name!r}: {problem}") from None
    return out


def _column(entry: Any, plan: Plan) -> Column:
    _keys(entry, Column._fields)
    _need(entry["kind"] in ("numeric", "category", "empty", "other"), "its kind is unknown")
    _need(isinstance(entry["numbering"], bool), "its numbering is no yes or no")
    levels = entry["levels"]
    _need(isinstance(levels, dict) and len(levels) <= 1000, "its levels are damaged")
    for level, rows in levels.items():
        _need(isinstance(level, str) and len(level) <= _LONGEST_NAME, "a level is no text")
        _need(_count(rows) >= plan.least, f"a level has fewer than {plan.least} rows")
    _need(sum(levels.values()) <= _count(entry["rows"]), "its levels have more rows than it has")
    told = Column(
        entry["kind"],
        entry["rows"],
        _count(entry["missing"]),
        _floats(entry["total"], _MOST_PARTS),
        _sketch(entry["values"], plan),
        dict(levels),
        entry["numbering"],
    )
    if told.kind == "numeric":
        robust = plan.scaling != "standard"
        _need(told.rows >= plan.least, f"it tells of fewer than {plan.least} rows")
        _need(told.values.rows == (told.rows if robust else 0), "its sketch has other rows")
    return told


def _deviation(entry: Any, plan: Plan) -> Deviation:
    _keys(entry, Deviation._fields)
    squares = _floats(entry["squares"], _MOST_PARTS)
    _need(math.fsum(squares) >= 0.0, "its squares have a negative sum")
    distances = _sketch(entry["distances"], plan)
    _need(not distances.rows or distances.means[0] >= 0.0, "a distance is negative")
    return Deviation(_count(entry["rows"]), squares, distances)


def _sketch(entry: Any, plan: Plan) -> Sketch:
    _keys(entry, Sketch._fields)
    rows, means = _count(entry["rows"]), _floats(entry["means"], BLOCKS)
    _need(list(means) == sorted(means), "its sketch is not in order")
    expected = min(BLOCKS, rows // plan.least) if rows >= plan.least else 0
    _need(len(means) == expected, "its sketch has blocks of the wrong size")
    return Sketch(rows, means)


def _keys(entry: Any, fields: tuple[str, ...]) -> None:
    _need(isinstance(entry, dict) and entry.keys() == set(fields), "its fields are not the agreed")


def _floats(values: Any, most: int) -> tuple[float, ...]:
    _need(isinstance(values, list) and len(values) <= most, "it has too many numbers")
    _need(
        all(type(v) in (int, float) and math.isfinite(v) for v in values), "a number is no number"
    )
    return tuple(float(v) for v in values)


def _count(value: Any) -> int:
    _need(type(value) is int and 0 <= value < 2**53, "a count is no count")
    return int(value)


def _need(fine: bool, otherwise: str) -> None:
    if not fine:
        raise ValueError(otherwise)
