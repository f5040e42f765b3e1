"""The inner supremum f(θ, ζ) = sup_ξ L(θ, ξ) − ρ c(ξ, ζ) of a row ζ.

Cost and quadratic score together are one quadratic in the row, −½ (x − m)ᵀ K (x − m) − penalty(ζ),
with K = ρ W + 2ρ₂ V. Its centre m = A ζ + (I − A) ξ̄ is one affine map for every row, so neither
centres nor moved rows are ever stored: the model is applied to ζ with the weights A θ instead.
:class:`Geometry` holds A, K⁻¹ and the penalty; :mod:`dorfl.linear.kernels` solves the
rest, exactly.

Losses and scores without a closed form go through :func:`ascend`, which reports how accurate it
was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dorfl.objective.base import Loss
from dorfl.support.lazy import optimize
from dorfl.support.types import Array


class Geometry(NamedTuple):
    """The quadratic form of cost and score. Diagonals are (d,), full matrices (d, d)."""

    shrink: Array  # A, with m = A ζ + (I − A) ξ̄
    inverse: Array  # K⁻¹, zero on frozen coordinates
    bowl: Array  # Q, with penalty(ζ) = (ζ − ξ̄)ᵀ Q (ζ − ξ̄)

    def spread(self, weights: Array) -> Array:
        """Return S = W K⁻¹ Wᵀ, the move of the outputs per unit of slope; W is (outputs, d)."""
        return np.asarray(apply(self.inverse, weights) @ weights.T)

    def anchor(self, center: Array) -> Array:
        """Return (I − A) ξ̄, the part of every centre m that does not depend on the row."""
        return np.asarray(center - apply(self.shrink, center))

    def penalty(self, rows: Array, center: Array) -> Array:
        """Return min_x h(x) + ρ c(x, ζ) of every row: the least cost of the score, without loss."""
        offset = np.asarray(rows, dtype=np.float64) - center
        return np.asarray(np.einsum("ij,ij->i", offset, apply(self.bowl, offset)))


def geometry(rho: float, cost_weights: Array, bend: Array | None = None) -> Geometry:
    """Return the geometry of cost ρ·½Σ w_k (x_k − ζ_k)² and score ½ (x − ξ̄)ᵀ `bend` (x − ξ̄).

    >>> import numpy as np
    >>> geometry(2.0, np.ones(1), 2.0 * np.ones(1)).shrink      # m halfway between ζ and ξ̄
    array([0.5])
    """
    dims = len(cost_weights)
    stiff = rho * cost_weights
    bend = np.zeros(dims) if bend is None else bend
    free = np.isfinite(stiff)
    if bend.ndim == 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            inverse = np.where(free, 1.0 / (stiff + bend), 0.0)
            shrink = np.where(free, stiff * inverse, 1.0)
        return Geometry(shrink, inverse, 0.5 * bend * shrink)

    # Stationarity in the free coordinates F, the frozen ones Z staying at ζ:
    # K_FF (m_F − ξ̄_F) = ρW (ζ_F − ξ̄_F) − 2ρ₂V_FZ (ζ_Z − ξ̄_Z).
    inverse, shrink = np.zeros((dims, dims)), np.eye(dims)
    inner = np.ix_(free, free)
    inverse[inner] = np.linalg.inv(np.diag(stiff[free]) + bend[inner])
    pull = np.hstack([np.diag(stiff[free]), -bend[np.ix_(free, ~free)]])
    order = np.concatenate([np.flatnonzero(free), np.flatnonzero(~free)])
    shrink[np.ix_(free, order)] = inverse[inner] @ pull
    moved = shrink - np.eye(dims)
    transport = np.where(free, stiff, 0.0)
    bowl = 0.5 * (shrink.T @ bend @ shrink + (moved.T * transport) @ moved)
    return Geometry(shrink, inverse, bowl)


def apply(operator: Array, vectors: Array) -> Array:
    """Return operator · v for every v in the last axis; a (d,) operator is a diagonal."""
    return np.asarray(vectors * operator if operator.ndim == 1 else vectors @ operator.T)


def is_concave(loss: Loss, spread: Array) -> bool:
    """Return True if the supremum is strictly concave at this spread: one maximiser."""
    return _stretch(loss, spread) < 1.0


def _stretch(loss: Loss, spread: Array) -> float:
    """Return curvature · λ_max(S): the curvature of the loss relative to that of the cost."""
    largest = _largest(spread, loss.invariant)
    return loss.curvature * largest if largest > 0 else 0.0


def _largest(spread: Array, invariant: bool) -> float:
    if spread.shape == (1, 1):
        return float(spread[0, 0])
    if invariant:
        spread = spread - spread.mean(axis=0)
        spread = spread - spread.mean(axis=1, keepdims=True)
    return float(np.linalg.eigvalsh(spread)[-1])


def check_finite(loss: Loss, rho: float, spread_at: Callable[[float], Array]) -> None:
    """Raise ValueError if the supremum is infinite, and name the smallest ρ that is large enough.

    `spread_at` returns S of the model's weights for a ρ.
    """
    if math.isinf(loss.finite_below):
        return

    def excess(price: float) -> float:
        return float(spread_at(price)[0, 0]) - loss.finite_below

    if excess(rho) < 0.0:
        return
    high = rho
    while excess(high) >= 0.0:
        high *= 2.0
    least = optimize.brentq(excess, rho, high, xtol=1e-12)
    raise ValueError(
        f"{loss.name} loss: the supremum is infinite at rho={rho:g}, because moving a row gains "
        f"faster than it costs; any rho above {_rounded_up(least)} would do for these weights"
    )


def _rounded_up(value: float) -> str:
    unit = 10.0 ** (np.floor(np.log10(value)) - 5)
    return f"{np.ceil(value / unit - 1e-6) * unit:.6g}"


class Ascent(NamedTuple):
    """Result of :func:`ascend`: f and its maximisers, with bounds on their errors."""

    value: Array
    atoms: Array
    slope: Array
    error: Array  # a bound on f* − value; infinite if strong concavity cannot be shown
    distance: Array  # a bound on the distance to the maximiser; likewise


def ascend(
    weights: Array,
    intercept: Array,
    rows: Array,
    target: Array,
    loss: Loss,
    stiffness: Array,
    score: Callable[[Array], Array],
    score_gradient: Callable[[Array], Array],
    *,
    dent: float = 0.0,
    accuracy: float = 1e-20,
    distance: float = 0.0,
    max_steps: int = 500,
) -> Ascent:
    """Maximise l − h − ½ Σ κ_k (x_k − ζ_k)² for every row by preconditioned gradient ascent.

    Step lengths are those of Barzilai and Borwein (*Two-point step size gradient methods*, IMA J.
    Numer. Anal. 8, 1988), with Armijo's rule. With μ = 1 − curvature · λ_max(S) − dent > 0 the
    problem is strongly concave and ½‖∇‖²/μ bounds the error. Otherwise the maximiser may be a local
    one, and a warning says so.

    `stiffness` is κ = ρ w, infinite for frozen columns. `dent` is a bound with
    ∇²h ⪰ −dent · diag(κ): 0 for a convex score, infinite if unknown. A row is done if its error is
    below `accuracy`, or its distance below `distance` > 0.
    """
    free = np.isfinite(stiffness)
    soft = np.where(free, 1.0 / stiffness, 0.0)
    stiff = np.where(free, stiffness, 0.0)
    modulus = 1.0 - _stretch(loss, (weights * soft) @ weights.T) - dent
    if not free.any():  # nothing moves: the rows are their own maximisers
        modulus = 1.0
    if modulus <= 0:
        warnings.warn(
            "the inner problem cannot be shown to be strongly concave: its maximiser may be a "
            "local one, and what is computed from it an estimate, not a bound; a larger rho helps",
            stacklevel=2,
        )
    nearest = float(stiff[free].min()) if free.any() else 1.0

    def outputs(x: Array) -> Array:
        t = x @ weights.T + intercept
        return np.asarray(t if len(weights) > 1 else t[:, 0])

    def objective(x: Array) -> Array:
        return loss.value(outputs(x), target) - score(x) - 0.5 * ((x - rows) ** 2) @ stiff

    def ascent_direction(x: Array) -> tuple[Array, Array, Array]:
        slope = loss.slope(outputs(x), target)
        gradient = (slope @ weights - score_gradient(x)) * free - (x - rows) * stiff
        return slope, gradient, np.einsum("ij,ij,j->i", gradient, gradient, soft)

    x = np.array(rows, dtype=np.float64)
    value = objective(x)
    length = np.ones(len(x))
    slope, gradient, size = ascent_direction(x)  # size: ‖∇‖² in the metric of the cost
    for _ in range(max_steps):
        done = 0.5 * size / max(modulus, 1e-3) <= accuracy
        if distance > 0:
            done |= np.sqrt(size / nearest) / max(modulus, 1e-3) <= distance
        done |= length < 1e-12
        if done.all():
            break
        trial = x + (length * ~done)[:, None] * gradient * soft
        reached = objective(trial)
        rounding = 1e-15 * (1.0 + np.abs(value))
        better = ~done & (reached >= value + 1e-4 * length * size - rounding)
        trial = np.where(better[:, None], trial, x)
        slope, following, size = ascent_direction(trial)
        moved = np.einsum("ij,ij,j->i", trial - x, trial - x, stiff)
        bent = np.einsum("ij,ij->i", trial - x, gradient - following)
        # The Barzilai–Borwein length: one over the curvature along the last step.
        seen = np.clip(moved / np.where(bent > 0, bent, np.inf), 0.0, 1e3)
        length = np.where(better, np.where(seen > 0, seen, 2.0 * length), 0.5 * length)
        x, gradient, value = trial, following, np.where(better, reached, value)
    if modulus <= 0:
        unknown = np.full(len(x), np.inf)
        return Ascent(value, x, slope, unknown, unknown)
    return Ascent(value, x, slope, 0.5 * size / modulus, np.sqrt(size / nearest) / modulus)
