"""The radius form: the price ρ of transport is an unknown too, and a radius r is given instead.

    min_θ max_λ sup { E_P[L] : UW(P‖P̂_λ) ≤ r }  =  min over θ and ρ > 0 of ρ r + max_i F_i(θ, ρ)

by Proposition 2, jointly convex in θ and ρ. So V(ρ) = ρ r + min_θ max_i F_i(θ, ρ) is convex, and
V'(ρ) = r − Σ λ_i r̂_i at the inner solution, where r̂_i = −∂F_i/∂ρ, how far client i's worst case is
away, is the last entry of the gradient that it sends. :class:`~dorfl.solvers.sqp.Sqp` solves the
inner problem, no better than it takes to say where ρ should go.

Every inner solution, however rough, is a tangent in (θ, ρ) below the objective. Where two of them
cross is a lower bound, and the mixture of their λ attains it. While V' > 0 the lower bound is at
ρ = 0, and ρ goes there: then the radius is so large that rows may go anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dorfl.solvers.base import Answers, Info, Needs, Setting, Solver, Task, relative
from dorfl.solvers.sqp import Sqp
from dorfl.solvers.sqp_step import SqpState
from dorfl.support.types import Array

_INNER = 0.5  # of the tolerance: how well the inner problem is solved at most
_SURE = 0.3  # of the tolerance: when the whole is called solved
_JUMP = 100.0  # the most that ρ changes by at once
_POWER = 2.0  # r̂ falls about as 1/ρ²


class Tangent(NamedTuple):
    """An inner solution: what it costs, and a lower bound that is linear in θ and ρ."""

    theta: Array
    rho: float
    lam: Array
    risks: Array
    height: float  # ρ r + max_i F_i
    gap: float  # how far that is above V(ρ)
    slope: Array  # Σ λ_i ∇F_i
    spent: float  # Σ λ_i r̂_i

    def below(self, theta: Array, radius: float) -> tuple[float, float]:
        """The bound at θ as a line in ρ: where it meets ρ = 0, and V'."""
        rate = radius - self.spent
        level = self.height - self.gap + float(self.slope @ (theta - self.theta))
        return level - rate * self.rho, rate


class RadiusState(NamedTuple):
    """What is carried from round to round."""

    setting: Setting
    rho: float = np.nan
    inner: SqpState | None = None  # at this ρ
    spent: Array | None = None  # r̂_i at the inner problem's best point
    last: Tangent | None = None  # of the round before, at the same ρ
    solved: tuple[Tangent, ...] = ()  # one for every ρ before
    start: float = np.nan


@dataclass(frozen=True)
class Radius:
    """See the module's text. θ has ρ as its last entry in everything that is sent and reported."""

    radius: float
    inner: Solver = field(default_factory=Sqp)
    name: str = "sqp"

    @property
    def needs(self) -> Needs:
        """What the inner solver needs."""
        return self.inner.needs._replace(radius=False)

    def init(self, setting: Setting, theta: Array, lam: Array) -> RadiusState:
        """Before the first round."""
        return self._at(RadiusState(setting), float(theta[-1]), theta[:-1], lam)

    def ask(self, state: RadiusState) -> Task:
        """What the inner problem asks, at the present ρ."""
        assert state.inner is not None
        task = self.inner.ask(state.inner)
        return task._replace(theta=np.append(task.theta, state.rho))

    def update(self, state: RadiusState, answers: Answers) -> tuple[RadiusState, Info]:
        """One round of the inner problem; then, if that shows enough, another ρ."""
        assert state.inner is not None
        plain = answers._replace(vectors=answers.vectors[:, :-1])
        inner, info = self.inner.update(state.inner, plain)
        spent = -answers.vectors[:, -1] if inner.theta is state.inner.trial else state.spent
        assert spent is not None
        here = self._tangent(state, inner, info, spent)
        start = here.height if np.isnan(state.start) else state.start
        state = state._replace(inner=inner, spent=spent, start=start)
        known = (*state.solved, here)
        best = min(known, key=lambda tangent: tangent.height)
        low, cross, lam = _lowest(known, best, self.radius)
        gap = max(best.height - low, 0.0)
        size = relative(gap, best.height, start)
        done, why = "converged" if size <= _SURE * state.setting.tol else "", ""
        rho = _next_price(known, cross, self.radius)
        still = abs(rho - here.rho) <= 1e-10 * here.rho
        if inner.failures > 0 and not state.solved and _is_wild(answers, info):
            state = self._at(state, here.rho, 0.1 * here.theta, here.lam)
        elif still and info.done:
            done = "converged" if size <= state.setting.tol else "stalled"
            why = info.why or "ρ does not move any more, and θ is as good as its own gap can tell"
        elif not np.isfinite(inner.trial).all():
            done, why = "stalled", info.why
        elif not still and (
            (info.done and np.isfinite(here.gap)) or _is_enough(here, state.last, self.radius)
        ):
            expected = _expected(known, rho)
            state = self._at(state._replace(solved=known), rho, expected, here.lam)
        else:
            state = state._replace(last=here)
        lam, theta = state.setting.mixture.snap(lam), np.append(best.theta, best.rho)
        return state, Info(best.height, gap, best.risks, lam, theta, done, why)

    def _tangent(self, state: RadiusState, inner: SqpState, info: Info, spent: Array) -> Tangent:
        assert inner.best is not None
        # A gap is an estimate, and not even that after a failure or a leap of ρ.
        rho, before = state.rho, state.solved[-1].rho if state.solved else state.rho
        much = info.gap > 1e-3 * state.setting.tol * abs(info.objective)
        untried = much and state.last is None and not 0.5 < rho / before < 2.0
        vague = (inner.failures > 0 and not info.done) or untried
        gap = np.inf if vague else 2.0 * info.gap
        height, lam = info.objective + rho * self.radius, info.lam
        slope, away = np.asarray(lam @ inner.best.gradients), max(float(lam @ spent), 0.0)
        return Tangent(info.theta, rho, lam, info.risks, height, gap, slope, away)

    def _at(self, state: RadiusState, rho: float, theta: Array, lam: Array) -> RadiusState:
        """The inner problem at another ρ, from θ or, where no risk is finite, nearer to 0."""

        def feasible(point: Array) -> bool:
            return state.setting.feasible(np.append(point, rho))

        while not feasible(theta):
            theta = 0.7 * theta
        setting = replace(state.setting, feasible=feasible, tol=_INNER * state.setting.tol)
        inner = self.inner.init(setting, theta, lam)
        return state._replace(rho=rho, inner=inner, spent=None, last=None)


def _lowest(
    solved: tuple[Tangent, ...], best: Tangent, radius: float
) -> tuple[float, float, Array]:
    """The least that any ρ ≥ 0 can reach, the ρ where the tangents say so, and the λ that does."""
    lines = [tangent.below(best.theta, radius) for tangent in solved]
    found = (-np.inf, 0.0, solved[-1].lam)
    for one, (level, rate) in zip(solved, lines, strict=True):
        if rate >= 0.0 and level > found[0]:
            found = (level, 0.0, one.lam)
    for one, (level, rate) in zip(solved, lines, strict=True):
        for other, (rival, fall) in zip(solved, lines, strict=True):
            if fall < 0.0 < rate and rival > level:
                share = rate / (rate - fall)  # of the falling line, so that the slopes cancel
                value = share * rival + (1.0 - share) * level
                if value > found[0]:
                    rho = (rival - level) / (rate - fall)
                    found = (value, rho, share * other.lam + (1.0 - share) * one.lam)
    return found


def _is_wild(answers: Answers, info: Info) -> bool:
    """Whether a first step went far astray: the curvature of a saturated model tells nothing."""
    return float(answers.values.max()) - info.objective > 10.0 * abs(info.objective)


def _is_enough(here: Tangent, before: Tangent | None, radius: float) -> bool:
    """Whether it is clear which way ρ should go, and that θ has less to gain than ρ has."""
    if before is None:
        return False
    rate, change = radius - here.spent, here.spent - before.spent
    gain = min(rate**2 / (2.0 * _POWER * max(here.spent, 1e-300)), abs(rate)) * here.rho
    return abs(change) <= 0.3 * abs(rate) and here.gap <= 0.3 * gain


def _next_price(solved: tuple[Tangent, ...], cross: float, radius: float) -> float:
    """The secant of 1/√r̂, which is nearly linear in ρ; kept between prices too low and too high.

    r̂ falls as 1/ρ² where ρ is large, and tends to a limit as ρ tends to 0.
    """
    here = solved[-1]
    low = max((one.rho for one in solved if one.spent > radius), default=0.0)
    high = min((one.rho for one in solved if one.spent <= radius), default=np.inf)
    factor = math.sqrt(here.spent / radius)  # the line through the origin
    if len(solved) > 1 and min(here.spent, solved[-2].spent) > 0.0:
        last = solved[-2]
        run, rise = here.rho / last.rho - 1.0, math.sqrt(here.spent / last.spent) - 1.0
        if run * rise < 0.0:
            factor = 1.0 + run / (1.0 + run) * (1.0 - math.sqrt(here.spent / radius)) / rise
        elif low == 0.0 or high == np.inf:  # r̂ does not move: try ever farther
            factor = (1.0 + run) ** 2
    if low == 0.0 or high == np.inf:  # from one side alone nothing bounds V: go a little too far
        factor = max(factor, 0.0) ** 1.5
        factor = max(factor, 1.001) if low else min(factor, 0.999)
    wanted = min(max(factor, 1.0 / _JUMP), _JUMP) * here.rho
    if low < wanted < high:
        return wanted
    return cross if low < cross < high else 0.5 * (low + high)


def _expected(solved: tuple[Tangent, ...], rho: float) -> Array:
    """θ at ρ, linear in ρ through the last two solutions where that is not far from them.

    Elsewhere it shrinks as ρ does, but for entries that were seen not to (an intercept may stay).
    """
    here, stays = solved[-1], np.zeros(solved[-1].theta.size, dtype=bool)
    if len(solved) > 1:
        last = solved[-2]
        share = (rho - here.rho) / (last.rho - here.rho)
        if -1.0 <= share <= 1.0 and rho > 0.5 * min(here.rho, last.rho):
            return np.asarray(here.theta + share * (last.theta - here.theta))
        shrunk = math.log(here.rho / last.rho)
        stays = np.abs(here.theta - last.theta) < 0.1 * abs(shrunk) * np.abs(last.theta)
    return np.where(stays, here.theta, here.theta * min(rho / here.rho, 1.0))
