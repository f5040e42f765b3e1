"""The interface of a solver. A solver sees messages, never rows.

A solver is three pure functions over a state of its own, and a record of what it needs:

    init(setting, theta, lam) → state    ask(state) → Task    update(state, answers) → state, Info

The state is a NamedTuple of numbers, texts, arrays and records of those, so that a checkpoint can
hold it. Its field `setting` is the setting that `init` was given. What a solver declares in
:class:`Needs` decides with which options it can be used. `tests/solvers/test_own_solver.py` has a
complete example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear.curvature import Shape
from dorfl.objective.mixture import Mixture
from dorfl.support.lazy import optimize
from dorfl.support.types import Array


class Needs(NamedTuple):
    """The requirements and abilities of a solver; by default there are none.

    Attributes
    ----------
    every_client : bool
        Every client has to reply in every round.
    all_rows : bool
        Clients have to use all rows in every round, no minibatches.
    pools : bool
        For a fixed mixture the solver minimises the pooled risk, as if that were one client's.
    trims : bool
        The solver takes `Setting.trim` into account.
    radius : bool
        The solver can use a further unknown after θ, ρ or σ (:mod:`~dorfl.solvers.concomitant`).
    curvature : bool
        The solver can request curvature.
    reports_gap : bool
        The solver ends if its optimality gap is at most `Setting.tol`.
    rounds : int
        Maximum number of rounds by default.
    closing : int
        Further rounds that only evaluate the result.
    """

    every_client: bool = False
    all_rows: bool = False
    pools: bool = False
    trims: bool = False
    radius: bool = False
    curvature: bool = False
    reports_gap: bool = False
    rounds: int = 200
    closing: int = 0


class Task(NamedTuple):
    """The request to clients in a round.

    `evaluate`: report F_i and ∇F_i, and ∇²F_i if `curvature` is a resolution of
    :mod:`dorfl.linear.curvature` other than "none". `local`: take `steps` gradient steps of length
    `rate` on F_i and report the last θ_i. `paper`: take one step of Algorithm 1.
    """

    theta: Array
    lam: Array
    kind: str = "evaluate"
    curvature: str = "none"
    batch: int | None = None
    rate: float = 0.0
    steps: int = 1


class Answers(NamedTuple):
    """The clients' reports of one round, in the order of the clients."""

    values: Array  # (N,) F_i, or for `paper` exp(F_i/ρβ)
    vectors: Array  # (N, P) ∇F_i, or θ_i
    curvature: Array | None  # (N, numbers) packed, all at one resolution; None if not requested
    stands: bool = False  # True if curvature of some clients is imputed from that of the others
    own: bool = True  # True if every client evaluated this θ; else some entries are extrapolated


class Info(NamedTuple):
    """The result of a round. It is reported and not part of the state."""

    objective: float
    gap: float
    risks: Array
    lam: Array
    theta: Array
    done: str = ""  # "converged", "stalled", "spent" or "budget" if training ends here
    why: str = ""  # the reason if it ends short of the tolerance
    gap_kind: str = "estimate"  # "bound" if the gap is proven


@dataclass(frozen=True, eq=False)
class Setting:
    """The server's side of the problem."""

    mixture: Mixture
    temperature: float
    penalty: Array  # l2 for every parameter (0 for intercepts)
    radius: float = np.inf  # Θ is the ball of that radius
    tol: float = 1e-6
    feasible: Callable[[Array], bool] = lambda _: True
    trim: float = 0.0  # share of the mixture whose gradients may be false
    shape: Shape = Shape(1, 1)  # noqa: RUF009 - layout of the parameters; immutable
    resolution: str = "diagonal"  # the finest curvature that clients may be asked for
    rounds: int = 200  # at most so many, closing rounds not counted
    batch: int | None = None  # rows each client draws per round; None: all rows
    smooth: bool = False  # True if no risk can have a non-smooth point
    covered: bool = False  # True if curvature may be that of a parabola above the risk
    separable: Array | None = None  # risks (N,) below which no client has a misclassified row

    @cached_property
    def plain(self) -> bool:
        """True if no penalty is added to the clients' risks."""
        return not np.any(self.penalty)

    @property
    def diagonal(self) -> str:
        """The resolution to request if a diagonal is enough: "diagonal" or "none"."""
        return packing.coarser("diagonal", self.resolution)

    def regularised(self, theta: Array, answers: Answers) -> Answers:
        """Return the answers with ½ Σ penalty_k θ_k² added to every client's risk."""
        if self.plain:
            return answers
        curvature = answers.curvature
        if curvature is not None:
            curvature = self.with_penalty(curvature)
        value = 0.5 * float(self.penalty @ theta**2)
        return answers._replace(
            values=answers.values + value,
            vectors=answers.vectors + self.penalty * theta,
            curvature=curvature,
        )

    def with_penalty(self, curvature: Array) -> Array:
        """Return packed curvatures with the curvature of the penalty added."""
        curvature = curvature.copy()
        places = packing.diagonal_places(self.shape.sizes_of(curvature))
        curvature[..., places] += self.penalty
        return curvature

    def centred(self, theta: Array) -> Array:
        """Return the shortest θ with the same predictions, centred over the classes.

        A vector added to the parameters of every class changes no prediction and no risk.
        """
        if self.shape.outputs == 1:
            return theta
        cells = theta.size - self.shape.others
        table = theta[:cells].reshape(self.shape.outputs, -1)
        return np.append(table - table.mean(axis=0), theta[cells:])

    def project(self, theta: Array) -> Array:
        """Return the nearest point of Θ."""
        norm = float(np.linalg.norm(theta))
        return theta if norm <= self.radius else theta * (self.radius / norm)


class Solver(Protocol):
    """The functions and properties of a solver, see the text of this module."""

    @property
    def name(self) -> str:
        """The name that users choose it by."""
        ...

    @property
    def needs(self) -> Needs:
        """Its requirements and abilities."""
        ...

    def init(self, setting: Setting, theta: Array, lam: Array) -> Any:
        """Return the state before the first round."""
        ...

    def ask(self, state: Any) -> Task:
        """Return the request for the coming round."""
        ...

    def update(self, state: Any, answers: Answers) -> tuple[Any, Info]:
        """Return the next state and the result of a round, from its answers."""
        ...


class Pieces(NamedTuple):
    """The objective as max over pieces of piece_k(θ): the clients, or their pooled risk as one."""

    values: Array
    gradients: Array
    curvature: Array | None


def pieces(setting: Setting, theta: Array, answers: Answers, lam: Array) -> Pieces:
    """Return every client's risk for an adversarial mixture, the pooled risk for a fixed one."""
    if setting.mixture.adversarial:
        return Pieces(*setting.regularised(theta, answers)[:3])
    reported = answers.curvature  # may be large: the penalty is added to the mixture alone
    answers = setting.regularised(theta, answers._replace(curvature=None))
    tau = setting.temperature
    share = setting.mixture.shares(answers.values, lam, tau)
    gradient = trimmed_mean(answers.vectors, share, setting.trim)
    curvature = None
    if reported is not None:
        curvature = setting.with_penalty(packing.mix(reported, share))
        if np.isfinite(tau):  # the clients' gradients differ
            sizes = setting.shape.sizes_of(curvature)
            curvature = curvature + packing.outer(answers.vectors - gradient, share, sizes) / tau
        curvature = curvature[None]
    value = setting.mixture.objective(answers.values, lam, tau)
    return Pieces(np.array([value]), gradient[None], curvature)


def trimmed_mean(vectors: Array, weights: Array, trim: float) -> Array:
    """Return the λ-weighted mean Σ λ_i v_i, winsorised in each coordinate.

    Each coordinate is clipped to its λ-weighted quantiles `trim` and 1 − `trim`. If Byzantine
    clients have less than `trim` of the mixture, every coordinate stays within the range of the
    honest reports. No trim is the plain mean, one half the weighted median. After
    *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates* (D. Yin, Y. Chen,
    K. Ramchandran, P. Bartlett, 2018, arXiv 1803.01498), with weights.

    Parameters
    ----------
    vectors : array of shape (clients, parameters)
        One vector for each client.
    weights : array of shape (clients,)
        λ, which adds up to 1.
    trim : float
        From 0 to one half.

    Returns
    -------
    array of shape (parameters,)
        The mean.

    >>> vectors = np.array([[1.0], [2.0], [3.0], [-1e6]])
    >>> trimmed_mean(vectors, np.full(4, 0.25), 0.3)
    array([1.5])
    """
    if trim == 0.0:
        return np.asarray(weights @ vectors)
    edges = [trim, 1.0 - trim]
    low, high = np.quantile(vectors, edges, axis=0, weights=weights, method="inverted_cdf")
    return np.asarray(weights @ np.clip(vectors, low, high))


def is_bounded(setting: Setting) -> bool:
    """Return True if a ridge on every parameter or a ball Θ makes :func:`lower_bound` finite."""
    return bool((setting.penalty > 0.0).all()) or bool(np.isfinite(setting.radius))


def lower_bound(setting: Setting, center: Array, value: float, slope: Array) -> float:
    """Return a number that no feasible objective value is below: what makes a gap a proof.

    Each client's risk F_i is convex, so its tangent at any point lies below it. The ridge
    ½ Σ μ_k θ_k² is known exactly. For weights w ≥ 0 on tangents (values v_j and slopes a_j at a
    centre c, ridge included) that add up to an allowed mixture λ of clients,

        min_θ max_λ Σ λ_i F_i + ridge  ≥  min_p Σ_j w_j (v_j + a_jᵀp) + ½ Σ μ_k p_k²
                                       =  Σ_j w_j v_j − ½ Σ_k (Σ_j w_j a_jk)² / μ_k

    In the ball ‖θ‖ ≤ R every ν ≥ 0 gives another bound, with μ_k + ν for μ_k (Lagrange duality).
    The bound is −∞ if :func:`is_bounded` is False.

    Parameters
    ----------
    setting : Setting
        The ridge `penalty` and the radius of Θ.
    center : ndarray of shape (P,)
        c.
    value, slope : float and ndarray of shape (P,)
        Σ_j w_j v_j and Σ_j w_j a_j.

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


_TINY = float(np.finfo(float).tiny)


def unit(objective: float, start: float) -> float:
    """Return the unit of gaps: the objective, or 1e-7 of its decrease if that is larger."""
    return max(abs(objective), 1e-7 * (start - objective), _TINY)


def relative(gap: float, objective: float, start: float) -> float:
    """Return a gap relative to :func:`unit`, comparable with a tolerance."""
    return gap / unit(objective, start)
