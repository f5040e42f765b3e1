"""Train from sums over clients alone: the pooled risk Φ of all clients, as if it were one client's.

A client with weight w_i reports these numbers, of which the server sees only the sum over clients:

    a_i,   a_i (F_i − c),   a_i ∇F_i,   a_i (∇²F_i + ∇F_i ∇F_iᵀ / τ),    a_i = w_i exp((F_i − c)/τ)

The sums give value, gradient and curvature of Φ(θ) = τ log Σ w_i exp(F_i/τ), or of Σ w_i F_i if
τ = ∞. Any solver that trains one client can minimise Φ. The level c is the same for all clients and
only changes the size of the numbers.

**A fixed mixture** has w_i = n_i/n. **The worst mixture** min_θ max_i F_i is found by the
exponential method of multipliers [1]_, which is multiplicative ascent: each client keeps its own
weight λ_i. A stage minimises Φ for the present λ. Then

    λ_i ← λ_i exp((F_i − Φ)/τ),

which adds up to 1 again, because Φ is the normaliser. Since Φ ≤ max_i F_i for every λ, min Φ is a
lower bound. For every s > 0, max_i F_i ≤ c + s log Σ exp((F_i − c)/s) is an upper bound, and a sum
too. Their difference is the optimality gap.

References
----------
.. [1] P. Tseng and D. Bertsekas, *On the convergence of the exponential multiplier method for
   convex programming*, 1993.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dorfl.federated.messages import Report
from dorfl.linear import curvature as packing
from dorfl.linear.curvature import Shape
from dorfl.solvers.base import Task
from dorfl.support.types import Array

_LADDER = 7  # temperatures s, each eight times the one before
_MAX_TERM = 2.0**12  # largest term of a client in a sum for the upper bound; it bounds nothing then
_MIN_SUM = 2.0**-20  # smallest sum for the upper bound: rounding spoils smaller ones
_HEAD = 4 + _LADDER  # numbers before the gradient
_MIN_WEIGHT = 2.0**-10  # smallest Σ a_i: smaller sums have lost digits


class Stage(NamedTuple):
    """A step of the multipliers: λ_i was multiplied by exp((F_i(θ) − level)/τ)."""

    theta: Array
    level: float
    tau: float


class SumSettings(NamedTuple):
    """Settings of a round's sum, the same for all clients."""

    level: float = 0.0  # c
    tau: float | None = None  # temperature τ; None if there is no tilt
    finest: float | None = None  # smallest temperature s of the upper bound, if one is needed
    stages: tuple[Stage, ...] = ()  # steps of the multipliers so far


class Pooled(NamedTuple):
    """Content of a sum."""

    report: Report  # Φ with its gradient and curvature, as the report of one client
    upper: float  # bound of all clients' risks; infinite if the sum gives none
    imputed: bool = False  # whether some curvature is imputed


def size(task: Task, shape: Shape) -> int:
    """Return how many numbers a client adds to the sum."""
    return _HEAD + shape.size + shape.numbers(task.curvature)


def multiplier(weight: float, risks: Sequence[float], stages: Sequence[Stage]) -> float:
    """Return log λ_i after the stages, from the client's F_i at each of them.

    >>> stage = Stage(np.zeros(1), level=0.5, tau=0.1)
    >>> round(float(np.exp(multiplier(0.5, [0.6], [stage]))), 6)     # 0.5 e
    1.359141
    """
    moved = sum((F - s.level) / s.tau for F, s in zip(risks, stages, strict=True))
    return float(np.log(weight)) + moved


def terms(report: Report, log_weight: float, task: Task, tilt: SumSettings, shape: Shape) -> Array:
    """Return what a client adds to the sum; OverflowError if the level is far too low for it."""
    up = report.value - tilt.level
    scaled = 0.0 if tilt.tau is None else up / tilt.tau
    with np.errstate(over="raise", under="ignore"):
        try:
            a = float(np.exp(log_weight + scaled))
        except FloatingPointError:
            raise OverflowError("the level is too low") from None
    numbers = np.zeros(size(task, shape))
    numbers[2:4] = a, a * up
    if tilt.finest is not None:
        steps = up / _ladder(tilt.finest)
        numbers[4:_HEAD] = np.exp(np.minimum(steps, np.log(_MAX_TERM)))
    numbers[_HEAD : _HEAD + shape.size] = a * report.vector
    if task.curvature != "none":
        packed, sizes = report.curvature, shape.sizes(task.curvature)
        if packed is None or packed.size != shape.numbers(task.curvature):
            numbers[1] = 1.0  # counts missing curvatures, for which the mean of the others is used
        else:
            whole = packed.astype(np.float64)
            if tilt.tau is not None:
                outer = packing.outer(report.vector[None], np.ones(1), sizes)
                whole = whole + outer / tilt.tau
            numbers[_HEAD + shape.size :] = a * whole
    return numbers


def beyond(task: Task, shape: Shape) -> Array:
    """Return the numbers of a client that are out of range: a flag, and zeros."""
    numbers = np.zeros(size(task, shape))
    numbers[0] = 1.0
    return numbers


def is_beyond(total: Array) -> bool:
    """Return whether some client's numbers were out of range; the sum is not usable then."""
    return bool(total[0] != 0.0)


def combine(
    total: Array,
    task: Task,
    tilt: SumSettings,
    shape: Shape,
    number: int,
    name: str,
    rows: int,
    share: float = 1.0,
    clients: int = 1,
) -> Pooled:
    """Read the sum over `clients`, of shares of rows that add up to `share`, as one report."""
    a, rise = float(total[2]), float(total[3])
    gradient = total[_HEAD : _HEAD + shape.size] / a
    if tilt.tau is None:
        value = tilt.level + rise / a
    else:
        value = tilt.level + tilt.tau * float(np.log(a / share))
    packed, without = None, round(float(total[1]))
    if task.curvature != "none" and 0 <= without < clients:
        sizes = shape.sizes(task.curvature)
        packed = total[_HEAD + shape.size :] / a * (clients / (clients - without))
        if tilt.tau is not None:
            packed = packed - packing.outer(gradient[None], np.ones(1), sizes) / tilt.tau
        places = packing.diagonal_places(sizes)
        packed[places] = np.maximum(packed[places], 0.0)  # rounding
        packed = packed.astype(packing.precision(packed.size))
    upper = np.inf
    if tilt.finest is not None:
        usable = (total[4:_HEAD] >= _MIN_SUM) & (total[4:_HEAD] < 0.5 * _MAX_TERM)
        most = total[4:_HEAD][usable] * (1.0 + 1e-4)  # rounding, for up to 200 clients
        bounds = tilt.level + _ladder(tilt.finest)[usable] * np.log(most)
        upper = float(bounds.min(initial=np.inf))
    report = Report(name, number, rows, float(value), gradient, packed)
    return Pooled(report, upper, without > 0)


class LevelSearch(NamedTuple):
    """Levels tried: at `low` numbers were out of range, at `high` the sum was lost in rounding."""

    low: float | None = None
    high: float | None = None
    times: int = 0


def relevel(
    tilt: SumSettings, weight: float | None, tried: LevelSearch
) -> tuple[SumSettings, LevelSearch] | None:
    """Return another level if the level was unsuitable, else None.

    With a level that is too high few digits are left; with one that is too low numbers overflow.
    """
    if tilt.tau is None or (weight is not None and weight >= _MIN_WEIGHT):
        return None
    if weight:
        level = tilt.level + tilt.tau * float(np.log(weight))
        return tilt._replace(level=level), tried._replace(times=tried.times + 1)
    low, high = (tilt.level, tried.high) if weight is None else (tried.low, tilt.level)
    if low is None or high is None:
        step = 16.0 * tilt.tau * 2.0**tried.times
        level = tilt.level + (step if weight is None else -step)
    else:
        level = 0.5 * (low + high)
    return tilt._replace(level=level), LevelSearch(low, high, tried.times + 1)


def _ladder(finest: float) -> Array:
    return np.asarray(finest * 8.0 ** np.arange(_LADDER))
