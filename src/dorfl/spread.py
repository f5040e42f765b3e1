"""Where rows lie and how far they spread, found without pooling them and unmoved by bad ones.

Every client sends its robust centre (:mod:`dorfl.centers`), then counts of how far its rows lie
from a middle, on a logarithmic scale. Counts add up, so the answer is that of the pooled table
within the width of a bin, however rows are divided among clients. No row leaves its own.

>>> import numpy as np
>>> rows = np.random.default_rng(0).normal(scale=[1.0, 50.0], size=(1000, 2))
>>> rows[:100] *= -8                                            # one row in ten is wrong
>>> measure({"a": rows[:500], "b": rows[500:]}, bulk=0.8).units.round(1)
array([ 1.2, 58.6])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dorfl import centers
from dorfl.threads import each
from dorfl.types import Array

FEW = 20  # rows below which a client has no centre of its own
LOOK = 5_000  # rows of a client that are looked at: enough to know a unit within some two percent

_PER_OCTAVE, _OCTAVES = 8, 96  # bins 9 % wide, from 2⁻⁹⁶ to 2⁹⁶
_BINS = 2 * _OCTAVES * _PER_OCTAVE


class Spread(NamedTuple):
    """Where the rows lie: a centre of every client, one for all, and the unit of every column.

    A unit is a standard deviation that outliers do not move (0 for a constant). `rigid` marks
    columns that mostly have one value.
    """

    units: Array
    rigid: Array
    centers: dict[str, Array]
    center: Array


def measure(tables: Mapping[str, Array], bulk: float) -> Spread:
    """The spread of clients' rows, from the share `bulk` of them that lie nearest.

    The unit of a column is how near the bulk keeps to the median, over what that is for a normal
    distribution. A column that mostly has one value (nearly always nil, or a flag) has no such
    unit: there it is the typical size of the other values, or honest rare ones would look wild.
    """
    looked = {name: look(X).astype(np.float64, copy=False) for name, X in tables.items()}
    counts = {name: len(X) for name, X in tables.items()}
    alone = 2 * sum(n for n in counts.values() if n >= FEW) >= sum(counts.values())
    middles = np.array([_middle(X) for X in looked.values()])
    if not alone:  # the middle of the middles: hardly anyone has enough rows for one of its own
        middles = np.tile(_middle(middles), (len(middles), 1))
    away = add(count(X - m) for X, m in zip(looked.values(), middles, strict=True))
    rigid = quantile(away, 0.5) == 0.0
    usual = quantile(away, bulk) / ndtri(0.5 + bulk / 2.0)
    units = np.where(rigid, quantile(away, 0.5, nonzero=True), usual)

    found = dict(zip(looked, each(centers.summarise, looked.values()), strict=True))
    scaled = [
        s._replace(kept=s.kept * counts[name] / len(looked[name])) for name, s in found.items()
    ]
    common = centers.combine(scaled)
    own = {name: s.mean if alone else common for name, s in found.items()}
    return Spread(units, rigid, own, common)


def look(values: Array) -> Array:
    """At most LOOK of the rows, the same ones every time."""
    if len(values) <= LOOK:
        return np.asarray(values)
    rows = np.random.default_rng(0).choice(len(values), LOOK, replace=False, shuffle=False)
    return np.asarray(values[np.sort(rows)])


def count(sizes: Array) -> Array:
    """How many rows have which size |x|, column by column; exact zeros come first."""
    with np.errstate(divide="ignore"):
        at = (np.log2(np.abs(sizes)) + _OCTAVES) * _PER_OCTAVE
    index = np.where(sizes == 0, 0.0, 1.0 + np.clip(at, 0, _BINS - 1)).astype(np.int64)
    return np.array([np.bincount(column, minlength=_BINS + 1) for column in index.T])


def add(counts: Iterable[Array]) -> Array:
    """The counts of several clients together."""
    return np.asarray(np.sum(list(counts), axis=0))


def quantile(counts: Array, share: float, *, nonzero: bool = False) -> Array:
    """The size that `share` of the rows (of those that are not zero) stay below, by column."""
    weights = counts.astype(float)
    if nonzero:
        weights[:, 0] = 0.0
    below = np.cumsum(weights, axis=1)
    wanted = share * below[:, -1]
    at = np.argmax(below >= wanted[:, None], axis=1)
    column = np.arange(len(weights))
    start, inside = below[column, at] - weights[column, at], np.maximum(weights[column, at], 1.0)
    size = np.exp2((at - 1 + (wanted - start) / inside) / _PER_OCTAVE - _OCTAVES)
    return np.where(at == 0, 0.0, size)


def _middle(rows: Array) -> Array:
    """The median that is one of the values, so that a value most rows have is met exactly."""
    columns, half = np.ascontiguousarray(rows.T), (len(rows) - 1) // 2
    return np.asarray(np.partition(columns, half, axis=1)[:, half])
