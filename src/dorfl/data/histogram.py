"""Sketches that are added up without being shown: counts on a grid that is the same for all.

Sketches of several clients can only be read together by whoever sees each of them. Their blocks,
counted on one grid, add up: what a sum of counts tells is the sketch of all rows. So a client that
is in a sum tells, whoever the others are, no more than its sketch would.

The grid is of distances t from a middle, in some unit: 2^(k/8) for k = −256 … 128, and what is
nearer than 2^−32 counts as nothing. With the count of a bin goes the sum of its values over the
bin's lower edge, so the mean of what is in a bin is known, and a value that many rows have is met.

>>> rows = np.random.default_rng(0).lognormal(size=900)
>>> parts = [sketch.of(rows[:300], least=5), sketch.of(rows[300:], least=5)]
>>> together = read(sum(count(part) for part in parts))
>>> [round(sketch.quantile(told, 0.8), 2) for told in (parts, [together])]
[2.24, 2.24]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dorfl.data import sketch
from dorfl.data.sketch import BLOCKS, Sketch
from dorfl.support.types import Array

_EDGES = 2.0 ** (np.arange(-256, 129) / 8.0)
_BINS = len(_EDGES) - 1
ONE_SIDED, TWO_SIDED = 1 + 2 * _BINS, 1 + 4 * _BINS  # numbers of a histogram
NEAR = 0.05  # of the spread: a median no further from the middle of the grid is known well


class Median(NamedTuple):
    """What a histogram around some middle says: where the median is, and all values."""

    value: float
    values: Sketch
    found: bool  # or whether to count anew, around this value


def count(told: Sketch, unit: float = 1.0) -> Array:
    """The histogram of distances: how many are nil, by bin, and Σ t/edge by bin."""
    t, sizes = np.asarray(told.means, dtype=np.float64) / unit, told.sizes
    return np.asarray(_count(t[None], sizes)[0])


def table(away: Array, rows: int) -> Array:
    """The histograms of the block means in every column, one after the other."""
    return _count(np.asarray(away.T), sketch.sizes_of(rows, len(away))).ravel()


def around(told: Sketch, middle: float, unit: float) -> Array:
    """The histogram of values on both sides of a middle: above and at it, then below."""
    t, sizes = (np.asarray(told.means, dtype=np.float64) - middle) / unit, told.sizes
    above = _count(np.maximum(t, 0.0)[None], np.where(t >= 0.0, sizes, 0))[0]
    below = _count(np.maximum(-t, 0.0)[None], np.where(t < 0.0, sizes, 0))[0]
    return np.concatenate([above, below[1:]])


def read(total: Array, unit: float = 1.0) -> Sketch:
    """The sketch of all rows, from the sum of :func:`count`."""
    low, high, counts = _bins(total[0], total[1 : 1 + _BINS], total[1 + _BINS :])
    return _sketch(unit * low, unit * high, counts)


def median(total: Array, middle: float, unit: float) -> Median:
    """The median and the sketch of all rows, from the sum of :func:`around`.

    >>> ages = sketch.of(np.r_[np.arange(1000.0, 1100.0), 1e9], least=1)
    >>> at = 0.0
    >>> for _ in range(3):
    ...     at = median(around(ages, at, unit=1e7), at, unit=1e7).value
    >>> round(at)
    1050
    """
    above, below = total[: 1 + 2 * _BINS], total[1 + 2 * _BINS :]
    up = _bins(above[0], above[1 : 1 + _BINS], above[1 + _BINS :])
    down = _bins(0.0, below[:_BINS], below[_BINS:])
    low = middle + unit * np.r_[-down[1][:0:-1], up[0]]
    high = middle + unit * np.r_[-down[0][:0:-1], up[1]]
    values = _sketch(low, high, np.r_[down[2][:0:-1], up[2]])
    if not values.rows:
        return Median(middle, values, True)
    quarter, value, last = (sketch.quantile([values], share) for share in (0.25, 0.5, 0.75))
    value = float(f"{value:.9g}")  # a value that most rows have is seldom longer than that
    return Median(value, values, abs(value - middle) <= NEAR * (last - quarter))


def _count(t: Array, sizes: Array) -> Array:
    """(columns, 1 + 2 bins) for t of (columns, blocks)."""
    t = np.minimum(t, _EDGES[-1])
    place = np.minimum(np.searchsorted(_EDGES, t, side="right"), _BINS)
    out = np.zeros((len(t), 1 + 2 * _BINS))
    column = np.broadcast_to(np.arange(len(t))[:, None], t.shape)
    np.add.at(out, (column, place), np.broadcast_to(sizes, t.shape))
    inside = place > 0
    share = t[inside] / _EDGES[place[inside] - 1] * np.broadcast_to(sizes, t.shape)[inside]
    np.add.at(out, (column[inside], place[inside] + _BINS), share)
    return out


def _bins(nil: float, counts: Array, shares: Array) -> tuple[Array, Array, Array]:
    """Between which values the rows of each bin are: about their mean, as far as the bin goes."""
    counts, low = np.rint(np.maximum(counts, 0.0)), _EDGES[:-1]
    mean = low * np.divide(shares, counts, out=np.ones(_BINS), where=counts > 0)
    mean = np.clip(mean, low, _EDGES[1:])
    reach = np.minimum(mean - low, _EDGES[1:] - mean)
    reach[reach <= 1e-9 * mean] = 0.0  # rounding
    return np.r_[0.0, mean - reach], np.r_[0.0, mean + reach], np.r_[np.rint(nil), counts]


def _sketch(low: Array, high: Array, counts: Array) -> Sketch:
    rows = int(counts.sum())
    blocks = min(BLOCKS, rows)
    if not blocks:
        return Sketch(0, ())
    sizes = sketch.sizes_of(rows, blocks)
    ranks, ends = np.cumsum(sizes) - 0.5 * sizes, np.cumsum(counts)
    at = np.searchsorted(ends, ranks, side="left")
    within = (ranks - (ends[at] - counts[at])) / counts[at]
    return Sketch(rows, tuple((low[at] + within * (high[at] - low[at])).tolist()))
