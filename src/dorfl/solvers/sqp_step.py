"""What `sqp` knows of the clients' risks, and the step it proposes from that.

Around the best point every piece of the objective is a linear-quadratic model, its curvature the
last one that clients sent, corrected by secants (:mod:`~dorfl.solvers.quasi_newton`). The step
minimises the largest of them (:mod:`~dorfl.solvers.subproblem`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dorfl.oracle import curvature as packing
from dorfl.solvers.base import Pieces, Setting
from dorfl.solvers.quasi_newton import Model, Secants, model
from dorfl.solvers.subproblem import worst_mixture
from dorfl.support.later import optimize
from dorfl.support.types import Array

_CONTENDERS = 32  # clients whose own curvature is modelled: those with the largest risks
_SWEEPS = 12
_FLAT = 1e-3  # of the most that any client bends in a parameter
_SMALL = 200  # parameters up to which B is factorised anew in every sweep
_KINK = 5  # points found worse that say so much


class SqpState(NamedTuple):
    """What is carried from round to round; before the first one nothing is known."""

    setting: Setting
    theta: Array  # the best point so far
    lam: Array
    trial: Array  # the point asked about
    resolution: str  # of the curvature to ask for now
    best: Pieces
    risks: Array
    secants: Secants
    curvature: Array  # of every piece, packed
    metric: Array  # the first curvature
    start: float = np.nan
    asked: int = 0  # how often curvature was had
    promise: float = np.inf  # the decrease that the model promised for the trial
    reach: float = np.inf  # how long a step may be in the metric
    share: float = 1.0  # ... and as a share of what the model asks for, under a new metric
    wish: float = np.inf  # how long the step was that the model asked for
    noise: float = 0.0  # differences of the objective that rounding was seen to make
    fallen: float = 0.0  # the last decrease
    surprise: float = 1.0  # how far the last decrease exceeded its promise
    failures: int = 0  # points found worse since the best was reached
    misses: int = 0  # and ever
    tried: tuple[tuple[Array, Pieces], ...] = ()  # these points; where there are kinks, others too

    @property
    def kinked(self) -> bool:
        """Whether a piece is likely to have a kink, which no curvature shows."""
        return self.misses > _KINK and not self.setting.smooth

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out of the curvature: then asking anew always pays."""
        return len(self.setting.shape.sizes_of(self.curvature)) == 1

    @property
    def height(self) -> float:
        """The objective at the best point."""
        return self.setting.mixture.height(self.best.values)

    @property
    def weights(self) -> Array:
        """The weight of every piece: λ, or that of the pooled risk, which is the only one."""
        return self.lam if self.setting.mixture.adversarial else np.ones(1)


class Step(NamedTuple):
    """A solved subproblem: where to go, the mixture, and the decrease it promises."""

    move: Array
    lam: Array
    promise: float
    length: float  # of the move, in the metric


def metric(setting: Setting, curvature: Array) -> Array:
    """The curvature, but that no move has length zero in it, whichever piece's it is."""
    sizes = setting.shape.sizes_of(curvature)
    bends = packing.diagonal(curvature, sizes)
    metric = curvature.copy()
    # Rows fewer than columns leave directions without any; single precision may make them negative.
    metric[:, packing.diagonal_places(sizes)] = 1.0001 * np.maximum(bends, _floor(bends))
    return metric


def _floor(bends: Array) -> Array:
    """The least that a piece's curvature is taken for in every parameter: (K, P) → (P,).

    A column that only a client of little weight has must not look flat to the others: that client
    would be promised too much there. Columns may have units as different as they like.
    """
    most = bends.max(axis=0)
    return np.where(most > 0.0, _FLAT * most, max(float(most.max()), 1e-280))


def length(state: SqpState, move: Array) -> float:
    """How long a move is in the metric, for the mixture at hand."""
    mixed = packing.mix(state.metric, state.weights)
    sizes = state.setting.shape.sizes_of(mixed)
    return float(np.sqrt(max(float(move @ packing.multiply(mixed, sizes, move)), 0.0)))


def shortened(state: SqpState, step: Step) -> Step:
    """The subproblem with as much of the metric added to B as makes the step short enough.

    1/length is nearly linear in what is added, which makes for few trials.
    """
    if state.reach <= 0.0:  # no shorter step can be told from none
        return step._replace(move=np.zeros_like(step.move), length=0.0)
    before, short = 0.0, 1.0 / step.length
    # B along the step, in units of the metric
    bent = float(step.promise) * 2.0 / step.length**2 or 1.0
    nu = bent * (step.length / state.reach - 1.0)
    for _ in range(8):
        step = solve(state, nu)
        if 0.6 * state.reach <= step.length <= 1.2 * state.reach or nu == before:
            break
        rate = (1.0 / max(step.length, 1e-300) - short) / (nu - before)
        before, short = nu, 1.0 / max(step.length, 1e-300)
        wanted = nu + (1.0 / state.reach - short) / max(rate, 1e-300)
        nu = float(np.clip(wanted, 0.1 * nu, 10.0 * nu))
    return step


def solve(state: SqpState, damping: float = 0.0) -> Step:
    """The subproblem at the best point, inside the ball if there is one."""
    step, setting = _solve_shifted(state, damping), state.setting
    if np.isinf(setting.radius) or np.linalg.norm(state.theta + step.move) <= setting.radius:
        return step

    def outside(shift: float) -> float:
        move = _solve_shifted(state, damping, shift).move
        return float(np.linalg.norm(state.theta + move)) - setting.radius

    high = 1.0
    while outside(high) > 0.0:
        high *= 4.0
    step = _solve_shifted(state, damping, float(optimize.brentq(outside, 0.0, high, rtol=1e-10)))
    return step._replace(move=setting.project(state.theta + step.move) - state.theta)


def _models(state: SqpState, damping: float, shift: float) -> Callable[[Array], Model]:
    """What makes the model of a mixture, with `damping` · metric and `shift` · I added."""
    secants, curvature, metric = state.secants, state.curvature, state.metric
    sizes = state.setting.shape.sizes_of(curvature)
    bends = packing.diagonal(curvature, sizes)
    floor = _floor(bends) + shift
    if damping:
        coarse = packing.coarsen(metric, state.setting.shape.sizes_of(metric), sizes)

    def made(lam: Array) -> Model:
        packed, changes = packing.mix(curvature, lam), np.asarray(lam @ secants.changes)
        if damping or shift:
            packed = packed.copy()
            packed[packing.diagonal_places(sizes)] += shift
            changes = changes + shift * secants.steps
        if damping:
            pull = packing.mix(coarse, lam)
            packed += np.asarray(damping * pull, dtype=packed.dtype)
            changes = changes + damping * packing.multiply(pull, sizes, secants.steps)
        return model(packed, sizes, floor, secants.steps, changes)

    return made


def _solve_shifted(state: SqpState, damping: float, shift: float = 0.0) -> Step:
    """The subproblem with `shift`/2 ‖θ‖² added; λ and the models for it are found together.

    One curvature common to all pieces, that of the mixture, makes it a quadratic program. A piece
    that bends more than the mixture is caught by tangents to its own parabola at the moves the
    program proposes, until it proposes nothing new.
    """
    best = state.best
    bent = _models(state, damping, shift)
    count, mixture = len(best.values), state.setting.mixture
    lam = state.weights
    near = np.argsort(-best.values, kind="stable")[:_CONTENDERS] if count > 1 else np.arange(0)
    own = [bent(np.eye(count)[i]) for i in near]
    moves = np.empty((0, state.theta.size))
    pulls = np.empty((0, len(own), state.theta.size))  # what each piece's own model makes of them
    stands = state.height
    bend, mixed = bent(lam), lam
    apart = 0.1 if state.theta.size > _SMALL else 0.0
    for _ in range(_SWEEPS):
        if np.abs(lam - mixed).max() > apart:
            bend, mixed = bent(lam), lam
        values, gradients, owner = _pieces(state, shift, bend, near, moves, pulls)
        share = worst_mixture(values, gradients, bend.solve, mixture.cap, owner)
        previous, lam = lam, np.bincount(owner, share, count)
        slope = share @ gradients
        move = -bend.solve(slope)
        reached = values + gradients @ move
        linear = np.full(count, -np.inf)
        np.maximum.at(linear, owner, reached)
        top = mixture.height(linear)
        short = top - float(share @ reached)  # how far the program's own solution is from its best
        ridge = shift * float(state.theta @ move + 0.5 * (move @ move))
        height = top - 0.5 * float(move @ slope) - ridge
        promise = max(stands - height + short, 0.0)
        pull = np.array([b.multiply(move) for b in own]).reshape(pulls.shape[1:])
        parabola = best.values[near] + (best.gradients[near] + 0.5 * pull) @ move
        missed = parabola.max(initial=-np.inf) - 0.5 * shift * float(move @ move) - height
        if missed <= 0.1 * promise and np.abs(lam - previous).max() < 1e-3:
            break
        moves, pulls = np.vstack([moves, move]), np.concatenate([pulls, pull[None]])
    return Step(move, lam, promise, length(state._replace(lam=lam), move))


def _pieces(
    state: SqpState, shift: float, bend: Model, near: Array, moves: Array, pulls: Array
) -> tuple[Array, Array, Array]:
    """Every piece as value + gradientᵀp (+ ½ pᵀBp, common to all) around the best point, and whose.

    A point found worse adds the parabolas that touch the pieces *there*.
    """
    best, everyone = state.best, np.arange(len(state.best.values))
    center = best.gradients + shift * state.theta
    values, gradients, owner = [best.values], [center], [everyone]
    for point, seen in state.tried:
        away = point - state.theta
        # A kink has no curvature: there only tangents, which lie below the piece, can be trusted.
        pull = bend.multiply(away) if not state.kinked else np.zeros_like(away)
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
