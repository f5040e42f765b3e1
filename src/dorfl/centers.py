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

    kept: int
    mean: Array


def summarise(rows: Array, share: float = 0.99) -> Summary:
    """The mean of the rows within the range that `share` of normal rows would keep to.

    Distances are measured from the medians in units of the median absolute deviation, which a
    minority of wild rows cannot move. A column that hardly varies gets the unit of its mean
    deviation instead, so that rare categories do not count as wild.
    """
    median = np.median(rows, axis=0)
    offset = np.abs(np.asarray(rows, dtype=np.float64) - median)
    unit = 1.4826 * np.median(offset, axis=0)
    flat = unit <= 0
    if flat.any():
        unit[flat] = offset[:, flat].mean(axis=0)
        unit[unit <= 0] = 1.0
    dims = rows.shape[1]
    far = np.sqrt(np.mean((offset / unit) ** 2, axis=1))
    # Scaled so that the middle row of a clean sample sits where it should: columns that are not
    # normal (categories, heavy tails) must not make half the table look wild.
    middle = np.median(far) / _radius(0.5, dims)
    keep = far <= max(middle, 1.0) * _radius(share, dims)
    return Summary(int(keep.sum()), np.asarray(rows[keep].mean(axis=0, dtype=np.float64)))


def combine(summaries: Sequence[Summary]) -> Array:
    """The clients' centres averaged, each by the rows it kept."""
    kept = np.array([s.kept for s in summaries], dtype=float)
    return np.asarray(np.average([s.mean for s in summaries], axis=0, weights=kept))


def _radius(share: float, dims: int) -> float:
    """The root-mean-square coordinate that `share` of normal rows stay below (χ² quantile)."""
    return float(np.sqrt(2.0 * gammaincinv(dims / 2.0, share) / dims))
