"""Formatting of numbers, and of text from other machines for a terminal, a log or a page."""

from __future__ import annotations

from typing import Any


def one_line(text: str, most: int = 500) -> str:
    r"""Return at most `most` characters without control characters or line ends.

    These could forge log lines or move a terminal's cursor.

    >>> one_line("no\r\nround 1  gap 0\x1b[2J")
    'no round 1 gap 0 [2J'
    """
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * most])
    return " ".join(printable.split())[:most]


def one_line_each(value: Any) -> Any:
    """Apply :func:`one_line` to every string in nested lists and dictionaries, keys included."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(str(k)): one_line_each(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [one_line_each(v) for v in value]
    return value


def percent(share: float, digits: int = 1) -> str:
    """Format a share as a percentage.

    >>> percent(0.75), percent(0.75, 0)
    ('75.0 %', '75 %')
    """
    return f"{100.0 * share:.{digits}f} %"


def counted_rows(number: int) -> str:
    """Format a number of rows.

    >>> counted_rows(1), counted_rows(1050)
    ('1 row', '1,050 rows')
    """
    return f"{number:,} row{'s' * (number != 1)}"


def scored(value: float, classifies: bool) -> str:
    """Format a score: an accuracy in per cent, or an error in the unit of the label.

    >>> scored(0.75, classifies=True), scored(0.75, classifies=False)
    ('75.0 %', '0.75')
    >>> scored(12345.6, classifies=False)
    '12,346'
    """
    if classifies:
        return percent(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
