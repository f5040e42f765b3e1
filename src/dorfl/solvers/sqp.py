"""`sqp`: a bundle method with Newton's curvature, the default for full-batch linear models.

Each round the server asks every client for F_i and ∇F_i at one trial point, and, if the model
needs it, for ∇²F_i as finely as the byte budget admits (:mod:`dorfl.linear.curvature`). The next
trial point is the step of :mod:`~dorfl.solvers.program` from the best point so far, the centre.

- A fixed mixture has one smooth risk: the step is Newton's, damped where it is too long.
- The worst mixture: tangents of the clients at the centre and, if a step fails, at the trial
  point. That is a proximal bundle method whose proximal term is u ½ pᵀB(λ)p, with B(λ) the
  curvature of the present mixture. Non-smooth points of the risks themselves (Huber's corner, a
  supremum with two maximisers) are handled by the tangents too.

Which steps are taken, and how u ≥ 1 changes, follows K. Kiwiel, *Proximity control in bundle
methods for convex nondifferentiable minimization*, Mathematical Programming 46 (1990), 105–122,
with the constants given there. u = 1 is Newton's step.

Training ends when the gap is at most `tol`. With a ridge on every parameter, or a bounded Θ, the
gap is a proven bound (:func:`~dorfl.solvers.base.lower_bound`). Otherwise it is an estimate: what
the model predicts that a step can gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dorfl.linear import curvature as packing
from dorfl.solvers import program
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
    unit,
)
from dorfl.solvers.program import Step, Tangents
from dorfl.solvers.quasi_newton import Model, Secants, model, no_secants
from dorfl.support.lazy import optimize
from dorfl.support.types import Array

SERIOUS = 0.1  # share of the predicted decrease that makes a step serious (Kiwiel's m_L)
GOOD = 0.5  # share from which on u may fall (Kiwiel's m_R)
FACTOR = 10.0  # u changes by at most this factor in a round (Kiwiel, procedure 2.2)
SLOWER = 2.0  # u falls by at most this factor near Newton's step (Nocedal and Wright, alg. 4.1)
FAR = 10.0  # linearisation error, in predicted decreases, of a tangent too far away (Kiwiel)
PATIENCE = 3  # rejected (serious) steps in a row after which u rises (falls) (Kiwiel)
CUTS = 300  # tangents kept: a non-smooth point in d columns takes d + 1 to describe
EACH = 32  # clients whose tangents at one point are kept: those with the largest risks
FLAT = 1e-9  # least curvature of a client, as a share of the largest of all in that parameter
TRIALS = 60  # rejected steps in a row after which training ends
SINGLE = 1e-7  # relative rounding of a risk with rows in single precision (machine epsilon)
DOUBLE = 1e-12  # the same in double precision, for sums over many rows
PARTIAL = 3  # requests for curvature coarser than the full matrix; secants refine it afterwards
DEAR = 100  # numbers of curvature per number of a gradient that cost as much as one more round
USELESS = 0.01  # relative gap above which a stalled training reports an estimate, not its bound
SMALL = 200  # parameters up to which B(λ) may be factorised often
ITERATIONS = 20, 6  # of the program: up to `SMALL` parameters, and beyond


class Cuts(NamedTuple):
    """Tangents at earlier points, ridge included, oldest first."""

    points: Array  # (M, P)
    values: Array  # (M,)
    gradients: Array  # (M, P)
    owner: Array  # (M,) the client each belongs to
    weights: Array  # (M,) w in the last step


class SqpState(NamedTuple):
    """The state between rounds; before the first round `best` is empty."""

    setting: Setting
    theta: Array  # the centre: the best point so far
    lam: Array
    trial: Array  # the point that clients are asked about
    resolution: str  # of the curvature to ask for now
    best: Pieces  # values and gradients at the centre, ridge included
    risks: Array  # (N,) F_i at the centre
    curvature: Array  # (K, numbers) packed, of every piece
    secants: Secants
    cuts: Cuts
    start: float = np.nan  # the objective at the first point
    gap: float = np.inf  # of the last round
    lower: float = -np.inf  # the best lower bound on the optimum
    damping: float = 1.0  # u
    predicted: float = np.inf  # the decrease that the model predicts for the trial
    plane: float = np.inf  # … and its tangents alone
    decrease: float = 0.0  # the last one
    noise: float = 0.0  # the largest effect of rounding on the objective seen so far
    asked: int = 0  # how often curvature was reported
    exact: bool = False  # whether the curvature explains all that secants could
    own: bool = True  # whether every client evaluated the centre itself
    failures: int = 0  # rejected steps since the centre was reached
    successes: int = 0  # serious steps since the last failure or change of u

    @property
    def height(self) -> float:
        """The objective at the centre."""
        return self.setting.mixture.height(self.best.values)

    @property
    def is_whole(self) -> bool:
        """True if the curvature is the full matrix."""
        return len(self.setting.shape.sizes_of(self.curvature)) == 1

    @property
    def weights(self) -> Array:
        """λ by piece: of a fixed mixture there is one, the pooled risk."""
        return self.lam if self.setting.mixture.adversarial else np.ones(1)


@dataclass(frozen=True)
class Sqp:
    """The bundle method with Newton's curvature, see the text of this module."""

    name: str = "sqp"

    @property
    def needs(self) -> Needs:
        """The gradient of every client over all rows, in every round."""
        return Needs(
            True, True, pools=True, radius=True, curvature=True, reports_gap=True, rounds=200
        )

    def init(self, setting: Setting, theta: Array, lam: Array) -> SqpState:
        """Return the state before the first round."""
        nothing = np.empty((0, theta.size))
        best = Pieces(nothing[:, 0], nothing, None)
        return SqpState(
            setting=setting,
            theta=theta,
            lam=lam,
            trial=theta,
            resolution=setting.resolution,
            best=best,
            risks=best.values,
            curvature=nothing,
            secants=no_secants(0, theta.size),
            cuts=no_cuts(theta.size),
        )

    def ask(self, state: SqpState) -> Task:
        """Return one evaluation, with curvature if the model needs it."""
        return Task(state.trial, state.lam, curvature=state.resolution)

    def update(self, state: SqpState, answers: Answers) -> tuple[SqpState, Info]:
        """Move to the trial point or add its tangents; then solve for the next one."""
        setting = state.setting
        seen = pieces(setting, state.trial, answers, state.lam)
        reported, seen = seen.curvature, seen._replace(curvature=None)
        if not len(state.best.values):
            state = _first(state, seen, answers, reported)
        else:
            decrease, noise = _decrease(state, seen)
            state = state._replace(noise=max(state.noise, noise))
            if answers.own and not state.own:  # extrapolated values were too low to compare with
                decrease = state.predicted
            if decrease > 0.0 and decrease >= SERIOUS * state.plane:
                state = _accept(state, seen, answers, reported, decrease)
            else:
                state = _reject(state, seen, decrease)
        step = _step(state, state.damping)
        full = step if state.damping == 1.0 else _step(state, 1.0)
        state = state._replace(lower=max(state.lower, _lower(state, step)))
        (gap, kind), before = _gap(state, full), state.gap
        trial, share = setting.centred(state.theta + step.move), 1.0
        while not setting.feasible(trial):
            trial, share = 0.5 * (state.theta + trial), 0.5 * share
        wants = _is_due(state, gap)
        lam = setting.mixture.snap(step.lam) if setting.mixture.adversarial else state.lam
        count = len(state.best.values)
        state = state._replace(
            trial=trial,
            lam=lam,
            cuts=state.cuts._replace(weights=step.weights[count:]),
            gap=gap,
            predicted=share * max(state.height - step.model, 0.0),
            plane=share * max(state.height - step.plane, 0.0),
            resolution=setting.resolution if wants else "none",
        )
        done, why = _done(state, gap, slow=gap > 0.5 * before)
        useless = gap > USELESS * unit(state.height, state.start)
        if done == "stalled" and (useless or setting.smooth):
            kind = "estimate"  # the ridge is too small for its bound to be reached
        if done == "stalled" and kind == "estimate":
            gap = max(state.height - full.dual, 0.0)
            if relative(gap, state.height, state.start) <= setting.tol:
                done, why = "converged", ""
        info = Info(state.height, gap, state.risks, lam, state.theta, done, why, kind)
        return state, info


# ── serious and null steps ──────────────────────────────────────────────────────────────────────


def _first(state: SqpState, seen: Pieces, answers: Answers, reported: Array | None) -> SqpState:
    """Return the state at the first point; without a curvature, a step of about unit length."""
    if reported is None or not reported.any():
        steep = float(np.linalg.norm(seen.gradients, axis=1).max())
        reported = np.full(seen.gradients.shape, max(steep, 1e-300))
    state = state._replace(
        best=seen,
        risks=answers.values,
        curvature=conditioned(state.setting, reported),
        own=answers.own,
        asked=1,
        secants=no_secants(*seen.gradients.shape),
        start=state.setting.mixture.height(seen.values),
    )
    return state._replace(exact=state.is_whole and not answers.stands)


def _accept(
    state: SqpState, seen: Pieces, answers: Answers, reported: Array | None, decrease: float
) -> SqpState:
    """Return the state with the trial as centre."""
    damping = state.damping
    if decrease >= GOOD * state.plane and not state.failures:
        most = SLOWER if damping <= FACTOR else FACTOR
        damping = max(_interpolated(state, decrease), damping / most, 1.0)
    elif state.successes >= PATIENCE:
        damping = max(damping / SLOWER, 1.0)
    step = state.trial - state.theta
    secants = state.secants.append(step, seen.gradients - state.best.gradients)
    curvature, asked, exact = state.curvature, state.asked, state.exact
    if reported is not None:
        curvature, asked = conditioned(state.setting, reported), asked + 1
        if len(state.setting.shape.sizes_of(curvature)) == 1:
            doubtful = answers.stands or state.setting.covered
            exact = not doubtful or _explains(state, curvature, step, seen)
            if exact:
                secants = no_secants(*seen.gradients.shape)
    cuts = no_cuts(step.size)
    if state.setting.mixture.adversarial or not state.setting.smooth:
        cuts = _with_tangents(state, state.theta, state.best)
    return state._replace(
        theta=state.trial,
        best=seen,
        risks=answers.values,
        curvature=curvature,
        secants=secants,
        cuts=cuts,
        damping=damping,
        decrease=decrease,
        asked=asked,
        exact=exact,
        own=answers.own,
        failures=0,
        successes=state.successes + 1 if damping == state.damping else 0,
    )


def _reject(state: SqpState, seen: Pieces, decrease: float) -> SqpState:
    """Return the state with the trial's tangents added; steps get shorter if those are far away."""
    step = state.trial - state.theta
    back = seen.values - seen.gradients @ step
    error = state.height - state.setting.mixture.height(back)
    damping = state.damping
    alone = state.setting.smooth and not state.setting.mixture.adversarial  # Newton's method
    if alone or error > FAR * state.plane or state.failures >= PATIENCE:
        damping = min(max(_interpolated(state, decrease), damping), FACTOR * damping)
    secants = state.secants
    if not state.exact:
        secants = secants.append(step, seen.gradients - state.best.gradients)
    return state._replace(
        damping=damping,
        secants=secants,
        cuts=_with_tangents(state, state.trial, seen),
        failures=state.failures + 1,
        successes=0,
    )


def _interpolated(state: SqpState, decrease: float) -> float:
    """Return the u that explains a decrease: the curvature along the step in units of B(λ)."""
    return 2.0 * state.damping * (1.0 - decrease / max(state.plane, 1e-300))


def _decrease(state: SqpState, seen: Pieces) -> tuple[float, float]:
    """Return how far the objective fell at the trial, and the effect of rounding on the values.

    For a short step the mean of the slopes at its ends gives the decrease too, and rounding hardly
    affects slopes. If the two differ by as much as was predicted, the values are off.
    """
    best, height, values, noise = state.best, state.height, seen.values, 0.0
    scale = unit(height, state.start)
    if state.predicted <= 1e-5 * scale:
        slopes = 0.5 * (best.gradients + seen.gradients)
        expected = best.values + slopes @ (state.trial - state.theta)
        near = best.values >= height - 10.0 * state.predicted
        noise = float(np.abs(values - expected)[near].max(initial=0.0))
        most = SINGLE if state.setting.smooth else DOUBLE  # more than that is non-smoothness
        if 0.2 * state.predicted < noise <= most * scale:
            values = np.where(near, expected, values)
        else:
            noise = 0.0
    return height - state.setting.mixture.height(values), noise


def _explains(state: SqpState, reported: Array, step: Array, seen: Pieces) -> bool:
    """Return True if a curvature accounts for the change of the gradient along the last step.

    Not if the curvature is imputed from other clients, or that of a parabola above the loss.
    """
    sizes, ends = state.setting.shape.sizes_of(reported), []
    for known in (state.curvature, reported):
        if known.shape == reported.shape:
            mixed = packing.mix(known, state.weights)
            ends.append(float(step @ packing.multiply(mixed, sizes, step)))
    change = float(state.weights @ (seen.gradients - state.best.gradients) @ step)
    return 0.8 * min(ends) <= change <= 1.25 * max(ends)


# ── the model ───────────────────────────────────────────────────────────────────────────────────


def conditioned(setting: Setting, reported: Array) -> Array:
    """Return packed curvatures whose diagonals are at least `FLAT` of the largest client's.

    A column that only a client of little weight has would otherwise look flat to the others.
    """
    sizes = setting.shape.sizes_of(reported)
    bends = packing.diagonal(reported, sizes)
    most = bends.max(axis=0)
    floor = np.where(most > 0.0, FLAT * most, max(float(most.max()), 1e-280))
    out = reported.copy()
    out[:, packing.diagonal_places(sizes)] = np.maximum(bends, floor)
    return out


@dataclass(frozen=True, eq=False)
class _Bends:
    """u B_i + shift · I of every piece: reported curvatures, the mixture's corrected by secants.

    With `common`, every piece has the curvature of that mixture instead of its own.
    """

    state: SqpState
    damping: float
    shift: float = 0.0
    common: Array | None = None

    @cached_property
    def sizes(self) -> packing.Sizes:
        return self.state.setting.shape.sizes_of(self.state.curvature)

    def mixed(self, lam: Array) -> Model:
        """Return u B(λ) + shift · I."""
        lam = lam if self.common is None else self.common
        packed, secants = packing.mix(self.state.curvature, lam), self.state.secants
        changes = np.asarray(lam @ secants.changes)
        if self.shift:
            packed = packed.copy()
            packed[packing.diagonal_places(self.sizes)] += self.shift / self.damping
            changes = changes + self.shift / self.damping * secants.steps
        return model(packed, self.sizes, secants.steps, changes, self.damping)

    def forms(self, move: Array) -> Array:
        """Return u pᵀH_i p of every piece: (K,)."""
        known = self.state.curvature
        if len(known) == 1 or self.common is not None:
            return np.ones(len(known))  # the share makes it what the mixture's is
        square = 2.0 * packing.outer(move[None], np.ones(1), self.sizes)
        square[packing.diagonal_places(self.sizes)] *= 0.5
        if known.dtype == np.float64:
            return np.asarray(self.damping * (known @ square))
        # Sums in single precision would lose the last digits of the program's value.
        return np.array([self.damping * float(one.astype(float) @ square) for one in known])

    def products(self, clients: Array, move: Array) -> Array:
        """Return u H_i p of some pieces."""
        known = self.state.curvature
        if len(known) == 1 or self.common is not None:
            return np.zeros((len(clients), move.size))
        each = [packing.multiply(known[i], self.sizes, move) for i in clients]
        return self.damping * np.array(each)


def _step(state: SqpState, damping: float) -> Step:
    """Return the program's solution at the centre, inside Θ."""
    step, setting = _shifted(state, damping), state.setting
    if np.linalg.norm(state.theta + step.move) <= setting.radius:
        return step

    def outside(shift: float) -> float:
        move = _shifted(state, damping, shift).move
        return float(np.linalg.norm(state.theta + move)) - setting.radius

    high = 1.0
    while outside(high) > 0.0:
        high *= 4.0
    step = _shifted(state, damping, float(optimize.brentq(outside, 0.0, high, rtol=1e-10)))
    return step._replace(move=setting.project(state.theta + step.move) - state.theta)


def _shifted(state: SqpState, damping: float, shift: float = 0.0) -> Step:
    """Return the program's solution with `shift`/2 (‖θ + p‖² − ‖θ‖²) added to every model."""
    tangents, weights = _tangents(state), _start(state)
    if shift:
        tangents = tangents._replace(slopes=tangents.slopes + shift * state.theta)
    bends = _Bends(state, damping, shift)
    most = ITERATIONS[0 if state.theta.size <= SMALL else 1]
    step = program.solve(tangents, bends, state.setting.mixture, weights, most)
    if not step.model < state.height:
        # Not solved: risks bend too differently. With one curvature it is one quadratic program.
        bends = _Bends(state, damping, shift, step.lam)
        step = program.solve(tangents, bends, state.setting.mixture, weights, most)
    if shift:  # the cost of the shift is not part of the objective
        extra = shift * float(state.theta @ step.move + 0.5 * (step.move @ step.move))
        step = step._replace(model=step.model - extra, dual=step.dual - extra)
    return step


def _tangents(state: SqpState) -> Tangents:
    """Return the tangents at the centre: the clients' own, then the cuts'."""
    best, cuts = state.best, state.cuts
    values, slopes = _moved(state.setting, cuts, state.theta)
    return Tangents(
        np.append(best.values, np.minimum(values, best.values[cuts.owner])),
        np.concatenate([best.gradients, slopes]),
        np.append(np.arange(len(best.values)), cuts.owner),
    )


def _moved(setting: Setting, cuts: Cuts, center: Array) -> tuple[Array, Array]:
    """Return values (M,) and slopes (M, P) at a centre of tangents with the exact ridge."""
    away = center - cuts.points
    pull = setting.penalty * away
    values = cuts.values + np.einsum("mp,mp->m", cuts.gradients + 0.5 * pull, away)
    return values, cuts.gradients + pull


def _start(state: SqpState) -> Array:
    """Return feasible weights of the tangents to start from: those of the last step, if any."""
    lam, cuts, count = state.weights, state.cuts, len(state.best.values)
    if np.count_nonzero(lam) > program.FREE and state.setting.mixture.cap == 1.0:
        top = np.argsort(-state.best.values, kind="stable")[: program.FREE]
        lam = np.bincount(top, minlength=count) / len(top)
    there = np.minimum(cuts.weights, 1.0)
    taken = np.bincount(cuts.owner, there, count)
    over = taken > lam
    there = there * np.where(over, lam / np.maximum(taken, 1e-300), 1.0)[cuts.owner]
    return np.append(np.maximum(lam - np.bincount(cuts.owner, there, count), 0.0), there)


def no_cuts(size: int) -> Cuts:
    """Return no tangents."""
    nothing = np.empty((0, size))
    return Cuts(nothing, nothing[:, 0], nothing, np.empty(0, dtype=int), nothing[:, 0])


def _with_tangents(state: SqpState, point: Array, seen: Pieces) -> Cuts:
    """Return the cuts with tangents at a point added, for the clients with the largest risks.

    Earlier cuts are kept in this order: those with a weight, then the latest.
    """
    cuts, mixture = state.cuts, state.setting.mixture
    order = np.argsort(-seen.values, kind="stable")
    least = int(np.ceil(1.0 / mixture.cap))
    wanted = max(int((seen.values >= state.height - 2.0 * state.plane).sum()), least)
    who = np.sort(order[: min(wanted, max(EACH, least))])
    rank = np.lexsort((np.arange(len(cuts.values)), cuts.weights))
    keep = np.sort(rank[::-1][: max(CUTS - len(who), 0)])
    points, nothing = np.tile(point, (len(who), 1)), np.zeros(len(who))
    new = Cuts(points, seen.values[who], seen.gradients[who], who, nothing)
    return Cuts(*(np.concatenate([old[keep], more]) for old, more in zip(cuts, new, strict=True)))


# ── the gap, the next request and the end ───────────────────────────────────────────────────────


def _lower(state: SqpState, step: Step) -> float:
    """Return the best lower bound on the optimum that the tangents give."""
    setting = state.setting
    if not is_bounded(setting) or not state.own:
        return -np.inf
    tangents, weights = _tangents(state), step.weights
    bounds = [
        lower_bound(setting, state.theta, float(w @ tangents.values), w @ tangents.slopes)
        for w in (weights, _sharpest(state, tangents, weights))
    ]
    return max(bounds)


def _sharpest(state: SqpState, tangents: Tangents, weights: Array) -> Array:
    """Return the weights with the largest lower bound, over the tangents that can have one."""
    penalty, mixture = state.setting.penalty, state.setting.mixture
    if len(weights) == 1 or not (penalty > 0.0).all():
        return weights
    near = np.argsort(-tangents.values, kind="stable")[: 2 * program.FREE]
    near = np.union1d(near, np.flatnonzero(weights))
    slopes = tangents.slopes[near] / np.sqrt(penalty)
    quadratic = slopes @ slopes.T
    ahead = tangents.values[near] - quadratic @ weights[near]
    found = program.quadratic_program(
        quadratic, ahead, weights[near], mixture.cap, tangents.owner[near]
    )
    out = np.zeros_like(weights)
    out[near] = found
    return out


def _gap(state: SqpState, full: Step) -> tuple[float, str]:
    """Return the gap and its kind: a proven bound if there is one, else an estimate."""
    if is_bounded(state.setting):
        return max(state.height - state.lower, 0.0), "bound"
    return _estimate(state, full), "estimate"


def _estimate(state: SqpState, full: Step) -> float:
    """Return the decrease that the model without damping predicts."""
    gap = max(state.height - full.dual, 0.0)
    if state.exact and state.setting.smooth:
        return gap
    return max(gap, 0.1 * state.decrease)  # a short step has to confirm the model


def _is_due(state: SqpState, gap: float) -> bool:
    """Return True if new curvature should be requested: at first, after a failure, if slow.

    One round with curvature costs as much as 1 + c rounds without. It pays if the gap, falling at
    the rate of the last round, would need more rounds than that to reach the tolerance.
    """
    shape, resolution = state.setting.shape, state.setting.resolution
    if not state.is_whole and state.asked >= PARTIAL:
        return False
    if state.failures or not np.isfinite(state.gap):
        return True
    cost = shape.numbers(resolution) / (DEAR * shape.size)
    rate = gap / max(state.gap, 1e-300)
    target = state.setting.tol * unit(state.height, state.start)
    return bool(rate >= 1.0 or gap * rate ** (1.0 + cost) > target)


def _done(state: SqpState, gap: float, slow: bool) -> tuple[str, str]:
    """Return the status if training ends here, and the reason if it has not converged."""
    if relative(gap, state.height, state.start) <= state.setting.tol:
        return "converged", ""
    if slow and state.predicted <= max(state.noise, 1e-16 * abs(state.height)):
        why = f"rounding changes the objective by {state.noise:.1e}, as much as there is to gain"
    elif state.failures >= TRIALS:
        far = float(np.abs(state.trial - state.theta).max())
        why = f"{TRIALS} steps in a row, the last changing θ by {far:.1e}, led no lower"
    elif not np.isfinite(state.trial).all():
        why = "the next step is not a finite number: reports are too large to compute with"
    elif np.array_equal(state.trial, state.theta):
        why = "the next step is too short to change any digit of θ"
    else:
        return "", ""
    return "stalled", why
