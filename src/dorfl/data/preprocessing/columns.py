"""Columns of a table as numbers or categories, whatever type they are stored in."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dorfl.data.preprocessing import cells
from dorfl.support.types import Array

_IDENTIFIER = re.compile(
    r"(^|[ _.-])(id|uuid|guid|index|key|rowid)$|^unnamed: 0$|^$", re.IGNORECASE
)
_NUMBER = re.compile(cells.PLAIN)
_LARGEST = 1e100  # larger numbers count as missing; its square is finite
_DAY = 86_400e6  # microseconds
_MIN_NUMBERED = 20  # rows; fewer ordered integers may be a coincidence


_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_time)


class ColumnTable(Protocol):
    """Protocol of a table: names, and columns one at a time."""

    @property
    def column_names(self) -> list[str]:
        """Return the columns in the order of the file."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""

    def column(self, name: str) -> Any:
        """Return a column as an Arrow array."""


class Levels(NamedTuple):
    """Categories of a column."""

    names: list[str]  # the distinct values as text
    codes: Array  # (n,) index of each row's value; −1 if missing


def table_of(given: Any) -> ColumnTable:
    """Return a table from a data frame, a mapping, or anything else that `pyarrow.table` takes.

    >>> table_of({"age": [31, 45], "sex": ["f", None]}).column_names
    ['age', 'sex']
    """
    if hasattr(given, "column") and hasattr(given, "column_names"):
        found: ColumnTable = given
    elif hasattr(given, "iloc"):
        found = pa.Table.from_pandas(given, preserve_index=False)
    else:
        found = pa.table(given)
    return found


def kind_of(column: Any) -> str:
    """Return how a column is read by default: numeric, date, category, empty or other."""
    if column.null_count == len(column):
        return "empty"
    stored = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if any(is_kind(stored) for is_kind in _NUMERIC):
        return "numeric"
    if pa.types.is_date(stored) or pa.types.is_timestamp(stored):
        return "date"
    return "category" if cells.is_text(column) or pa.types.is_boolean(stored) else "other"


def numbers(column: Any, name: str) -> Array:
    """Return a column as float64, NaN for missing values and those beyond 1e100.

    Dates become days since 1970, times of day become hours. A cell that is no number raises a
    ValueError with the `name` of the column.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        values = _as_numpy(_floats(column))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ValueError(
            f"column {name!r} is used as numbers but holds {_describe_non_numeric(column)}; "
            "correct them, leave them empty, name them (--missing), or declare the column a "
            "category or ignored (--category, --ignore)"
        ) from None
    if not len(values) or (values.min() >= -_LARGEST and values.max() <= _LARGEST):
        return values  # NaN fails the comparison
    return np.where(np.abs(values) <= _LARGEST, values, np.nan)


def beyond(column: Any) -> int:
    """Return how many numbers are infinite or beyond 1e100, and count as missing."""
    if not (pa.types.is_float64(column.type) or pa.types.is_float32(column.type)):
        return 0
    ends = pc.min_max(column).as_py()  # comparing with a Python number would import pandas
    if max(abs(ends["min"] or 0.0), abs(ends["max"] or 0.0)) <= _LARGEST:
        return 0
    return int((np.abs(_as_numpy(column)) > _LARGEST).sum())


def _floats(column: Any) -> Any:
    """Return a column of any type as float64."""
    if cells.is_text(column):
        found = cells.numbers(column)
        column = cells.dates(column) if found is None else found
        if column is None:
            raise pa.ArrowInvalid
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        since = column.cast(pa.timestamp("us")).cast(pa.int64())
        return pc.divide(since.cast(pa.float64(), safe=False), _DAY)
    if pa.types.is_time(column.type):
        since = column.cast(pa.time64("us"), safe=False).cast(pa.int64())
        return pc.divide(since.cast(pa.float64(), safe=False), _DAY / 24)
    return column.cast(pa.float64(), safe=False)


def levels(column: Any, name: str) -> Levels:
    """Read a column as categories: stripped text, numbers in their shortest form."""
    if kind_of(column) == "other":
        raise ValueError(f"column {name!r} holds {column.type}, which is no type for categories")
    column = _one_piece(column)
    if pa.types.is_null(column.type):
        return Levels([], np.full(len(column), -1))
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    written = [_plain(value) for value in column.dictionary.to_pylist()]
    distinct = in_order({text for text in written if text is not None})
    place = {text: k for k, text in enumerate(distinct)}
    # The last entry is for the code −1 of a missing value.
    lookup = np.array([-1 if t is None else place[t] for t in written] + [-1], dtype=np.int64)
    codes = _as_numpy(column.indices)
    if column.null_count:
        codes = np.where(np.isnan(codes), -1, codes).astype(np.int64)
    return Levels(distinct, lookup[codes])


def in_order(levels: Iterable[str]) -> list[str]:
    """Sort levels: numbers by value, then text.

    >>> in_order({"10", "2", "-1", "other", "a"})
    ['-1', '2', '10', 'a', 'other']
    """
    return sorted(levels, key=_rank)


def _rank(level: str) -> tuple[bool, float, str]:
    number = _NUMBER.fullmatch(level) is not None
    return not number, float(level) if number else 0.0, level


def is_identifier(values: Array, name: str) -> bool:
    """Return whether integers number the rows: distinct, and ordered or named like an id."""
    if len(values) < _MIN_NUMBERED:
        return False
    for part in (values[:_MIN_NUMBERED], values):  # the first rows decide for most columns
        if not (np.isfinite(part).all() and (part == np.rint(part)).all()):
            return False
    steps = np.diff(values)
    if (steps > 0).all() or (steps < 0).all():
        return True
    return bool(_IDENTIFIER.search(name)) and len(np.unique(values)) == len(values)


def present(values: Array) -> Array:
    """Return the numbers that are not missing."""
    return values[~np.isnan(values)] if np.isnan(values.sum()) else values


def at_most_two(values: Array) -> bool:
    """Return whether at most two different numbers occur."""
    return all(
        bool(((part == part.min()) | (part == part.max())).all())
        for part in (values[:_MIN_NUMBERED], values)
    )


def _as_numpy(column: Any) -> Array:
    """Return a NumPy array, NaN for missing numbers."""
    column = _one_piece(column)
    if column.null_count or not len(column):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.from_dlpack(column)  # Arrow's to_numpy imports pandas, which is slow


def _one_piece(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _plain(value: Any) -> str | None:
    """Return a level as text, the same for every type that a file may store it in."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat().removesuffix("T00:00:00")
    if isinstance(value, str):
        value = value.strip()
        if value.lower() in ("true", "false"):
            return str(value.lower())
        if not _NUMBER.fullmatch(value):
            return value or None
        value = float(value)
    if value is None or not math.isfinite(value):
        return None
    return str(int(value)) if value == int(value) else repr(float(value))


def _describe_non_numeric(column: Any) -> str:
    """Describe the values that are no numbers without repeating them: errors leave the site."""
    if not cells.is_text(column):
        return str(column.type)
    return f"{cells.count_non_numeric(column)} value(s) that are not, such as {cells.look(column)}"
