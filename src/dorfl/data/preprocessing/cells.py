"""Cells of text that stand for numbers and dates, as people write them.

A cell means the same wherever it stands: a comma groups thousands, a point starts decimals, and a
date has its year first or its day first before points. What could be meant in two ways (1,5 or
02/03/2024) is no number and no date; :mod:`dorfl.data.tables` turns a file's decimal commas round
before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# What stands for a missing number; a level, a class or a client may well be called so.
MARKS = ("", "?", "NA", "N/A", "#N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none",
         "-", ".")  # fmt: skip
PLAIN = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
_SIGN = "[$€£¥]"
_BLANK = "[\\s\u00a0\u202f]"  # narrow and hard ones too
_GROUPED = rf"\d{{1,3}}([,'’]\d{{3}})+(\.\d*)?|\d{{1,3}}({_BLANK}\d{{3}})+(\.\d*)?"
_AMOUNT = rf"{_SIGN}?{_BLANK}*({PLAIN}|{_GROUPED}){_BLANK}*({_SIGN}|%)?"
_NUMBER = rf"^([-+−]?{_AMOUNT}|\({_AMOUNT}\)|[-+]?(inf|Inf))$"
_TIME = r"([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?"
_ZONE = r"(Z|[-+]\d{2}:?\d{2})?"
_DATE = rf"^(\d{{4}}-\d{{2}}-\d{{2}}|\d{{1,2}}\.\d{{1,2}}\.\d{{4}}){_TIME}{_ZONE}$"


def is_text(column: Any) -> bool:
    """Whether a column is stored as text, or as levels that are."""
    stored = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(stored) for test in tests)


def numbers(column: Any) -> Any | None:
    """A column of text as float64, null for a missing one; None if a cell is no number.

    >>> numbers(pa.array(["$1,234.50", "12 %", " -3", "NA", None])).to_pylist()
    [1234.5, 12.0, -3.0, None, None]
    >>> numbers(pa.array(["1 234.5", "−2", "($90)"])).to_pylist()
    [1234.5, -2.0, -90.0]
    >>> numbers(pa.array(["7", "seven"])) is None
    True
    """
    text = _present(column)
    if not _all(text, _NUMBER):
        return None
    bare = pc.replace_substring_regex(text, rf"^\+|[,'’%)]|{_BLANK}|{_SIGN}", "")
    return pc.replace_substring_regex(bare, "^[(−]", "-").cast(pa.float64())


def dates(column: Any) -> Any | None:
    """A column of text as points in time, null for a missing one; None if a cell is no date.

    >>> numbers(pa.array(["01.02.2024"])), str(dates(pa.array(["01.02.2024"]))[0])
    (None, '2024-02-01 00:00:00')
    """
    text = _present(column)
    if not _all(text, _DATE):
        return None
    text = pc.replace_substring_regex(text, r"^(\d)\.", r"0\1.")
    text = pc.replace_substring_regex(text, r"^(\d\d)\.(\d)\.", r"\1.0\2.")
    text = pc.replace_substring_regex(text, r"^(\d\d)\.(\d\d)\.(\d{4})", r"\3-\2-\1")
    text = pc.replace_substring_regex(text, r"(:\d\d(\.\d+)?)(Z|[-+]\d{2}:?\d{2})$", r"\1")
    try:
        return text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # the thirty-first of February
        return None


def read(column: Any, decimal: str = ".") -> tuple[Any, str]:
    """A column as what its text says, and a remark where that is not how it is stored.

    Text of plain numbers stays text: whoever stored it so knew that it counts nothing.

    >>> read(pa.array(["$1,200", "$90"]))[1]
    'is text read as numbers'
    >>> read(pa.array(["01234", "56789"]))[1]
    ''
    """
    if not is_text(column):
        return column, ""
    values = _values(column)
    found = dates(values)
    if found is not None and found.null_count < len(found):
        return dates(column), ""  # dates are told of anyhow
    turned = values if decimal == "." else turn_round(values)
    if not _all(_present(turned), rf"^({PLAIN})$"):
        found = numbers(turned)
        if found is not None and found.null_count < len(found):
            whole = column if decimal == "." else turn_round(column)
            return numbers(whole), "is text read as numbers"
    return column, ""


def turn_round(column: Any) -> Any:
    """Text with commas for points and points for commas."""
    text = _plain(column)
    for old, new in ((",", "\0"), (".", ","), ("\0", ".")):
        text = pc.replace_substring(text, old, new)
    return text


def without(column: Any, missing: Sequence[str]) -> Any:
    """A column with nulls where a cell is empty, or one of those that mean a missing value.

    >>> without(pa.array([1.0, -999.0]), ["-999", "refused"]).to_pylist()
    [1.0, None]
    """
    if is_text(column):
        named = _texts(["", *missing])
        if not pc.any(pc.is_in(pc.utf8_trim_whitespace(_plain(_values(column))), named)).as_py():
            return column
        text = _plain(column)
        there = pc.is_in(pc.utf8_trim_whitespace(text), named)
        return pc.if_else(there, pa.scalar(None, pa.string()), text)
    marks = [float(mark) for mark in missing if re.fullmatch(PLAIN, mark)]
    if not marks or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return column
    there = pc.is_in(column.cast(pa.float64(), safe=False), pa.array(marks))
    return pc.if_else(there, pa.scalar(None, column.type), column)


def _texts(values: Sequence[str]) -> Any:
    """Return text as an Arrow array; `pa.array` would import pandas, for most of a second."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    text = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), text)


def strangers(column: Any) -> int:
    """How many cells of text are no numbers."""
    return int(pc.sum(pc.invert(_matches(_present(column), _NUMBER))).as_py() or 0)


def look(column: Any) -> str:
    """How the cells of a column look that are no numbers, without showing one.

    >>> look(pa.array(["12", "about 70", "05/11/2024"]))
    "'aaaaa 99' or '99/99/9999'"
    """
    text = _present(column)
    strange = text.filter(pc.fill_null(pc.invert(_matches(text, _NUMBER)), False))
    shapes = [re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", cell)) for cell in _first(strange)]
    return " or ".join(repr(shape[:24]) for shape in list(dict.fromkeys(shapes))[:2])


def _first(column: Any, count: int = 100) -> list[str]:
    return [str(cell) for cell in column.slice(0, count).to_pylist() if cell is not None]


def _values(column: Any) -> Any:
    """The levels of a column that is stored as such, which are fewer than its rows."""
    if not pa.types.is_dictionary(column.type):
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([c.dictionary for c in chunks], column.type.value_type)


def _plain(column: Any) -> Any:
    return column.cast(pa.string()) if column.type != pa.string() else column


def _present(column: Any) -> Any:
    """Text without outer blanks, null where a number would be missing."""
    text = pc.utf8_trim_whitespace(_plain(column))
    there = pc.is_in(text, pa.array(list(MARKS), pa.string()))
    return pc.if_else(there, pa.scalar(None, pa.string()), text)


def _matches(text: Any, pattern: str) -> Any:
    return pc.match_substring_regex(text, pattern)


def _all(text: Any, pattern: str) -> bool:
    """Whether every cell that is there is written so; most columns show at once that it is not."""
    first = text.slice(0, 1000)
    return all(pc.all(_matches(part, pattern)).as_py() is not False for part in (first, text))
