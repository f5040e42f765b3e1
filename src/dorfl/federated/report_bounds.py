"""Bounds of an honest report, for clipping, and a convexity test for contradictions.

Let ‖x‖ ≤ R for every scaled row, and ω = ‖θ‖. With G the largest slope of the loss in the model's
output, κ the smallest eigenvalue of the Hessian of cost plus score, and r ≥ ‖(m, 1)‖ for every
centre m of a row, the supremum exceeds the loss at m by at most ½ G² κ⁻¹ ω², and so

    −max penalty ≤ F_i(θ) ≤ l(0) + G ω r + ½ G² κ⁻¹ ω² − min penalty,      ‖∇F_i‖ ≤ G (r + G κ⁻¹ ω)

for any rows. A report beyond these bounds is clipped (:func:`clip`). Moreover F_i is convex: each
of two reports must lie above the other's tangent, or they cannot come from one set of rows
(:func:`contradicts`). Reports that pass are those of *some* convex risk within the bounds, so a
Byzantine client can do no more than a client with bad rows. A cap on λ or trimmed gradients
(:func:`dorfl.solvers.base.trimmed_mean`) bound that effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dorfl.federated.messages import Report
from dorfl.linear import curvature
from dorfl.linear.curvature import Shape
from dorfl.linear.problem import Problem
from dorfl.solvers.base import Task
from dorfl.support.types import Array

_SLACK = 1e-9  # relative to a bound, for rounding
_ROUNDING = 1e-5  # relative to a risk: rows may be in single precision


class Limits(NamedTuple):
    """Limits that all clients keep to.

    Attributes
    ----------
    row : float
        Largest ‖x‖ of a scaled row.
    target : float
        Largest absolute label of a regression.
    """

    row: float
    target: float = np.inf


class ReportBounds(NamedTuple):
    """Parameters of the bounds."""

    problem: Problem  # what is trained
    limits: Limits  # limits on rows and targets
    center: dict[str, Array]  # ξ̄ of every client; zero without a quadratic score
    # whether the reports of a client are values of one convex function: not with minibatches, noise
    # or an approximate supremum
    convex: bool = True


class ClientBounds(NamedTuple):
    """Bounds of an honest report."""

    low: float  # smallest value
    high: float  # largest value
    center: Array  # of a ball that has the vector in it
    radius: float  # of this ball
    curvature: float  # largest entry of the diagonal of ∇²F
    shape: Shape  # layout of the parameters


def defend(
    problem: Problem, limits: Limits, center: Mapping[str, Array], *, convex: bool = True
) -> ReportBounds:
    """Return the parameters of the bounds of a study; raise a ValueError if reports have none.

    >>> import dorfl
    >>> from dorfl.solvers.base import Task
    >>> problem = Problem(dorfl.methods.afl(), dorfl.losses.logistic, 2, np.array([0, 1]))
    >>> defence = defend(problem, Limits(row=3.0), {"a": np.zeros(2)})
    >>> round(bounds(defence, "a", Task(np.zeros(3), np.ones(1))).high, 6)      # log 2
    0.693147
    """
    if not limits.row > 0:
        raise ValueError(f"Limits(row={limits.row}): must be positive")
    if problem.constrained:
        raise ValueError("defence: with a radius, ρ is unknown and reports have no bounds")
    if problem.estimates_scale:
        raise ValueError("defence: reports have no bounds if their scale is unknown; give delta")
    if not problem.loss.classifies and np.isinf(limits.target):
        raise ValueError(f"Limits(target=…): {problem.loss.name} loss needs a bound on targets")
    defence = ReportBounds(problem, limits, dict(center), convex and not problem.approximate)
    origin = np.zeros(problem.dims)  # raises if there are no bounds
    _loss(defence, _sizes(defence, origin), 0.0)
    _penalties(defence, origin)
    return defence


def bounds(defence: ReportBounds, client: str, task: Task) -> ClientBounds:
    """Return the bounds of an honest report of `client` on `task`; see the module."""
    problem, theta = defence.problem, task.theta
    sizes = _sizes(defence, defence.center[client])
    omega = float(np.linalg.norm(theta))
    gain, steep = _loss(defence, sizes, omega)
    least, most = _penalties(defence, defence.center[client])
    low, high = -most, gain - least
    if problem.method.mixture.by == "loss":  # the level of the score is subtracted
        low, high = 0.0, gain + most * (problem.score.hessian(problem.dims) is None)
    if problem.method.mixture.by == "regret":  # −most ≤ F* ≤ F(0)
        low, high = low - (_loss(defence, sizes, 0.0)[0] - least), high + most
    tau = problem.method.temperature
    if task.kind == "evaluate":
        radius, center = sizes.slope(steep, omega), np.zeros_like(theta)
    elif task.kind == "local":
        radius, center = 0.0, theta
        for _ in range(task.steps):  # steps can grow with ‖θ‖
            further = omega + radius
            radius += task.rate * sizes.slope(_loss(defence, sizes, further)[1], further)
    else:
        radius, center = task.rate * sizes.slope(steep, omega), theta
        if np.isfinite(tau):
            low, high = (float(np.exp(min(bound / tau, 700.0))) for bound in (low, high))
            radius *= high / tau
    largest = _curvature(problem, sizes, steep, omega)
    return ClientBounds(low, high, center, radius, largest, problem.layout)


def clip(limit: ClientBounds, report: Report) -> tuple[Report, str]:
    """Return the report clipped to its bounds, and what was clipped, or an empty text."""
    beyond = []
    value = float(np.clip(report.value, limit.low, limit.high))
    if abs(value - report.value) > _SLACK * max(1.0, abs(value)):
        beyond.append("risk")
    else:  # within rounding
        value = report.value
    away = report.vector - limit.center
    length = float(np.linalg.norm(away))
    vector = report.vector
    if length > limit.radius * (1.0 + _SLACK):
        vector = limit.center + away * (limit.radius / length)
        beyond.append("vector")
    packed = report.curvature
    if packed is not None:
        blocks = limit.shape.sizes_of(packed)
        most = float(curvature.diagonal(packed, blocks).max())
        if most > limit.curvature * (1.0 + float(np.finfo(packed.dtype).resolution)):
            packed = curvature.limited(packed, blocks, limit.curvature)
            beyond.append("curvature")
    reason = f"clipped: {' and '.join(beyond)} beyond what rows within the limits give"
    return report._replace(value=value, vector=vector, curvature=packed), reason * bool(beyond)


def contradicts(
    defence: ReportBounds, before: tuple[Task, Report], now: tuple[Task, Report]
) -> bool:
    """Return whether two reports of one client cannot be of one convex risk."""
    (earlier, first), (later, second) = before, now
    if not defence.convex or {earlier.kind, later.kind} != {"evaluate"}:
        return False
    move = later.theta - earlier.theta
    rise = second.value - first.value
    limit = bounds(defence, second.client, later)
    slack = _ROUNDING * (1.0 + abs(limit.low) + abs(limit.high))  # independent of the reports
    return rise < float(first.vector @ move) - slack or rise > float(second.vector @ move) + slack


class _Sizes(NamedTuple):
    """κ⁻¹ and r of the module, and how far a threshold score moves a row."""

    soft: float
    reach: float
    push: float

    def slope(self, steep: float, omega: float) -> float:
        return steep * (self.reach + self.push + steep * self.soft * omega)


def _sizes(defence: ReportBounds, center: Array) -> _Sizes:
    problem, shape = defence.problem, defence.problem.geometry
    anchor = np.linalg.norm(shape.anchor(center), axis=-1)  # of one centre, or one per class
    length = _norm(shape.shrink) * defence.limits.row + float(anchor.max())
    push = problem.score.max_shift(problem.stiffness)
    return _Sizes(_norm(shape.inverse), float(np.hypot(length, problem.intercept)), push)


def _curvature(problem: Problem, sizes: _Sizes, steep: float, omega: float) -> float:
    """Bound the entries of the diagonal of :func:`dorfl.linear.hessian.curvature`.

    With ‖E‖ ≤ e the bound is e (|z_k| + |g| ‖Q_k‖)² + g² z_k² / ρβ + g² κ⁻¹ at a row that has moved
    by no more than |g| ‖Q‖ ≤ G κ⁻¹ ω; several classes add a mean of their own.
    """
    if np.isinf(steep):
        return np.inf
    classes, bend = problem.outputs, problem.loss.curvature
    bend /= max(1.0 - sizes.soft * omega**2 * bend, 0.1 if classes == 1 else 0.05)
    far = max(sizes.reach + sizes.push + 2.0 * steep * sizes.soft * omega, 1.0)
    pull = bend + steep**2 / problem.method.temperature
    return (pull * far**2 + steep**2 * sizes.soft) * (1.0 + (classes > 1) / classes)


def _loss(defence: ReportBounds, sizes: _Sizes, omega: float) -> tuple[float, float]:
    """Return the largest supremum of the loss and its largest slope over ‖θ‖ = ω."""
    problem, most = defence.problem, defence.limits.target
    every = problem.classes if problem.loss.classifies else np.array([-most, most])
    output, spread = omega * sizes.reach, sizes.soft * omega**2
    return problem.loss.bounds(output, spread, problem.encode(every), problem.outputs)


def _penalties(defence: ReportBounds, center: Array) -> tuple[float, float]:
    """Return the smallest and the largest score of a row."""
    away, row = np.linalg.norm(center, axis=-1), defence.limits.row
    return defence.problem.score.bounds(
        defence.problem.geometry.bowl, max(float(away.min()) - row, 0.0), float(away.max()) + row
    )


def _norm(operator: Array) -> float:
    return float(np.abs(operator).max() if operator.ndim == 1 else np.linalg.norm(operator, 2))
