"""The server's step: the worst mixture for a linear-quadratic model of the clients' risks.

    min_p max_{λ ∈ Λ} Σ_i λ_i (F_i + ∇F_iᵀp) + ½ pᵀBp
      = max_{λ ∈ Λ} λᵀF − ½ λᵀ J B⁻¹ Jᵀ λ,          p = −B⁻¹ Jᵀ λ

a quadratic program in λ alone, whose solution *is* the mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dorfl.support.later import Later
from dorfl.support.types import Array

clarabel, sparse = Later("clarabel"), Later("scipy.sparse")

_FIRST, _MORE = 24, 12  # pieces looked at to begin with, and added at a time


def worst_mixture(
    values: Array,
    gradients: Array,
    solve: Callable[[Array], Array],
    cap: float = 1.0,
    owner: Array | None = None,
) -> Array:
    """λ of the problem above over {0 ≤ λ, Σ λ = 1}, no owner of pieces having more than `cap`.

    Few clients bind, however many there are: the program is solved for the largest F_i, and those
    the solution turns out to favour are added until none is left.

    Args:
        values: (pieces,) F_i.
        gradients: (pieces, parameters) ∇F_i.
        solve: B⁻¹ v for every row v.
        cap: the most that an owner may have.
        owner: (pieces,) whose they are; by default each its own.

    Returns:
        λ of every piece, (pieces,).

    >>> import numpy as np
    >>> worst_mixture(np.zeros(2), np.array([[1.0], [-1.0]]), lambda v: v).round(6)
    array([0.5, 0.5])
    """
    count = len(values)
    owner = np.arange(count) if owner is None else owner
    if count == 1:
        return np.ones(1)
    order = np.argsort(-values, kind="stable")
    working = order[:_FIRST]
    # Enough owners to make up a mixture.
    while cap * len(np.unique(owner[working])) < 1.0 and len(working) < count:
        working = order[: len(working) + _MORE]
    while True:
        chosen = gradients[working]
        solved = solve(chosen)
        share, level = _quadratic_program(chosen @ solved.T, values[working], cap, owner[working])
        lam = np.zeros(count)
        lam[working] = share
        if len(working) == count:
            return lam
        attained = values - gradients @ (share @ solved)
        attained[working] = -np.inf
        slack = 1e-9 * max(1.0, abs(level))
        worse = np.argsort(-attained, kind="stable")[:_MORE]
        worse = worse[attained[worse] > level + slack]
        if not len(worse):
            return lam
        working = np.concatenate([working, worse])


def _quadratic_program(
    quadratic: Array, linear: Array, cap: float, owner: Array
) -> tuple[Array, float]:
    """Max linearᵀλ − ½ λᵀ quadratic λ; returns λ and the level pieces must beat to matter."""
    count = len(linear)
    top = float(linear.max())
    scale = max(float(np.abs(np.diag(quadratic)).max()), float(top - linear.min()), 1e-300)
    rows, columns, starts = _triangle(count)
    half = (quadratic[rows, columns] + quadratic[columns, rows]) / (2.0 * scale)
    limits, right, cones = _simplex(count)
    if cap < 1.0:
        belongs = (owner == np.unique(owner)[:, None]).astype(float)
        limits = sparse.vstack([limits, belongs], format="csc")
        right = np.append(right, np.full(len(belongs), max(cap, (1.0 + 1e-9) / len(belongs))))
        cones = [*cones, clarabel.NonnegativeConeT(len(belongs))]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solution = clarabel.DefaultSolver(
        sparse.csc_matrix((half, rows, starts), shape=(count, count)),
        -(linear - top) / scale,
        limits,
        right,
        cones,
        settings,
    ).solve()
    lam = np.clip(np.array(solution.x), 0.0, cap)
    lam[~(lam >= 1e-9)] = 0.0
    if not lam.any():  # no solution in floating point, from reports of absurd sizes: all alike
        lam[np.unique(owner, return_index=True)[1]] = 1.0
    lam /= lam.sum()
    return lam, float((linear - quadratic @ lam)[lam > 0].min())


@cache
def _triangle(count: int) -> tuple[Array, Array, Array]:
    """Rows and columns of a dense upper triangle, column by column, and where columns start."""
    columns, rows = np.tril_indices(count)
    starts = np.arange(count + 1) * np.arange(1, count + 2) // 2
    return rows.astype(np.int32), columns, starts.astype(np.int32)


@cache
def _simplex(count: int) -> tuple[Any, Array, list[Any]]:
    """Σ λ = 1 and λ ≥ 0 as Clarabel takes them: matrix, right side, cones."""
    matrix = sparse.csc_matrix(np.vstack([np.ones((1, count)), -np.eye(count)]))
    right = np.append(1.0, np.zeros(count))
    return matrix, right, [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(count)]
