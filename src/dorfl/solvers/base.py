"""What every solver is given and gives back. A solver sees messages, never rows.

A solver is three pure functions over a state of its own, and a record of what it needs:

    init(setting, theta, lam) → state    ask(state) → Task    update(state, answers) → state, Info

The state is a NamedTuple of numbers, texts, arrays and records of those, so that a checkpoint can
hold it; its field `setting` is the setting that `init` was given. Nothing else is asked of a
solver, and nobody looks at its type: what it declares in :class:`Needs` decides with which options
it can be used. `tests/solvers/test_own_solver.py` has a whole one.
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
from dorfl.support.types import Array


class Needs(NamedTuple):
    """What a solver needs of clients and server, and what it can do; by default neither.

    Attributes:
        every_client: every client has to answer every round.
        all_rows: clients have to use all their rows every round, no minibatches.
        pools: where the mixture is fixed it trains the pooled risk, as if that were one client's.
        trims: it takes `Setting.trim` into account.
        radius: it can use a further unknown after θ: ρ (:class:`~dorfl.solvers.radius.Radius`) or
            the scale σ (:class:`~dorfl.solvers.scale.Scale`).
        curvature: it can ask for curvature.
        reports_gap: it ends where its estimate of the gap is below `Setting.tol`.
        rounds: how many rounds it is given where the user does not say.
        closing: rounds after those, which only report.
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
    """What clients are asked to do with θ in a round.

    `evaluate`: send F_i and ∇F_i, where asked also ∇²F_i at one of the resolutions of
    :mod:`dorfl.linear.curvature`. `local`: take `steps` gradient steps of length `rate` on your own
    F_i and send where you end. `paper`: one step of Algorithm 1.
    """

    theta: Array
    lam: Array
    kind: str = "evaluate"
    curvature: str = "none"
    batch: int | None = None
    rate: float = 0.0
    steps: int = 1


class Answers(NamedTuple):
    """The clients' reports of one round, in the roster's order."""

    values: Array  # (N,) F_i, or for `paper` exp(F_i/ρβ)
    vectors: Array  # (N, P) ∇F_i, or θ_i
    curvature: Array | None  # (N, numbers) packed, all at one resolution, or nothing
    stands: bool = False  # whether some of it is others' and stands for what was not told
    own: bool = True  # whether all answered; of who did not, what was told of another θ stands in


class Info(NamedTuple):
    """What a round showed: only reported, never carried."""

    objective: float
    gap: float
    risks: Array
    lam: Array
    theta: Array
    done: str = ""  # how it ended, if there is nothing left to do
    why: str = ""  # the reason, if it ended short of the tolerance
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
    trim: float = 0.0  # the share of the mixture whose gradients may be lies
    shape: Shape = Shape(1, 1)  # noqa: RUF009 - how the parameters are laid out
    resolution: str = "diagonal"  # the finest curvature that clients may be asked for
    rounds: int = 200  # how many there will be at most, closing ones not counted
    batch: int | None = None  # rows each client draws per round; nothing: all of them
    smooth: bool = False  # whether no risk can have a kink
    covered: bool = False  # whether curvature may be that of a parabola above the risk
    separable: Array | None = None  # risks (N,) below which no client has a misclassified row

    @cached_property
    def plain(self) -> bool:
        """Whether nothing is added to the clients' risks."""
        return not np.any(self.penalty)

    @property
    def diagonal(self) -> str:
        """The resolution to ask for where a diagonal would do: that, or nothing."""
        return packing.coarser("diagonal", self.resolution)

    def regularised(self, theta: Array, answers: Answers) -> Answers:
        """Answers with ½ Σ penalty_k θ_k² added to every client's risk."""
        if self.plain:
            return answers
        curvature = answers.curvature
        if curvature is not None:
            curvature = self.bent(curvature)
        value = 0.5 * float(self.penalty @ theta**2)
        return answers._replace(
            values=answers.values + value,
            vectors=answers.vectors + self.penalty * theta,
            curvature=curvature,
        )

    def bent(self, curvature: Array) -> Array:
        """A packed curvature, or several, with that of the penalty added."""
        curvature = curvature.copy()
        places = packing.diagonal_places(self.shape.sizes_of(curvature))
        curvature[..., places] += self.penalty
        return curvature

    def centred(self, theta: Array) -> Array:
        """The shortest θ with the same predictions: what all classes have in common changes none.

        No risk tells such θ apart, so in that direction a model of the risks would know nothing.
        """
        if self.shape.outputs == 1:
            return theta
        cells = theta.size - self.shape.others
        table = theta[:cells].reshape(self.shape.outputs, -1)
        return np.append(table - table.mean(axis=0), theta[cells:])

    def project(self, theta: Array) -> Array:
        """The nearest point of Θ."""
        norm = float(np.linalg.norm(theta))
        return theta if norm <= self.radius else theta * (self.radius / norm)


class Solver(Protocol):
    """See the module's text."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def needs(self) -> Needs:
        """What it needs and can do."""
        ...

    def init(self, setting: Setting, theta: Array, lam: Array) -> Any:
        """The state before the first round."""
        ...

    def ask(self, state: Any) -> Task:
        """What the clients are to do in the coming round."""
        ...

    def update(self, state: Any, answers: Answers) -> tuple[Any, Info]:
        """One round's answers into the next state."""
        ...


class Pieces(NamedTuple):
    """The objective as max over pieces of piece_k(θ): the clients, or their pooled risk as one."""

    values: Array
    gradients: Array
    curvature: Array | None


def pieces(setting: Setting, theta: Array, answers: Answers, lam: Array) -> Pieces:
    """An adversarial mixture keeps clients apart; a fixed one pools them into one smooth risk."""
    if setting.mixture.adversarial:
        return Pieces(*setting.regularised(theta, answers)[:3])
    told = answers.curvature  # of many clients: the penalty is added to their mixture alone
    answers = setting.regularised(theta, answers._replace(curvature=None))
    tau = setting.temperature
    share = setting.mixture.shares(answers.values, lam, tau)
    gradient = trimmed_mean(answers.vectors, share, setting.trim)
    curvature = None
    if told is not None:
        curvature = setting.bent(packing.mix(told, share))
        if np.isfinite(tau):  # the clients' gradients differ
            sizes = setting.shape.sizes_of(curvature)
            curvature = curvature + packing.outer(answers.vectors - gradient, share, sizes) / tau
        curvature = curvature[None]
    value = setting.mixture.objective(answers.values, lam, tau)
    return Pieces(np.array([value]), gradient[None], curvature)


def trimmed_mean(vectors: Array, weights: Array, trim: float) -> Array:
    """Σ λ_i v_i, coordinate by coordinate, with the outer `trim` of the mixture pulled in.

    What is below the λ-weighted quantile `trim` or above 1 − `trim` counts as being there. As long
    as liars have less than `trim` of the mixture between them, they cannot take any coordinate
    beyond what honest clients sent. No trim is the plain mean, one half the weighted median. After
    *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates* (D. Yin, Y. Chen,
    K. Ramchandran, P. Bartlett, 2018, arXiv 1803.01498), with weights.

    Args:
        vectors: (clients, parameters).
        weights: (clients,) that add up to 1.
        trim: from 0 to one half.

    Returns:
        The mean, (parameters,).

    >>> vectors = np.array([[1.0], [2.0], [3.0], [-1e6]])
    >>> trimmed_mean(vectors, np.full(4, 0.25), 0.3)
    array([1.5])
    """
    if trim == 0.0:
        return np.asarray(weights @ vectors)
    edges = [trim, 1.0 - trim]
    low, high = np.quantile(vectors, edges, axis=0, weights=weights, method="inverted_cdf")
    return np.asarray(weights @ np.clip(vectors, low, high))


_TINY = float(np.finfo(float).tiny)


def unit(objective: float, start: float) -> float:
    """What a gap is measured in: the objective; where that goes to zero, a little of its start."""
    return max(abs(objective), 1e-7 * (start - objective), _TINY)


def relative(gap: float, objective: float, start: float) -> float:
    """A gap in units of the objective, as a tolerance is."""
    return gap / unit(objective, start)
