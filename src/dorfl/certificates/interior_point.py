"""Interior-point solver for semi-relaxed transport, of :mod:`dorfl.certificates.distance`.

Its dual is max ⟨p, φ⟩ − β Σ_j q_j (e^{−ψ_j/β} − 1) subject to s_ij = C_ij − φ_i − ψ_j ≥ 0. At the
optimum γ_ij s_ij = 0 and ψ_j = −β log(γᵀ1/q)_j. A primal–dual method with predictor and corrector,
as in linear programming, drives all γ_ij s_ij = μ to zero: mostly ten to twenty Newton steps, at
any cost and β, each a Cholesky factorisation of size min(n, m). ψ enters through its logarithmic
equation, so a column that must lose all its mass does so in a few steps and nothing overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
from numba import njit
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.blas import dsyrk
from scipy.special import logsumexp

from dorfl.support.threads import one_blas_thread
from dorfl.support.types import Array

_Pair = tuple[Array, Array]


def interior_point(
    cost: Array, p: Array, q: Array, beta: float, tol: float, max_iterations: int
) -> tuple[Array, Array, bool]:
    """Return a plan with row sums p, a potential, and True if their gap is within tol."""
    nearest = cost.min(axis=1)
    cost, offset = cost - nearest[:, None], float(p @ nearest)
    # Rows that each go to their own soft minimum cost `scale` at most, since KL is convex.
    kernel = np.exp(-cost / beta)
    soft = np.einsum("ij,j->i", kernel, q)
    scale = float(-beta * p @ np.log(soft))
    if scale <= tol * abs(offset):
        return (p / soft)[:, None] * kernel * q, np.zeros_like(q), True
    # Costs in units of that bound: the optimum, less the offset, is now between 0 and 1.
    cost, beta, offset = cost / scale, beta / scale, offset / scale
    phi, psi = np.full(len(p), -0.3), np.zeros_like(q)
    inverse = 1.0 / (cost - phi[:, None])  # 1/s, and below γ; both stay positive
    plan = (p / inverse.sum(axis=1))[:, None] * inverse  # γ1 = p, as after every later step
    lower, best, converged = -np.inf, psi, False
    # Threads that spin for work slow problems of this size down, by 50 times on a busy machine.
    with one_blas_thread() if min(cost.shape) < 1000 else nullcontext():
        for _ in range(max_iterations):
            marginal = plan.sum(axis=0)
            mismatch = psi + beta * np.log(marginal / q)
            spent = np.einsum("ij,ij->", plan, cost)
            value = spent + marginal @ (mismatch - psi)
            phi_tight = phi + 1.0 / inverse.max(axis=1)  # min_j (C_ij − ψ_j)
            bound = p @ phi_tight - beta * logsumexp(-psi / beta, b=q)
            if bound > lower:
                lower, best = bound, psi
            converged = bool(value - lower <= tol * max(abs(value + offset), 1e-4))
            if converged:
                break
            # Newton on γ1 = p, ψ = −β log(γᵀ1/q), γs = target; dγ eliminated, W = γ/s is left.
            weights, curvature = plan * inverse, marginal / beta
            try:
                newton = _factor(weights, weights.sum(axis=1), weights.sum(axis=0) + curvature)
            except LinAlgError:  # singular, by rounding
                break
            pull = marginal - curvature * mismatch
            predictor = newton(p, pull)  # for γs = 0; its step length determines μ
            reach, second_rows, second_columns = _predict(plan, inverse, *predictor)
            pairing = spent - p @ phi - marginal @ psi  # Σ γs
            mu = (1.0 - reach) ** 3 * pairing / plan.size
            step = newton(
                p - mu * inverse.sum(axis=1) - second_rows,
                pull - mu * inverse.sum(axis=0) - second_columns,
            )
            length = _advance(plan, inverse, mu, predictor, step)
            phi, psi = phi + length * step[0], psi + length * step[1]
    return plan * (p / plan.sum(axis=1))[:, None], best * scale, converged


def _factor(weights: Array, rows: Array, columns: Array) -> Callable[[Array, Array], _Pair]:
    """Return a solver of [[diag(rows), W], [Wᵀ, diag(columns)]] (x, y) = (a, b)."""
    if len(rows) < len(columns):
        flipped = _factor(np.ascontiguousarray(weights.T), columns, rows)
        return lambda a, b: flipped(b, a)[::-1]
    root = np.sqrt(rows)
    scaled = weights / root[:, None]
    schur = dsyrk(-1.0, scaled.T, lower=1)
    schur[np.diag_indices_from(schur)] += columns
    factor = cho_factor(schur, lower=True, overwrite_a=True, check_finite=False)

    def solve(a: Array, b: Array) -> _Pair:
        y = cho_solve(factor, b - np.einsum("ij,i->j", scaled, a / root), check_finite=False)
        return (a / root - np.einsum("ij,j->i", scaled, y)) / root, y

    return solve


# Fused passes over all pairs: NumPy would read the matrices twenty times in each step.
# With u = (dφ_i + dψ_j)/s, and v the same of the predictor, ds = −s u and
# dγ = μ/s + γ (v (v − 1) − 1 + u). There γ v (v − 1) = −dγ ds/s of the predictor: the corrector
# adds the second-order term that the predictor's linearisation omits.
_compile = njit(cache=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc", "contract"})


@_compile
def _predict(plan: Array, inverse: Array, dphi: Array, dpsi: Array) -> tuple[float, Array, Array]:
    """Return the step length of the predictor, and row and column sums of γ v (v − 1)."""
    rows, columns = np.zeros(plan.shape[0]), np.zeros(plan.shape[1])
    limit = 1.0
    for i in range(plan.shape[0]):
        for j in range(plan.shape[1]):
            v = (dphi[i] + dpsi[j]) * inverse[i, j]
            limit = max(limit, v, 1.0 - v)
            second = plan[i, j] * v * (v - 1.0)
            rows[i] += second
            columns[j] += second
    return 1.0 / limit, rows, columns


@_compile
def _advance(plan: Array, inverse: Array, mu: float, predictor: _Pair, step: _Pair) -> float:
    """Move γ and 1/s, at most 0.99 of the way to where an entry is zero; return the dual length."""
    primal, dual = 0.99, 0.99
    for i in range(plan.shape[0]):
        for j in range(plan.shape[1]):
            v = (predictor[0][i] + predictor[1][j]) * inverse[i, j]
            u = (step[0][i] + step[1][j]) * inverse[i, j]
            primal = max(primal, 1.0 - u - v * (v - 1.0) - mu * inverse[i, j] / plan[i, j])
            dual = max(dual, u)
    primal, dual = 0.99 / primal, 0.99 / dual
    for i in range(plan.shape[0]):
        for j in range(plan.shape[1]):
            v = (predictor[0][i] + predictor[1][j]) * inverse[i, j]
            u = (step[0][i] + step[1][j]) * inverse[i, j]
            plan[i, j] += primal * (mu * inverse[i, j] + plan[i, j] * (v * (v - 1.0) - 1.0 + u))
            inverse[i, j] /= 1.0 - dual * u
    return dual
