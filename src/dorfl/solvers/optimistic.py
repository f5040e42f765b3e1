"""`optimistic`: optimistic gradient descent–ascent on Σ_i λ_i F_i(θ).

For minibatches, local steps and clients that do not reply. The direction of a step needs only
Σ λ_i ∇F_i and the numbers F_i. Each step repeats the last change of the gradient as a forecast of
the next, which keeps descent–ascent from circling (C. Daskalakis, A. Ilyas, V. Syrgkanis, H. Zeng,
*Training GANs with Optimism*, 2018, arXiv 1711.00141):

    z⁺ = Proj( z − η M⁻¹ [2 A(z) − A(z⁻)] ),      A(θ, λ) = (Σ λ_i ∇F_i(θ), −F(θ))

M is the clients' mixed curvature, as finely as they may be asked for it. It is asked for anew now
and then, since it falls as a classifier grows confident. η follows the Lipschitz constant seen
between the last two points. In a ball Θ, and for clients with many columns, M is a diagonal. If
columns are correlated, a gap may remain after thousands of rounds. The message then names the
solver to use instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.linear.curvature import Base
from dorfl.solvers.base import (
    Answers,
    Info,
    Needs,
    Pieces,
    Setting,
    Task,
    is_bounded,
    lower_bound,
    pieces,
    relative,
    trimmed_mean,
)
from dorfl.support.lazy import optimize
from dorfl.support.types import Array

REFRESH = (1, 5, 20, 60, 150)  # rounds that ask for curvature; later every 200th does
LOOK = 25  # rounds between changes of the pace of λ
LEAST = 1e-12  # curvature of a parameter
SLOW = (
    "steps along gradients are slow where columns have different scales or go together: use solver "
    "'sqp' where every client answers about all its rows, else a larger l2 or columns of like scale"
)
WORSE = 0.01  # share of the first mean risk that a later one may be above it
SHORTER = 0.25  # factor of η after a point that is worse than that
GROWTH = 1.1  # factor by which η may grow in a round
CAUTION = 0.45  # η times the Lipschitz constant stays below this; the theory ends at one half


class Point(NamedTuple):
    """A point and what clients reported about it: A(θ, λ) = (gradient, −pieces.values)."""

    theta: Array
    lam: Array
    pieces: Pieces
    gradient: Array  # Σ λ_i ∇F_i, trimmed if gradients may be lies
    risks: Array  # of every client


class OptimisticState(NamedTuple):
    """The state between rounds."""

    setting: Setting
    theta: Array
    lam: Array
    round: int = 1
    metric: Array | None = None  # M, packed
    pace: float = 1.0  # how fast λ moves for each unit of risk, against θ
    rate: float = 0.5  # η
    before: Point | None = None
    milestone: tuple[Array, Array] | None = None  # θ, λ when the pace was last changed
    start: float = np.nan  # the objective at the first point

    @property
    def base(self) -> Base:
        """M as a matrix."""
        assert self.metric is not None
        sizes = self.setting.shape.sizes_of(self.metric)
        return packing.base(self.metric, sizes, LEAST)


@dataclass(frozen=True)
class Optimistic:
    """Optimistic gradient descent–ascent, see the text of this module.

    Attributes
    ----------
    batch : int or None
        Rows that a client draws per round, unless the training's `batch` is given.
    local_steps : int
        Gradient steps a client takes per round.
    """

    batch: int | None = None
    local_steps: int = 1
    name: str = "optimistic"

    @property
    def needs(self) -> Needs:
        """Neither all clients nor all rows; a gap is computed only if all rows are used."""
        whole = self.batch is None and self.local_steps == 1
        return Needs(pools=True, trims=True, curvature=True, reports_gap=whole, rounds=5000)

    def init(self, setting: Setting, theta: Array, lam: Array) -> OptimisticState:
        """Return the state before the first round."""
        return OptimisticState(setting, theta, lam)

    def ask(self, state: OptimisticState) -> Task:
        """Return an evaluation, or local steps once a metric sets their length."""
        due = state.round in REFRESH or state.round % 200 == 0
        setting, batch = state.setting, state.setting.batch or self.batch
        diagonal = batch is not None or self.local_steps > 1 or np.isfinite(setting.radius)
        finest = setting.diagonal if diagonal else setting.resolution
        if self.local_steps == 1 or due or state.metric is None:
            return Task(state.theta, state.lam, curvature=finest if due else "none", batch=batch)
        rate = 0.5 * state.rate / float(state.metric.max())
        return Task(state.theta, state.lam, "local", batch=batch, rate=rate, steps=self.local_steps)

    def update(self, state: OptimisticState, answers: Answers) -> tuple[OptimisticState, Info]:
        """Take one optimistic step."""
        setting, task = state.setting, self.ask(state)
        if task.kind == "local":  # how far a client went, per unit of step, is its mean gradient
            drift = (state.theta - answers.vectors) / (task.rate * task.steps)
            answers = answers._replace(vectors=drift)
        seen = pieces(setting, state.theta, answers, state.lam)
        adversarial = setting.mixture.adversarial
        lam = state.lam if adversarial else np.ones(1)
        gradient = trimmed_mean(seen.gradients, lam, setting.trim)
        here = Point(state.theta, lam, seen, gradient, answers.values)
        whole = task.batch is None and self.local_steps == 1
        worse = float(lam @ seen.values) - state.start > WORSE * abs(state.start)
        if whole and state.before is not None and worse:
            return _back(state, here)
        if seen.curvature is not None:
            state = state._replace(metric=packing.mix(seen.curvature, lam))
        elif state.metric is None:  # a first step of about unit length
            longest = max(float(np.linalg.norm(seen.gradients, axis=1).max()), LEAST)
            state = state._replace(metric=np.full(state.theta.size, longest))
        if state.before is None:
            height = setting.mixture.height(seen.values)
            state = state._replace(start=height, pace=_pace(state, seen.gradients))
        state = _repace(_adapt(state, here), here)
        forecast, rise = here.gradient, seen.values
        if state.before is not None:
            forecast = 2.0 * forecast - state.before.gradient
            rise = 2.0 * rise - state.before.pieces.values
        theta, moved = _step(state, here, forecast, rise)
        info = _info(state, here)
        if whole and relative(info.gap, info.objective, state.start) <= setting.tol:
            info = info._replace(done="converged")
        lam = moved if adversarial else state.lam
        return state._replace(theta=theta, lam=lam, before=here, round=state.round + 1), info


def _info(state: OptimisticState, here: Point) -> Info:
    """Return the result at a point; an estimated gap is doubled, to be on the safe side."""
    setting, values = state.setting, here.pieces.values
    height, mean = setting.mixture.height(values), float(here.lam @ values)
    lam = here.lam if setting.mixture.adversarial else state.lam
    if is_bounded(setting) and not setting.trim:
        gap, kind = height - lower_bound(setting, here.theta, mean, here.gradient), "bound"
    else:
        short = float(here.gradient @ state.base.solve(here.gradient))
        gap, kind = 2.0 * (height - mean) + short, "estimate"
    return Info(height, max(gap, 0.0), here.risks, lam, here.theta, "", SLOW, kind)


def _step(state: OptimisticState, here: Point, forecast: Array, rise: Array) -> tuple[Array, Array]:
    """Return the next θ and λ from a point, at the present rate."""
    setting = state.setting
    theta = here.theta - state.rate * state.base.solve(forecast)
    theta = _into_ball(theta, state)
    while not setting.feasible(theta):
        theta = 0.5 * (theta + here.theta)
    if not setting.mixture.adversarial:
        return theta, here.lam
    return theta, setting.mixture.project(here.lam + state.rate * state.pace * rise)


def _back(state: OptimisticState, here: Point) -> tuple[OptimisticState, Info]:
    """Return to the point before one that is worse than the first, and go on by a shorter step.

    Correlated columns can have hundreds of times the curvature of a diagonal metric. A step that is
    too long ends where predictions are saturated, and curvature there is close to zero.
    """
    old = state.before
    assert old is not None
    state = state._replace(rate=min(_adapt(state, here).rate, SHORTER * state.rate))
    theta, lam = _step(state, old, old.gradient, old.pieces.values)
    following = state._replace(theta=theta, round=state.round + 1)
    if state.setting.mixture.adversarial:
        following = following._replace(lam=lam)
    return following, _info(state, old)


def _pace(state: OptimisticState, gradients: Array) -> float:
    """Return 1 / Σ ‖∇F_i‖² in the metric of θ: λ and θ then pull on each other equally hard."""
    return 1.0 / max(float(np.sum(gradients * state.base.solve(gradients))), LEAST)


def _repace(state: OptimisticState, here: Point) -> OptimisticState:
    """Return the state with the pace of λ set to the ratio of the distances that λ and θ moved."""
    if state.round % LOOK:
        return state
    pace = state.pace
    if state.milestone is not None:
        step, turn = here.theta - state.milestone[0], here.lam - state.milestone[1]
        ratio = float(turn @ turn) / max(float(step @ state.base.multiply(step)), 1e-300)
        if ratio > 0.0:
            pace = float(np.clip(np.sqrt(pace * ratio), pace / 10.0, pace * 10.0))
        pace = max(pace, _pace(state, here.pieces.gradients))
    return state._replace(pace=pace, milestone=(here.theta, here.lam))


def _adapt(state: OptimisticState, here: Point) -> OptimisticState:
    """Return the state with η from how fast A changed between the last two points."""
    if state.before is None:
        return state
    old, base = state.before, state.base
    step, sway = here.theta - old.theta, here.lam - old.lam
    turn, rise = here.gradient - old.gradient, here.pieces.values - old.pieces.values
    length = float(step @ base.multiply(step)) + float(sway @ sway) / state.pace
    change = float(turn @ base.solve(turn)) + state.pace * float(rise @ rise)
    if length <= 0.0:
        return state
    rate = min(GROWTH * state.rate, CAUTION * math.sqrt(length / max(change, 1e-300)))
    return state._replace(rate=rate)


def _into_ball(theta: Array, state: OptimisticState) -> Array:
    """Return the point of Θ nearest to θ in a diagonal metric: (M + ν)⁻¹ M θ for one ν ≥ 0."""
    radius, length = state.setting.radius, float(np.linalg.norm(theta))
    if length <= radius:
        return theta
    assert state.metric is not None
    metric = np.maximum(state.metric, LEAST)

    def outside(nu: float) -> float:
        return float(np.linalg.norm(metric * theta / (metric + nu))) - radius

    nu = optimize.brentq(outside, 0.0, float(metric.max()) * length / radius, rtol=1e-14)
    return np.asarray(metric * theta / (metric + nu))
