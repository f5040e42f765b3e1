"""One more unknown after θ: the price ρ of transport, or the scale σ of residuals.

F_i is jointly convex in θ and either of them (:class:`~dorfl.linear.base.Priced`,
:mod:`dorfl.linear.scale`), so :class:`~dorfl.solvers.sqp.Sqp` solves the problem like any other
with one more parameter. Only the curvature in that parameter changes, because F is about a + A/ρ +
Bρ along it. A parabola with the curvature of F leads to a negative value from above, and hardly
upwards from below. The parabola used instead is least where that function is, at s ρ. At the
solution s = 1, and nothing changes.

**Radius.** A radius r is given instead of ρ. By Proposition 2

    min_θ max_λ sup { E_P[L] : UW(P‖P̂_λ) ≤ r }  =  min over θ and ρ > 0 of ρ r + max_i F_i(θ, ρ)

so ρ r is added to every risk. Clients send −r̂_i, how far their worst case is away, as the last
entry of the gradient. With s = √(r̂/r) the curvature is (1 + s) r/ρ instead of 2 r̂/ρ = 2 s² r/ρ.
If s is far above 1 at the start, training restarts from s ρ. If the radius is so large that no
model is better than a constant prediction, θ and ρ go to 0 along a line on which F is linear. The
edge θ = 0, ρ → 0 is tried once that is likely.

**Scale.** F is about a + ½ b (σ + s²σ₀²/σ) with s² = 1 − (2/b) ∂F/∂σ. For s < 1 the curvature b
s²/σ₀ is raised to ½ b (1 + s)/σ₀. If all residuals are far beyond εσ, F does not bend in σ: for s
> 1 a step along σ alone is bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Needs, Setting, Solver, Task
from dorfl.solvers.sqp import Sqp, SqpState
from dorfl.support.types import Array

_FALL, _RISE = 0.1, 10.0  # the most that ρ or σ changes by at once
_FAR = 4.0  # s from which on a first ρ is far too small
_FLAT = 1e-3  # of r/ρ: the least that is added to a client's curvature in ρ
_FIXED = 1e6  # times as much keeps it where it is
_CLEAR = 0.7  # of the cost of ρ: what θ may gain at the edge
_SMALL = 0.01  # of the first ρ, or of the objective: ρ, or ρ r, that may be going to 0
_SURE = 0.01  # of the tolerance: how well θ is looked for at the edge, if it has to be
_ESTIMATE = 0.15  # of the tolerance: the gap is an estimate here, seen to be five times too small
_EDGE = 0.1  # of the tolerance: what ρ r is of the objective where ρ is as good as 0


class _Wrapper:
    """A solver whose requests are those of another one, `inner`, at θ and one more unknown."""

    inner: Solver

    @property
    def needs(self) -> Needs:
        """Return what the inner solver needs."""
        return self.inner.needs._replace(radius=False)

    def ask(self, state: ScaleState | RadiusState) -> Task:
        """Return the request of the inner solver."""
        return self.inner.ask(state.inner)


class ScaleState(NamedTuple):
    """The state between rounds."""

    setting: Setting
    inner: SqpState


@dataclass(frozen=True)
class Scale(_Wrapper):
    """The solver in θ and σ, see the text of this module. The last entry of θ is σ in messages.

    Attributes
    ----------
    consistency : float
        b of the loss, :attr:`dorfl.objective.losses.ConcomitantHuber.consistency`.
    inner : Solver
        One whose needs have `radius`: it can use further unknowns after θ.
    """

    consistency: float
    inner: Solver = field(default_factory=Sqp)
    name: str = "sqp"

    def init(self, setting: Setting, theta: Array, lam: Array) -> ScaleState:
        """Return the state before the first round, from (θ, σ)."""
        return ScaleState(setting, self.inner.init(setting, theta, lam))

    def update(self, state: ScaleState, answers: Answers) -> tuple[ScaleState, Info]:
        """Take one round of the inner solver, with curvatures changed in σ."""
        inner, curvature = state.inner, _reported(state.inner, answers)
        if curvature is not None:
            scale, rate = float(inner.trial[-1]), float(inner.lam @ answers.vectors[:, -1])
            share = math.sqrt(max(1.0 - 2.0 * rate / self.consistency, 0.0))  # s
            if share < 1.0:
                raised = 0.5 * (1.0 - share) * (1.0 + 2.0 * share) * self.consistency / scale
                curvature[:, -1] += raised
            else:
                least = -rate / ((_RISE - 1.0) * scale)
                curvature[:, -1] = np.maximum(curvature[:, -1], least)
        inner, info = self.inner.update(inner, answers._replace(curvature=curvature))
        return ScaleState(state.setting, _within_reach(inner)), info


class RadiusState(NamedTuple):
    """The state between rounds."""

    setting: Setting
    inner: SqpState
    first: float  # ρ
    constant: float = np.inf  # the largest risk at the first θ
    tried: float = np.inf  # the least ρ from which the edge was tried
    aside: SqpState | None = None  # while the edge is tried: the state to return to
    seen: Info | None = None  # the result at an earlier point that may be better


@dataclass(frozen=True)
class Radius(_Wrapper):
    """The solver in θ and ρ, see the text of this module. The last entry of θ is ρ in messages."""

    radius: float
    inner: Solver = field(default_factory=Sqp)
    name: str = "sqp"

    def init(self, setting: Setting, theta: Array, lam: Array) -> RadiusState:
        """Return the state before the first round, from θ or, if no risk is finite, nearer to 0."""
        while not setting.feasible(theta):
            theta = np.append(0.7 * theta[:-1], theta[-1])
        inner = replace(setting, tol=_ESTIMATE * setting.tol)
        return RadiusState(setting, self.inner.init(inner, theta, lam), float(theta[-1]))

    def update(self, state: RadiusState, answers: Answers) -> tuple[RadiusState, Info]:
        """Take one round of the inner solver, with ρ r added to all risks."""
        inner, radius = state.inner, self.radius
        rho, vectors = float(inner.trial[-1]), answers.vectors.copy()
        vectors[:, -1] += radius
        fresh, edge = not len(inner.best.values), state.aside is not None
        share = math.sqrt(max(-float(inner.lam @ answers.vectors[:, -1]), 0.0) / radius)
        curvature = _reported(inner, answers)
        if curvature is not None:
            _bend_in_price(curvature, inner, radius, share, fixed=edge)
        values = answers.values + rho * radius
        priced = answers._replace(values=values, vectors=vectors, curvature=curvature)
        inner, info = self.inner.update(inner, priced)
        info = info._replace(risks=info.risks - info.theta[-1] * radius)
        state = state._replace(inner=inner)
        if fresh:
            state = state._replace(constant=float(answers.values.max()))
        if edge:
            return _at_edge(state, info)
        if fresh and share > _FAR:  # a step at a time would take long from here
            there = np.append(inner.theta[:-1], share * rho)
            return self.init(state.setting, there, inner.lam), info
        held, best = _within_reach(inner), info
        rate = float(inner.weights @ inner.best.gradients[:, -1])
        if rate > 0.0 and not info.done:  # the model is stiffer than the objective
            best = best._replace(gap=best.gap + float(inner.theta[-1]) * rate**2 / radius)
        if state.seen is not None and state.seen.objective < best.objective:
            gap = _above(state.seen, best)
            best = state.seen._replace(gap=gap, done=info.done, why=info.why)
        if self._may_be_edge(state, info):
            return self._to_edge(state, held, info), best
        return state._replace(inner=held), best

    def _may_be_edge(self, state: RadiusState, info: Info) -> bool:
        """Return True if ρ is small and still falls, and the edge was not tried from nearby."""
        rho, wanted = float(state.inner.theta[-1]), float(state.inner.trial[-1])
        small = rho * self.radius < _SMALL * abs(info.objective)
        worse = rho < 1.1 * _SMALL * state.first and info.objective > state.constant
        falls = wanted < rho < _SMALL * state.tried
        return falls and (small or worse) and not info.done

    def _to_edge(self, state: RadiusState, held: SqpState, info: Info) -> RadiusState:
        """Return the state at θ = 0 and a ρ of negligible cost; the present one is kept aside."""
        rho = float(held.theta[-1])
        least = _EDGE * state.setting.tol * abs(info.objective) / self.radius
        there = np.append(np.zeros(held.theta.size - 1), min(least, _FALL * rho))
        setting = replace(state.setting, tol=_SURE * state.setting.tol)
        inner = self.inner.init(setting, there, held.lam)
        return state._replace(inner=inner, tried=rho, aside=held, seen=info)


def _at_edge(state: RadiusState, info: Info) -> tuple[RadiusState, Info]:
    """Return the edge as the solution if θ can gain less there than ρ r costs."""
    assert state.aside is not None
    assert state.seen is not None
    before, cost = state.seen, info.objective - state.constant
    if info.gap < _CLEAR * cost and info.objective <= before.objective:
        return state, info._replace(gap=info.gap + cost, done="converged", why="")
    if info.done or cost < 0.0 or info.objective > before.objective:
        best = min(info, before, key=lambda one: one.objective)
        state = state._replace(inner=state.aside, aside=None, seen=best)
        return state, best._replace(gap=_above(best, before), done="", why="")
    return state, info._replace(gap=max(info.gap, _above(info, before)))


def _above(info: Info, other: Info) -> float:
    """Return how far a point is above the lower bound of another point."""
    return max(info.objective - other.objective + other.gap, 0.0)


def _reported(state: SqpState, answers: Answers) -> Array | None:
    """Return a copy of the reported curvatures; at first, if there are none, the inner's guess."""
    if answers.curvature is not None:
        return answers.curvature.copy()
    if len(state.best.values):
        return None
    steepest = float(np.linalg.norm(answers.vectors[:, :-1], axis=1).max())
    guess = np.full(answers.vectors.shape, steepest)
    guess[:, -1] = 0.0
    return guess


def _bend_in_price(
    packed: Array, state: SqpState, radius: float, share: float, *, fixed: bool
) -> None:
    """Raise the clients' curvatures in ρ, given in units of ρ, in place."""
    rho = float(state.trial[-1])
    share = 1.0 if state.failures > 1 else share
    extra = max((1.0 - share) * (1.0 + 2.0 * share), _FLAT) * radius / rho
    extra *= _FIXED if fixed else 1.0
    size = state.setting.shape.sizes_of(packed)[-1]  # of the last block, whose last row is ρ's
    packed[:, -size:] /= rho
    packed[:, -1] /= rho
    packed[:, -1] += extra


def _within_reach(state: SqpState) -> SqpState:
    """Return the state with a trial whose last entry is positive and not too far off.

    If it is not, a share of the step is taken. By convexity, that decreases the model by at least
    the same share of what the whole step does.
    """
    here, there = float(state.theta[-1]), float(state.trial[-1])
    limit = min(max(there, _FALL * here), _RISE * here)
    if limit == there:
        return state
    share = (limit - here) / (there - here)
    trial = state.theta + share * (state.trial - state.theta)
    return state._replace(trial=trial, predicted=share * state.predicted, plane=share * state.plane)
