"""Numbers and dates in cells of text.

The format is the same everywhere: a comma groups thousands, a point starts decimals, and a date is
2024-02-01 or 01.02.2024. Ambiguous cells (1,5 or 02/03/2024) are neither numbers nor dates;
:mod:`dorfl.data.tables` swaps the signs of a file with decimal commas before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Marks of a missing number; a level, a class or a client may have such a name.
MARKS = ("", "?", "NA", "N/A", "#N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none",
         "-", ".")  # fmt: skip
PLAIN = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
_SIGN = "[$€£¥]"
_BLANK = "[\\s\u00a0\u202f]"  # also no-break and narrow no-break spaces
_GROUPED = rf"\d{{1,3}}([,'’]\d{{3}})+(\.\d*)?|\d{{1,3}}({_BLANK}\d{{3}})+(\.\d*)?"
_AMOUNT = rf"{_SIGN}?{_BLANK}*({PLAIN}|{_GROUPED}){_BLANK}*({_SIGN}|%)?"
_NUMBER = rf"^([-+−]?{_AMOUNT}|\({_AMOUNT}\)|[-+]?(inf|Inf))$"
_TIME = r"([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?"
_ZONE = r"(Z|[-+]\d{2}:?\d{2})?"
_DATE = rf"^(\d{{4}}-\d{{2}}-\d{{2}}|\d{{1,2}}\.\d{{1,2}}\.\d{{4}}){_TIME}{_ZONE}$"


def is_text(column: Any) -> bool:
    """Return whether a column is stored as text or as categories of text."""
    stored = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(stored) for test in tests)


def numbers(column: Any) -> Any | None:
    """Return a column of text as float64, null if missing; None if a cell is no number.

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
    """Return a column of text as timestamps, null if missing; None if a cell is no date.

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
    """Convert a column of text to numbers or dates if all cells are; return it with a remark.

    Text of plain numbers stays text: it is quoted in the file because it is a code.

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
        return dates(column), ""  # reports mention dates in any case
    turned = values if decimal == "." else swap_signs(values)
    if not _all(_present(turned), rf"^({PLAIN})$"):
        found = numbers(turned)
        if found is not None and found.null_count < len(found):
            whole = column if decimal == "." else swap_signs(column)
            return numbers(whole), "is text read as numbers"
    return column, ""


def swap_signs(column: Any) -> Any:
    """Swap commas and points in text."""
    text = _plain(column)
    for old, new in ((",", "\0"), (".", ","), ("\0", ".")):
        text = pc.replace_substring(text, old, new)
    return text


def without(column: Any, missing: Sequence[str]) -> Any:
    """Return a column with nulls for empty cells and for those in `missing`.

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


def count_non_numeric(column: Any) -> int:
    """Return how many cells of text are no numbers."""
    return int(pc.sum(pc.invert(_matches(_present(column), _NUMBER))).as_py() or 0)


def look(column: Any) -> str:
    """Describe the shape of cells that are no numbers, without showing one.

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
    """Return the distinct values of a dictionary column, which are fewer than its rows."""
    if not pa.types.is_dictionary(column.type):
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([c.dictionary for c in chunks], column.type.value_type)


def _plain(column: Any) -> Any:
    return column.cast(pa.string()) if column.type != pa.string() else column


def _present(column: Any) -> Any:
    """Return text without outer blanks, null for marks of a missing number."""
    text = pc.utf8_trim_whitespace(_plain(column))
    there = pc.is_in(text, pa.array(list(MARKS), pa.string()))
    return pc.if_else(there, pa.scalar(None, pa.string()), text)


def _matches(text: Any, pattern: str) -> Any:
    return pc.match_substring_regex(text, pattern)


def _all(text: Any, pattern: str) -> bool:
    """Return whether all cells match; the first thousand rows are tested first."""
    first = text.slice(0, 1000)
    return all(pc.all(_matches(part, pattern)).as_py() is not False for part in (first, text))
