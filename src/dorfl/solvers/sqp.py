"""`sqp`: sequential quadratic programming on messages, the default for full-batch linear models.

Each round the server asks for F_i and ∇F_i at one point and moves by the step of
:mod:`~dorfl.solvers.sqp_step`. The first round,
and every one after the model turned out not to know enough, also asks for ∇²F_i, as finely as the
budget admits (:mod:`dorfl.oracle.curvature`).

Why it cannot stop halfway: the clients' risks are convex and their gradients exact. A step that
turns out worse than promised makes the next one shorter, in the metric of a curvature H that
clients sent (the last one if it was whole, else the first), by adding ν H to B. As soon as that
exceeds the curvature along the step, which it does after a bounded number of trials, the objective
falls. Where H is whole and the mixture fixed, a shorter step is a share of the Newton step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dorfl.oracle import curvature as packing
from dorfl.solvers.base import Answers, Info, Needs, Pieces, Setting, Task, pieces, relative, unit
from dorfl.solvers.cuts import Cuts, added, admitted, no_cuts
from dorfl.solvers.quasi_newton import no_secants
from dorfl.solvers.sqp_step import STUCK, SqpState, length, metric, shortened, solve
from dorfl.support.types import Array

_AGAIN = 2  # points found worse at a kink before steps get shorter: each mends the model
_ABSURD = 1e6  # of what was gained so far: no promise is that large
_LEAST = 0.2  # of a gap by cuts that bend: the margin of `_SURE` covers as much
_SPAN = 4  # rounds over which a decrease is compared with the one before
_ALIKE = 0.8, 1.25  # of what a curvature says of a step: as far off as the step may be long
_TRIALS = 60  # points found worse in a row
_SINGLE = 1e-7  # of the objective: what rounding may do to rows in single precision
_PARTIAL = 3  # how often to ask for curvature that leaves something out: secants know the rest
_KEPT = 0.35  # of its promise a first trial has to keep
_PROGRESS = 0.1  # what a round with curvature anew leaves of the promised decrease, about
_SURE = 0.15  # of the tolerance: the promise was seen to be five times smaller than the gap
_UNSURE = "an estimate may be several times too small: converged is said at {:g} of tol"
_DEAR = 100  # numbers of curvature for each of a gradient that cost as much as one more round


@dataclass(frozen=True)
class Sqp:
    """See the module's text."""

    name: str = "sqp"

    @property
    def needs(self) -> Needs:
        """Every client's gradient over all rows, every round."""
        return Needs(
            True, True, pools=True, radius=True, curvature=True, reports_gap=True, rounds=200
        )

    def init(self, setting: Setting, theta: Array, lam: Array) -> SqpState:
        """Before the first round."""
        nothing = np.empty((0, theta.size))
        best = Pieces(nothing[:, 0], nothing, None)
        return SqpState(
            setting, theta, lam, theta, setting.resolution, best, best.values,
            no_secants(0, theta.size), nothing, nothing, no_cuts(setting, theta.size),
        )  # fmt: skip

    def ask(self, state: SqpState) -> Task:
        """One evaluation; with curvature where the model needs it."""
        return Task(state.trial, state.lam, curvature=state.resolution)

    def update(self, state: SqpState, answers: Answers) -> tuple[SqpState, Info]:
        """Take the trial point or correct the model by it; then solve for the next one."""
        setting = state.setting
        seen = pieces(setting, state.trial, answers, state.lam)
        told, seen = seen.curvature, seen._replace(curvature=None)
        if not len(state.best.values):
            state = _first(state, seen, answers, told)
        else:
            fallen, noise = _fallen(state, seen)
            state = state._replace(noise=max(state.noise, noise))
            if answers.own and not state.own:  # what stood in was too low to compare with
                fallen = state.promise
            # A step far too long may lead a little lower, to where rows are certain and wrong.
            least = 0.0 if state.failures or state.kinked else _KEPT * state.promise
            good = fallen > 0.0 and fallen >= least
            state = (
                _accept(state, seen, answers, told, fallen) if good else _reject(state, seen, told)
            )
        before = state.promise
        plain = solve(_sure(state))
        if not plain.promise <= _ABSURD * (state.start - state.height + unit(state.height, 0.0)):
            # Pieces that hardly bend, or secants across a kink, may leave nothing of the curvature.
            nothing = no_secants(*state.best.gradients.shape)
            state = state._replace(secants=nothing, failures=max(state.failures, STUCK))
            plain = solve(state if state.kinked else _sure(state))
        # The model may promise too little again, though hardly more than there was to gain.
        gap = max(plain.promise, min(plain.promise * state.surprise, 10.0 * state.fallen))
        if not state.is_exact:  # secants may know too little: look twice
            gap = max(gap, min(0.1 * state.fallen, 1e3 * gap))
        state = state._replace(trail=(*state.trail, state.height)[-2 * _SPAN - 1 :])
        spans = (_SPAN,) if state.kinked else (2, _SPAN)  # at a kink some rounds bring nothing
        gap = max(gap, min(_tail(state.trail, span) for span in spans))
        step = solve(state) if _differs(state) else plain
        if state.kinked and step is not plain:
            # Rounding may be all that is left of such a gap; tangents alone promise too little.
            gap = max(step.promise, _LEAST * gap)
        state = state._replace(wish=step.length, reach=min(state.reach, state.share * step.length))
        if step.length > state.reach:
            step = shortened(state, step)
        trial = setting.centred(state.theta + step.move)
        while not setting.feasible(trial):
            trial = 0.5 * (state.theta + trial)
        lam = setting.mixture.snap(step.lam) if setting.mixture.adversarial else state.lam
        wants = _is_due(state, plain.promise, before, told is not None)
        state = state._replace(
            trial=trial,
            lam=lam,
            cuts=state.cuts._replace(weights=step.shares),
            promise=step.promise,
            resolution=setting.resolution if wants else "none",
        )
        done, why = _done(state, gap)
        return state, Info(state.height, gap, state.risks, lam, state.theta, done, why)


def _tail(trail: tuple[float, ...], span: int) -> float:
    """What is left to gain if the objective goes on falling as it did: a geometric series' rest.

    >>> _tail((5 + 16.0, 5 + 8.0, 5 + 4.0), 1)
    4.0
    """
    if len(trail) <= 2 * span:
        return 0.0
    fell, falls = trail[-1 - 2 * span] - trail[-1 - span], trail[-1 - span] - trail[-1]
    ratio = min(falls / max(fell, 1e-300), 0.9)
    return falls * ratio / (1.0 - ratio)


def _differs(state: SqpState) -> bool:
    """Whether the step comes from another model than the gap: see :func:`_sure`."""
    if not len(state.cuts.values) or state.bundled:
        return False
    return state.knows_bends or not state.kinked


def _sure(state: SqpState) -> SqpState:
    """What a gap is estimated by: cuts at kinks alone, bending in their own ways if they can."""
    if not state.kinked:
        return state._replace(cuts=no_cuts(state.setting, state.theta.size))
    return state._replace(failures=0)


def _is_due(state: SqpState, promise: float, before: float, fresh: bool) -> bool:
    """Whether to ask for curvature anew: at first, after a failure, and where promises fall slowly.

    A round with it leaves `_PROGRESS` of the promise and costs 1 + c rounds; as good is a round
    without that leaves _PROGRESS^(1/(1+c)). But where the model is fresh, the promise before was
    another model's: it is used once before that is asked, unless a mixture that moves looks at
    other parts of it, or it costs less than the round that might be lost.
    """
    shape, resolution = state.setting.shape, state.setting.resolution
    cost = shape.numbers(resolution) / (_DEAR * shape.size)
    wait = fresh and cost > 1.0 and state.is_whole and not state.setting.mixture.adversarial
    enough = 1.0 if wait else _PROGRESS ** (1.0 / (1.0 + cost))
    slow = state.failures > 0 or promise > enough * before or np.isinf(before)
    slow = slow or (state.kinked and state.knows_bends)  # a cut needs the curvature of its point
    return bool(slow and (state.is_whole or state.asked < _PARTIAL))


def _done(state: SqpState, gap: float) -> tuple[str, str]:
    """Whether there is nothing left to do, and where that is short of the tolerance, why."""
    size, why = relative(gap, state.height, state.start), ""
    if size <= _SURE * state.setting.tol:
        return "converged", why
    if gap <= state.noise:  # no more than rounding changes
        why = f"rounding changes the objective by {state.noise:.1e}, as much as there is to gain"
    elif state.failures >= _TRIALS:
        far = float(np.abs(state.trial - state.theta).max())
        why = f"{_TRIALS} steps in a row, the last changing θ by {far:.1e}, led no lower"
    elif not np.isfinite(state.trial).all():
        why = "the next step is not a finite number: reports are too large to compute with"
    elif np.array_equal(state.trial, state.theta):
        why = "the next step is too short to change any digit of θ"
    else:
        near = size <= state.setting.tol
        return "", _UNSURE.format(_SURE) if near else why
    sure = gap <= state.noise or state.failures >= _TRIALS
    return "converged" if sure and size <= state.setting.tol else "stalled", why


def _fallen(state: SqpState, seen: Pieces) -> tuple[float, float]:
    """How far the objective fell at the trial, and what rounding did to the values.

    Of a short step the mean of the slopes at its ends tells the decrease too, and rounding hardly
    touches that: where the two disagree by as much as was promised, it is the values that are off.
    """
    best, stands, mixture = state.best, state.height, state.setting.mixture
    values, noise = seen.values, 0.0
    scale = unit(stands, state.start)
    if state.promise <= 1e-5 * scale:
        expected = best.values + 0.5 * (best.gradients + seen.gradients) @ (
            state.trial - state.theta
        )
        near = best.values >= stands - 10.0 * state.promise
        noise = float(np.abs(values - expected)[near].max(initial=0.0))
        if 0.2 * state.promise < noise <= _SINGLE * scale:  # more than that is a kink
            values = np.where(near, expected, values)
        else:
            noise = 0.0
    return stands - mixture.height(values), noise


def _first(state: SqpState, seen: Pieces, answers: Answers, curvature: Array | None) -> SqpState:
    if curvature is None or not curvature.any():
        # Nobody tells: a first step of about unit length, secants do the rest.
        steep = float(np.linalg.norm(seen.gradients, axis=1).max())
        curvature = np.full(seen.gradients.shape, max(steep, 1e-300))
    return state._replace(
        best=seen,
        risks=answers.values,
        curvature=curvature,
        vague=answers.stands,
        own=answers.own,
        metric=metric(state.setting, curvature),
        asked=1,
        secants=no_secants(*seen.gradients.shape),
        start=state.setting.mixture.height(seen.values),
    )


def _accept(
    state: SqpState, seen: Pieces, answers: Answers, told: Array | None, fallen: float
) -> SqpState:
    kept = fallen / max(state.promise, 1e-300)
    step = state.trial - state.theta
    reach, far = state.reach, length(state, step)
    if kept < 0.25:
        reach = min(reach, 0.5 * far)
    elif kept > 0.7:
        reach = max(reach, (2.0 if kept < 1.5 else 8.0) * far)
    measure, share, cuts = state.metric, 1.0, no_cuts(state.setting, step.size)
    if state.kinked:
        known = state.curvature if state.knows_bends else None
        cuts = _cut(state, state.theta, state.best._replace(curvature=known))
        cuts = admitted(cuts, state.setting, state.trial, seen.values, _slack(state))
    secants = state.secants.append(step, seen.gradients - state.best.gradients)
    curvature, asked, vague = state.curvature, state.asked, state.vague
    if told is not None:
        curvature, asked = told, asked + 1
        if state._replace(curvature=told).is_whole:
            doubtful = answers.stands or state.setting.covered
            vague = doubtful and not _explains(state, told, step, seen)
            if not vague:  # it knows more than secants of other points
                secants = no_secants(*seen.gradients.shape)
            measure = metric(state.setting, curvature)
            reach, share = np.inf, min(reach / max(state.wish, 1e-300), 1.0)
    return state._replace(
        metric=measure,
        share=share,
        theta=state.trial,
        best=seen,
        risks=answers.values,
        secants=secants,
        curvature=curvature,
        asked=asked,
        vague=vague,
        own=answers.own,
        reach=reach,
        surprise=kept,
        fallen=fallen,
        failures=0,
        cuts=cuts,
    )


def _explains(state: SqpState, told: Array, step: Array, seen: Pieces) -> bool:
    """Whether a curvature accounts for what the step to its point did to the gradient.

    What stands for a curvature that a client did not tell need not, nor what covers a loss that is
    straight there. Where it does, it lies between what the curvatures at both ends say.
    """
    sizes, ends = state.setting.shape.sizes_of(told), []
    for known in (state.curvature, told):
        if known.shape == told.shape:
            mixed = packing.mix(known, state.weights)
            ends.append(float(step @ packing.multiply(mixed, sizes, step)))
    change = float(state.weights @ (seen.gradients - state.best.gradients) @ step)
    return _ALIKE[0] * min(ends) <= change <= _ALIKE[1] * max(ends)


def _reject(state: SqpState, seen: Pieces, told: Array | None) -> SqpState:
    step, cuts, secants = state.trial - state.theta, state.cuts, state.secants
    share = float(np.clip(_along(state, step, seen), 0.1, 0.5))
    if state.bundled:
        share = 0.5 if state.failures >= _AGAIN else 2.0
    if not state.is_exact or state.kinked:  # what the curvature here leaves out, or a kink
        secants = secants.append(step, seen.gradients - state.best.gradients)
    if not state.is_whole or state.kinked or len(seen.values) > 1:
        cuts = _cut(state, state.trial, seen._replace(curvature=told))
        for point, values in ((state.theta, state.best.values), (state.trial, seen.values)):
            cuts = admitted(cuts, state.setting, point, values, _slack(state))
    return state._replace(
        secants=secants,
        failures=state.failures + 1,
        cuts=cuts,
        misses=state.misses + 1,
        reach=share * length(state, step),
    )


def _cut(state: SqpState, point: Array, seen: Pieces) -> Cuts:
    """Cuts of another point, of the clients that were above what the step had promised."""
    return added(state.cuts, state.setting, point, seen, state.height - state.promise)


def _slack(state: SqpState) -> float:
    """What rounding may do to a value."""
    return state.noise + 1e-13 * unit(state.height, state.start)


def _along(state: SqpState, away: Array, seen: Pieces) -> float:
    """The best share of a step just found too long, from values and slopes at both its ends.

    Every piece is the cubic that meets all four; their upper envelope is looked through on a grid.
    """
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
