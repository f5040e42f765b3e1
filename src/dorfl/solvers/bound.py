"""Lower bounds on the optimum from tangents: what makes a reported gap a proof.

Each client's risk F_i is convex, so its tangent at any point lies below it. The ridge
½ Σ μ_k θ_k² is known exactly. For weights w ≥ 0 on tangents (values v_j and slopes a_j at a
centre c, ridge included) that add up to an allowed mixture λ of clients,

    min_θ max_λ Σ λ_i F_i + ridge  ≥  min_p Σ_j w_j (v_j + a_jᵀp) + ½ Σ μ_k p_k²
                                   =  Σ_j w_j v_j − ½ Σ_k (Σ_j w_j a_jk)² / μ_k

In the ball ‖θ‖ ≤ R every ν ≥ 0 gives another bound, with μ_k + ν for μ_k (Lagrange duality).
Where neither a ridge nor a ball limits some coordinate, the bound is −∞ unless its slope is zero.
"""

from __future__ import annotations

import numpy as np

from dorfl.solvers.base import Setting
from dorfl.support.lazy import optimize
from dorfl.support.types import Array


def is_bounded(setting: Setting) -> bool:
    """Return True if a ridge on every parameter or a ball Θ makes :func:`lower_bound` finite."""
    return bool((setting.penalty > 0.0).all()) or bool(np.isfinite(setting.radius))


def lower_bound(setting: Setting, center: Array, value: float, slope: Array) -> float:
    """Return a number that no feasible objective value is below.

    Parameters
    ----------
    setting : Setting
        The ridge `penalty` and the radius of Θ.
    center : ndarray of shape (P,)
        The point that value and slope belong to.
    value : float
        Σ_j w_j v_j, the weighted tangents at the centre, ridge included.
    slope : ndarray of shape (P,)
        Σ_j w_j a_j, the weighted slopes at the centre, ridge included.

    Returns
    -------
    float
        The bound; −∞ if :func:`is_bounded` is False.

    >>> from dorfl.objective.mixture import agnostic
    >>> ridge = Setting(agnostic(), np.inf, np.array([2.0]))     # of F(θ) = 3 θ, F + θ² ≥ −9/4
    >>> lower_bound(ridge, np.array([1.0]), 4.0, np.array([5.0]))
    -2.25
    """
    if not is_bounded(setting):
        return -np.inf
    penalty, radius = setting.penalty, setting.radius
    if np.isinf(radius):
        return value - 0.5 * float(np.sum(slope**2 / penalty))
    inside = float(center @ center) - radius**2

    def dual(nu: float) -> float:
        bent = np.maximum(penalty + nu, 1e-300)
        return value - 0.5 * float(np.sum((slope + nu * center) ** 2 / bent)) + 0.5 * nu * inside

    most = float(np.linalg.norm(slope)) / radius + float(penalty.max())
    if most == 0.0:
        return value
    powers = optimize.minimize_scalar(
        lambda power: -dual(most * 10.0**power), bounds=(-16.0, 2.0), method="bounded"
    )
    return max(dual(0.0) if (penalty > 0.0).all() else -np.inf, -float(powers.fun))
