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
from dorfl.solvers.cuts import Cuts
from dorfl.solvers.quasi_newton import Model, Secants, model, no_secants
from dorfl.solvers.subproblem import MORE, worst_mixture
from dorfl.support.later import optimize
from dorfl.support.types import Array

_CONTENDERS = 32  # clients whose own curvature is modelled: those with the largest risks
_FLAT = 1e-3  # of the most that any client bends in a parameter
_SMALL = 200  # parameters up to which B is factorised anew in every sweep
_DOUBT = 0.1  # of how far a cut bends from where it was seen to here
STUCK = 4  # points found worse in a row that say the same of cuts that bend
_KINK = 5  # points found worse that say so much


class _Care(NamedTuple):
    """How well the subproblem is solved."""

    sweeps: int  # programs at most
    averaged: int  # from which one on the mixture is the mean of two
    warm: bool  # whether a program begins with the pieces of the one before
    rough: float  # of the promise: what a program may be off by
    moved: float  # it is solved when no weight moves by as much …
    changed: float  # … or the promise by no more than this share


_EXACT = _Care(sweeps=12, averaged=12, warm=False, rough=0.0, moved=1e-3, changed=-1.0)
# Many cuts that say nearly the same take turns, and the next round corrects them anyway.
_ROUGH = _Care(sweeps=5, averaged=2, warm=True, rough=0.02, moved=0.0, changed=0.02)


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
    cuts: Cuts  # of points found worse; where there are kinks, of others too
    start: float = np.nan
    asked: int = 0  # how often curvature was had
    vague: bool = False  # whether the last did not account for the step it came with
    own: bool = True  # whether all clients answered at the best point
    promise: float = np.inf  # the decrease that the model promised for the trial
    reach: float = np.inf  # how long a step may be in the metric
    share: float = 1.0  # ... and as a share of what the model asks for, under a new metric
    wish: float = np.inf  # how long the step was that the model asked for
    noise: float = 0.0  # differences of the objective that rounding was seen to make
    fallen: float = 0.0  # the last decrease
    surprise: float = 1.0  # how far the last decrease exceeded its promise
    trail: tuple[float, ...] = ()  # the objective after each of the last rounds
    failures: int = 0  # points found worse since the best was reached
    misses: int = 0  # and ever

    @property
    def kinked(self) -> bool:
        """Whether a piece is likely to have a kink, which no curvature shows."""
        return self.misses > _KINK and not self.setting.smooth

    @property
    def bundled(self) -> bool:
        """Whether cuts bend in their own ways: at a kink, where it is known how.

        A mixture of pieces that hardly bend leaves the program to rounding. Points found worse say
        so; then cuts are tangents, and what bends is what secants across the kink show.
        """
        return self.kinked and self.knows_bends and self.failures < STUCK

    @property
    def knows_bends(self) -> bool:
        """Whether clients tell a curvature that is their risks' own, and cuts can keep it."""
        told = self.is_whole and not self.setting.covered
        return told and self.cuts.curvature.shape[1] == self.curvature.shape[1]

    @property
    def is_exact(self) -> bool:
        """Whether the curvature tells all that secants could."""
        return self.is_whole and not self.vague

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
    shares: Array  # of every cut in the mixture


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
    """What makes the model of a mixture of pieces, with `damping` · metric and `shift` · I added.

    Pieces are the clients at the best point and, at a kink, the cuts, which bend in their own way.
    """
    curvature, metric, cuts = state.curvature, state.metric, state.cuts
    secants = no_secants(*state.best.gradients.shape) if state.bundled else state.secants
    sizes, count = state.setting.shape.sizes_of(curvature), len(curvature)
    bends = packing.diagonal(curvature, sizes)
    floor = _floor(bends) + shift
    if damping:
        coarse = packing.coarsen(metric, state.setting.shape.sizes_of(metric), sizes)

    def made(lam: Array) -> Model:
        here, there = lam[:count], lam[count:]
        packed, changes = packing.mix(curvature, here), np.asarray(here @ secants.changes)
        if there.any():
            own = state.setting.shape.sizes_of(cuts.curvature)
            packed = packed + packing.coarsen(packing.mix(cuts.curvature, there), own, sizes)
            here = here + np.bincount(cuts.owner, there, count)
        if damping or shift:
            packed = packed.copy()
            packed[packing.diagonal_places(sizes)] += shift
            changes = changes + shift * secants.steps
        if damping:
            pull = packing.mix(coarse, here)
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
    bent, mixture, count = _models(state, damping, shift), state.setting.mixture, len(state.metric)
    parts = _parts(state, shift)
    near = parts.near
    own = [bent(row) for row in np.eye(len(parts.values))[near[near < count]]]
    drag = _drag(state, damping, shift)
    weights, care = _leant_on(state), _ROUGH if state.bundled else _EXACT
    moves = np.empty((0, state.theta.size))
    pulls = np.empty((0, len(near), state.theta.size))  # what each part's own model makes of them
    above = np.empty((0, len(near)), dtype=bool)
    stands = state.height
    bend, mixed, known, before = bent(weights), weights, None, np.inf
    apart = 0.1 if state.theta.size > _SMALL else 0.0
    for sweep in range(care.sweeps):
        if np.abs(weights - mixed).max() > apart:
            mixed = 0.5 * (mixed + weights) if sweep >= care.averaged else weights
            bend = bent(mixed)
        values, gradients, part = _pieces(state, parts, shift, bend, moves, pulls, above)
        owner, first = parts.owner[part], None
        if known is not None:  # what had a share, and what is new
            new = np.arange(max(len(parts.values), len(values) - MORE), len(values))
            first = np.append(known, new)
        share = worst_mixture(
            values, gradients, bend.solve, mixture.cap, owner, first, care.rough
        )  # fmt: skip
        known = np.flatnonzero(share[: len(parts.values)]) if care.warm else None
        previous, weights = weights, np.bincount(part, share, len(parts.values))
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
        pull = np.array([*(b.multiply(move) for b in own), *drag(move)]).reshape(pulls.shape[1:])
        parabola = parts.values[near] + (parts.slopes[near] + 0.5 * pull) @ move - ridge
        upper = linear - (top - height)
        np.maximum.at(upper, parts.owner[near], parabola)
        missed = mixture.height(upper) - height
        still = np.abs(weights - previous).max() < care.moved
        still = still or abs(promise - before) <= care.changed * promise
        before = promise
        if missed <= 0.1 * promise and still:
            break
        moves, pulls = np.vstack([moves, move]), np.concatenate([pulls, pull[None]])
        above = np.vstack([above, (near < count) | (parabola > height)])
    lam = np.bincount(parts.owner, weights, count)
    shares = share[count : count + len(state.cuts.values)]
    return Step(move, lam, promise, length(state._replace(lam=lam), move), shares)


def _leant_on(state: SqpState) -> Array:
    """The weights of the last step: of clients and, at a kink, of cuts."""
    if not state.bundled:
        return state.weights
    cuts, count = state.cuts, len(state.metric)
    there = cuts.weights / max(float(cuts.weights.sum()), 1.0)
    here = np.maximum(state.weights - np.bincount(cuts.owner, there, count), 0.0)
    return np.append(here, there)


def _drag(state: SqpState, damping: float, shift: float) -> Callable[[Array], Array]:
    """What makes of a move what the cuts at a kink pull it back by, like :func:`_models`."""
    cuts, shape = state.cuts, state.setting.shape
    sizes = shape.sizes_of(cuts.curvature)

    def made(move: Array) -> Array:
        if not state.bundled:
            return np.empty((0, move.size))
        pull = cuts.pulls(sizes, move) + shift * move
        if damping:
            own = shape.sizes_of(state.metric)
            each = [packing.multiply(packed, own, move) for packed in state.metric]
            pull += damping * np.array(each)[cuts.owner]
        return pull

    return made


class _Parts(NamedTuple):
    """Pieces that bend in their own ways, at the best point: clients and, at a kink, cuts."""

    values: Array
    slopes: Array
    owner: Array
    near: Array  # those that may matter


def _parts(state: SqpState, shift: float) -> _Parts:
    best, cuts, count = state.best, state.cuts, len(state.best.values)
    near = np.argsort(-best.values, kind="stable")[:_CONTENDERS]
    values, slopes, owner = best.values, best.gradients, np.arange(count)
    if state.bundled:
        there, steep, doubt = cuts.moved(state.setting.shape.sizes_of(cuts.curvature), state.theta)
        values = np.append(values, np.minimum(there, best.values[cuts.owner]) - _DOUBT * doubt)
        slopes, owner = np.concatenate([slopes, steep]), np.append(owner, cuts.owner)
        near = np.append(near, np.arange(count, len(values)))
    if len(near) == 1:  # nothing else to bend by
        near = near[:0]
    return _Parts(values, slopes + shift * state.theta, owner, near)


def _pieces(
    state: SqpState,
    parts: _Parts,
    shift: float,
    bend: Model,
    moves: Array,
    pulls: Array,
    above: Array,
) -> tuple[Array, Array, Array]:
    """Every piece as value + gradientᵀp (+ ½ pᵀBp, common to all) around the best point, and whose.

    Where there is no kink, cuts are parabolas that bend like the mixture.
    """
    values, gradients = [parts.values], [parts.slopes]
    part = [np.arange(len(parts.values))]
    cuts = state.cuts
    if not state.bundled and len(cuts.values):
        away = cuts.points - state.theta
        # Where nothing tells how a cut bends, only tangents lie below the risk.
        pull = bend.multiply(away) if not state.kinked else np.zeros_like(away)
        # exact in the shift's part, a parabola with the common curvature in the rest
        touching = cuts.values - np.einsum(
            "mp,mp->m", cuts.gradients - 0.5 * pull + 0.5 * shift * away, away
        )
        values.append(np.minimum(touching, state.best.values[cuts.owner]))
        gradients.append(cuts.gradients + shift * cuts.points - pull)
        part.append(cuts.owner)
    if len(moves):
        extra = pulls - bend.multiply(moves)[:, None, :]
        rise = np.einsum("mkp,mp->mk", extra, moves)
        # what bends less than the mixture is safe as it is
        move, piece = np.nonzero((rise > 0.0) & above)
        values.append(parts.values[parts.near[piece]] - 0.5 * rise[move, piece])
        gradients.append(parts.slopes[parts.near[piece]] + extra[move, piece])
        part.append(parts.near[piece])
    return np.concatenate(values), np.concatenate(gradients), np.concatenate(part)
