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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv

from dorfl.types import Array


class Summary(NamedTuple):
    """What a client tells of where its rows are: how many it kept, and their mean."""

    kept: float
    mean: Array


def summarise(rows: Array, share: float = 0.999) -> Summary:
    """The mean of the rows within the range that `share` of normal rows would keep to.

    Distances are measured from the medians in units of the median absolute deviation, which a
    minority of wild rows cannot move. A column that mostly has one value (a category, a rare
    amount) has none: there a row is wild when it is several times as far off as others that differ.
    """
    offset = np.abs(np.asarray(rows, dtype=np.float64) - np.median(rows, axis=0))
    unit = 1.4826 * np.median(offset, axis=0)
    telling = unit > 0
    wild = np.zeros(len(rows), dtype=bool)
    for column in offset[:, ~telling].T:
        differs = column > 0
        if differs.any():
            wild |= column > 6.0 * np.median(column[differs])
    dims = int(telling.sum())
    if dims:
        far = np.sqrt(np.mean((offset[:, telling] / unit[telling]) ** 2, axis=1))
        # Scaled so that the middle row of a clean sample sits where it should: heavy tails must not
        # make half the table look wild.
        middle = np.median(far) / _radius(0.5, dims)
        wild |= far > max(middle, 1.0) * _radius(share, dims)
    if 2 * wild.sum() > len(rows):  # no such thing as a wild majority
        return Summary(len(rows), np.asarray(np.median(rows, axis=0), dtype=np.float64))
    return Summary(int((~wild).sum()), np.asarray(rows[~wild].mean(axis=0, dtype=np.float64)))


def combine(summaries: Sequence[Summary]) -> Array:
    """The clients' centres averaged, each by the rows it kept."""
    kept = np.array([s.kept for s in summaries], dtype=float)
    return np.asarray(np.average([s.mean for s in summaries], axis=0, weights=kept))


def _radius(share: float, dims: int) -> float:
    """The root-mean-square coordinate that `share` of normal rows stay below (χ² quantile)."""
    return float(np.sqrt(2.0 * gammaincinv(dims / 2.0, share) / dims))
