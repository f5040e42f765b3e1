"""Words that came from elsewhere, made fit for a terminal, a log line or a page."""

from __future__ import annotations

from typing import Any


def one_line(text: str, most: int = 500) -> str:
    r"""Without line ends and control characters, which could forge lines or move a cursor.

    >>> one_line("no\r\nround 1  gap 0\x1b[2J")
    'no round 1 gap 0 [2J'
    """
    seen = "".join(c if c.isprintable() else " " for c in text[: 4 * most])
    return " ".join(seen.split())[:most]


def percent(share: float, digits: int = 1) -> str:
    """A share as people write it.

    >>> percent(0.75), percent(0.75, 0)
    ('75.0 %', '75 %')
    """
    return f"{100.0 * share:.{digits}f} %"


def scored(value: float, classifies: bool) -> str:
    """How well a model does: an accuracy in per cent, an error in the unit of the label.

    >>> scored(0.75, classifies=True), scored(0.75, classifies=False)
    ('75.0 %', '0.75')
    >>> scored(12345.6, classifies=False)
    '12,346'
    """
    if classifies:
        return percent(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def one_line_each(value: Any) -> Any:
    """The same for every text in lists and dictionaries, keys too."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(str(k)): one_line_each(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [one_line_each(v) for v in value]
    return value
