"""`sqp`: sequential quadratic programming on messages, the default for full-batch linear models.

Each round the server asks for F_i and ∇F_i at one point (the first time also for the diagonal of
∇²F_i) and moves by the step of :mod:`~dorfl.solvers.subproblem`, with B from
:mod:`~dorfl.solvers.quasi_newton`. A point that turns out worse than promised is not wasted: its
gradients correct B, and the step is solved again from where we stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorfl.roots import brentq
from dorfl.solvers.base import Answers, Info, Pieces, Setting, Task, pieces, relative
from dorfl.solvers.quasi_newton import Model, Secants, model, no_secants
from dorfl.solvers.subproblem import worst_mixture
from dorfl.types import Array

_CONTENDERS = 32  # clients whose own curvature is modelled: those with the largest risks
_SWEEPS = 12


class State(NamedTuple):
    """What is carried from round to round."""

    setting: Setting
    theta: Array  # the best point so far
    lam: Array
    trial: Array  # the point asked about
    best: Pieces | None = None
    risks: Array | None = None
    secants: Secants | None = None
    curvature: Array | None = None
    start: float = np.nan
    stalled: int = 0
    tried: tuple[
        tuple[Array, Pieces], ...
    ] = ()  # points found worse since the best one was reached


class Step(NamedTuple):
    """A solved subproblem: where to go, the mixture, and the decrease it promises."""

    move: Array
    lam: Array
    promise: float


@dataclass(frozen=True)
class Sqp:
    """See the module's text."""

    name: str = "sqp"
    exact: bool = True

    def init(self, setting: Setting, theta: Array, lam: Array) -> State:
        """Before the first round."""
        return State(setting, theta, lam, theta)

    def ask(self, state: State) -> Task:
        """One evaluation; the first one with the curvature's diagonal."""
        return Task(state.trial, state.lam, curvature=state.best is None)

    def update(self, state: State, answers: Answers) -> tuple[State, Info]:
        """Take the trial point or correct the model by it; then solve for the next one."""
        setting = state.setting
        seen = pieces(setting, state.trial, answers, state.lam)
        height = setting.mixture.height(seen.values)
        if state.best is None or state.secants is None or state.risks is None:
            assert seen.curvature is not None
            state = state._replace(
                best=seen,
                risks=answers.values,
                curvature=seen.curvature,
                secants=no_secants(*seen.gradients.shape),
                start=height,
            )
        else:
            change = seen.gradients - state.best.gradients
            state = state._replace(secants=state.secants.append(state.trial - state.theta, change))
            stands = _height(state)
            if height < stands:
                slight = stands - height <= 1e-14 * abs(stands)
                state = state._replace(
                    theta=state.trial,
                    best=seen,
                    risks=answers.values,
                    stalled=state.stalled + 1 if slight else 0,
                    tried=(),
                )
            else:
                state = state._replace(
                    stalled=state.stalled + 1, tried=(*state.tried, (state.trial, seen))
                )
        step = _solve(state)
        trial = state.theta + step.move
        if state.tried and state.stalled % 2 == 0:
            trial = state.theta + _along(state) * (state.tried[-1][0] - state.theta)
        while not setting.feasible(trial):
            trial = 0.5 * (state.theta + trial)
        adversarial = setting.mixture.adversarial
        state = state._replace(trial=trial, lam=step.lam if adversarial else state.lam)
        objective = _height(state)
        done = ""
        if not np.isfinite(trial).all():
            state, done = state._replace(trial=state.theta), "stalled"
        # The promise only estimates the gap; it was seen to be up to five times too small.
        elif relative(step.promise, objective, state.start) <= 0.15 * setting.tol:
            done = "converged"
        elif state.stalled >= 8:
            done = "stalled"
        assert state.risks is not None
        return state, Info(objective, step.promise, state.risks, state.lam, state.theta, done)


def _height(state: State) -> float:
    assert state.best is not None
    return state.setting.mixture.height(state.best.values)


def _along(state: State) -> float:
    """The best share of the step just found too long, from values and slopes at both its ends.

    Every piece is the cubic that meets all four; their upper envelope is looked through on a grid.
    """
    assert state.best is not None
    point, seen = state.tried[-1]
    away = point - state.theta
    before, after = state.best.gradients @ away, seen.gradients @ away
    s = np.linspace(0.01, 1.0, 100)[:, None]
    cubic = (
        (2 * s**3 - 3 * s**2 + 1) * state.best.values
        + (s**3 - 2 * s**2 + s) * before
        + (3 * s**2 - 2 * s**3) * seen.values
        + (s**3 - s**2) * after
    )
    heights = [state.setting.mixture.height(row) for row in cubic]
    return float(s[int(np.argmin(heights)), 0])


def _solve(state: State) -> Step:
    """The subproblem at the best point, inside the ball if there is one."""
    step = _solve_shifted(state, 0.0)
    radius = state.setting.radius

    def outside(shift: float) -> float:
        return float(np.linalg.norm(state.theta + _solve_shifted(state, shift).move)) - radius

    if np.isfinite(radius) and np.linalg.norm(state.theta + step.move) > radius:
        high = 1.0
        while outside(high) > 0.0:
            high *= 4.0
        step = _solve_shifted(state, float(brentq(outside, 0.0, high, rtol=1e-10)))
        return step._replace(move=state.setting.project(state.theta + step.move) - state.theta)
    return step


def _solve_shifted(state: State, shift: float) -> Step:
    """The subproblem with `shift`/2 ‖θ‖² added; λ and the models for it are found together.

    One curvature common to all pieces, that of the mixture, makes it a quadratic program. A piece
    that bends more than the mixture is caught by tangents to its own parabola at the moves the
    program proposes, until it proposes nothing new.
    """
    best, secants, curvature = state.best, state.secants, state.curvature
    assert best is not None
    assert secants is not None
    assert curvature is not None
    count, mixture = len(best.values), state.setting.mixture
    lam = state.lam if mixture.adversarial else np.ones(1)
    near = np.argsort(-best.values, kind="stable")[:_CONTENDERS] if count > 1 else np.arange(0)
    own = [model(secants, curvature, np.eye(count)[i], shift) for i in near]
    moves = np.empty((0, state.theta.size))
    pulls = np.empty((0, len(own), state.theta.size))  # what each piece's own model makes of them
    stands = _height(state)
    for _ in range(_SWEEPS):
        bend = model(secants, curvature, lam, shift)
        values, gradients, owner = _pieces(state, shift, bend, near, moves, pulls)
        share = worst_mixture(values, gradients, bend.solve, mixture.cap, owner)
        previous, lam = lam, np.bincount(owner, share, count)
        push = share @ gradients
        move = -bend.solve(push)
        reached = values + gradients @ move
        linear = np.full(count, -np.inf)
        np.maximum.at(linear, owner, reached)
        top = mixture.height(linear)
        short = top - float(share @ reached)  # how far the program's own solution is from its best
        ridge = shift * float(state.theta @ move + 0.5 * (move @ move))
        height = top - 0.5 * float(move @ push) - ridge
        promise = max(stands - height + short, 0.0)
        pull = np.array([b.multiply(move) for b in own]).reshape(pulls.shape[1:])
        parabola = best.values[near] + (best.gradients[near] + 0.5 * pull) @ move
        missed = parabola.max(initial=-np.inf) - 0.5 * shift * float(move @ move) - height
        if missed <= 0.1 * promise and np.abs(lam - previous).max() < 1e-3:
            break
        moves, pulls = np.vstack([moves, move]), np.concatenate([pulls, pull[None]])
    return Step(move, lam, promise)


def _pieces(
    state: State, shift: float, bend: Model, near: Array, moves: Array, pulls: Array
) -> tuple[Array, Array, Array]:
    """Every piece as value + gradientᵀp (+ ½ pᵀBp, common to all) around the best point, and whose.

    A point found worse adds the parabolas that touch the pieces *there*.
    """
    assert state.best is not None
    best, everyone = state.best, np.arange(len(state.best.values))
    center = best.gradients + shift * state.theta
    values, gradients, owner = [best.values], [center], [everyone]
    for point, seen in state.tried:
        away = point - state.theta
        pull = bend.multiply(away)
        # exact in the shift's part, a parabola with the common curvature in the rest
        touching = (
            seen.values - seen.gradients @ away + 0.5 * float(away @ pull - shift * away @ away)
        )
        values.append(np.minimum(touching, best.values))
        gradients.append(seen.gradients + shift * point - pull)
        owner.append(everyone)
    if len(moves):
        extra = pulls - bend.multiply(moves)[:, None, :]
        rise = np.einsum("mkp,mp->mk", extra, moves)
        move, piece = np.nonzero(rise > 0.0)  # what bends less than the mixture is safe as it is
        values.append(best.values[near[piece]] - 0.5 * rise[move, piece])
        gradients.append(center[near[piece]] + extra[move, piece])
        owner.append(near[piece])
    return np.concatenate(values), np.concatenate(gradients), np.concatenate(owner)
