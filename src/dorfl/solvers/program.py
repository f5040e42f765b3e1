"""The server's program: the step that lowers the largest of the clients' models most.

Around the centre, client i's risk is modelled by tangents j ∈ T_i (its own at the centre, and
those of earlier points) that share its curvature B_i. With λ_i = Σ_{j ∈ T_i} w_j the program is

    min_p max_j  v_j + a_jᵀp + ½ pᵀB_i p     =     max_w q(w),
    q(w) = min_p Σ_j w_j (v_j + a_jᵀp) + ½ pᵀB(λ)p,     B(λ) = Σ_i λ_i B_i

q is concave and smooth, with ∂q/∂w_j the j-th model at the minimiser p(w). It is maximised by
Newton's method on the simplex (sequential quadratic programming: J. Nocedal and S. Wright,
*Numerical Optimization*, 2006, section 18.4). Each iteration factorises B(λ) once and solves a
quadratic program in the weights near the maximum, about `FREE` of them, by a primal active set
method. Its work does not grow with the rounds, and grows with the number of clients only by one
product with each B_i.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dorfl.objective.mixture import Mixture
from dorfl.solvers.quasi_newton import Model
from dorfl.support.types import Array

FREE = 48  # tangents in a quadratic program, beside those with a weight below the cap
ACCURACY = 0.01  # duality gap of the program, as a share of the predicted decrease
SHORTENED = 6  # times that a step in w is shortened: after that only rounding is left
PROXIMAL = 1e-12  # times the largest of its diagonal, added to a quadratic program's
RESTARTS = 8  # of the active set method, at vertices where limits depend on each other
CHANGES = 4  # of the active set of a quadratic program, per weight


class Tangents(NamedTuple):
    """Tangents at a common centre, ridge included."""

    values: Array  # (J,)
    slopes: Array  # (J, P)
    owner: Array  # (J,) the client each belongs to


class Curvature(Protocol):
    """The clients' curvatures B_i."""

    def mixed(self, lam: Array) -> Model:
        """Return B(λ)."""

    def forms(self, move: Array) -> Array:
        """Return pᵀB_i p of every client, up to a constant common to all: (K,)."""

    def products(self, clients: Array, move: Array) -> Array:
        """Return B_i p of some clients, up to a vector common to all: (len(clients), P)."""


class Step(NamedTuple):
    """A solved program."""

    move: Array  # (P,) p
    weights: Array  # (J,) w
    lam: Array  # (K,) λ
    dual: float  # q(w): no step lowers the model further
    model: float  # the largest model at the move
    plane: float  # the largest tangent at the move, without curvature


def solve(
    tangents: Tangents, curvature: Curvature, mixture: Mixture, weights: Array, iterations: int
) -> Step:
    """Return the solution of the program, or the best found in so many factorisations of B(λ).

    `weights` is where to start: any that the mixture's rule allows.
    """
    values, slopes, owner = tangents
    count = int(owner.max()) + 1
    height = _height(mixture, values, owner, count)
    best: Step | None = None
    last, last_dual, rise, shortened = weights, -np.inf, 0.0, 0
    for _ in range(iterations):
        lam = np.bincount(owner, weights, count)
        bend = curvature.mixed(lam)
        move = -bend.solve(weights @ slopes)
        common, forms = bend.multiply(move), curvature.forms(move)
        plane, curved = values + slopes @ move, float(move @ common)
        # Secants correct B(λ) alone: each client's curvature is corrected in proportion.
        share = curved / max(float(lam @ forms), 1e-300)
        reached = plane + 0.5 * share * forms[owner]
        dual = float(weights @ reached)
        model = _height(mixture, reached, owner, count)
        if best is not None and dual < last_dual and model > best.model:
            shortened += 1
            if shortened > SHORTENED:
                break
            # The step was too long: take the maximum of the parabola through both ends.
            share = min(max(0.5 * rise / (rise - (dual - last_dual)), 0.1), 0.5)
            rise *= share
            weights = last + share * (weights - last)
            continue
        last, last_dual, shortened = weights, dual, 0
        level = _height(mixture, plane, owner, count)
        best = _better(best, Step(move, weights, lam, dual, model, level))
        if len(values) == 1 or best.model - best.dual <= ACCURACY * max(height - best.model, 0.0):
            break
        free = _free(reached, weights, owner, lam, mixture.cap)
        clients, place = np.unique(owner[free], return_inverse=True)
        ahead = share * (curvature.products(clients, move) - _mean(curvature, lam, move))
        rows = slopes[free] + common + ahead[place]
        solved = bend.solve(rows)
        quadratic = rows @ solved.T
        found = quadratic_program(quadratic, reached[free], weights[free], mixture.cap, owner[free])
        rise = max(float(reached[free] @ (found - weights[free])), 0.0)
        weights = weights.copy()
        weights[free] = found
    assert best is not None
    return best


def _better(best: Step | None, new: Step) -> Step:
    """Return the mixture with the larger dual value and the move with the lower model."""
    if best is None:
        return new
    if new.dual < best.dual:
        new = new._replace(weights=best.weights, lam=best.lam, dual=best.dual)
    if new.model > best.model:
        new = new._replace(move=best.move, model=best.model, plane=best.plane)
    return new


def _mean(curvature: Curvature, lam: Array, move: Array) -> Array:
    """Return Σ_i λ_i B_i p over the clients with a weight."""
    some = np.flatnonzero(lam)
    return np.asarray(lam[some] @ curvature.products(some, move))


def _height(mixture: Mixture, reached: Array, owner: Array, count: int) -> float:
    """Return the objective of models: of each client the largest, then the worst mixture."""
    most = np.full(count, -np.inf)
    np.maximum.at(most, owner, reached)
    return mixture.height(most)


def _free(reached: Array, weights: Array, owner: Array, lam: Array, cap: float) -> Array:
    """Return the tangents whose weights may change: those near the worst mixture's threshold."""
    if len(reached) <= FREE:
        return np.arange(len(reached))
    level = float(reached[weights > 0.0].min()) if cap < 1.0 else float(reached.max())
    near = np.argsort(np.abs(reached - level), kind="stable")[:FREE]
    top = np.argsort(-reached, kind="stable")[:FREE]
    below = (lam[owner] < cap * (1.0 - 1e-9)) | (cap == 1.0)
    partial = np.flatnonzero((weights > 0.0) & below)
    return np.unique(np.concatenate([near, top, partial]))


def quadratic_program(
    quadratic: Array, slope: Array, start: Array, cap: float, owner: Array
) -> Array:
    """Return the w ≥ 0 with Σ w = Σ start that maximises slopeᵀδ − ½ δᵀ quadratic δ, δ = w − start.

    No owner has more than `cap`. The primal active set method (Nocedal and Wright, algorithm 16.3)
    is exact to the last digits. An interior point method finds half of them, and near the optimum
    all that is left to gain depends on the others. `PROXIMAL` makes the solution unique.

    >>> quadratic_program(np.eye(2), np.zeros(2), np.array([1.0, 0.0]), 1.0, np.arange(2))
    array([1., 0.])
    >>> slope = np.array([-1.0, 0.0])
    >>> quadratic_program(np.eye(2), slope, np.array([1.0, 0.0]), 1.0, np.arange(2)).round(9)
    array([0.5, 0.5])
    """
    # The constraint on the sum would be lost to rounding beside much larger numbers.
    scale = max(float(np.diag(quadratic).max()), 1.0)
    bend, slope = quadratic / scale, slope / scale
    bend = bend + np.eye(len(slope)) * (PROXIMAL * float(np.diag(bend).max()))
    weights = start
    for _ in range(RESTARTS):
        weights = _active_set(bend, slope + bend @ (start - weights), weights, cap, owner)
        ahead = slope + bend @ (start - weights)
        toward = _largest(ahead, float(start.sum()), cap, owner) - weights
        gain, bent = float(ahead @ toward), float(toward @ bend @ toward)
        if gain <= 4.0 * float(np.finfo(float).eps * np.abs(slope).max()):
            break
        # A vertex at which the limits depend on each other: leave it by a step of Frank and Wolfe.
        weights = weights + min(1.0, gain / bent if bent > 0.0 else 1.0) * toward
    return weights


def _largest(slope: Array, total: float, cap: float, owner: Array) -> Array:
    """Return the weights w ≥ 0 with sum `total`, at most `cap` an owner, that maximise slopeᵀw."""
    weights, owners = np.zeros(len(slope)), set[int]()
    for j in np.argsort(-slope, kind="stable"):
        if owner[j] not in owners:
            owners.add(int(owner[j]))
            weights[j] = min(cap, total)
            total -= weights[j]
    return weights


def _active_set(bend: Array, slope: Array, start: Array, cap: float, owner: Array) -> Array:
    """Return weights that are stationary for the limits that hold with equality there."""
    count = len(slope)
    limits, most = np.ones((1, count)), np.array([np.inf])  # the first is the sum
    if cap < 1.0:
        limits = np.vstack([limits, owner == np.unique(owner)[:, None]])
        most = np.append(most, np.full(len(limits) - 1, cap))
    weights, ahead = start.copy(), slope.copy()
    zero, full = weights <= 0.0, limits @ weights >= most * (1.0 - 1e-12)
    full[0] = True
    exact = 4.0 * float(np.finfo(float).eps * np.abs(slope).max())
    for _ in range(CHANGES * count):
        free, held = np.flatnonzero(~zero), limits[full]
        block, none = held[:, free], np.zeros((len(held), len(held)))
        matrix = np.block([[bend[np.ix_(free, free)], block.T], [block, none]])
        found = np.linalg.lstsq(matrix, np.append(ahead[free], none[0]), rcond=1e-15)[0]
        move, prices = np.zeros(count), found[len(free) :]
        move[free] = found[: len(free)]
        with np.errstate(divide="ignore", invalid="ignore"):
            down = np.where(move < 0.0, -weights / move, np.inf)
            rise = limits @ move
            up = np.where((rise > 0.0) & ~full, (most - limits @ weights) / rise, np.inf)
        share = min(1.0, float(down.min()), float(up.min()))
        weights, ahead = weights + share * move, ahead - share * (bend @ move)
        if share < 1.0:
            zero |= down <= share
            full |= up <= share
            weights[zero] = 0.0
            continue
        gain = np.where(zero, ahead - prices @ held, -np.inf)
        loss = np.full(len(full), np.inf)
        loss[full] = prices
        loss[0] = np.inf
        if max(float(gain.max()), -float(loss.min())) <= exact:
            break
        if gain.max() >= -loss.min():
            zero[np.argmax(gain)] = False
        else:
            full[np.argmin(loss)] = False
    return np.asarray(weights * (start.sum() / weights.sum()))
