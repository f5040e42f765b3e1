"""How bad a model can be in the user's words: so many rows are wrong, the rest drifts so far.

At most a share ε of every client's rows are wrong, and the population to come, P, is within a drift
of the good rows P̂_G, whichever they are: W(P, P̂_G) ≤ w = ½ drift², rows moving in standard
deviations of their columns. Of the populations that lie no further out than η(w), E_P[h₀] ≤ η(w),
none has a larger mean of l than

    B(w, ε) = min over ρ, t ≥ 0 of  ρ w + t η(w) + Σ_i λ_i M_i(ρ, t),

with f_{ρ,t}(ζ) = sup_ξ l(ξ) − t h₀(ξ) − ρ c(ξ, ζ) and M_i the mean of the largest 1 − ε of client
i's f: the good rows may be any. h₀ is the squared distance from the client's centre in standard
deviations, η(w) = (√η₀ + drift)², and η₀ = Σ_i λ_i η_i the mean of h₀ over the nearest 1 − ε of the
rows. Every ρ and t gives a bound, so a coarse minimum is safe, and t = 0 needs no η at all.
`docs/certificate.md` has the proof, and how Lemma 1 and Proposition 2 of the paper give the same
with a larger set of weights than the good rows can have.

Nothing else about w and ε is in M and η: what a client tells once (:class:`Told`) makes every point
of a curve.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np

from dorfl.data.spread import Spread
from dorfl.objective import costs, methods, scores
from dorfl.oracle.group import Group
from dorfl.oracle.inner import apply
from dorfl.oracle.problem import Problem
from dorfl.support.threads import each, one_blas_thread
from dorfl.support.types import Array

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)  # of wrong rows, for a curve
# The prices of moving a row and the weights of lying out, in units of the loss and of an ordinary
# row's h₀: as fine as is worth its time, wider than any optimum seen.
_RHO = (512.0, 128.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.06, 0.015, 0.001)
_T = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 3.0, 30.0)
_WORK = 20_000_000  # points times rows times outputs: some seconds …
_FEW = 50  # … of so few outputs; of more, the matrices of every two take most of the time
_BLOCK = 4096  # rows; what is made of them stays in the cache
NO_BOUND = 1e30  # told where the supremum is infinite


class Units(NamedTuple):
    """What moving a row costs, Σ ½ w_k (x_k − ζ_k)², and how far out it lies, Σ v_k (x_k − ξ̄_k)².

    A column that can move has v = w; `moves` is infinite where it cannot, `tells` zero where it
    says nothing of how far out a row lies.
    """

    moves: Array
    tells: Array


class Told(NamedTuple):
    """What a client tells of its rows, for every point (ρ, t) and every share ε; no row is in it.

    `near` is η_i at every share; `loss` and `error` are M_i (points, shares) of the loss, and of
    the 0–1 loss or, for a regression, of the absolute error.
    """

    near: Array
    loss: Array
    error: Array


class Question(NamedTuple):
    """Where clients evaluate: prices and shares all agree on, in the units of loss and error."""

    points: tuple[tuple[float | None, float], ...]  # (ρ, t); nothing: rows do not move
    shares: tuple[float, ...]
    loss: float = 1.0
    error: float = 1.0


def units_of(spread: Spread, frozen: Sequence[int]) -> Units:
    """One standard deviation of every column; frozen columns and those of one value do not move.

    >>> units_of(Spread(np.array([2.0, 1.0])), frozen=[1])
    Units(moves=array([0.25,  inf]), tells=array([0.25, 0.  ]))
    """
    known = np.where(spread.units > 0, spread.units, np.inf)
    tells = known**-2.0
    tells[list(frozen)] = 0.0
    moves = np.where(tells > 0, tells, np.inf)
    moves[list(spread.rigid)] = np.inf
    return Units(moves, tells)


def question(
    units: Units, outliers: float, *, thin: int = 1, loss: float = 1.0, error: float = 1.0
) -> Question:
    """The grid, or every `thin`-th price and weight of it, and the shares of a curve.

    >>> len(question(Units(np.ones(2), np.ones(2)), 0.1, thin=4).points)
    12
    """
    scale = max(int((units.tells > 0).sum()), 1)  # h₀ of an ordinary row
    prices, weights = (None, *_RHO[thin - 1 :: thin]), (0.0, *_T[thin - 1 :: thin])
    points = tuple((price, weight / scale) for price in prices for weight in weights)
    return Question(points, tuple(sorted({*SHARES, float(outliers)})), float(loss), float(error))


def brief(asked: Question, share: float) -> Question:
    """A question in its place for who may tell little: every second price and weight, one share.

    Its points are among those of `asked`, so what answers that answers this: :func:`shortened`.

    >>> whole = question(Units(np.ones(2), np.ones(2)), 0.1)
    >>> [2 * len(q.points) * len(q.shares) for q in (whole, brief(whole, 0.1))]
    [2160, 96]
    """
    prices, weights = (list(dict.fromkeys(part)) for part in zip(*asked.points, strict=True))
    kept = {*prices[:1], *prices[2::2]}, {*weights[:1], *weights[2::2]}
    points = tuple(at for at in asked.points if at[0] in kept[0] and at[1] in kept[1])
    return asked._replace(points=points, shares=(share,))


def shortened(told: Told, asked: Question, less: Question) -> Told:
    """What a client tells that answers all of `asked`, as an answer to less; or as it is."""
    if told.loss.shape == (len(less.points), len(less.shares)):
        return told
    rows = [asked.points.index(at) for at in less.points]
    columns = [asked.shares.index(share) for share in less.shares]
    at = np.ix_(rows, columns)
    return Told(told.near[columns], told.loss[at], told.error[at])


def thinness(rows: int, outputs: int) -> int:
    """Which grid so many rows in all are asked for: a finer one would take too long."""
    work = len(_RHO) * len(_T) * rows * outputs * max(outputs / _FEW, 1.0) ** 2
    return min(1 + int((work / _WORK) ** 0.5), 9)  # beyond, no price would be left


def tell(group: Group, theta: Array, units: Units, asked: Question, least: int = 1) -> list[Told]:
    """What each client of a group tells of θ; every number is a mean over blocks of `least` rows.

    Blocks make a mean of somewhat fewer rows of the largest f, or of somewhat more of the nearest:
    larger, never smaller.
    """
    asks = partial(_tell_some, group, np.ravel(theta), units, asked, least)
    with one_blas_thread():
        return list(chain.from_iterable(each(asks, group.batches())))


def _tell_some(
    group: Group, theta: Array, units: Units, asked: Question, least: int, clients: range
) -> list[Told]:
    plain, parameter = reduced(group, theta, units, clients)
    parts = [slice(first, stop) for first, stop in pairwise(plain.bounds.tolist())]
    far = _priced(plain, np.inf, 1.0).penalty
    kept = [[_kept(at.stop - at.start, part, least) for part in asked.shares] for at in parts]
    nowhere = np.full((len(asked.points), len(asked.shares)), NO_BOUND)
    told = [
        Told(-_largest(-far[at], [outer for _, outer in own]), nowhere.copy(), nowhere.copy())
        for at, own in zip(parts, kept, strict=True)
    ]
    good = [[inner for inner, _ in own] for own in kept]
    for price, same in groupby(enumerate(asked.points), key=lambda point: point[1][0]):
        points, weights = zip(*((k, weight) for k, (_, weight) in same), strict=True)
        priced = {
            unit: [_priced(plain, np.inf if price is None else unit * price, unit * weight)
                   for weight in weights]
            for unit in {asked.loss, asked.error}
        }  # fmt: skip
        for of, worst in (("loss", _loss), ("error", _error)):
            # Many points at once: of few rows, a point costs more in calls than in numbers.
            f = np.full((len(points), len(far)), np.inf)
            for values, at in zip(f, priced[getattr(asked, of)], strict=True):
                if at.problem.is_finite(parameter):
                    values[:] = worst(at, parameter)
            for part, one, own in zip(parts, told, good, strict=True):
                means = np.minimum(_largest(f[:, part], own), NO_BOUND)
                getattr(one, of)[points[0] : points[-1] + 1] = means
    return told


def _largest(f: Array, counts: Sequence[int]) -> Array:
    """The means of so many of the largest of f, along its last axis; of none, no bound.

    >>> _largest(np.array([1.0, 5.0, 3.0]), [1, 2, 3])
    array([5., 4., 3.])
    """
    rows = f.shape[-1]
    cuts = sorted({rows - count for count in counts} - {0, rows})
    parted = np.partition(f, cuts) if cuts else f
    edges = [rows, *cuts[::-1], 0]
    sums = np.cumsum([parted[..., a:b].sum(axis=-1) for b, a in pairwise(edges)], axis=0)
    added = {rows - a: total for a, total in zip(edges[1:], sums, strict=True)}
    none = np.full(f.shape[:-1], NO_BOUND)
    return np.stack([added[n] / n if n else none for n in counts], axis=-1)


def bound(
    told: Sequence[Told], lam: Array | None, asked: Question, share: float, drift: float,
    *, of: str = "loss", anywhere: bool = False,
) -> float:  # fmt: skip
    """B at a share that was asked for and any drift, of the mixture λ, or of every mixture at once.

    `of` is "loss" or "error". With `anywhere` the bound is that of t = 0, for all populations
    within the drift, however far out they lie.
    """
    column = asked.shares.index(share)
    near = np.array([part.near[column] for part in told])
    means = np.array([getattr(part, of)[:, column] for part in told])
    away = float(near.max() if lam is None else lam @ near)
    mean = means.max(axis=0) if lam is None else np.where(lam[:, None] > 0, means, 0.0).T @ lam
    unit, out = getattr(asked, of), (away**0.5 + drift) ** 2
    found = np.inf
    for (price, weight), value in zip(asked.points, mean.tolist(), strict=True):
        if value >= NO_BOUND * 1e-9 or (anywhere and weight) or (price is None and drift > 0):
            continue
        moving = 0.0 if price is None else unit * price * 0.5 * drift**2
        found = min(found, moving + unit * weight * out + value)
    return found


def reduced(
    group: Group, theta: Array, units: Units, clients: range | None = None
) -> tuple[Group, Array]:
    """Clients of a group, or all, in as few columns as the supremum depends on, and θ for them.

    A row moves in the span of the weights only, and towards its centre. So its columns become: its
    coordinates in that span, in standard deviations; how far it is from the centre across it; how
    far in columns that tell but cannot move; and the outputs of all columns that cannot move.
    """
    problem = group.problem
    weights, intercept = problem.split(theta)
    free, still = np.isfinite(units.moves), np.isinf(units.moves) & (units.tells > 0)
    scale = np.sqrt(units.moves[free])
    basis, slopes = np.linalg.qr((weights[:, free] / scale).T)  # weights = (basis · slopes)ᵀ
    span, outputs = basis.shape[1], problem.outputs
    clients = range(len(group.names)) if clients is None else clients
    bounds = group.bounds[clients.start : clients.stop + 1]
    own = slice(*bounds[[0, -1]].tolist())
    rows = np.empty((own.stop - own.start, span + 2 + outputs))
    centers = np.zeros((len(clients), *group.centers.shape[1:-1], rows.shape[1]))
    onto = np.zeros((len(free), span + outputs))  # along the span, and to what cannot move
    onto[free, :span] = scale[:, None] * basis
    onto[~free, span:] = weights[:, ~free].T
    lengths = np.column_stack([np.where(free, units.moves, 0.0), np.where(still, units.tells, 0.0)])
    for i, (first, stop) in enumerate(pairwise((bounds - own.start).tolist())):
        centers[i, ..., :span] = (group.centers[clients[i]] @ onto)[..., :span]
        for start in range(first, stop, _BLOCK):
            part = slice(start, min(start + _BLOCK, stop))
            whole = slice(own.start + part.start, own.start + part.stop)
            center = group.center_of(clients[i], whole)
            middle, offset = center @ onto, group.rows[whole] - center
            found = offset @ onto
            along = found[:, :span]
            squares = np.square(offset, out=offset) @ lengths
            squares[:, 0] -= np.einsum("ij,ij->i", along, along)
            rows[part, :span] = along + middle[..., :span]
            rows[part, span : span + 2] = np.sqrt(np.maximum(squares, 0.0))
            rows[part, span + 2 :] = found[:, span:] + middle[..., span:] + intercept
    parameter = np.zeros((outputs, rows.shape[1]))
    parameter[:, :span] = slopes.T
    parameter[:, span + 2 :] = np.eye(outputs)
    moves = np.where(np.arange(rows.shape[1]) <= span, 1.0, np.inf)
    method = methods.method(
        cost=costs.squared(moves.tolist(), label_price=problem.method.cost.label_price)
    )
    smaller = Problem(method, problem.loss, rows.shape[1], problem.classes, intercept=False)
    names = group.names[clients.start : clients.stop]
    target, bounds = group.target[own], bounds - own.start
    return Group(smaller, names, rows, target, bounds, centers), parameter.ravel()


def _priced(plain: Group, rho: float, weight: float) -> Group:
    """The reduced clients at a price ρ of moving and a weight t of the score."""
    problem = plain.problem
    tells = np.where(np.arange(problem.dims) < problem.dims - problem.outputs, 1.0, 0.0)
    method = methods.method(
        rho=None if np.isinf(rho) else rho,
        cost=problem.method.cost,
        score=scores.quadratic(weight, matrix=tells),
    )
    return replace(plain, problem=replace(problem, method=method))


def _loss(at: Group, theta: Array) -> Array:
    """f of the loss, of every row; where it is climbed for, with the most that may be missed."""
    if not at.problem.approximate:
        return at.kept(theta).value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what cannot be shown is told as no bound
        atoms = at.atoms(theta)
    return np.asarray(atoms.value + atoms.error)


def _error(at: Group, theta: Array) -> Array:
    """f of the 0–1 loss, of every row; for a regression, of the absolute error.

    A row is pulled to m, at no more than its penalty. From there the nearest boundary costs
    a²/2S, a being the margin at m and S what a unit of it takes; a row on a boundary is an error.
    For the absolute error |a − y| the best is to move on by S, and gains ½ S.
    """
    problem, shape, target, penalty = at.problem, at.problem.geometry, at.target, at.penalty
    weights, intercept = problem.split(theta)
    out = at.standing @ apply(shape.shrink, weights).T  # θᵀm, as in a pass over rows
    out += np.repeat(at.anchors @ weights.T + intercept, at.counts, axis=0)
    spread = shape.spread(weights)
    if not problem.loss.classifies:
        return np.asarray(np.abs(out[:, 0] - target) + 0.5 * spread[0, 0] - penalty)
    labels, classes = problem.decode(target), problem.classes
    chords = np.diag(spread)[:, None] + np.diag(spread) - 2.0 * spread

    def gain(labels: Array) -> Array:
        if problem.outputs == 1:  # of two classes the first has the output 0
            return _nearest(out[:, 0] * (2.0 * (labels == classes[1]) - 1.0), spread[0, 0])
        own = np.searchsorted(classes, labels)[:, None]
        margin = np.take_along_axis(out, own, axis=1) - out
        np.put_along_axis(margin, own, np.inf, axis=1)
        return np.asarray(_nearest(margin, chords[own[:, 0]]).max(axis=1))

    found = gain(labels)
    price = problem.method.rho * problem.method.cost.label_price
    if np.isfinite(price):
        for other in classes:
            changed = gain(np.full_like(labels, other)) - price
            found = np.maximum(found, np.where(labels == other, 0.0, changed))
    return np.asarray(found - penalty)


def _nearest(margin: Array, chord: Array) -> Array:
    """max(0, 1 − what it takes to reach a boundary), by its margin and what a unit of it takes."""
    ahead = np.maximum(margin, 0.0)
    return np.asarray(np.maximum(1.0 - ahead * ahead / (2.0 * np.maximum(chord, 1e-300)), 0.0))


def _kept(rows: int, share: float, least: int) -> tuple[int, int]:
    """How many rows are good at least, at the next end of a block inwards and outwards."""
    good = rows - int(share * rows + 1e-9)
    blocks = max(rows // max(least, 1), 1)
    ends = np.arange(blocks + 1) * rows // blocks
    return int(ends[ends <= good].max()), int(ends[ends >= good].min())
