"""Robust location and scale of the columns, estimated without pooling rows.

Every client reports the mean of its inliers, with their number, and for each column a sketch of the
distances from the median (:mod:`dorfl.data.sketch`). No number is of fewer than `least` rows. The
server averages the means and reads the sketches together, so the estimates are close to those of
the pooled table, however the rows are divided among clients.

>>> import numpy as np
>>> rows = np.random.default_rng(0).normal(scale=[1.0, 50.0], size=(1000, 2))
>>> rows[:100] *= -8                                            # one row in ten is an outlier
>>> reports = [report(rows[:500], least=5), report(rows[500:], least=5)]
>>> column_scales(reports, inlier_share=0.8).units.round(1)
array([ 1.2, 59.2])
>>> bool(np.abs(average_centers([local_center(rows / [1.0, 50.0])])).max() < 0.3)
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import gammaincinv, ndtri

from dorfl.data import sketch
from dorfl.data.sketch import Sketch
from dorfl.objective.methods import Method
from dorfl.support.threads import each
from dorfl.support.types import Array

SUBSAMPLE = 5_000  # rows of a client that are read: a scale has a standard error of some 2 %
MIN_ROWS = 20  # rows below which a client has no centre of its own
CLASS_DIFFERS = 0.5  # squared scales per column from which a class gets a centre of its own
_CLASS_OUTLYING = 9.0  # squared scales per column from which a class counts as outliers
_MAD = 1.4826  # 1 / Φ⁻¹(3/4): the MAD of normal rows times this is their standard deviation
_RARE = 6.0  # median distances beyond which a value of a nearly constant column is far
_NORMAL = 0.999  # share of normal rows that are not far
_LEAST_FAR = 5  # rows left out of a mean, if any are
_BLOCK = 65_536  # rows summed at once


# ── location ─────────────────────────────────────────────────────────────────────────────────────


class LocalCenter(NamedTuple):
    """Robust centre of a client: how many rows are in the mean, and the mean (d,)."""

    kept: float
    mean: Array


def local_center(rows: Array, least: int = 1) -> LocalCenter:
    """Return the mean of the rows that :func:`_find_far_rows` keeps; of all if these are few.

    Few are fewer than `least`. If most rows are far, far rows are no outliers, and the medians are
    returned. A ValueError says
    that the client has fewer than `least` rows.
    """
    far, medians_ = _find_far_rows(rows, least=max(least, _LEAST_FAR))
    if len(far) - int(far.sum()) < least <= len(far):
        far = np.zeros_like(far)
    is_majority = 2 * int(far.sum()) > len(far)
    kept = len(far) if is_majority else int((~far).sum())
    if kept < least:
        raise ValueError(
            f"centre: a mean of fewer than {least} rows would reveal them; leave out clients with "
            "fewer rows (--small drop)"
        )
    if is_majority:
        return LocalCenter(kept, medians_)
    parts = range(0, len(far), _BLOCK)
    total = sum(rows[p : p + _BLOCK][~far[p : p + _BLOCK]].sum(0, np.float64) for p in parts)
    return LocalCenter(kept, np.asarray(total / kept))


def _find_far_rows(rows: Array, least: int) -> tuple[Array, Array]:
    """Return a mask of rows beyond the range of nearly all normal rows, and the medians.

    Distances are from the medians in units of the median absolute deviation. Where that is 0, in a
    column that mostly has one value, a row is far if it differs from the median by several times
    the median of other such differences.

    If any row is far, at least `least` are, the next farthest included: the sum over all rows less
    the sum over the others is the sum of the far ones. A client with fewer than twice as many rows
    marks only those that are far.
    """
    median = np.empty(rows.shape[1])
    count = rows.shape[0]
    squares, dims, distance = np.zeros(count), 0, np.zeros(count)
    far = np.zeros(count, dtype=bool)
    for k, column in enumerate(_columns(rows)):
        median[k] = np.median(column)
        offset = np.abs(column - median[k])
        unit = _MAD * float(np.median(offset))
        if unit > 0:
            with np.errstate(over="ignore"):  # an infinite distance is far
                squares += (offset / unit) ** 2
            dims += 1
        elif (offset > 0).any():
            far |= offset > _RARE * np.median(offset[offset > 0])
    if dims:
        distance = np.sqrt(squares / dims)
        # Scaled so that the median row is where that of normal rows is: with heavy tails, half of
        # the table would be far otherwise.
        typical = float(np.median(distance)) / _radius(0.5, dims)
        far |= distance > max(typical, 1.0) * _radius(_NORMAL, dims)
    if 0 < int(far.sum()) < least <= count // 2:
        far[np.lexsort((-distance, ~far))[:least]] = True
    return far, median


def _columns(rows: Any) -> Iterator[Array]:
    """Yield the columns in float64, transposed 16 at a time to avoid a second table."""
    rows = rows.tocsc() if sparse.issparse(rows) else rows
    for first in range(0, rows.shape[1], 16):
        few = rows[:, first : first + 16]
        for column in np.ascontiguousarray((few.toarray() if sparse.issparse(few) else few).T):
            yield column.astype(np.float64)


def _radius(share: float, dims: int) -> float:
    """Return the root-mean-square coordinate below which `share` of normal rows lie (χ²)."""
    return float(np.sqrt(2.0 * gammaincinv(dims / 2.0, share) / dims))


def class_means(rows: Array, codes: Array, classes: int, least: int = 1) -> tuple[Array, Array]:
    """Return the size of each class and the interquartile mean of every column in it (classes, d).

    No number is of fewer than `least` rows: a class with less than twice as many has size 0.

    >>> counts, means = class_means(np.arange(23.0)[:, None], np.repeat([0, 1], [20, 3]), 2)
    >>> counts.tolist(), means.tolist()
    ([20.0, 0.0], [[9.5], [0.0]])
    """
    counts, means = np.zeros(classes), np.zeros((classes, rows.shape[1]))
    for c in np.flatnonzero(np.bincount(codes, minlength=classes) >= 2 * max(least, _LEAST_FAR)):
        ordered = np.sort(rows[codes == c], axis=0)
        counts[c], quarter = len(ordered), len(ordered) // 4
        means[c] = ordered[quarter : len(ordered) - quarter].mean(axis=0)
    return counts, means


def average_centers(centers: Sequence[LocalCenter]) -> Array:
    """Average the clients' centres, weighted by the rows in each."""
    kept = np.array([c.kept for c in centers], dtype=float)
    return np.asarray(np.average([c.mean for c in centers], axis=0, weights=kept))


def row_centers(center: Array, codes: Array) -> Array:
    """Return ξ̄ of a client's rows: (d,) for all, or (n, d) if classes have their own."""
    return center if center.ndim == 1 else np.asarray(center[codes.astype(np.int64)])


def find_centers(method: Method, tables: dict[str, Array], classes: int = 0) -> Array:
    """Return ξ̄, (clients, d) or (clients, classes, d), as the method's score needs it.

    The score gives centres, or says that they are estimated from all clients or from each. Without
    a quadratic score they are zero. A ValueError says that one is missing or has another shape.
    """
    dims = next(iter(tables.values())).shape[1]
    center = None if method.score is None else method.score.center
    if center is None:
        return np.zeros((len(tables), dims))
    if isinstance(center, str):
        own = each(local_center, tables.values())
        if center == "client":
            return np.array([one.mean for one in own])
        return np.tile(average_centers(own), (len(tables), 1))
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


# ── what a client reports ────────────────────────────────────────────────────────────────────────


class LocationReport(NamedTuple):
    """Robust location and distances that a client reports."""

    rows: int  # number of rows read
    kept: float  # number of rows in the mean, scaled to all rows of the client
    mean: Array  # (d,) robust centre
    # (blocks, d) block means of the distances from the medians; those of a numeric target are in
    # one more column
    away: Array
    by: Array = np.zeros(0)  # (classes,) rows of each class
    means: Array = np.zeros((0, 0))  # (classes, d): :func:`class_means`


class ColumnScales(NamedTuple):
    """Robust scale of every column."""

    units: Array  # (d,) robust standard deviations; 0 for a constant column
    rigid: tuple[int, ...] = ()  # columns that mostly have one value
    target: float = 1.0  # scale of the label of a regression


def report(
    rows: Array,
    target: Array | None = None,
    *,
    classes: int = 0,
    common_medians: Array | None = None,
    least: int = 1,
    imputed: Array | None = None,
) -> LocationReport:
    """Return the report of a client.

    The target holds codes of `classes`, or numbers if there are none. `common_medians` are those of
    all clients, for a client that is too small for its own. No statistic is of fewer than `least`
    rows; above 1, distances come from the sketches of the columns
    (:func:`dorfl.data.sketch.expand`) and reveal no row. `imputed` (2, d) has the imputation value
    of every column, and how often it occurs.
    """
    sample = subsample(rows).astype(np.float64, copy=False)
    center, part = local_center(sample, least=least), len(rows) / len(sample)
    by, means = np.zeros(0), np.zeros((0, sample.shape[1]))
    if target is not None and classes:
        by, means = class_means(sample, subsample(target).astype(np.int64), classes, least)
    elif target is not None:
        sample = np.column_stack([sample, subsample(target)])
    if least > 1:
        sample = _expanded(sample, imputed if len(sample) == len(rows) else None, least)
    origin = medians(sample, least) if common_medians is None else common_medians
    away = sketch.distance_table(sample, origin, least)
    return LocationReport(len(sample), center.kept * part, center.mean, away, by * part, means)


def report_all(tables: Sequence[Array]) -> tuple[list[LocationReport], bool]:
    """Return the reports of clients in this process, and whether each has medians of its own."""
    own, common = have_own_centers([len(X) for X in tables]), None
    if not own:
        common = medians(np.concatenate([subsample(X) for X in tables]).astype(np.float64))
    return [report(X, common_medians=common) for X in tables], own


def have_own_centers(counts: Sequence[int]) -> bool:
    """Return whether most rows are at clients with enough rows for a centre of their own."""
    return 2 * sum(n for n in counts if n >= MIN_ROWS) >= sum(counts)


def subsample(values: Array) -> Array:
    """Return at most SUBSAMPLE of the rows in their order, the same ones in every run."""
    if len(values) <= SUBSAMPLE:
        return np.asarray(values)
    rows = np.random.default_rng(0).choice(len(values), SUBSAMPLE, replace=False, shuffle=False)
    return np.asarray(values[np.sort(rows)])


def medians(rows: Array, least: int = 1) -> Array:
    """Return the lower medians of columns, which are values of the columns if `least` is 1.

    With a larger `least` they are read from sketches with blocks of so many rows.
    """
    if least > 1:
        return np.array([sketch.quantile([sketch.of(part, least)], 0.5) for part in rows.T])
    columns, half = np.ascontiguousarray(rows.T), (len(rows) - 1) // 2
    return np.asarray(np.partition(columns, half, axis=1)[:, half])


def _expanded(rows: Array, imputed: Array | None, least: int) -> Array:
    """Return every column as its sketch reveals it."""
    fill = np.zeros((2, rows.shape[1]))
    if imputed is not None:
        fill[:, : imputed.shape[1]] = imputed
    pairs = zip(rows.T, fill.T.tolist(), strict=True)
    found = [sketch.expand(column, least, (value, int(count))) for column, (value, count) in pairs]
    return np.column_stack(found) if found else rows


# ── what the server computes from reports ────────────────────────────────────────────────────────


def column_scales(reports: Sequence[LocationReport], inlier_share: float) -> ColumnScales:
    """Estimate the scale of every column.

    A scale is the `inlier_share` quantile of the distances, divided by that of normal rows. A
    column that mostly has one value has the median of the other distances as its scale, or rare
    values would all be outliers.
    """
    dims, away = len(reports[0].mean), np.concatenate([one.away for one in reports])
    sizes = np.concatenate([sketch.block_sizes(one.rows, len(one.away)) for one in reports])
    found = [_scale(column, sizes, inlier_share) for column in away.T]
    units = np.array([unit for unit, _ in found])
    rigid = tuple(k for k, (_, is_rigid) in enumerate(found[:dims]) if is_rigid)
    target = float(units[dims] or 1.0) if len(units) > dims else 1.0
    return ColumnScales(units[:dims], rigid, target)


def _scale(away: Array, sizes: Array, inlier_share: float) -> tuple[float, bool]:
    """Return a column's scale, and whether it mostly has one value."""
    if sketch.block_quantile(away, sizes, 0.5) > 0.0:
        normal = float(ndtri(0.5 + inlier_share / 2.0))
        return sketch.block_quantile(away, sizes, inlier_share) / normal, False
    unit = sketch.block_quantile(away, sizes, 0.5, above=0.0)
    return (unit if np.isfinite(unit) else 0.0), True


def client_centers(
    reports: Sequence[LocationReport], own: bool, shape: Array | None = None
) -> Array:
    """Return ξ̄ of every client, (clients, d) or by class (clients, classes, d).

    Unless clients have centres of their `own`, all have the mean centre. With one centre for a
    client whose classes differ, the less frequent classes would be outliers as a whole. Classes
    therefore get centres of their own if one of them lies more than CLASS_DIFFERS per column, in a
    squared distance with the weights `shape`, from the rows of its clients.
    """
    common = average_centers([LocalCenter(one.kept, one.mean) for one in reports])
    if not own:
        return np.array([common] * len(reports))
    middle, by = np.array([one.mean for one in reports]), np.array([one.by for one in reports])
    if shape is None or not by.any():
        return middle
    found = np.array([class_centers(one, shape) for one in reports])
    far = (by * ((found - middle[:, None]) ** 2 @ shape)).sum(axis=0) / np.maximum(by.sum(0), 1.0)
    return found if far.max() >= CLASS_DIFFERS * np.count_nonzero(shape) else middle


def class_centers(one: LocationReport, shape: Array) -> Array:
    """Return ξ̄ (classes, d) of a client's classes.

    A class with too few rows has the client's centre, so that its own reveals no row. So has a
    class beyond _CLASS_OUTLYING: outliers with one label in common would be inliers otherwise.
    `shape` has the weights of the columns in a squared distance.
    """
    far = (one.means - one.mean) ** 2 @ shape
    known = (one.by > 0) & (far <= _CLASS_OUTLYING * np.count_nonzero(shape))
    return np.where(known[:, None], one.means, one.mean)


# ── distances ────────────────────────────────────────────────────────────────────────────────────


def distance_sketch(rows: Array, center: Array, shape: Array, least: int = 1) -> Sketch:
    """Sketch the squared distances (x − ξ̄)ᵀ diag(shape) (x − ξ̄) of a client's rows.

    The centre is (d,) for all rows, or (n, d).
    """
    center = subsample(center) if center.ndim == 2 else center
    offset = subsample(rows).astype(np.float64, copy=False) - center
    return sketch.of(offset**2 @ shape, least)


def distance_cutoff(sketches: Sequence[Sketch], inlier_share: float) -> float:
    """Return the squared distance within which a share of the rows lies; never 0."""
    found = sketch.quantile(sketches, inlier_share) or sketch.quantile(sketches, 0.5, above=0.0)
    return found if np.isfinite(found) and found > 0 else 1.0
