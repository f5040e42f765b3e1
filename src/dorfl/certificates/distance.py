"""Unbalanced Wasserstein distance: transport that may drop outliers, at the price of a KL term.

    UW(P‖Q) = min over γ ≥ 0, γ1 = p   of   ⟨C, γ⟩ + β KL(γᵀ1 ‖ q)

The plan must carry all of P, but may leave P̄ = γᵀ1 in place of Q on the other side: points of Q
that are far from everything are abandoned at a price of order β times their weight, however far
they are. β = ∞ is the plain Wasserstein distance.

Every answer is certified. Only the rows of γ are constrained, so a plan rescaled to them is
feasible and its objective is an upper bound. Every ψ gives a lower bound, the semi-dual objective
Σ_i p_i min_j (C_ij − ψ_j) − β log Σ_j q_j e^{−ψ_j/β}. Both are evaluated here as they stand; how
:mod:`dorfl.certificates.interior_point` found γ and ψ does not matter.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, xlogy

from dorfl.support import lazy
from dorfl.support.lazy import LazyModule
from dorfl.support.types import Array

_inner = LazyModule("dorfl.certificates.interior_point")

Sample = ArrayLike | tuple[ArrayLike, ArrayLike]  # points (n, d), or (points, weights)
CostLike = str | ArrayLike | Callable[[Array, Array], ArrayLike]


@dataclass(frozen=True)
class Transport:
    """A feasible plan and the certificate that it is nearly optimal: lower ≤ optimum ≤ value.

    Attributes
    ----------
    value : float
        Objective of the plan.
    lower : float
        Semi-dual objective at `potential`.
    plan : array of shape (n, m)
        γ; rows sum to the weights of P.
    marginal : array of shape (m,)
        P̄, the column sums of γ; its ratio to q shows which points were left out.
    potential : array of shape (m,)
        ψ, normalised so that Σ_j q_j e^{−ψ_j/β} = 1.
    """

    value: float
    lower: float
    plan: Array
    marginal: Array
    potential: Array

    @property
    def gap(self) -> float:
        """Largest distance of `value` from the optimum, up to rounding (1e-15 of β and of C)."""
        return max(self.value - self.lower, 0.0)

    @property
    def relative_gap(self) -> float:
        """Gap relative to the value; of little use if the distance is nearly zero."""
        return self.gap / max(abs(self.value), np.finfo(float).tiny)


def unbalanced_wasserstein(
    P: Sample,
    Q: Sample,
    beta: float,
    *,
    cost: CostLike = "squared",
    tol: float = 1e-4,
    max_iterations: int = 100,
) -> Transport:
    """Compute the unbalanced Wasserstein distance with a certified gap.

    UW(P‖Q) = min over γ ≥ 0 with γ1 = p of ⟨C, γ⟩ + β KL(γᵀ1 ‖ q).

    Parameters
    ----------
    P : array-like, or pair of array-like
        Points (n, d) of equal weight, or (points, weights); weights are scaled to sum to one.
    Q : array-like, or pair of array-like
        Points (m, d), or (points, weights).
    beta : float
        Price of moving Q's own weights; infinity forbids it and gives :func:`wasserstein`.
    cost : str, callable or array-like
        "squared" for c = ½‖x − y‖², a function of both point arrays that returns the matrix, or the
        matrix (n, m). To forbid a pair, give it a price far above the others.
    tol : float
        Stop once gap ≤ tol · abs(value); 1e-8 is possible. If the distance is nearly zero,
        abs(value) is replaced by 10⁻⁴ Σ_i p_i (−β log Σ_j q_j e^{−C_ij/β}), an upper bound of the
        distance (here with each row's smallest cost subtracted).
    max_iterations : int
        Largest number of Newton steps.

    Returns
    -------
    Transport
        Value, lower bound, plan and potential.

    Raises
    ------
    ValueError
        If an argument is out of range, or P, Q and the cost do not fit each other.

    Warns
    -----
    RuntimeWarning
        If the tolerance was not reached; the message states the gap.

    >>> import numpy as np
    >>> clean = np.arange(10.0)[:, None]
    >>> dirty = np.where(clean == 9.0, 1e6, clean)               # one wild value among ten
    >>> result = unbalanced_wasserstein(clean, dirty, beta=1.0)
    >>> round(result.value, 2), wasserstein(clean, dirty).value > 1e10
    (0.19, True)
    >>> bool(result.marginal[9] < 1e-6), result.relative_gap < 1e-4
    (True, True)
    """
    if not beta > 0:
        raise ValueError(f"beta={beta}: must be positive; inf gives the plain Wasserstein distance")
    if not tol > 0 or max_iterations < 1:
        raise ValueError("tol must be positive and max_iterations at least 1")
    p, q, matrix = _problem(P, Q, cost)
    # A row or column without weight carries nothing; leaving it out keeps the logarithms finite.
    rows, columns = p > 0, q > 0
    support, a, b = np.ix_(rows, columns), p[rows], q[columns]
    # Beyond this β the KL term is a constraint, to rounding; the certificate says how nearly.
    solve = _exact if beta > 1e7 * np.ptp(matrix[support]) else _inner.interior_point
    plan, psi, converged = solve(matrix[support], a, b, beta, tol, max_iterations)

    # The certificate, from nothing but the plan and ψ. First the largest ψ that leaves φ as it is.
    phi = (matrix[support] - psi).min(axis=1)
    potential = (matrix[rows] - phi[:, None]).min(axis=0)
    psi, marginal = potential[columns], plan.sum(axis=0)
    value = float(np.einsum("ij,ij->", plan, matrix[support]))
    if np.isinf(beta):
        constant = float(b @ psi)
    else:
        value += beta * float(xlogy(marginal, marginal / b).sum())
        constant = -beta * float(logsumexp(-psi / beta, b=b))
    full_plan = np.zeros_like(matrix)
    full_plan[support] = plan
    lower = float(a @ phi) + constant
    result = Transport(value, lower, full_plan, full_plan.sum(axis=0), potential - constant)
    if not converged and result.relative_gap > tol:
        warnings.warn(
            f"unbalanced_wasserstein: relative gap {result.relative_gap:.1e}, tol {tol:.1e}; "
            "value and lower still bracket the distance. Raise tol or max_iterations.",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


def wasserstein(P: Sample, Q: Sample, cost: CostLike = "squared") -> Transport:
    """Compute the Wasserstein distance by POT's network simplex.

    W(P, Q) = min over γ ≥ 0 with γ1 = p and γᵀ1 = q of ⟨C, γ⟩. POT is not installed with dorfl but
    by its extra "distance".

    Parameters
    ----------
    P : array-like, or pair of array-like
        Points (n, d) of equal weight, or (points, weights); weights are scaled to sum to one.
    Q : array-like, or pair of array-like
        Points (m, d), or (points, weights).
    cost : str, callable or array-like
        "squared" for c = ½‖x − y‖², a function of both point arrays that returns the matrix, or the
        matrix (n, m). To forbid a pair, give it a price far above the others.

    Returns
    -------
    Transport
        Value, lower bound, plan and potential.

    Raises
    ------
    ModuleNotFoundError
        If POT is not installed.

    >>> wasserstein([[0.0], [1.0]], [[1.0], [2.0]]).value
    0.5
    """
    return unbalanced_wasserstein(P, Q, np.inf, cost=cost)


def require() -> None:
    """Raise an error that names the command to install POT, if it is missing."""
    if importlib.util.find_spec("ot") is None:
        raise ModuleNotFoundError(
            "the plain Wasserstein distance (beta=inf) is computed by POT; install it with: "
            f"{lazy.install_command('distance')}"
        )


def _problem(P: Sample, Q: Sample, cost: CostLike) -> tuple[Array, Array, Array]:
    """Check the samples; return the weights p and q, and the cost matrix."""
    (x, p), (y, q) = _weighted("P", P), _weighted("Q", Q)
    if isinstance(cost, str):
        if cost != "squared":
            raise ValueError(f'cost="{cost}" is unknown; give "squared", a function or a matrix')
        if x.shape[1:] != y.shape[1:]:
            raise ValueError(
                f"P and Q: shapes {x.shape[1:]}, {y.shape[1:]} of a point must be equal"
            )
        cost = 0.5 * cdist(x.reshape(len(x), -1), y.reshape(len(y), -1), "sqeuclidean")
    matrix = np.asarray(cost(x, y) if callable(cost) else cost, dtype=np.float64)
    if matrix.shape != (len(p), len(q)):
        raise ValueError(f"cost: shape {matrix.shape}; must be (len P, len Q) = {(len(p), len(q))}")
    if not np.isfinite(matrix).all():
        raise ValueError("cost: NaN or infinite; to forbid a pair give it a large finite cost")
    return p, q, matrix


def _weighted(name: str, sample: Sample) -> tuple[Array, Array]:
    points, weights = sample if isinstance(sample, tuple) and len(sample) == 2 else (sample, None)
    points = np.asarray(points, dtype=np.float64)
    if points.ndim == 0 or len(points) == 0:
        raise ValueError(f"{name}: no points; give an array (n, d), or a pair (points, weights)")
    if not np.isfinite(points).all():
        raise ValueError(f"{name}: points are NaN or infinite; remove or impute those rows")
    weights = np.asarray(np.ones(len(points)) if weights is None else weights, dtype=np.float64)
    if weights.shape != (len(points),):
        raise ValueError(f"{name}: {len(points)} points, weights {weights.shape}; give one each")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(f"{name}: weights must be finite, not negative, and not all zero")
    weights = weights / weights.max()  # first, so that the sum cannot overflow
    return points, weights / weights.sum()


def _exact(cost: Array, p: Array, q: Array, *_: float) -> tuple[Array, Array, bool]:
    """Solve plain transport; β, tolerance and budget of the other solver are not needed."""
    if 1 in cost.shape:  # one plan only; POT calls the 1 × 1 problem infeasible
        return np.outer(p, q), cost[0] if len(p) == 1 else np.zeros(1), True
    require()
    from ot import emd  # noqa: PLC0415 - slow to import, and needed here alone

    plan, log = emd(p, q, cost, log=True, numItermax=10**8)
    # POT meets the marginals to rounding; here the rows are exact, as they are for finite β.
    return plan * (p / plan.sum(axis=1))[:, None], log["v"], log["warning"] is None
