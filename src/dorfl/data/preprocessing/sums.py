"""Exact sums, which do not depend on how rows are divided among clients.

A sum in floating point depends on its order. A client therefore reports its exact sum as a few
floats that add up to it, and the server rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from dorfl.support.types import Array

_ROWS = 2**26  # partial sums of so many 27-bit numbers are exact in float64


def exact(values: Array) -> tuple[float, ...]:
    """Return floats, mostly two, whose exact sum is that of the values.

    >>> exact(np.array([1e16, 1.0, 1.0, 1.0]))
    (1.0000000000000004e+16, -1.0)
    """
    if not len(values):
        return ()
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = (mantissa * 2.0**53).astype(np.int64)
    lowest = int(exponent.min())
    total = 0
    for start in range(0, len(whole), _ROWS):
        part, power = whole[start : start + _ROWS], exponent[start : start + _ROWS] - lowest
        for bits, offset in ((part >> 26, 26), (part & (2**26 - 1), 0)):
            sums = np.bincount(power, weights=bits).tolist()
            total += sum(int(s) << (k + offset) for k, s in enumerate(sums))
    rest, parts = Fraction(total) * Fraction(2) ** (lowest - 53), []
    while rest:
        parts.append(float(rest))
        rest -= Fraction(parts[-1])
    return tuple(parts)


def combine(sums: Iterable[tuple[float, ...]]) -> float:
    """Return the sum of all clients' values, rounded once.

    >>> combine([exact(np.array([1e16, 1.0])), exact(np.array([1.0, -1e16]))])
    2.0
    """
    return math.fsum(part for parts in sums for part in parts)
