"""The robust centre ξ̄ of a quadratic score, found without pooling rows.

Every client sets aside its own rows that lie far out and sends the mean of the rest with their
number; the server averages. Two numbers per column and client, and no row. What is usual in one
class may be far out in another, so classes may have centres of their own: :func:`by_class`.

>>> import numpy as np
>>> rows = np.random.default_rng(0).normal(size=(1000, 3))
>>> rows[:100] *= -8                                            # one row in ten is wrong
>>> bool(np.abs(combine([summarise(rows)])).max() < 0.3)
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import gammaincinv

from dorfl.objective.methods import Method
from dorfl.support.threads import each
from dorfl.support.types import Array

_BLOCK = 65_536  # rows
_TOGETHER = 5  # rows that are set aside, if any are


class Summary(NamedTuple):
    """What a client tells of where its rows are: how many it kept, and their mean."""

    kept: float
    mean: Array


def summarise(rows: Array, least: int = 1) -> Summary:
    """The mean of the rows that are not :func:`wild`; their median where most would be.

    A mean of fewer than `least` rows is not given: it would tell of them. So where few would be
    left, of a client that hardly has as many, it is that of all.
    """
    far, middle = wild(rows, least=max(least, _TOGETHER))
    if len(far) - int(far.sum()) < least <= len(far):
        far = np.zeros_like(far)
    majority = 2 * int(far.sum()) > len(far)  # no such thing as a wild majority
    kept = len(far) if majority else int((~far).sum())
    if kept < least:
        raise ValueError(
            f"centre: a mean of fewer than {least} rows would tell of them; leave clients with "
            "fewer rows out (--small drop)"
        )
    if majority:
        return Summary(kept, middle)
    parts = range(0, len(far), _BLOCK)
    total = sum(rows[p : p + _BLOCK][~far[p : p + _BLOCK]].sum(0, np.float64) for p in parts)
    return Summary(kept, np.asarray(total / kept))


def by_class(rows: Array, codes: Array, classes: int, least: int = 1) -> tuple[Array, Array]:
    """How many rows each class has, and the mean of the middle half of every column there.

    No number is of fewer than `least` rows: a class with less than twice as many counts for 0.

    >>> counts, means = by_class(np.arange(23.0)[:, None], np.repeat([0, 1], [20, 3]), classes=2)
    >>> counts.tolist(), means.tolist()
    ([20.0, 0.0], [[9.5], [0.0]])
    """
    counts, means = np.zeros(classes), np.zeros((classes, rows.shape[1]))
    for c in np.flatnonzero(np.bincount(codes, minlength=classes) >= 2 * max(least, _TOGETHER)):
        ordered = np.sort(rows[codes == c], axis=0)
        counts[c], quarter = len(ordered), len(ordered) // 4
        means[c] = ordered[quarter : len(ordered) - quarter].mean(axis=0)
    return counts, means


def at(center: Array, codes: Array) -> Array:
    """ξ̄ of every row of a client: one for all (d,), or that of its class (n, d)."""
    return center if center.ndim == 1 else np.asarray(center[codes.astype(np.int64)])


def wild(rows: Array, share: float = 0.999, least: int = 1) -> tuple[Array, Array]:
    """Which rows are beyond the range that `share` of normal ones keep to, and the medians.

    None, or `least` of them: what a mean leaves of the sum over all rows is what they add up to.
    (A client with fewer than twice as many rows sets aside those alone.)

    Distances are measured from the medians in units of the median absolute deviation, which a
    minority of wild rows cannot move. A column that mostly has one value (a category, a rare
    amount) has none: there a row is wild when it is several times as far off as others that differ.
    """
    middle = np.empty(rows.shape[1])
    count = rows.shape[0]
    squares, dims, far = np.zeros(count), 0, np.zeros(count)
    odd = np.zeros(count, dtype=bool)
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
    if 0 < int(odd.sum()) < least <= count // 2:
        odd[np.lexsort((-far, ~odd))[:least]] = True  # those next to them as well
    return odd, middle


def _columns(rows: Any) -> Iterator[Array]:
    """The columns in float64, a few turned at a time: quick, and no second table."""
    rows = rows.tocsc() if sparse.issparse(rows) else rows
    for first in range(0, rows.shape[1], 16):
        few = rows[:, first : first + 16]
        for column in np.ascontiguousarray((few.toarray() if sparse.issparse(few) else few).T):
            yield column.astype(np.float64)


def combine(summaries: Sequence[Summary]) -> Array:
    """The clients' centres averaged, each by the rows it kept."""
    kept = np.array([s.kept for s in summaries], dtype=float)
    return np.asarray(np.average([s.mean for s in summaries], axis=0, weights=kept))


def find_centers(method: Method, tables: dict[str, Array], classes: int = 0) -> Array:
    """ξ̄ of every client (clients, d): given, found together, or each its own; else zero.

    (clients, classes, d) where one is given for each class.
    """
    dims = next(iter(tables.values())).shape[1]
    center = None if method.score is None else method.score.center
    if center is None:
        return np.zeros((len(tables), dims))
    if isinstance(center, str):
        summaries = each(summarise, tables.values())
        if center == "client":
            return np.array([summary.mean for summary in summaries])
        return np.tile(combine(summaries), (len(tables), 1))
    if isinstance(center, dict):
        missing = [name for name in tables if name not in center]
        if missing:
            raise ValueError(f"quadratic(center=…): there is none for client {missing[0]!r}")
        found = [center[name] for name in tables]
    else:
        found = [center] * len(tables)
    wanted = (classes, dims)[-found[0].ndim :]
    for name, given in zip(tables, found, strict=True):
        if given.shape != wanted:
            shown, right = (" × ".join(map(str, shape)) for shape in (given.shape, wanted))
            raise ValueError(
                f"quadratic(center=…): {shown} numbers for client {name!r}, not {right}"
            )
    return np.array(found)


def _radius(share: float, dims: int) -> float:
    """The root-mean-square coordinate that `share` of normal rows stay below (χ² quantile)."""
    return float(np.sqrt(2.0 * gammaincinv(dims / 2.0, share) / dims))
