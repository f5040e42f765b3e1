"""Sums over rows with unequal masses or sparse rows, and suprema that need numerical ascent.

The compiled pass reads every row once and keeps only sums. If rows have masses, or are sparse, it
computes the suprema alone, which depend on a row's outputs only. Since m = A ζ + (I − A) ξ̄ is
affine in the row, the sums are then matrix products with the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from dorfl.linear.base import Atoms
from dorfl.linear.inner import ascend
from dorfl.support.threads import share
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.linear.group import Group

_NUMBERS = 4_000_000  # in a dense block of sparse rows


class Sums(NamedTuple):
    """F_i, Σ p g ζᵀ, Σ p g, Σ p g gᵀ and Σ p g · shift of each client."""

    values: Array
    moment: Array
    slope: Array
    square: Array
    shift: Array


def sums(group: Group, value: Array, slope: Array, shift: Array) -> Sums:
    """Return the sums of a group from the results of a pass for every row."""
    push = group.weights_of(value)[:, None] * slope
    clients, outputs = len(group.names), slope.shape[1]
    moment = np.zeros((clients, outputs, group.problem.dims))
    square = np.empty((clients, outputs, outputs))
    for i, (first, stop) in enumerate(pairwise(group.bounds.tolist())):
        square[i] = push[first:stop].T @ slope[first:stop]
        for at in blocks(group.standing, first, stop):
            moment[i] += (group.standing[at].T @ push[at]).T
    starts = group.bounds[:-1]
    moved = np.add.reduceat(push[:, 0] * shift, starts)
    return Sums(group.average(value), moment, np.add.reduceat(push, starts), square, moved)


def dense(rows: Any) -> Array:
    """Return rows as a dense array."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows)


def blocks(rows: Any, first: int, stop: int) -> list[slice]:
    """Return slices of the rows such that a dense block has at most `_NUMBERS` numbers."""
    step = max(_NUMBERS // max(rows.shape[1], 1), 1)
    return [slice(start, min(start + step, stop)) for start in range(first, stop, step)]


def penalty(group: Group) -> Array:
    """Return the least cost of the score of every row, without loss; zero if not separable."""
    problem, rows = group.problem, group.rows
    out = np.zeros(rows.shape[0])
    if problem.score.hessian(problem.dims) is not None:
        cut = [
            (i, at)
            for i, (first, stop) in enumerate(pairwise(group.bounds.tolist()))
            for at in blocks(rows, first, stop)
        ]

        def work(part: slice) -> None:
            for i, at in cut[part]:
                out[at] = problem.geometry.penalty(dense(rows[at]), group.center_of(i, at))

        share(work, len(cut), rows.size)
    elif not problem.closed and not problem.approximate:
        out = group.scored(rows, group.target)
    return out


def centers_of(group: Group) -> Array:
    """Return ξ̄ of every row (n, d)."""
    out = np.empty(group.rows.shape)
    for i, (first, stop) in enumerate(pairwise(group.bounds.tolist())):
        out[first:stop] = group.center_of(i, slice(first, stop))
    return out


def standing(group: Group) -> Array:
    """Return rows ζ' with A ζ' = A ζ + (I − A) ξ̄, so that a pass needs ξ̄ for the penalty only."""
    shape, out = group.problem.geometry, np.empty_like(group.rows)
    for i, (first, stop) in enumerate(pairwise(group.bounds.tolist())):
        for at in blocks(group.rows, first, stop):
            away = shape.anchor(group.center_of(i, at))
            whole = shape.shrink.ndim == 2
            away = np.linalg.solve(shape.shrink, away.T).T if whole else away / shape.shrink
            out[at] = group.rows[at] + away
    return out


def climb(group: Group, theta: Array, price: float) -> Atoms:
    """Return the supremum by ascent, over the labels too if they have a finite `price`."""
    problem, score = group.problem, group.problem.score
    weights, intercept = problem.split(theta)
    centers = centers_of(group)
    rows = np.asarray(group.rows, np.float64)
    targets = [group.target]
    if np.isfinite(price):
        codes = problem.encode(problem.classes)
        targets += [np.full_like(group.target, code) for code in codes]
    best: tuple[Array, ...] | None = None
    for target in targets:
        labels = problem.decode(target)
        found = ascend(
            weights, intercept, rows, target, problem.loss, problem.stiffness,
            _of_rows(score.at, centers, labels), _of_rows(score.gradient, centers, labels),
            dent=score.nonconvexity(problem.stiffness), distance=group.tolerance,
        )  # fmt: skip
        value = found.value - np.where(target == group.target, 0.0, price)
        candidate = (value, found.atoms, target, found.slope, found.error)
        if best is None:
            best = candidate
        else:
            wins = value > best[0]
            best = (
                np.where(wins, value, best[0]),
                np.where(wins[:, None], found.atoms, best[1]),
                np.where(wins, target, best[2]),
                np.where(wins[:, None], found.slope, best[3]),
                np.maximum(found.error, best[4]),
            )
    assert best is not None
    value, place, target, slope, error = best
    return Atoms(place, target, value, group.weights_of(value), slope, float(error.max()))


def _of_rows(function: Callable[..., Array], *given: Array) -> Callable[[Array], Array]:
    return lambda rows: function(rows, *given)
