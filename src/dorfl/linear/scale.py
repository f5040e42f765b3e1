"""Clients that are evaluated at (θ, σ): the scale σ of residuals is the last unknown.

With the loss l = huber_{εσ}(r)/σ of :class:`~dorfl.objective.losses.ConcomitantHuber`, a row's
supremum is f(θ, σ) = sup_x l(y − θᵀx) − ρ c(x, ζ) − h(x). Since

    huber_{εσ}(r)/σ = huber_{ε√σ}(r/√σ),

f is the supremum for Huber's loss with δ = ε√σ, labels y/√σ and parameters θ/√σ. Neither ρ, h, nor
the temperature changes, so that the closed form and all that is computed once stay as they are.

With g = ∂l/∂t = clip(r/σ, ±ε) at the maximiser z, S = θᵀK⁻¹θ, and E = 1/(σ − S) for rows with
|g| < ε, else 0, Danskin's theorem and the implicit function theorem give

    ∂f/∂σ = −g²/2,    ∂²f/∂σ² = g² E,    ∂²f/∂σ∂θ = −g E (z + g K⁻¹θ).

The tilt adds Cov_p(∇f)/ρβ to the curvature, as it does in :mod:`dorfl.linear.hessian`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorfl.linear import rowwise
from dorfl.linear.base import Evaluation, Extended
from dorfl.linear.inner import apply
from dorfl.linear.problem import Problem
from dorfl.objective.losses import ConcomitantHuber
from dorfl.support.threads import one_blas_thread
from dorfl.support.types import Array

if TYPE_CHECKING:
    from dorfl.linear.group import Group

_MOST = 10.0  # times D: the largest E, as in `hessian._stretched`


class Bends(NamedTuple):
    """The clients' curvature in σ."""

    columns: Array  # (clients, P + 1): σ^(3/2) ∂²F/∂σ∂θ and last σ² ∂²F/∂σ², without `least`
    heaviest: Array  # (clients,): the largest share of one row in a sum behind `columns`


class Scaled(Extended):
    """Clients that are evaluated at (θ, σ); the oracle is a :class:`~dorfl.linear.group.Group`."""

    def evaluate(self, theta: Array, curvature: str = "none", *, rows: bool = False) -> Evaluation:
        """Return F_i, its gradient and its curvature in (θ, σ)."""
        loss, scale = _loss(self.problem), float(theta[-1])
        if not 0.0 < scale < math.inf:
            raise ValueError(f"scale: σ = {scale} was asked for; it must be a positive number")
        clients, root = self.oracle.at_scale(scale), math.sqrt(scale)
        found: Evaluation = clients.evaluate(theta[:-1] / root, curvature, rows=rows, keep=True)
        assert found.kept is not None
        slope, starts = found.kept.slope[:, 0], clients.bounds[:-1]
        weights = clients.weights_of(found.kept.value)
        square = np.add.reduceat(weights * slope**2, starts)
        least = loss.consistency * loss.least**2 / scale
        steep = 0.5 * (loss.consistency - (square + least) / scale)
        added = 0.5 * (loss.consistency * scale + least)
        gradients = found.gradients / root
        out = found._replace(
            values=found.values + added,
            gradients=np.column_stack([gradients, steep]),
            kept=found.kept if rows else None,
        )
        if found.curvature is None:
            return out
        bends = _bends(clients, theta[:-1] / root, weights, slope, found.gradients, square)
        columns = bends.columns
        columns[:, :-1] /= root * scale
        columns[:, -1] = (columns[:, -1] + least) / scale**2
        bent = found._replace(curvature=found.curvature / scale)
        packed = self.bordered(bent, columns, curvature)
        heaviest = found.heaviest
        if heaviest is not None:
            heaviest = np.maximum(heaviest, bends.heaviest)
        return out._replace(curvature=packed, heaviest=heaviest)


def _bends(
    group: Group, theta: Array, weights: Array, slope: Array, gradients: Array, square: Array
) -> Bends:
    """Return :class:`Bends` of a group whose labels and θ are in units of √σ.

    `slope` is ∂l/∂t of every row in these units, `square` Σ p slope² of every client.
    """
    problem, starts = group.problem, group.bounds[:-1]
    coefficients, _ = problem.split(theta)
    spread = float(problem.geometry.spread(coefficients)[0, 0])
    inside = np.abs(slope) < problem.loss.parameter
    bend = np.where(inside, 1.0 / max(1.0 - spread, 1.0 / _MOST), 0.0)
    tau = problem.method.temperature
    beside = weights * slope * (bend + slope**2 / (2.0 * tau))
    alone = weights * slope**2 * (bend + slope**2 / (4.0 * tau))
    pulled = apply(problem.geometry.inverse, coefficients)[0]
    pulls = np.add.reduceat((beside + weights * slope * bend) * slope, starts)
    columns = np.empty((len(group.names), problem.size + 1))
    columns[:, : problem.dims] = -_summed_places(group, beside) - pulls[:, None] * pulled
    if problem.intercept:
        columns[:, -2] = -np.add.reduceat(beside, starts)
    columns[:, :-1] += gradients * (square / (2.0 * tau))[:, None]
    columns[:, -1] = np.add.reduceat(alone, starts) - square**2 / (4.0 * tau)
    heaviest = [_largest_share(part, starts) for part in (np.abs(beside), alone)]
    return Bends(columns, np.maximum(*heaviest))


def _summed_places(group: Group, weights: Array) -> Array:
    """Return Σ_j w_j m_j of every client (clients, d), with the centres m of the rows."""
    out = np.zeros((len(group.names), group.problem.dims))
    with one_blas_thread():
        for i, (first, stop) in enumerate(pairwise(group.bounds.tolist())):
            for at in rowwise.blocks(group.standing, first, stop):
                out[i] += group.standing[at].T @ weights[at]
    total = np.add.reduceat(weights, group.bounds[:-1])
    return np.asarray(apply(group.problem.geometry.shrink, out) + total[:, None] * group.anchors)


def _largest_share(parts: Array, starts: Array) -> Array:
    """Return the largest share of one row in every client's sum of `parts`, all at least 0."""
    total = np.add.reduceat(parts, starts)
    most = np.maximum.reduceat(parts, starts)
    return np.divide(most, total, out=np.zeros_like(total), where=total > 0.0)


def _loss(problem: Problem) -> ConcomitantHuber:
    assert isinstance(problem.loss, ConcomitantHuber)
    return problem.loss


def fixed(problem: Problem, scale: float) -> Problem:
    """Return the problem with the scale σ fixed: that of Huber's loss with δ = εσ.

    Times σ, its risks are those of `problem` at that scale, but for a constant: price, score and
    temperature are multiplied by σ, so that model, λ and the weights of rows are the same.
    """
    return Problem(
        problem.method.scaled(scale), _loss(problem).at(scale), problem.dims, problem.classes,
        problem.intercept,
    )  # fmt: skip


def level(problem: Problem, scale: float) -> float:
    """Return the part of every risk of `problem` that is not loss: ½ b (σ + least²/σ)."""
    loss = _loss(problem)
    return 0.5 * loss.consistency * (scale + loss.least**2 / scale)


def proposal2(residuals: Array, loss: ConcomitantHuber, mass: Array | None = None) -> float:
    """Return the scale σ of residuals: mean min(r²/σ², ε²) = b, by Huber's Proposal 2.

    It is 0 if too few residuals differ from 0. `mass` are positive weights of the residuals.

    >>> round(proposal2(np.array([1.0] * 8 + [50.0, 1e9]), ConcomitantHuber(1.345)), 3)
    1.515
    """
    order = np.argsort(np.abs(residuals), kind="stable")
    square = residuals[order] ** 2
    share = np.ones(len(square)) if mass is None else mass[order]
    share = share / share.sum()
    # With residuals up to the k-th below εσ the equation is linear in σ². The left-hand side falls
    # in σ, so the first k that is consistent with its solution is the right one.
    free = loss.consistency - loss.delta**2 * (1.0 - np.cumsum(share))
    found = np.divide(
        np.cumsum(share * square), free, out=np.full(len(free), np.inf), where=free > 1e-12
    )
    following = np.append(square[1:], np.inf)
    return float(np.sqrt(found[int(np.argmax(loss.delta**2 * found <= following))]))
