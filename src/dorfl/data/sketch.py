"""Quantiles of a column without its rows: every client sends the means of blocks of sorted values.

A block has at least as many rows as a statistic needs before it may be sent, so no number in a
sketch is the value of one row, and the least and the greatest value are not in it. Sketches in
general use are no match for this purpose: they keep single values and the extremes, and either
draw random numbers or bound no error. This one is the same in every run, and a quantile read from
sketches together has a true rank within :func:`rank_error` of the one asked for.

>>> import numpy as np
>>> columns = [np.arange(0.0, 600.0), np.arange(600.0, 1001.0)]
>>> sketches = [of(column, least=5) for column in columns]
>>> round(quantile(sketches, 0.5), 1), rank_error(sketches) < 0.02
(500.0, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dorfl.support.types import Array

BLOCKS = 256  # at most so many numbers per column and client


class Sketch(NamedTuple):
    """`rows` values in blocks of (nearly) equal size, from small to large; the blocks' means."""

    rows: int
    means: tuple[float, ...]

    @property
    def sizes(self) -> Array:
        """How many values each block has."""
        return sizes_of(self.rows, len(self.means))


def of(values: Array, least: int) -> Sketch:
    """The sketch of finite values; empty where there are fewer than `least`."""
    count = len(values)
    if count < max(least, 1):
        return Sketch(0, ())
    ordered = _ordered(values)
    edges = _edges(count, min(BLOCKS, count // max(least, 1)))
    first, last = ordered[edges[:-1]], ordered[edges[1:] - 1]
    means = np.add.reduceat(ordered, edges[:-1]) / np.diff(edges)
    # Rounding must not make a new value out of equal ones, nor leave the block.
    return Sketch(count, tuple(np.clip(means, first, last).tolist()))


def around(values: Array, middle: float, least: int) -> Sketch:
    """How far values are from a middle, in the blocks of :func:`of`, from near to far.

    The same blocks whatever the middle is: with blocks of equal distance, two middles would have
    sums that differ by one row.

    >>> around(np.array([1.0, 2.0, 3.0, 9.0]), 2.0, least=2)
    Sketch(rows=4, means=(0.5, 4.0))
    """
    count = len(values)
    if count < max(least, 1):
        return Sketch(0, ())
    ordered = _ordered(values) - middle
    np.abs(ordered, out=ordered)
    edges = _edges(count, min(BLOCKS, count // max(least, 1)))
    lowest = np.minimum.reduceat(ordered, edges[:-1])
    highest = np.maximum.reduceat(ordered, edges[:-1])
    means = np.add.reduceat(ordered, edges[:-1]) / np.diff(edges)
    return Sketch(count, tuple(np.sort(np.clip(means, lowest, highest)).tolist()))


def levelled(values: Array, least: int) -> Array:
    """The values in order, each the mean of its block of at least so many.

    What is counted of them changes where a block's sum does, and no single value shows.

    >>> levelled(np.array([4.0, -1.0, 3.0, -4.0]), least=2)
    array([-2.5, -2.5,  3.5,  3.5])
    """
    ordered = np.sort(values)
    if least <= 1 or not len(ordered):
        return ordered
    edges = _edges(len(ordered), max(len(ordered) // least, 1))
    sizes = np.diff(edges)
    return np.asarray(np.repeat(np.add.reduceat(ordered, edges[:-1]) / sizes, sizes))


def known(values: Array, least: int, stand_ins: tuple[float, int] = (0.0, 0)) -> Array:
    """The values as :func:`of` tells them, each the mean of its block, and `stand_ins` as they are.

    These are one value, and how many of the values it is that stand for missing ones: a sketch is
    of the others alone, and empty where they are too few. What is made of these values tells
    nothing that the sketch has not told.

    >>> known(np.array([4.0, 1.0, 3.0, 9.0, 3.5]), least=2, stand_ins=(3.5, 1))
    array([2. , 2. , 3.5, 6.5, 6.5])
    """
    ordered, (value, count) = _ordered(values), stand_ins
    first, last = np.searchsorted(ordered, value), np.searchsorted(ordered, value, side="right")
    held = slice(int(first), int(min(first + count, last)))
    told = of(np.delete(ordered, held), least)
    if not told.rows:
        return np.full(len(ordered), value)
    return np.sort(np.concatenate([np.repeat(told.means, told.sizes), ordered[held]]))


def table(values: Array, middle: Array, least: int) -> Array:
    """How far every column is from its middle: block means, (blocks, columns)."""
    pairs = zip(values.T, middle.tolist(), strict=True)
    columns = [around(column, center, least).means for column, center in pairs]
    return np.array(columns, dtype=np.float64).reshape(len(columns), -1).T


def quantile(sketches: Sequence[Sketch], share: float, above: float = -np.inf) -> float:
    """The value below which `share` of all values (of those `above` a level) lie; else NaN."""
    means = np.concatenate([np.asarray(sketch.means) for sketch in sketches])
    return read(means, np.concatenate([sketch.sizes for sketch in sketches]), share, above)


def read(means: Array, sizes: Array, share: float, above: float = -np.inf) -> float:
    """A quantile from blocks of so many rows each; see :func:`quantile`."""
    means, sizes = means[means > above], sizes[means > above]
    if not len(means):
        return float("nan")
    order = np.argsort(means, kind="stable")
    means, sizes = means[order], sizes[order]
    middle = np.cumsum(sizes) - 0.5 * sizes
    return float(np.interp(share * sizes.sum(), middle, means))


def rank_error(sketches: Sequence[Sketch]) -> float:
    """How far the rank of a quantile may be from the one asked for, as a share of all values.

    A level may split one block of every client, and between two blocks the value is interpolated.
    """
    largest = [int(sketch.sizes.max()) for sketch in sketches if sketch.rows]
    total = sum(sketch.rows for sketch in sketches)
    return (sum(largest) + 0.5 * max(largest)) / total if largest else 0.0


def sizes_of(count: int, blocks: int) -> Array:
    """How many of `count` values each of so many blocks has."""
    return np.diff(_edges(count, blocks))


def _edges(count: int, blocks: int) -> Array:
    return np.arange(blocks + 1) * count // max(blocks, 1)


def _ordered(values: Array) -> Array:
    """From small to large; values that are in order are left as they are, which is soon seen."""
    values = np.asarray(values, dtype=np.float64)
    return values if (values[1:] >= values[:-1]).all() else np.sort(values)
