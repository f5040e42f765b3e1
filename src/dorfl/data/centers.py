"""The robust centre ξ̄ of a quadratic score, found without pooling rows.

Every client sets aside its own rows that lie far out and sends the mean of the rest with their
number; the server averages. Two numbers per column and client, and no row.

>>> import numpy as np
>>> rows = np.random.default_rng(0).normal(size=(1000, 3))
>>> rows[:100] *= -8                                            # one row in ten is wrong
>>> bool(np.abs(combine([summarise(rows)])).max() < 0.3)
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv

from dorfl.support.types import Array

_BLOCK = 65_536  # rows
_TOGETHER = 5  # rows that are set aside, if any are


class Summary(NamedTuple):
    """What a client tells of where its rows are: how many it kept, and their mean."""

    kept: float
    mean: Array


def summarise(rows: Array, least: int = 1) -> Summary:
    """The mean of the rows that are not :func:`wild`; their median where most would be.

    A mean of fewer than `least` rows is not given: it would tell of them.
    """
    far, middle = wild(rows, least=max(least, _TOGETHER))
    majority = 2 * int(far.sum()) > len(rows)  # no such thing as a wild majority
    kept = len(rows) if majority else int((~far).sum())
    if kept < least:
        raise ValueError(f"centre: a mean of fewer than {least} rows would tell of them")
    if majority:
        return Summary(kept, middle)
    parts = range(0, len(rows), _BLOCK)
    total = sum(rows[p : p + _BLOCK][~far[p : p + _BLOCK]].sum(0, np.float64) for p in parts)
    return Summary(kept, np.asarray(total / kept))


def wild(rows: Array, share: float = 0.999, least: int = 1) -> tuple[Array, Array]:
    """Which rows are beyond the range that `share` of normal ones keep to, and the medians.

    None, or `least` of them: what a mean leaves of the sum over all rows is what they add up to.
    (A client with fewer than twice as many rows sets aside those alone.)

    Distances are measured from the medians in units of the median absolute deviation, which a
    minority of wild rows cannot move. A column that mostly has one value (a category, a rare
    amount) has none: there a row is wild when it is several times as far off as others that differ.
    """
    middle = np.empty(rows.shape[1])
    squares, dims, far = np.zeros(len(rows)), 0, np.zeros(len(rows))
    odd = np.zeros(len(rows), dtype=bool)
    for k, column in enumerate(_columns(rows)):
        middle[k] = np.median(column)
        offset = np.abs(column - middle[k])
        unit = 1.4826 * float(np.median(offset))
        if unit > 0:
            with np.errstate(over="ignore"):  # infinitely far is wild enough
                squares += (offset / unit) ** 2
            dims += 1
        elif (offset > 0).any():
            odd |= offset > 6.0 * np.median(offset[offset > 0])
    if dims:
        far = np.sqrt(squares / dims)
        # Scaled so that the middle row of a clean sample sits where it should: heavy tails must not
        # make half the table look wild.
        typical = float(np.median(far)) / _radius(0.5, dims)
        odd |= far > max(typical, 1.0) * _radius(share, dims)
    if 0 < int(odd.sum()) < least <= len(rows) // 2:
        odd[np.lexsort((-far, ~odd))[:least]] = True  # those next to them as well
    return odd, middle


def _columns(rows: Array) -> Iterator[Array]:
    """The columns in float64, a few turned at a time: quick, and no second table."""
    for first in range(0, rows.shape[1], 16):
        for column in np.ascontiguousarray(rows[:, first : first + 16].T):
            yield column.astype(np.float64)


def combine(summaries: Sequence[Summary]) -> Array:
    """The clients' centres averaged, each by the rows it kept."""
    kept = np.array([s.kept for s in summaries], dtype=float)
    return np.asarray(np.average([s.mean for s in summaries], axis=0, weights=kept))


def _radius(share: float, dims: int) -> float:
    """The root-mean-square coordinate that `share` of normal rows stay below (χ² quantile)."""
    return float(np.sqrt(2.0 * gammaincinv(dims / 2.0, share) / dims))
