"""The paper's suprema over distributions, and its rate, in a form that can be checked.

The suprema over distributions P are solved as conic programs over a finite support, without
duality. The duals are compared with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dorfl.linear.group import Group
from dorfl.linear.inner import apply
from dorfl.support.lazy import LazyModule
from dorfl.support.types import Array

clarabel, sparse = LazyModule("clarabel"), LazyModule("scipy.sparse")


def supremum(
    gain: Array, cost: Array, reference: Array, beta: float, *, rho: float = 0.0,
    radius: float | None = None,
) -> float:  # fmt: skip
    """sup_P E_P[L] − ρ UW(P‖Q) over P on a finite support, of those with UW(P‖Q) ≤ r if r is given.

    With `rho` it is the left-hand side of Proposition 1, with `radius` that of Proposition 2.
    `gain` is L at the support's points (k,), `cost` c(ξ_k, ζ_j) (k, n) with infinity for pairs no
    mass may pass between, `reference` the weights of Q (n,).

    >>> import numpy as np                           # nothing to gain: stay where you are
    >>> abs(supremum(np.zeros(2), 1 - np.eye(2), np.full(2, 0.5), 1.0, rho=1.0)) < 1e-6
    True
    """
    # Unknowns: the plan γ where it may be positive, and t_j ≥ P̄_j log(P̄_j / q_j), P̄ = γᵀ1.
    to, at = np.nonzero(np.isfinite(cost))
    pairs, count = len(to), len(reference)
    objective = -np.concatenate([gain[to] - rho * cost[to, at], np.full(count, -rho * beta)])
    column = sparse.csc_matrix((np.ones(pairs), (at, np.arange(pairs))), shape=(count, pairs))
    blocks = [
        sparse.hstack([np.ones((1, pairs)), sparse.csc_matrix((1, count))]),
        sparse.hstack([-sparse.eye(pairs), sparse.csc_matrix((pairs, count))]),
    ]
    right = [np.ones(1), np.zeros(pairs)]
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(pairs)]
    if radius is not None:
        blocks.append(sparse.csc_matrix(np.append(cost[to, at], np.full(count, beta))))
        right.append(np.array([radius]))
        cones.append(clarabel.NonnegativeConeT(1))
    nothing, unit = sparse.csc_matrix((1, pairs)), sparse.eye(count, format="csr")
    for j in range(count):  # (−t_j, P̄_j, q_j) in the exponential cone
        blocks.append(sparse.hstack([nothing, unit[j]]))
        blocks.append(sparse.hstack([-column[j], sparse.csc_matrix((1, count))]))
        blocks.append(sparse.csc_matrix((1, pairs + count)))
        right.append(np.array([0.0, 0.0, reference[j]]))
        cones.append(clarabel.ExponentialConeT())
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    solution = clarabel.DefaultSolver(
        sparse.csc_matrix((pairs + count, pairs + count)),
        objective,
        sparse.csc_matrix(sparse.vstack(blocks)),
        np.concatenate(right),
        cones,
        settings,
    ).solve()
    if str(solution.status) not in ("Solved", "AlmostSolved"):
        raise RuntimeError(f"the primal program was not solved: {solution.status}")
    return -float(solution.obj_val)


@dataclass(frozen=True)
class Rate:
    """Theorem 1 with the constants of a problem: E[gap of θ̄ in H = exp(F/ρβ)] ≤ bound(T, ε)."""

    diameter: float  # D_θ of the ball Θ
    clients: int
    loss: float  # B₁, no f exceeds it
    slope: float  # B₂, no ‖∇_θ L‖ exceeds it
    cross: float  # L_θξ
    smooth: float  # L_ξ
    temperature: float

    def bound(self, rounds: int, epsilon: float = 0.0) -> float:
        """The right-hand side of the proof's last display, with η = 1/√T and D_λ = √2."""
        tau, root = self.temperature, np.sqrt(rounds)
        weight = np.exp(self.loss / tau)  # C₃
        c0 = self.slope / tau * weight
        c1, c2 = self.cross / tau * weight, self.slope / tau**2 * weight * self.smooth
        c4 = weight * self.smooth / tau
        sampled = self.diameter**2 / 2 + c0**2 / 2 + np.sqrt(2) * self.diameter * c0
        mixed = 1.0 + self.clients * weight**2 / 2 + np.sqrt(2) * self.clients * weight
        inexact = self.diameter * (c1 * epsilon + c2 * epsilon**2)
        return float((sampled + mixed) / root + inexact + self.clients * c4 * epsilon**2)


def rate(group: Group, theta_radius: float) -> Rate:
    """The constants of Theorem 1 for these clients and the ball ‖θ‖ ≤ R, for a bounded slope |∂l|.

    With |∂l/∂t| ≤ G the supremum exceeds the loss at the row's centre by at most ½ G² S, and the
    worst row is within G ‖K⁻¹θ‖ of that centre.
    """
    problem, loss = group.problem, group.problem.loss
    tau = problem.method.temperature
    if not np.isfinite(tau):
        raise ValueError("rate: Theorem 1 is about the tilted objective; give the method a beta")
    steep = loss.max_slope
    if np.isinf(steep):
        raise ValueError("rate: Theorem 1 needs a loss of bounded slope; squared loss has none")
    shape = problem.geometry
    rows = np.asarray(group.standing, dtype=np.float64)
    centers = apply(shape.shrink, rows) + np.repeat(group.anchors, group.counts, axis=0)
    reach = np.sqrt((centers**2).sum(axis=1) + problem.intercept)
    stiffest = shape.inverse if shape.inverse.ndim == 1 else np.linalg.eigvalsh(shape.inverse)
    soft = float(stiffest.max())
    base = loss.upper_bound(theta_radius * reach, group.target, problem.outputs)
    highest = base + 0.5 * steep**2 * soft * theta_radius**2 - group.penalty
    finite = stiffest[stiffest > 0]
    return Rate(
        diameter=2.0 * theta_radius,
        clients=len(group.names),
        loss=float(highest.max()),
        slope=float(steep * (reach + steep * soft * theta_radius).max()),
        cross=float(
            steep + loss.curvature * theta_radius * (reach + steep * soft * theta_radius).max()
        ),
        smooth=float(1.0 / finite.min() + loss.curvature * theta_radius**2),
        temperature=tau,
    )
