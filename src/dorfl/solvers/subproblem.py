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

_FIRST, MORE = 24, 12  # pieces looked at to begin with, and added at a time
_MOST = 48  # pieces from which on those without a share are left out again
_LOOKS = 40  # programs solved at most: what is still missed, the next step has to find out
_ITERATIONS = 60  # of a program; half as many do but for the worst conditioned ones


def worst_mixture(
    values: Array,
    gradients: Array,
    solve: Callable[[Array], Array],
    cap: float = 1.0,
    owner: Array | None = None,
    first: Array | None = None,
    rough: float = 0.0,
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
        first: which pieces to look at to begin with; by default the largest.
        rough: the share of the decrease that a piece left out may be off by.

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
    working = order[:_FIRST] if first is None else np.union1d(first, order[:1])
    # Enough owners to make up a mixture.
    while cap * len(np.unique(owner[working])) < 1.0 and len(working) < count:
        rest = order[~np.isin(order, working)]
        working = np.concatenate([working, rest[:MORE]])
    for _ in range(_LOOKS):
        chosen = gradients[working]
        solved = solve(chosen)
        share = _quadratic_program(chosen @ solved.T, values[working], cap, owner[working])
        lam = np.zeros(count)
        lam[working] = share
        if len(working) == count:
            return lam
        attained = values - gradients @ (share @ solved)
        level = _levels(
            attained[lam > 0.0], lam[lam > 0.0], cap, owner[lam > 0.0], int(owner.max())
        )
        above = attained - level[owner]
        above[working] = -np.inf
        fall = values.max() - lam @ (values + attained) / 2.0
        worse = np.argsort(-above, kind="stable")[:MORE]
        slack = 1e-9 * np.maximum(1.0, np.abs(level[owner[worse]]))
        worse = worse[above[worse] > np.maximum(slack, rough * fall)]
        if not len(worse):
            break
        if len(working) > _MOST:  # those without a share are found again if they matter
            working = working[share > 0.0]
        working = np.concatenate([working, worse])
    return lam


def _levels(attained: Array, lam: Array, cap: float, owner: Array, last: int) -> Array:
    """What a piece of every owner must beat to matter: the least that has a share.

    A piece of an owner that has all it may have can only take from the owner's others.
    """
    level = np.full(last + 1, float(attained.min()))
    if cap < 1.0:
        full = np.bincount(owner, lam, last + 1) >= cap * (1.0 - 1e-7)
        own = np.full(last + 1, np.inf)
        np.minimum.at(own, owner, attained)
        level[full] = own[full]
    return level


def _quadratic_program(quadratic: Array, linear: Array, cap: float, owner: Array) -> Array:
    """Max linearᵀλ − ½ λᵀ quadratic λ."""
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
    settings.max_iter = _ITERATIONS
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
    return np.asarray(lam / lam.sum())


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
