"""Exact sums, which do not depend on how rows are divided among clients.

A sum in floating point depends on its order. A client therefore reports its exact sum as a few
floats that add up to it, and the server rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dorfl.support.types import Array


def exact(values: Array) -> tuple[float, ...]:
    """Return floats, mostly two, whose exact sum is that of the values.

    >>> import numpy as np
    >>> exact(np.array([1e16, 1.0, 1.0, 1.0]))
    (1.0000000000000004e+16, -1.0)
    """
    numbers, parts = values.tolist(), []
    while rest := math.fsum(numbers):
        parts.append(rest)
        numbers.append(-rest)
    return tuple(parts)


def combine(sums: Iterable[tuple[float, ...]]) -> float:
    """Return the sum of all clients' values, rounded once.

    >>> import numpy as np
    >>> combine([exact(np.array([1e16, 1.0])), exact(np.array([1.0, -1e16]))])
    2.0
    """
    return math.fsum(part for parts in sums for part in parts)
