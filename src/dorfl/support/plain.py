"""Values of plain JSON, checked one by one: a file or a message may come from anywhere."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> float:
    """A finite number, and nothing that merely looks like one."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{short(value)} is no number")
    return float(value)


def whole(value: Any) -> int:
    """A whole number."""
    if type(value) is not int or abs(value) >= 2**53:
        raise TypeError(f"{short(value)} is no whole number")
    return value


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is no text")
    return value


def short(value: Any) -> str:
    """The value in a few characters, for an error's text."""
    return repr(value)[:40]
