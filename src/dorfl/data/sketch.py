"""Quantile sketches that reveal no single row, and histograms of them that can be summed.

A client reports the means of blocks of sorted values. A block has at least as many rows as a
statistic needs before it may be sent, so no number in a sketch is the value of one row, and the
smallest and the largest value are not in it. Common sketches (KLL, t-digest) keep single values and
the extremes, and draw random numbers or bound no error. This one is the same in every run, and a
quantile read from several sketches has a true rank within :func:`rank_error` of the wanted one.

>>> import numpy as np
>>> columns = [np.arange(0.0, 600.0), np.arange(600.0, 1001.0)]
>>> sketches = [of(column, least=5) for column in columns]
>>> round(quantile(sketches, 0.5), 1), rank_error(sketches) < 0.02
(500.0, True)

Sketches can only be combined by a server that sees each of them. For secure sums the blocks are
counted on one grid of distances t from a centre: 2^(k/8) for k = −256 … 128, where distances below
2^−32 count as zero. Each bin also has the sum of its values over the bin's lower edge, so that the
mean of a bin is known exactly, and with it a value that many rows share. The sum of histograms
reveals no more than the sketches would.

>>> rows = np.random.default_rng(0).lognormal(size=900)
>>> parts = [of(rows[:300], least=5), of(rows[300:], least=5)]
>>> total = from_histogram(sum(histogram(part) for part in parts))
>>> [round(quantile(some, 0.8), 2) for some in (parts, [total])]
[2.24, 2.24]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dorfl.support.types import Array

BLOCKS = 256  # largest number of block means per column and client
_EDGES = 2.0 ** (np.arange(-256, 129) / 8.0)
_BINS = len(_EDGES) - 1
ONE_SIDED, TWO_SIDED = 1 + 2 * _BINS, 1 + 4 * _BINS  # numbers in a histogram
_NEAR = 0.05  # interquartile ranges: a median so close to the centre of the grid is precise


class Sketch(NamedTuple):
    """Sketch of the distribution of one column."""

    rows: int  # number of values
    means: tuple[float, ...]  # means of blocks of (nearly) equal size, in increasing order

    @property
    def sizes(self) -> Array:
        """Return the number of values in each block."""
        return block_sizes(self.rows, len(self.means))


# ── sketches ─────────────────────────────────────────────────────────────────────────────────────


def of(values: Array, least: int) -> Sketch:
    """Sketch finite values in blocks of at least `least`; the sketch of fewer values is empty."""
    if len(values) < max(least, 1):
        return Sketch(0, ())
    means = _block_means(_ordered(values), min(BLOCKS, len(values) // max(least, 1)))
    return Sketch(len(values), tuple(means.tolist()))


def of_distances(values: Array, center: float, least: int) -> Sketch:
    """Return the sketch of |values − center|, with the same blocks of rows as :func:`of`.

    The blocks do not depend on the centre. Blocks of equal distance would: the sums for two centres
    would then differ by one row.

    >>> of_distances(np.array([1.0, 2.0, 3.0, 9.0]), 2.0, least=2)
    Sketch(rows=4, means=(0.5, 4.0))
    """
    if len(values) < max(least, 1):
        return Sketch(0, ())
    distances = np.abs(_ordered(values) - center)
    means = _block_means(distances, min(BLOCKS, len(values) // max(least, 1)))
    return Sketch(len(values), tuple(np.sort(means).tolist()))


def distance_table(values: Array, centers: Array, least: int) -> Array:
    """Sketch the distances of every column from its centre: (blocks, d) block means."""
    pairs = zip(values.T, centers.tolist(), strict=True)
    columns = [of_distances(column, center, least).means for column, center in pairs]
    return np.array(columns, dtype=np.float64).reshape(len(columns), -1).T


def levelled(values: Array, least: int) -> Array:
    """Return the values in order, each replaced by the mean of its block of at least `least` rows.

    >>> levelled(np.array([4.0, -1.0, 3.0, -4.0]), least=2)
    array([-2.5, -2.5,  3.5,  3.5])
    """
    ordered = np.sort(values)
    if least <= 1 or not len(ordered):
        return ordered
    blocks = max(len(ordered) // least, 1)
    return np.repeat(_block_means(ordered, blocks), block_sizes(len(ordered), blocks))


def expand(values: Array, least: int, imputed: tuple[float, int] = (0.0, 0)) -> Array:
    """Return the column that its sketch reveals: every value replaced by its block's mean.

    A statistic of the expanded column reveals nothing beyond the sketch. `imputed` is the
    imputation value and how many of the values are imputed: these stay, and the sketch is of the
    others alone.

    >>> expand(np.array([4.0, 1.0, 3.0, 9.0, 3.5]), least=2, imputed=(3.5, 1))
    array([2. , 2. , 3.5, 6.5, 6.5])
    """
    ordered, (value, count) = _ordered(values), imputed
    first, last = np.searchsorted(ordered, value), np.searchsorted(ordered, value, side="right")
    held = slice(int(first), int(min(first + count, last)))
    found = of(np.delete(ordered, held), least)
    if not found.rows:
        return np.full(len(ordered), value)
    return np.sort(np.concatenate([np.repeat(found.means, found.sizes), ordered[held]]))


def quantile(sketches: Sequence[Sketch], share: float, above: float = -np.inf) -> float:
    """Return a quantile of the values above a level of all sketches; NaN without values."""
    means = np.concatenate([np.asarray(sketch.means) for sketch in sketches])
    return block_quantile(means, np.concatenate([s.sizes for s in sketches]), share, above)


def block_quantile(means: Array, sizes: Array, share: float, above: float = -np.inf) -> float:
    """Return a quantile of blocks with these means and sizes; see :func:`quantile`."""
    means, sizes = means[means > above], sizes[means > above]
    if not len(means):
        return float("nan")
    order = np.argsort(means, kind="stable")
    means, sizes = means[order], sizes[order]
    middle = np.cumsum(sizes) - 0.5 * sizes
    return float(np.interp(share * sizes.sum(), middle, means))


def rank_error(sketches: Sequence[Sketch]) -> float:
    """Bound the error in the rank of a quantile, as a share of all values.

    A level can split one block of every client, and values between two blocks are interpolated.
    """
    largest = [int(sketch.sizes.max()) for sketch in sketches if sketch.rows]
    total = sum(sketch.rows for sketch in sketches)
    return (sum(largest) + 0.5 * max(largest)) / total if largest else 0.0


def block_sizes(count: int, blocks: int) -> Array:
    """Return how many of `count` values each block has."""
    return np.diff(_block_edges(count, blocks))


def _block_edges(count: int, blocks: int) -> Array:
    return np.arange(blocks + 1) * count // max(blocks, 1)


def _block_means(values: Array, blocks: int) -> Array:
    """Return the means of consecutive blocks; rounding makes no new value of equal ones."""
    first = _block_edges(len(values), blocks)[:-1]
    means = np.add.reduceat(values, first) / block_sizes(len(values), blocks)
    return np.clip(means, np.minimum.reduceat(values, first), np.maximum.reduceat(values, first))


def _ordered(values: Array) -> Array:
    """Sort the values, unless they are sorted, which is cheap to check."""
    values = np.asarray(values, dtype=np.float64)
    return values if (values[1:] >= values[:-1]).all() else np.sort(values)


# ── histograms of sketches, which can be summed ──────────────────────────────────────────────────


class HistogramMedian(NamedTuple):
    """Median of a summed histogram."""

    value: float  # the median
    values: Sketch  # all values
    found: bool  # whether it is precise; if not, count again with `value` as the centre of the grid


def histogram(sketch: Sketch, unit: float = 1.0) -> Array:
    """Count distances on the grid (ONE_SIDED,): zeros, counts by bin, Σ t/edge by bin."""
    t, sizes = np.asarray(sketch.means, dtype=np.float64) / unit, sketch.sizes
    return np.asarray(_histograms(t[None], sizes)[0])


def histogram_table(distances: Array, rows: int) -> Array:
    """Return histograms (d · ONE_SIDED,) of the columns of a :func:`distance_table`."""
    return _histograms(np.asarray(distances.T), block_sizes(rows, len(distances))).ravel()


def histogram_around(sketch: Sketch, center: float, unit: float) -> Array:
    """Count values on both sides of a centre (TWO_SIDED,): at or above it, then below."""
    t, sizes = (np.asarray(sketch.means, dtype=np.float64) - center) / unit, sketch.sizes
    above = _histograms(np.maximum(t, 0.0)[None], np.where(t >= 0.0, sizes, 0))[0]
    below = _histograms(np.maximum(-t, 0.0)[None], np.where(t < 0.0, sizes, 0))[0]
    return np.concatenate([above, below[1:]])


def from_histogram(total: Array, unit: float = 1.0) -> Sketch:
    """Return the sketch of all rows from a sum of :func:`histogram`."""
    low, high, counts = _intervals(total[0], total[1 : 1 + _BINS], total[1 + _BINS :])
    return _sketch_of_intervals(unit * low, unit * high, counts)


def histogram_median(total: Array, center: float, unit: float) -> HistogramMedian:
    """Return the median and the sketch of all rows from a sum of :func:`histogram_around`.

    >>> ages = of(np.r_[np.arange(1000.0, 1100.0), 1e9], least=1)
    >>> at = 0.0
    >>> for _ in range(3):
    ...     at = histogram_median(histogram_around(ages, at, unit=1e7), at, unit=1e7).value
    >>> round(at)
    1050
    """
    above, below = total[: 1 + 2 * _BINS], total[1 + 2 * _BINS :]
    up = _intervals(above[0], above[1 : 1 + _BINS], above[1 + _BINS :])
    down = _intervals(0.0, below[:_BINS], below[_BINS:])
    low = center + unit * np.r_[-down[1][:0:-1], up[0]]
    high = center + unit * np.r_[-down[0][:0:-1], up[1]]
    values = _sketch_of_intervals(low, high, np.r_[down[2][:0:-1], up[2]])
    if not values.rows:
        return HistogramMedian(center, values, True)
    quarter, value, last = (quantile([values], share) for share in (0.25, 0.5, 0.75))
    value = float(f"{value:.9g}")  # values that many rows share seldom have more digits
    return HistogramMedian(value, values, abs(value - center) <= _NEAR * (last - quarter))


def _histograms(t: Array, sizes: Array) -> Array:
    """Return histograms (columns, 1 + 2 bins) of distances t (columns, blocks)."""
    t = np.minimum(t, _EDGES[-1])
    place = np.minimum(np.searchsorted(_EDGES, t, side="right"), _BINS)
    out = np.zeros((len(t), 1 + 2 * _BINS))
    column = np.broadcast_to(np.arange(len(t))[:, None], t.shape)
    np.add.at(out, (column, place), np.broadcast_to(sizes, t.shape))
    inside = place > 0
    share = t[inside] / _EDGES[place[inside] - 1] * np.broadcast_to(sizes, t.shape)[inside]
    np.add.at(out, (column[inside], place[inside] + _BINS), share)
    return out


def _intervals(zeros: float, counts: Array, shares: Array) -> tuple[Array, Array, Array]:
    """Return lower end, upper end and count of bins; an interval is centred at its bin's mean."""
    counts, low = np.rint(np.maximum(counts, 0.0)), _EDGES[:-1]
    mean = low * np.divide(shares, counts, out=np.ones(_BINS), where=counts > 0)
    mean = np.clip(mean, low, _EDGES[1:])
    half = np.minimum(mean - low, _EDGES[1:] - mean)
    half[half <= 1e-9 * mean] = 0.0  # rounding
    return np.r_[0.0, mean - half], np.r_[0.0, mean + half], np.r_[np.rint(zeros), counts]


def _sketch_of_intervals(low: Array, high: Array, counts: Array) -> Sketch:
    rows = int(counts.sum())
    blocks = min(BLOCKS, rows)
    if not blocks:
        return Sketch(0, ())
    sizes = block_sizes(rows, blocks)
    ranks, ends = np.cumsum(sizes) - 0.5 * sizes, np.cumsum(counts)
    at = np.searchsorted(ends, ranks, side="left")
    within = (ranks - (ends[at] - counts[at])) / counts[at]
    return Sketch(rows, tuple((low[at] + within * (high[at] - low[at])).tolist()))
