"""`optimistic`: optimistic gradient descent–ascent on Σ_i λ_i F_i(θ).

For minibatches, local steps and partial answers. The direction of a step needs only Σ λ_i ∇F_i and
the numbers F_i; its length and the gap are judged by single gradients. Each step repeats the last
change of the gradient as a forecast of the next, which keeps descent–ascent from circling
(C. Daskalakis, A. Ilyas, V. Syrgkanis, H. Zeng, *Training GANs with Optimism*, 2018,
arXiv 1711.00141):

    z⁺ = Proj( z − η [2 A(z) − A(z⁻)] ),      A(θ, λ) = (Σ λ_i ∇F_i(θ), −F(θ))

in the metric of the clients' curvature, which is asked for anew now and then: it falls as a
classifier grows confident. η follows the Lipschitz constant seen between the last two points. The
metric is a diagonal: what columns have in common it does not know, and with many columns that go
together (pictures) thousands of rounds may leave a gap. It says so, and what to use instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.solvers.base import (
    Answers,
    Info,
    Needs,
    Pieces,
    Setting,
    Task,
    pieces,
    relative,
    trimmed_mean,
)
from dorfl.solvers.quasi_newton import model
from dorfl.support.lazy import optimize
from dorfl.support.types import Array

_REFRESH = (1, 5, 20, 60, 150)  # rounds that ask for curvature; later every 200th does
_LOOK = 25  # rounds between looks at the pace of λ
_MEMORY = 12  # secants kept to judge the gap by
_SLOW = (
    "steps along gradients are slow where columns have different scales or go together: use solver "
    "'sqp' where every client answers about all its rows, else a larger l2 or columns of like scale"
)
_WORSE, _SHORTER = 0.01, 0.25  # what a mean may be above the first height, and the rate after it
_CAUTION = 0.45  # η L stays below this; one half is where the theory ends


class Point(NamedTuple):
    """Where a round stood and what it saw there: A(θ, λ) = (gradient, −pieces.values)."""

    theta: Array
    lam: Array
    pieces: Pieces
    gradient: Array  # Σ λ_i ∇F_i, where gradients may be lies trimmed
    risks: Array  # of every client


class OptimisticState(NamedTuple):
    """What is carried from round to round."""

    setting: Setting
    theta: Array
    lam: Array
    round: int = 1
    metric: Array | None = None  # diagonal of the clients' mixed curvature
    pace: float = 1.0  # how fast λ moves for each unit of risk, against θ
    rate: float = 0.5
    before: Point | None = None
    recent: tuple[tuple[Array, Array], ...] = ()  # the last steps and changes of gradients
    milestone: tuple[Array, Array] | None = None  # θ, λ when the pace was last looked at
    start: float = np.nan


@dataclass(frozen=True)
class Optimistic:
    """See the module's text.

    Attributes:
        batch: rows a client draws per round, where the training's `batch` does not say.
        local_steps: gradient steps a client takes per round.
    """

    batch: int | None = None
    local_steps: int = 1
    name: str = "optimistic"

    @property
    def needs(self) -> Needs:
        """Neither everybody nor all rows; from less than that the gap cannot be told."""
        whole = self.batch is None and self.local_steps == 1
        return Needs(pools=True, trims=True, curvature=True, reports_gap=whole, rounds=5000)

    def init(self, setting: Setting, theta: Array, lam: Array) -> OptimisticState:
        """Before the first round."""
        return OptimisticState(setting, theta, lam)

    def ask(self, state: OptimisticState) -> Task:
        """An evaluation, or local steps once a metric is known to set their length."""
        due = state.round in _REFRESH or state.round % 200 == 0
        curvature = state.setting.diagonal if due else "none"
        batch = state.setting.batch or self.batch
        if self.local_steps == 1 or due or state.metric is None:
            return Task(state.theta, state.lam, curvature=curvature, batch=batch)
        rate = 0.5 * state.rate / float(state.metric.max())
        return Task(state.theta, state.lam, "local", batch=batch, rate=rate, steps=self.local_steps)

    def update(self, state: OptimisticState, answers: Answers) -> tuple[OptimisticState, Info]:
        """One optimistic step."""
        setting, task = state.setting, self.ask(state)
        if task.kind == "local":  # how far a client went, per unit of step, is its mean gradient
            drift = (state.theta - answers.vectors) / (task.rate * task.steps)
            answers = answers._replace(vectors=drift)
        seen = pieces(setting, state.theta, answers, state.lam)
        adversarial = setting.mixture.adversarial
        lam = state.lam if adversarial else np.ones(1)
        gradient = trimmed_mean(seen.gradients, lam, setting.trim)
        here = Point(state.theta, lam, seen, gradient, answers.values)
        height = setting.mixture.height(seen.values)
        whole = task.batch is None and self.local_steps == 1
        worse = float(lam @ seen.values) - state.start > _WORSE * abs(state.start)
        if whole and state.before is not None and worse:
            return _back(state, here)
        if seen.curvature is not None:
            bends = packing.diagonal(seen.curvature, setting.shape.sizes_of(seen.curvature))
            metric = np.maximum(lam @ bends, 1e-12)
            pace = _pace(seen.gradients, metric) if state.metric is None else state.pace
            state = state._replace(metric=metric, pace=pace)
        elif state.metric is None:  # nobody tells: a first step of about unit length
            longest = max(float(np.linalg.norm(seen.gradients, axis=1).max()), 1e-12)
            metric = np.full(state.theta.size, longest)
            state = state._replace(metric=metric, pace=_pace(seen.gradients, metric))
        state = _repace(_adapt(state, here), here)
        assert state.metric is not None
        forecast, rise = here.gradient, seen.values
        if state.before is not None:
            forecast = 2.0 * forecast - state.before.gradient
            rise = 2.0 * rise - state.before.pieces.values
        theta, moved = _step(state, here, forecast, rise)
        start = height if state.round == 1 else state.start
        limit = 0.5 * setting.tol  # the gap is an estimate
        apart = max(height - float(lam @ seen.values), 0.0)
        steep = _along_edge(state, here.gradient)
        gap, done = apart + 0.5 * float(steep @ (steep / state.metric)), ""
        if whole and state.round > 3:
            if relative(gap, height, start) <= limit:  # worth a closer look, which costs more
                gap = apart + _shortfall(state, lam, steep)
            done = "converged" if relative(gap, height, start) <= limit else ""
        info = Info(height, gap, answers.values, state.lam, state.theta, done, _SLOW)
        following = state._replace(
            theta=theta,
            lam=moved if adversarial else state.lam,
            before=here,
            round=state.round + 1,
            start=start,
        )
        return following, info


def _step(state: OptimisticState, here: Point, forecast: Array, rise: Array) -> tuple[Array, Array]:
    """The next θ and λ from a point, at the present rate."""
    assert state.metric is not None
    setting = state.setting
    theta = here.theta - state.rate * forecast / state.metric
    theta = _into_ball(theta, state.metric, setting.radius)
    while not setting.feasible(theta):
        theta = 0.5 * (theta + here.theta)
    if not setting.mixture.adversarial:
        return theta, here.lam
    return theta, setting.mixture.project(here.lam + state.rate * state.pace * rise)


def _back(state: OptimisticState, here: Point) -> tuple[OptimisticState, Info]:
    """From a point worse than the first one back to the one before, and on by a shorter step.

    Columns that go together bend hundreds of times as much as the metric knows; where such a step
    leads, rows are certain and wrong, and what is seen of the curvature there tells nothing.
    """
    old = state.before
    assert old is not None
    rate = min(_adapt(state, here).rate, _SHORTER * state.rate)
    state = state._replace(rate=rate, recent=())
    theta, lam = _step(state, old, old.gradient, old.pieces.values)
    height = state.setting.mixture.height(old.pieces.values)
    gap = height - float(old.lam @ old.pieces.values)
    gap += 0.5 * float(old.gradient @ (old.gradient / np.asarray(state.metric)))
    told = lam if state.setting.mixture.adversarial else state.lam
    info = Info(height, max(gap, 0.0), old.risks, told, old.theta, "", _SLOW)
    return state._replace(theta=theta, lam=told, round=state.round + 1), info


def _pace(gradients: Array, metric: Array) -> float:
    """1 / ‖J‖² in the metric of θ: λ and θ then pull on each other equally hard."""
    size = float(np.linalg.norm(gradients / np.sqrt(metric), 2)) ** 2
    return 1.0 / max(size, 1e-12)


def _repace(state: OptimisticState, here: Point) -> OptimisticState:
    """Every so often, let λ and θ move as fast as the distances they turn out to have to cover."""
    if state.round % _LOOK or state.metric is None:
        return state
    pace = state.pace
    if state.milestone is not None:
        step, turn = here.theta - state.milestone[0], here.lam - state.milestone[1]
        ratio = float(turn @ turn) / max(float(step @ (state.metric * step)), 1e-300)
        if ratio > 0.0:
            pace = float(np.clip(np.sqrt(pace * ratio), pace / 10.0, pace * 10.0))
        pace = max(pace, _pace(here.pieces.gradients, state.metric))
    return state._replace(pace=pace, milestone=(here.theta, here.lam))


def _adapt(state: OptimisticState, here: Point) -> OptimisticState:
    """η from how fast A changed between the last two points, in the metric of θ and λ."""
    if state.before is None or state.metric is None:
        return state
    old = state.before
    step, sway = here.theta - old.theta, here.lam - old.lam
    turn, rise = here.gradient - old.gradient, here.pieces.values - old.pieces.values
    length = float(step @ (state.metric * step)) + float(sway @ sway) / state.pace
    change = float(turn @ (turn / state.metric)) + state.pace * float(rise @ rise)
    if length <= 0.0:
        return state
    rate = min(1.1 * state.rate, _CAUTION * math.sqrt(length / max(change, 1e-300)))
    recent = (*state.recent, (step, here.pieces.gradients - old.pieces.gradients))[-_MEMORY:]
    return state._replace(rate=rate, recent=recent)


def _into_ball(theta: Array, metric: Array, radius: float) -> Array:
    """The point of the ball nearest to θ in the metric of the step, (M + ν)⁻¹ M θ for one ν ≥ 0."""
    if math.isinf(radius) or np.linalg.norm(theta) <= radius:
        return theta

    def outside(nu: float) -> float:
        return float(np.linalg.norm(metric * theta / (metric + nu))) - radius

    high = float(metric.max()) * float(np.linalg.norm(theta)) / radius
    nu = optimize.brentq(outside, 0.0, high, rtol=1e-14)
    return np.asarray(metric * theta / (metric + nu))


def _along_edge(state: OptimisticState, gradient: Array) -> Array:
    """The gradient; where θ is at the edge of Θ and pulled outwards, its part along the edge."""
    radius = state.setting.radius
    if math.isinf(radius) or np.linalg.norm(state.theta) < radius * (1.0 - 1e-9):
        return gradient
    outward = min(float(gradient @ state.theta), 0.0)
    return np.asarray(gradient - state.theta * (outward / float(state.theta @ state.theta)))


def _shortfall(state: OptimisticState, lam: Array, gradient: Array) -> float:
    """How far Σ λ_i F_i is above its minimum over θ: ½ gᵀB⁻¹g, B from the last few secants."""
    assert state.metric is not None
    steps = np.array([step for step, _ in state.recent]).reshape(-1, len(gradient))
    changes = np.array([change for _, change in state.recent]).reshape(-1, len(lam), len(gradient))
    moved = steps.any(axis=1)
    sizes = (1,) * len(gradient)
    bend = model(state.metric, sizes, state.metric, steps[moved], lam @ changes[moved])
    return 0.5 * float(gradient @ bend.solve(gradient))
