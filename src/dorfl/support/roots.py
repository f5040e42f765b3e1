"""Where a function of one number crosses zero, by Brent's method."""

from __future__ import annotations

from collections.abc import Callable


def brentq(function: Callable[[float], float], low: float, high: float, **how: float) -> float:
    """The root between `low` and `high`, where the function has opposite signs.

    >>> round(brentq(lambda x: x * x - 2.0, 0.0, 2.0), 6)
    1.414214
    """
    # Few trainings need a root, and SciPy's optimisers take a fifth of a second to import.
    from scipy import optimize  # noqa: PLC0415

    return float(optimize.brentq(function, low, high, **how))
