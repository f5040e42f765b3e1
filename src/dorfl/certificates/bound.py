"""Bound the loss and the error of a linear model if some rows are outliers and the others drift.

At most a share ε of every client's rows are outliers, and the population to come, P, is within a
drift of the inliers P̂_G, whichever rows these are: W(P, P̂_G) ≤ w = ½ drift², where rows move in
standard deviations of their columns. For every price ρ ≥ 0,

    E_P[l]  ≤  ρ w + Σ_i λ_i M_i(ρ, ε),     f_ρ(ζ) = sup_ξ l(ξ) − ρ c(ξ, ζ),

with M_i the mean of the largest 1 − ε of client i's f_ρ. The bound is the least over a grid of
prices. M_i grows with ε and ρ w with the drift, and nothing else depends on either, so the bound is
monotone in both. `docs/certificate.md` has the proof.

Rows further from their client's centre than Tukey's outer fence are *out of range*: they count as
outliers first, and nothing is stated about rows like them.

Neither w nor ε is part of f: one report of a client gives the whole curve.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from dorfl.data.robust import ColumnScales
from dorfl.linear.group import Group
from dorfl.linear.problem import Problem
from dorfl.objective import costs, methods
from dorfl.objective.base import Loss
from dorfl.support.threads import each, one_blas_thread
from dorfl.support.types import Array

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)  # shares of outliers on a curve
# Prices of moving a row, in units of the loss: wider than the optimum of any drift up to 1.
_RHO = (512.0, 128.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.06, 0.015, 0.001)
_WORK = 20_000_000  # prices × rows × outputs on the whole grid: a few seconds …
_FEW = 50  # … up to this many outputs; beyond, the pairs of classes take most of the time
_BLOCK = 4096  # rows converted to float64 at a time, so that temporaries stay in the cache
NO_BOUND = 1e30  # reported where the supremum is infinite
# Quartile ranges beyond the upper quartile from which a value is "far out": J. W. Tukey,
# Exploratory Data Analysis, 1977, the outer fence.
_FENCE = 3.0


class Units(NamedTuple):
    """Cost of moving a row, Σ ½ w_k (x_k − ζ_k)², and its distance, Σ v_k (x_k − ξ̄_k)²."""

    # (columns,) w, one over the squared unit of drift. Infinite for a column that cannot move
    moves: Array
    # (columns,) v, equal to w if the column can move. Zero for a column that does not enter the
    # distance
    distance: Array


class CertificateReport(NamedTuple):
    """Report of a client: means over many rows for every price and every share of outliers."""

    loss: Array  # (prices, shares) M_i of the loss
    error: Array  # (prices, shares) M_i of the 0–1 loss; for a regression, of the absolute error


class CertificateRequest(NamedTuple):
    """Prices and shares at which all clients evaluate, and the units of loss and error.

    The price None means that rows do not move.
    """

    points: tuple[float | None, ...]
    shares: tuple[float, ...]
    loss: float = 1.0
    error: float = 1.0


def units_of(spread: ColumnScales, frozen: Sequence[int]) -> Units:
    """Return the units of drift: one standard deviation of every column.

    Frozen columns and columns that mostly have one value do not move.

    >>> units_of(ColumnScales(np.array([2.0, 1.0])), frozen=[1])
    Units(moves=array([0.25,  inf]), distance=array([0.25, 0.  ]))
    """
    known = np.where(spread.units > 0, spread.units, np.inf)
    distance = known**-2.0
    distance[list(frozen)] = 0.0
    moves = np.where(distance > 0, distance, np.inf)
    moves[list(spread.rigid)] = np.inf
    return Units(moves, distance)


def fence(values: Array) -> float:
    """Return Tukey's outer fence, Q3 + 3 (Q3 − Q1), beyond which a value of the sample is far out.

    Infinite if the quartiles coincide: then no value is far out.

    >>> fence(np.arange(101.0)), fence(np.ones(5))
    (225.0, inf)
    """
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high + _FENCE * (high - low)) if high > low else np.inf


def make_request(
    outliers: float, *, stride: int = 1, loss: Loss | None = None, scatter: float = 1.0
) -> CertificateRequest:
    """Return the grid of every `stride`-th price, and of the shares of a curve and `outliers`.

    The units of the loss and the error of a regression are those of a residual of `scatter`.

    >>> len(make_request(0.1).points), make_request(0.1, stride=4).points
    (15, (None, 32.0, 2.0, 0.06))
    """
    shares = tuple(sorted({*SHARES, float(outliers)}))
    points = (None, *_RHO[stride - 1 :: stride])
    if loss is None or loss.classifies:
        return CertificateRequest(points, shares)
    size = float(loss.value(np.array([scatter]), np.zeros(1))[0])
    return CertificateRequest(points, shares, size, scatter)


def restrict(request: CertificateRequest, share: float) -> CertificateRequest:
    """Return a shorter request: the prices of `request` at one share.

    :func:`restrict_report` turns a report on `request` into a report on this one.

    >>> whole = make_request(0.1)
    >>> [2 * len(q.points) * len(q.shares) for q in (whole, restrict(whole, 0.1))]
    [180, 30]
    """
    return request._replace(shares=(share,))


def restrict_report(
    report: CertificateReport, request: CertificateRequest, less: CertificateRequest
) -> CertificateReport:
    """Return the part of a report that a shorter request needs; one on `less` stays as it is."""
    if report.loss.shape == (len(less.points), len(less.shares)):
        return report
    columns = [request.shares.index(share) for share in less.shares]
    return CertificateReport(report.loss[:, columns], report.error[:, columns])


def grid_stride(rows: int, outputs: int) -> int:
    """Return `stride` for :func:`make_request`, larger for more rows in all, to limit the time."""
    work = len(_RHO) * rows * outputs * max(outputs / _FEW, 1.0) ** 2
    return min(1 + int(work / _WORK), len(_RHO) // 2)


def report(
    group: Group, theta: Array, units: Units, request: CertificateRequest, least: int = 1
) -> list[CertificateReport]:
    """Compute each client's report on θ; every number is a mean over whole blocks of `least` rows.

    A mean over blocks is over somewhat fewer rows with the largest f: larger, never smaller.
    """
    evaluate = partial(_report_some, group, np.ravel(theta), units, request, least)
    with one_blas_thread():
        return list(chain.from_iterable(each(evaluate, group.batches())))


def _report_some(
    group: Group,
    theta: Array,
    units: Units,
    request: CertificateRequest,
    least: int,
    clients: range,
) -> list[CertificateReport]:
    """Return the reports of some clients of a group."""
    plain, parameter = reduced(group, theta, units, clients)
    start = int(group.bounds[clients.start])
    parts = [slice(first, stop) for first, stop in pairwise(plain.bounds.tolist())]
    far = np.empty(len(plain.target), dtype=bool)
    for i, at in zip(clients, parts, strict=True):
        whole = slice(start + at.start, start + at.stop)
        away = distances(group.rows[whole], group.center_of(i, whole), units)
        far[at] = away > fence(away)
    kept = [
        [_kept(at.stop - at.start, share, int((~far[at]).sum()), least) for share in request.shares]
        for at in parts
    ]
    own = slice(start, start + len(far))
    certain = error_terms(group.problem, theta, group.rows[own], group.target[own], units)
    reports = [
        CertificateReport(*np.full((2, len(request.points), len(request.shares)), NO_BOUND))
        for _ in parts
    ]
    for k, price in enumerate(request.points):
        of_loss = _loss(plain, parameter, None if price is None else request.loss * price)
        of_error = certain.at(None if price is None else request.error * price)
        for f, name in ((of_loss, "loss"), (of_error, "error")):
            f[far] = -np.inf  # out of range: never among the largest
            for at, one, counts in zip(parts, reports, kept, strict=True):
                getattr(one, name)[k] = np.minimum(_largest(f[at], counts), NO_BOUND)
    return reports


def distances(rows: Array, center: Array, units: Units) -> Array:
    """Compute how far rows lie from their centre, or each from its own, in standard deviations."""
    found = np.empty(len(rows))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        offset = rows[part] - (center if center.ndim == 1 else center[part])
        found[part] = np.sqrt(np.square(offset) @ units.distance)
    return found


class ErrorTerms(NamedTuple):
    """What the error at its worst depends on, for every row."""

    # (rows,) classification: the least cost c(ξ, ζ) at which the row is misclassified, 0 if it is.
    # Regression: the absolute error of the row
    costs: Array
    # regression: squared length of the weights in standard deviations. None for classes
    pull: float | None = None

    def at(self, price: float | None) -> Array:
        """Return f of every row: max(0, 1 − ρ cost), or |a − y| + pull / 2ρ for a regression."""
        if self.pull is None:
            if price is None:
                return np.asarray(self.costs <= 0.0, dtype=float)
            return np.maximum(1.0 - price * self.costs, 0.0)
        return np.asarray(self.costs + (0.0 if price is None else 0.5 * self.pull / price))


def error_terms(
    problem: Problem, theta: Array, rows: Array, target: Array, units: Units
) -> ErrorTerms:
    """Compute the terms of the error of every row.

    A row with a margin a against class k is misclassified at a cost of a²/2s, with s the squared
    length of θ_y − θ_k in standard deviations over the columns that move. A label changes at the
    cost's `label_price`. A row on a boundary counts as misclassified.
    """
    weights, _ = problem.split(theta)
    free = np.isfinite(units.moves)
    slopes = weights[:, free] / np.sqrt(units.moves[free])
    blocks = [rows[start : start + _BLOCK] for start in range(0, max(len(rows), 1), _BLOCK)]
    out = np.concatenate([problem.predict(theta, block) for block in blocks])
    if not problem.loss.classifies:
        return ErrorTerms(np.abs(out - target), float(slopes[0] @ slopes[0]))
    labels, classes = problem.decode(target), problem.classes
    if problem.outputs == 1:  # two classes, the output of the first being 0
        margin = out * (2.0 * (labels == classes[1]) - 1.0)
        found = _to_boundary(margin, slopes[0] @ slopes[0])
    else:
        square = slopes @ slopes.T
        chords = np.diag(square)[:, None] + np.diag(square) - 2.0 * square
        own = np.searchsorted(classes, labels)[:, None]
        margin = np.take_along_axis(out, own, axis=1) - out
        np.put_along_axis(margin, own, np.inf, axis=1)
        found = _to_boundary(margin, chords[own[:, 0]]).min(axis=1)
    return ErrorTerms(np.minimum(found, problem.method.cost.label_price))


def _to_boundary(margin: Array, chord: Array) -> Array:
    """Return the cost at which margins vanish, given the squared length of their gradient."""
    ahead = np.maximum(margin, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(ahead > 0.0, ahead * ahead / (2.0 * np.maximum(chord, 0.0)), 0))


def _largest(f: Array, counts: Sequence[int]) -> Array:
    """Return the means of so many of the largest of f; NO_BOUND for the mean of none.

    >>> _largest(np.array([1.0, 5.0, 3.0]), [1, 2, 3])
    array([5., 4., 3.])
    """
    ends = sorted({0, *counts})
    smallest = sorted({len(f) - count for count in ends} - {0, len(f)})
    order = np.partition(f, smallest)[::-1] if smallest else f
    sums = np.cumsum([order[a:b].sum() for a, b in pairwise(ends)])
    total = dict(zip(ends[1:], sums.tolist(), strict=True))
    return np.array([total[n] / n if n else NO_BOUND for n in counts])


def bound(
    reports: Sequence[CertificateReport],
    lam: Array | None,
    request: CertificateRequest,
    share: float,
    drift: float,
    *,
    of: str = "loss",
) -> float:
    """Return the bound of "loss" or "error" at a share of `request` and a drift; ∞ if unknown.

    Without a mixture λ, the bound holds for every mixture at once.
    """
    column = request.shares.index(share)
    means = np.array([getattr(part, of)[:, column] for part in reports])
    mean = means.max(axis=0) if lam is None else np.where(lam[:, None] > 0, means, 0.0).T @ lam
    found = np.inf
    for price, value in zip(request.points, mean.tolist(), strict=True):
        if value >= NO_BOUND * 1e-9 or (price is None and drift > 0):
            continue
        moving = 0.0 if price is None else getattr(request, of) * price * 0.5 * drift**2
        found = min(found, moving + value)
    return found


def reduced(
    group: Group, theta: Array, units: Units, clients: range | None = None
) -> tuple[Group, Array]:
    """Return clients in the few columns that the supremum of the loss depends on, and θ for them.

    A row moves in the span of the weights only. So its columns become its coordinates in that
    span, in standard deviations, and the outputs of all columns that cannot move.
    """
    problem = group.problem
    weights, intercept = problem.split(theta)
    free = np.isfinite(units.moves)
    scale = np.sqrt(units.moves[free])
    basis, slopes = np.linalg.qr((weights[:, free] / scale).T)  # weights = (basis · slopes)ᵀ
    span, outputs = basis.shape[1], problem.outputs
    clients = range(len(group.names)) if clients is None else clients
    bounds = group.bounds[clients.start : clients.stop + 1]
    own = slice(*bounds[[0, -1]].tolist())
    onto = np.zeros((len(free), span + outputs))  # along the span, and to what cannot move
    onto[free, :span] = scale[:, None] * basis
    onto[~free, span:] = weights[:, ~free].T
    rows = np.empty((own.stop - own.start, span + outputs))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, min(start + _BLOCK, len(rows)))
        whole = group.rows[own.start + part.start : own.start + part.stop]
        rows[part] = np.asarray(whole, dtype=np.float64) @ onto
    rows[:, span:] += intercept
    parameter = np.zeros((outputs, rows.shape[1]))
    parameter[:, :span] = slopes.T
    parameter[:, span:] = np.eye(outputs)
    moves = np.where(np.arange(rows.shape[1]) < span, 1.0, np.inf)
    method = methods.method(
        cost=costs.squared(moves.tolist(), label_price=problem.method.cost.label_price)
    )
    smaller = Problem(method, problem.loss, rows.shape[1], problem.classes, intercept=False)
    names = group.names[clients.start : clients.stop]
    centers = np.zeros((len(names), rows.shape[1]))
    made = Group(smaller, names, rows, group.target[own], bounds - own.start, centers)
    return made, parameter.ravel()


def _loss(plain: Group, theta: Array, price: float | None) -> Array:
    """Return f of the loss of every row, with the most that a numerical supremum may miss."""
    method = methods.method(rho=price, cost=plain.problem.method.cost)
    at = replace(plain, problem=replace(plain.problem, method=method))
    if not at.problem.is_finite(theta):
        return np.full(len(plain.target), np.inf)
    if not at.problem.approximate:
        return np.array(at.kept(theta).value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what cannot be shown is reported as no bound
        atoms = at.atoms(theta)
    return np.asarray(atoms.value + atoms.error)


def _kept(rows: int, share: float, in_range: int, least: int) -> int:
    """Return the number of inliers at least, rounded down to whole blocks of `least` rows."""
    inliers = min(rows - int(share * rows + 1e-9), in_range)
    blocks = max(rows // max(least, 1), 1)
    ends = np.arange(blocks + 1) * rows // blocks
    return int(ends[ends <= inliers].max())
